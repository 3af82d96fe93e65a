"""The codecs of Avro's blocks, decompressed by Arrow and Python.

``fastavro`` would need further libraries for snappy, which Spark writes, and for zstandard.
"""

from __future__ import annotations

import bz2
import lzma
import zlib

from sluice.errors import ConfigurationError
from sluice.extras import require

CODECS = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")

# Three bytes of snappy hold 64 at most.  A block that claims more is damaged, and is not allocated.
SNAPPY_AT_BEST = 64


def decompressed(codec: str, body: bytes, what: str) -> bytes:
    """The bytes of a block's rows; *what* names the block in errors.

    Raises:
        ConfigurationError: the block is damaged.
    """
    try:
        return _decompress(codec, body)
    except (zlib.error, OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise ConfigurationError(f"{what} is damaged ({error}); restore it") from error


def _decompress(codec: str, body: bytes) -> bytes:
    match codec:
        case "null":
            return body
        case "deflate":
            return zlib.decompress(body, -zlib.MAX_WBITS)
        case "snappy":
            return _unsnap(body[:-4])  # A checksum of the text follows.
        case "zstandard":
            require("zstandard", who="Avro compressed with zstandard")
            import zstandard

            try:
                return zstandard.ZstdDecompressor().decompressobj().decompress(body)
            except zstandard.ZstdError as error:
                raise ValueError(str(error)) from error
        case "bzip2":
            return bz2.decompress(body)
        case _:
            return lzma.decompress(body)


def _unsnap(body: bytes) -> bytes:
    """Decompress snappy's block format, which begins with the size of the text."""
    import pyarrow as pa

    size = shift = 0
    for byte in body:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if size > len(body) * SNAPPY_AT_BEST:
        raise ValueError(f"{len(body)} bytes cannot be {size} of text")
    return bytes(pa.Codec("snappy").decompress(body, decompressed_size=size))
