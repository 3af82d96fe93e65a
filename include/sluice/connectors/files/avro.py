"""Rows of Avro files, in a folder, a bucket, or one by one: a source whose offsets are rows.

``plan`` reads the headers of blocks only, and cuts at any row, preferably at a block's end.  Blocks
outside of a range are skipped by their headers; those inside are decompressed, and decoded by
``fastavro``.  A file that is cut off between two blocks looks complete: the format has no end mark.
``connectors/avro.py`` lists the types of columns.
"""

from __future__ import annotations

import io
import json
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, TYPE_CHECKING, cast

from sluice.connectors.avro import CODECS, AvroColumn, decompressed, map_schema
from sluice.connectors.columns import not_of_type, sentence
from sluice.connectors.files.encodings import BLOCK_BYTES
from sluice.connectors.files.source import NotWholeError
from sluice.connectors.files.whole_files import Footer, WholeFile, WholeFileSource
from sluice.declaration.columns import check_source_columns
from sluice.errors import ConfigurationError, StoreUnavailable
from sluice.extras import require_installed
from sluice.store.object_store import RangeReader

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
SYNC = bytes(SYNC_BYTES)  # Of containers that are made here to be decoded.
LONGEST_SHIFT = 63  # The bytes of a number of 64 bits.

# The limits of what is decoded at once, as Python's objects; the schema is parsed once for each.
CHUNK_BYTES = 4 * 1024 * 1024
CHUNK_ROWS = 50_000

# The index of a file of 10 GB in blocks of 16 kB takes 10 MB.
INDEXES_KEPT = 256


