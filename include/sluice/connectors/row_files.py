"""Files of rows: Parquet or plain JSON lines, and the split of rows into partitions.

JSON lines have an object per line, see ``json_rows``.  JSON does not hold the types of columns, so
the schema is stored beside the rows, by its hash.

Partitions are folders with Hive's names, by the values of columns.  The columns stay in the files,
too: a reader without support for partitions sees them with their types, and one with it may skip
files by their folders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from io import RawIOBase
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError, ProtocolViolation

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET = "parquet"
HASH_HEX_DIGITS = 16  # 64 bits: schemas of one table do not collide by chance.

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
MAX_PARTITIONS = 1_000  # Per call: each is an object to write, and a line in the manifest.
MAX_NAME_BYTES = 240  # File systems take 255 for one folder.
# Hive's list (FileUtils.escapePathName), the special characters of URIs and globs, and those that
# end a line in ``_latest``: NEL, the line and the paragraph separator.
_SPECIAL = frozenset("\"#%'*/:=?\\\x7f{}[]^ \x85\u2028\u2029") | frozenset(map(chr, range(32)))


def encode_parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    body: bytes = buffer.getvalue().to_pybytes()
    return body


def check_parquet_types(schema: pa.Schema, who: str) -> None:
    """Raises ConfigurationError for a column that Parquet has no type for, which *who* writes."""
    for field in schema:
        if (found := _without_column(field.type)) is not None:
            raise ConfigurationError(
                f"{who} cannot write column {field.name!r} of type {field.type}: Parquet has no "
                f"column for {found}; convert it to another type, or leave it out"
            )


def _without_column(type_: pa.DataType) -> pa.DataType | None:
    """The type within *type_*, or itself, that Parquet does not hold; None if there is none."""
    from pyarrow import types

    is_empty = types.is_struct(type_) and not type_.num_fields
    is_of_hundreds = types.is_decimal(type_) and type_.scale < 0
    if types.is_interval(type_) or is_empty or is_of_hundreds:
        return type_
    inner = (type_.field(number).type for number in range(type_.num_fields))
    return next((found for one in inner if (found := _without_column(one)) is not None), None)


def decode_parquet(body: bytes) -> pa.Table:
    """The rows of a Parquet file; raises ArrowInvalid for other bytes.

    A thread of Arrow's may hold *body* longer than the call, and if Python ends before it lets go,
    the process ends by SIGABRT: no other thread reads.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False)


def has_nulls(file: RawIOBase, columns: Sequence[str], place: str) -> bool:
    """Whether a row of a Parquet file may be null in one of *columns*, by the footer's statistics.

    A column without statistics, or a nested one, may have nulls.

    Raises:
        ProtocolViolation: this is no Parquet file; it names *place*.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(pa.PythonFile(file))
    except pa.ArrowInvalid as error:
        raise ProtocolViolation(f"{place} is not the file that was staged") from error
    counts: dict[str, int] = dict.fromkeys(columns, 0)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        leaves = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
        for name in columns:
            known = leaves[name].statistics if name in leaves else None
            counts[name] += 1 if known is None or not known.has_null_count else known.null_count
    return any(counts.values())


def encode_schema(schema: pa.Schema) -> tuple[str, bytes]:
    """The hash of the schema, and its bytes without metadata."""
    body: bytes = schema.remove_metadata().serialize().to_pybytes()
    return hashlib.sha256(body).hexdigest()[:HASH_HEX_DIGITS], body


def decode_schema(body: bytes | None, place: str) -> pa.Schema:
    import pyarrow as pa

    if body is None:
        raise ProtocolViolation(f"{place} is missing, and files of JSON lines need it")
    try:
        return pa.ipc.read_schema(pa.BufferReader(body))
    except pa.ArrowInvalid as error:
        raise ProtocolViolation(f"{place} is no schema") from error


def split_by_partition(
    table: pa.Table, columns: Sequence[str], sink: str, *, limit: int | None = MAX_PARTITIONS
) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each folder, such as ``day=2026-01-01/kind=a``, with its name, in their order.

    Raises:
        ConfigurationError: a column is missing, of another type than text, whole numbers, dates or
            booleans, has a value too long for a name; or there are more than *limit*.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    spelt = {name.lower(): name for name in table.column_names}
    if missing := [name for name in columns if name.lower() not in spelt]:
        raise ConfigurationError(
            f"sink {sink!r} partitions by {', '.join(columns)}, but its rows have no "
            f"{', '.join(missing)}; they have {', '.join(table.column_names)}"
        )
    names = [spelt[column.lower()] for column in columns]
    check_partition_types(table.schema, names, sink)
    folders = [_folders(table.column(name).combine_chunks(), name, sink) for name in names]
    paths = pc.binary_join_element_wise(*folders, "/").dictionary_encode()
    if limit is not None and len(paths.dictionary) > limit:
        raise ConfigurationError(
            f"sink {sink!r} partitions by {', '.join(columns)}, and a subtask has "
            f"{len(paths.dictionary):,} different values of them in one checkpoint, more than "
            f"{limit:,}; partition by something coarser, a day for instance"
        )
    codes = paths.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(paths.dictionary))).tolist()
    ordered = table.take(pa.array(order))
    start = 0
    for name, end in zip(paths.dictionary.to_pylist(), ends, strict=True):
        yield name, ordered.slice(start, end - start)
        start = end


def check_partition_types(schema: pa.Schema, columns: Iterable[str], sink: str) -> None:
    """Raises ConfigurationError unless values of these *columns* can be names of folders."""
    import pyarrow as pa

    types = pa.types
    names = {name.lower() for name in columns}
    for field in schema:
        dtype = field.type
        if field.name.lower() in names and not (
            types.is_string(dtype)
            or types.is_large_string(dtype)
            or types.is_integer(dtype)
            or types.is_boolean(dtype)
            or types.is_date32(dtype)
        ):
            raise ConfigurationError(
                f"sink {sink!r} cannot partition by {field.name!r} of type {dtype}; make a column "
                "of text, whole numbers, dates or booleans of it"
            )


def _folders(values: pa.Array, column: str, sink: str) -> pa.Array:
    import pyarrow as pa

    encoded = values.cast(pa.string()).dictionary_encode(null_encoding="encode")
    names = [f"{_escaped(column)}={_folder(value)}" for value in encoded.dictionary.to_pylist()]
    if too_long := [name for name in names if len(name.encode()) > MAX_NAME_BYTES]:
        raise ConfigurationError(
            f"sink {sink!r} partitions by {column!r}, of which a value is too long for a folder's "
            f"name: {too_long[0][:40]!r}...; at most {MAX_NAME_BYTES} bytes"
        )
    return pa.array(names, pa.string()).take(encoded.indices)


def _folder(value: str | None) -> str:
    """The folder of a value; the empty text shares that of null, as in Hive, and no other does."""
    if value == NULL_FOLDER:
        return f"%5F{value[1:]}"
    return _escaped(value) if value else NULL_FOLDER


def _escaped(value: str) -> str:
    """*value* with the UTF-8 of each special character escaped, as in a URI."""
    return "".join(
        "".join(f"%{byte:02X}" for byte in char.encode()) if char in _SPECIAL else char
        for char in value
    )
