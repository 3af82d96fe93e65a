"""The codecs of Avro's blocks: ``fastavro`` needs libraries of its own for what Spark writes
(snappy) and for zstandard, so blocks are decompressed here.
"""

from __future__ import annotations

import bz2
import lzma
import zlib

from sluice.errors import ConfigurationError

CODECS = ("null", "deflate", "snappy", "zstandard", "bzip2", "xz")

# Three bytes of it stand for 64 at most: what claims more is damaged, and takes no memory.
SNAPPY_AT_BEST = 64


def decompressed(codec: str, body: bytes, what: str) -> bytes:
    """A block's rows; *what* names it in errors.

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
            return _unsnap(body[:-4])  # Behind it is a checksum of the text.
        case "zstandard":
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
    """Snappy's block format, which begins with the size of the text."""
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