@dataclass(frozen=True, slots=True)
class AvroFile(WholeFile):
    """An Avro container file, of which the headers of all blocks are the footer."""

    def footer(self) -> Footer:
        return _footer(self)

    def rows(
        self,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,  # noqa: ARG002 - a block is decoded as a whole
    ) -> Iterator[pa.RecordBatch]:
        with self.opened() as file:
            header = self.header(file)
            at = 0
            chunk: list[bytes] = []
            skipped = rows = size = 0
            for block in self.blocks(file, header):
                begin, at = at, at + block.rows
                if at <= start or block.rows == 0:
                    continue
                if not chunk:
                    skipped = max(start - begin, 0)
                chunk.append(self._decompressed(file, header, block))
                rows += block.rows
                size += len(chunk[-1])
                if at >= end or rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
                    wanted = rows - max(at - end, 0)
                    yield self._decoded(header, chunk, rows).slice(skipped, wanted - skipped)
                    chunk, rows, size = [], 0, 0
                if at >= end:
                    return
            if chunk:
                yield self._decoded(header, chunk, rows).slice(skipped)

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        path = self.files.local_path(self.name)
        try:
            if path is not None:
                with path.open("rb") as file:
                    yield file
                return
            reader = RangeReader(self.files.store_of(self.name), self.name, self.size_bytes)
            with io.BufferedReader(reader, BLOCK_BYTES) as buffered:
                yield buffered
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{self.what} vanished while it was read") from error

    def header(self, file: IO[bytes]) -> ContainerHeader:
        magic = file.read(len(MAGIC))
        if magic != MAGIC:
            kind = NotWholeError if MAGIC.startswith(magic) else ConfigurationError
            raise kind(
                f"{self.what} is not a whole Avro file; remove it, or write it elsewhere and move "
                "it here when it is whole"
            )
        try:
            return self._parsed(file)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{self.what} is damaged: its header cannot be read ({sentence(error)}); restore it"
            ) from error

    def _parsed(self, file: IO[bytes]) -> ContainerHeader:
        metadata: dict[str, bytes] = {}
        while count := self._long(file):
            if count < 0:
                count = -count
                self._long(file)  # The size of these entries in bytes.
            for _ in range(count):
                key = self._bytes(file, self._long(file)).decode()
                metadata[key] = self._bytes(file, self._long(file))
        codec = metadata.get("avro.codec", b"null").decode()
        if codec not in CODECS:
            raise ConfigurationError(
                f"{self.what} is compressed with {codec!r}; write it with one of "
                f"{', '.join(CODECS)}"
            )
        schema = json.loads(metadata["avro.schema"])
        return ContainerHeader(map_schema(schema, self.what), codec, self._bytes(file, SYNC_BYTES))

    def blocks(self, file: IO[bytes], header: ContainerHeader) -> Iterator[Block]:
        """The blocks behind the header; their bodies are not read."""
        at = file.tell()
        while at < self.size_bytes:
            file.seek(at)
            rows, size = self._long(file), self._long(file)
            begin = file.tell()
            if rows < 0 or size < 0:
                raise ConfigurationError(
                    f"{self.what} is damaged at byte {at}, where a block should begin; restore it"
                )
            file.seek(begin + size)
            if self._bytes(file, SYNC_BYTES) != header.sync:
                raise ConfigurationError(
                    f"{self.what} is damaged at byte {begin + size}, where a block should end; "
                    "restore it"
                )
            at = begin + size + SYNC_BYTES
            yield Block(rows, (begin, size))

    def _decompressed(self, file: IO[bytes], header: ContainerHeader, block: Block) -> bytes:
        begin, size = block.body
        file.seek(begin)
        body = self._bytes(file, size)
        return decompressed(header.codec, body, f"{self.what}, behind byte {begin},")

    def _decoded(
        self, header: ContainerHeader, chunk: Sequence[bytes], rows: int
    ) -> pa.RecordBatch:
        require_installed("fastavro", who=self.what)
        import fastavro
        import pyarrow as pa

        blob = b"".join([_start_of(json.dumps(header.mapped.plain)), *_block(chunk, rows)])
        try:
            records = cast("list[dict[str, object]]", list(fastavro.reader(io.BytesIO(blob))))
        except (
            EOFError,
            ValueError,
            LookupError,
            TypeError,
            ArithmeticError,
            struct.error,
        ) as error:
            raise ConfigurationError(
                f"{self.what} is damaged: its rows do not fit its schema ({sentence(error)}); "
                "restore it"
            ) from error
        except fastavro.schema.SchemaParseException as error:
            raise ConfigurationError(
                f"{self.what} has a schema that is not valid Avro ({sentence(error)}); restore it"
            ) from error
        columns = []
        mapped = header.mapped
        for field in mapped.column:
            try:
                values = [record[field.name] for record in records]
                columns.append(mapped.array_of(field.name, values))
            except (pa.ArrowInvalid, OverflowError) as error:
                raise not_of_type(field, self.what, error) from error
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(mapped.column)))

    def _long(self, file: IO[bytes]) -> int:
        """Read a number in Avro's zigzag encoding."""
        value = shift = 0
        while True:
            byte = self._bytes(file, 1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > LONGEST_SHIFT:
                raise ConfigurationError(
                    f"{self.what} is damaged: a number in it has no end; restore it"
                )

    def _bytes(self, file: IO[bytes], size: int) -> bytes:
        body = file.read(size) if 0 <= size <= self.size_bytes else b""
        if len(body) < size or size < 0:
            raise NotWholeError(
                f"{self.what} ends in the middle of a block; remove it, or write it elsewhere and "
                "move it here when it is whole"
            )
        return body


@dataclass(frozen=True, slots=True)
class ContainerHeader:
    mapped: AvroColumn
    codec: str
    sync: bytes


@dataclass(frozen=True, slots=True)
class Block:
    """A block of rows; ``body`` is the first byte and the size of its compressed rows."""

    rows: int
    body: tuple[int, int]


@dataclass(frozen=True, slots=True)
class AvroSource(WholeFileSource):
    """The rows of *location*: a file, or every file below a folder."""

    _format_name = "Avro"
    _kind = AvroFile


@lru_cache(maxsize=INDEXES_KEPT)
def _footer(of: AvroFile) -> Footer:
    import pyarrow as pa

    ends = array("q")
    rows = 0
    with of.opened() as file:
        header = of.header(file)
        for block in of.blocks(file, header):
            rows += block.rows
            ends.append(rows)
    schema = pa.schema(list(header.mapped.column))
    check_source_columns(schema.names, of.what)
    return Footer(schema, ends)


@lru_cache(maxsize=16)
def _start_of(plain_schema: str) -> bytes:
    """The header of an uncompressed container of these rows."""
    body = plain_schema.encode()
    return b"".join(
        [MAGIC, _number(1), _number(11), b"avro.schema", _number(len(body)), body, _number(0), SYNC]
    )


def _block(chunk: Sequence[bytes], rows: int) -> list[bytes]:
    return [_number(rows), _number(sum(map(len, chunk))), *chunk, SYNC]


def _number(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
