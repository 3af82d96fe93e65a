"""Partitions: rows split by the values of columns, into folders with Hive's names.

The columns stay in the files, too: a reader without support for partitions sees them with their
types, and one with it may skip files by their folders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
MAX_PARTITIONS = 1_000  # Per call: each is an object to write, and a line in the manifest.
MAX_NAME_BYTES = 240  # File systems take 255 for one folder.
# Hive's list (FileUtils.escapePathName), what an URI or a glob would read otherwise, and what
# ends a line for readers of a list of files: NEL, the line and the paragraph separator.
_ESCAPED = frozenset("\"#%'*/:=?\\\x7f{}[]^ \x85\u2028\u2029") | frozenset(map(chr, range(32)))


def split(
    table: pa.Table, columns: Sequence[str], sink: str, *, limit: int | None = MAX_PARTITIONS
) -> Iterator[tuple[str, pa.Table]]:
    """Each folder's name, such as ``day=2026-01-01/kind=a``, with its rows in their order.

    Raises:
        ConfigurationError: a column is missing, of another type than text, whole numbers, dates or
            booleans, has a value too long for a name; or there are more than *limit*.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if missing := sorted(set(columns) - set(table.column_names)):
        raise ConfigurationError(
            f"sink {sink!r} partitions by {', '.join(columns)}, but its rows have no "
            f"{', '.join(missing)}; they have {', '.join(table.column_names)}"
        )
    names = [_names(table.column(column).combine_chunks(), column, sink) for column in columns]
    paths = pc.binary_join_element_wise(*names, "/").dictionary_encode()
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


def escaped(value: str) -> str:
    """*value* with each special byte of its UTF-8 escaped, as in a URI."""
    return "".join(
        "".join(f"%{byte:02X}" for byte in char.encode()) if char in _ESCAPED else char
        for char in value
    )


def _names(values: pa.Array, column: str, sink: str) -> pa.Array:
    import pyarrow as pa

    types, dtype = pa.types, values.type
    if not (
        types.is_string(dtype)
        or types.is_large_string(dtype)
        or types.is_integer(dtype)
        or types.is_boolean(dtype)
        or types.is_date32(dtype)
    ):
        raise ConfigurationError(
            f"sink {sink!r} cannot partition by {column!r} of type {dtype}; make a column of text, "
            "whole numbers, dates or booleans of it"
        )
    encoded = values.cast(pa.string()).dictionary_encode(null_encoding="encode")
    names = [f"{escaped(column)}={_folder(one)}" for one in encoded.dictionary.to_pylist()]
    if too_long := [name for name in names if len(name.encode()) > MAX_NAME_BYTES]:
        raise ConfigurationError(
            f"sink {sink!r} partitions by {column!r}, of which a value is too long for a folder's "
            f"name: {too_long[0][:40]!r}...; at most {MAX_NAME_BYTES} bytes"
        )
    return pa.array(names, pa.string()).take(encoded.indices)


def _folder(value: str | None) -> str:
    """The folder of a value; the empty text shares that of null, as in Hive."""
    return escaped(value) if value else NULL
