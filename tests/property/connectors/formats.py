"""Formats of files, as the properties need them: rows to bytes, and the source that reads them."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from hypothesis import strategies as st

from sluice.connectors.files.avro import AvroSource
from sluice.connectors.files.folders import FolderColumns
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.source import FileSource
from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import Barrier, SourcePosition
from sluice.errors import ConfigurationError

T = TypeVar("T")

AVRO_ROW = {"type": "record", "name": "row", "fields": [{"name": "line", "type": "string"}]}


def lines(rows: Sequence[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def parquet(rows: Sequence[str]) -> bytes:
    body = io.BytesIO()
    table = pa.table({"line": pa.array(rows, pa.string())})
    pq.write_table(table, body, row_group_size=3, use_dictionary=False)
    return body.getvalue()


def avro(rows: Sequence[str]) -> bytes:
    body = io.BytesIO()
    fastavro.writer(
        body, AVRO_ROW, [{"line": row} for row in rows], sync_interval=30, codec="deflate"
    )
    return body.getvalue()


@dataclass(frozen=True)
class Format:
    """``grows``: more rows may be appended; ``has_end``: no true prefix of a file looks whole."""

    name: str
    kind: Callable[..., FileSource[Any]]
    encoded: Callable[[Sequence[str]], bytes]
    suffix: str = ""
    grows: bool = False
    has_end: bool = True

    def __repr__(self) -> str:
        return self.name

    def source(self, folder: Path, **how: Any) -> Any:
        """Folders of any name, which are no columns."""
        return self.kind(str(folder), folders=FolderColumns(), **how)


FORMATS = (
    Format("text", FilesSource, lines, grows=True, has_end=False),
    Format("gzip", FilesSource, lambda rows: gzip.compress(lines(rows), mtime=0), ".gz"),
    Format("zstd", FilesSource, lambda rows: zstandard.compress(lines(rows)), ".zst"),
    Format("parquet", ParquetSource, parquet),
    Format("avro", AvroSource, avro, has_end=False),
)

TEXT, _, _, PARQUET, AVRO = FORMATS

# A column's type and a value of it, in Avro's words and in Arrow's.
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "int": (pa.int32(), 1),
    "long": (pa.int64(), 1),
    "double": (pa.float64(), 1.0),
    "string": (pa.string(), "1"),
    "boolean": (pa.bool_(), True),
}
TYPES = st.sampled_from(sorted(VALUES))


def with_columns(format_: Format, kind: str, *, has_more: bool) -> bytes:
    """A file of one row, with ``line`` of another type, and perhaps a column behind it."""
    names = ["line", "more"][: 1 + has_more]
    dtype, value = VALUES[kind]
    body = io.BytesIO()
    if format_ is PARQUET:
        pq.write_table(pa.table({name: pa.array([value], dtype) for name in names}), body)
    else:
        fields = [{"name": name, "type": kind} for name in names]
        schema = {"type": "record", "name": "row", "fields": fields}
        fastavro.writer(body, schema, [dict.fromkeys(names, value)])
    return body.getvalue()


# Everything that a shell, a URI, a glob, Hive or a log would take for something else.
LETTERS = "+%20[]*?{},#=&ü\n\\:;'\"$~ ab1._-"
PARTS = st.text(LETTERS, min_size=1, max_size=12).filter(lambda part: part[0] not in "._")
NAMES = st.lists(PARTS, min_size=1, max_size=3).map("/".join)
ROWS = st.lists(st.text("a ,\"\\ü{}#\t'", max_size=6), max_size=8)


def folders(format_: Format, *, min_size: int = 0) -> st.SearchStrategy[dict[str, list[str]]]:
    """Names of files, none of them below another, with the rows of each."""
    return st.dictionaries(
        NAMES.map(lambda n: n + format_.suffix), ROWS, min_size=min_size, max_size=4
    ).filter(
        lambda found: not any(other.startswith(f"{name}/") for name in found for other in found)
    )


def write(folder: Path, name: str, body: bytes) -> None:
    """Write a file elsewhere, and move it into place."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # A clock's tick is coarser than a test; no file's inode is taken again while it is open.
    temporary = folder / ".temporary"
    temporary.write_bytes(body)
    temporary.replace(path)


def rows_of(source: Any, barrier: Barrier) -> list[str]:
    return [
        row
        for piece in barrier.slices
        for batch in source.read(piece)
        for row in batch.column("line").to_pylist()
    ]


def epochs(source: Any, position: SourcePosition, caps: Iterable[int | None]) -> list[str]:
    """The rows of epochs with these caps, and of one without."""
    rows: list[str] = []
    for most in [*caps, None]:
        barrier = source.plan(position, max_records=most, parallelism=3)
        rows += rows_of(source, barrier)
        position = barrier.position
    return rows


def tried(act: Callable[[], T]) -> tuple[T | None, str]:
    """The result of *act*, or the message of its refusal; any other error fails the test."""
    try:
        return act(), ""
    except ConfigurationError as error:
        return None, str(error)
