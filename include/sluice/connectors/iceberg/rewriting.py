"""Deletion of rows by their keys: copy on write, one data file in memory at a time.

pyiceberg's own delete reads every file whole and builds one expression of all keys.  Here a file's
key columns are read and joined with the keys; only a file with both deleted and remaining rows is
read whole and written again.  Null is a key like any other, as in every sink of sluice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

# The most values that pyiceberg compares with a file's bounds; more are not used at all.
MOST_VALUES = 200


@dataclass(frozen=True, slots=True)
class Replaced:
    """A data file to replace: *kept* are the remaining rows of *old*; None if there are none."""

    old: DataFile
    kept: pa.Table | None


def key_filter(keys: pa.Table) -> BooleanExpression:
    """A filter for files that may have *keys*: by values, or by the range of the first column."""
    import pyarrow.compute as pc
    from pyarrow import types
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, In, LessThanOrEqual

    column = keys.column(0)
    name = keys.column_names[0]
    kind = column.type
    is_ordered = types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)
    if not is_ordered or column.null_count or not keys.num_rows:
        return AlwaysTrue()
    values = pc.unique(column)
    if len(values) <= MOST_VALUES:
        return In(term=name, values=set(values.to_pylist()))
    bounds = pc.min_max(column)
    return And(
        GreaterThanOrEqual(term=name, value=bounds["min"].as_py()),
        LessThanOrEqual(term=name, value=bounds["max"].as_py()),
    )


def replaced(
    table: Table, head: Snapshot | None, keys: pa.Table, rows: BooleanExpression
) -> Iterator[Replaced]:
    """The data files of *head* with rows of *keys*, without these; *rows* filters the files."""
    import polars as pl

    if head is None or not keys.num_rows:
        return
    wanted = pl.from_arrow(keys)
    assert isinstance(wanted, pl.DataFrame)
    wanted = wanted.unique()
    key = wanted.columns
    read = _reader(table)
    try:
        tasks = list(table.scan(row_filter=rows, snapshot_id=head.snapshot_id).plan_files())
    except NotImplementedError as error:
        raise ConfigurationError(
            f"the Iceberg table {'.'.join(table.name())} cannot be upserted: {error}; rewrite its "
            "data files, so that no delete files are left"
        ) from error
    for task in tasks:
        stays = _staying(read(task, key), wanted)
        if stays is None:
            continue
        if not stays.any():
            yield Replaced(task.file, None)
        else:
            yield Replaced(task.file, read(task, ()).filter(stays.to_arrow()))


def _staying(found: pa.Table, wanted: pl.DataFrame) -> pl.Series | None:
    """A mask of the rows that remain; None when all do."""
    import polars as pl

    keys = pl.from_arrow(found)
    assert isinstance(keys, pl.DataFrame)
    keys = keys.select(pl.col(name).cast(kind) for name, kind in wanted.schema.items())
    numbered = keys.with_row_index("\0row")
    goes = numbered.join(wanted, on=wanted.columns, how="semi", nulls_equal=True)["\0row"]
    if not goes.len():
        return None
    stays = pl.Series(values=[True], dtype=pl.Boolean).new_from_index(0, keys.height)
    return stays.scatter(goes, values=False)


def _reader(table: Table) -> Callable[[FileScanTask, Sequence[str]], pa.Table]:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    def read(task: FileScanTask, columns: Sequence[str]) -> pa.Table:
        """The rows of a file in order, without those that were deleted from it."""
        schema = table.schema()
        scan = ArrowScan(
            table_metadata=table.metadata,
            io=table.io,
            projected_schema=schema.select(*columns) if columns else schema,
            row_filter=AlwaysTrue(),
        )
        return scan.to_table([task])

    return read
