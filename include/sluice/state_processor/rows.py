"""Rows that a person gives for a table of keyed state, checked and brought into its columns.

Refused by name: columns that are missing or unknown, types that may lose a value, keys that only
Spark can hash or that a rewritten row did not have, and an identity that is there twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sluice.errors import ConfigurationError
from sluice.subtask.key_hash import can_hash, key_hash
from sluice.subtask.state.evolution import is_widened, widened
from sluice.subtask.state.order import newest_per_identity
from sluice.subtask.state.schema import StateSchema
from sluice.subtask.state.segments import DELETED, HASH, WRITTEN

Rows: TypeAlias = pl.DataFrame | str | Path | Iterable[pl.DataFrame]
"""A frame, several of them, or a Parquet file or a folder of such files."""

Function: TypeAlias = Callable[[pl.DataFrame], pl.DataFrame]

BATCH_ROWS = 262_144  # Of a Parquet file, in memory at a time.
_PLACE = "_place"


def frames_of(rows: Rows, what: str) -> Iterator[pl.DataFrame]:
    """*rows*, piece by piece; *what* is for messages: "stage 'totals', table 'groups'".

    Raises:
        ConfigurationError: there is no such file, or it is no Parquet.
    """
    if isinstance(rows, pl.DataFrame):
        yield rows
    elif isinstance(rows, str | Path):
        for path in _files(Path(rows), what):
            yield from _read(path, what)
    else:
        yield from rows


def bootstrapped(
    schema: StateSchema, rows: pl.DataFrame, *, now_ms: int, what: str
) -> pl.DataFrame:
    """*rows* as stored ones, hashed as Spark does, written at *now_ms*; in any order."""
    mine = conformed(schema, rows, what)
    for name in schema.key_columns:
        if not can_hash(schema.columns[name]):
            raise ConfigurationError(
                f"{what}: its key column {name!r} is {schema.columns[name]}, whose hash only Spark "
                "computes, so it cannot be bootstrapped; let the stage key by a whole number, a "
                "text, a date or a timestamp"
            )
    if schema.one_hash is not None:
        hashed = mine.with_columns(pl.lit(schema.one_hash, pl.Int64).alias(HASH))
    else:
        hashed = mine.with_columns(pl.Series(HASH, key_hash(mine, schema.key_columns)))
    return _stored(schema, hashed, now_ms)


def rewritten(
    schema: StateSchema, before: pl.DataFrame, function: Function, *, now_ms: int, what: str
) -> pl.DataFrame:
    """The stored rows that *function* makes of the stored rows *before*, sorted by identity.

    A row keeps the time of its last write, unless its sub-key is a new one: an edit is no access.
    """
    given = before.select(schema.columns.names())
    result: object = function(given)
    if not isinstance(result, pl.DataFrame):
        raise ConfigurationError(
            f"{what}: the function gives a {type(result).__name__}; it has to give the frame of "
            "rows that take the place of those it was given"
        )
    after = conformed(schema, result, what)
    others = schema.identity[1:]
    if after.select(others).equals(before.select(others)):
        return before.with_columns(after.get_columns()).select(*schema.stored)
    hashes = before.select(schema.key).unique()
    found = _joined(after, hashes, schema.key_columns)
    if found[HASH].null_count():
        key = found.filter(pl.col(HASH).is_null()).select(schema.key_columns).row(0, named=True)
        raise ConfigurationError(
            f"{what}: the function gives the key {_named(key)}, which none of its rows has; a "
            "function rewrites values and drops keys: for other keys remove the state, and "
            "bootstrap the rows"
        )
    if schema.ttl_ms is not None:
        times = before.select(*others, pl.col(WRITTEN), pl.lit(value=True).alias(_PLACE))
        found = _joined(found, times, others).with_columns(
            pl.when(pl.col(_PLACE)).then(pl.col(WRITTEN)).otherwise(now_ms).alias(WRITTEN)
        )
    return once(schema, _stored(schema, found, now_ms), what)


def once(schema: StateSchema, rows: pl.DataFrame, what: str) -> pl.DataFrame:
    """*rows* sorted by identity; raises ConfigurationError if one is there twice."""
    numbered = rows.with_row_index(_PLACE)
    newest = newest_per_identity(numbered, schema.identity)
    if newest.height < rows.height:
        twice = numbered.join(newest.select(_PLACE), on=_PLACE, how="anti")
        identity = twice.select(schema.identity[1:]).row(0, named=True)
        raise ConfigurationError(
            f"{what}: {_named(identity)} is there more than once; a table of state has one row for "
            "each key" + (" and sub-key" if schema.sub_key_columns else "")
        )
    return newest.drop(_PLACE)


def conformed(schema: StateSchema, rows: pl.DataFrame, what: str) -> pl.DataFrame:
    """*rows* with exactly the columns of the table, in its order and its types."""
    wanted = schema.columns
    missing = [name for name in wanted if name not in rows.columns]
    unknown = [name for name in rows.columns if name not in wanted]
    if missing or unknown:
        said = [f"the rows lack {', '.join(missing)}"] if missing else []
        said += [f"the table has no {', '.join(unknown)}"] if unknown else []
        raise ConfigurationError(f"{what}: {'; '.join(said)}; its columns are {columns_of(schema)}")
    for name, dtype in wanted.items():
        if not is_widened(rows[name].dtype, dtype) and rows[name].dtype != pl.Null():
            raise ConfigurationError(
                f"{what}: column {name!r} of the rows is {rows[name].dtype}, and the state keeps "
                f"{dtype}; cast it"
            )
    return rows.select(_converted(name, rows.schema[name], dtype) for name, dtype in wanted.items())


def columns_of(schema: StateSchema) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in schema.columns.items())


def _converted(name: str, given: pl.DataType, wanted: pl.DataType) -> pl.Expr:
    if given == pl.Null():
        return pl.col(name).cast(wanted)
    return widened(pl.col(name), given, wanted).alias(name)


def _stored(schema: StateSchema, rows: pl.DataFrame, now_ms: int) -> pl.DataFrame:
    """*rows*, hashed, with the reserved columns that they lack."""
    if schema.ttl_ms is not None and WRITTEN not in rows.columns:
        rows = rows.with_columns(pl.lit(now_ms, pl.Int64).alias(WRITTEN))
    return rows.with_columns(pl.lit(value=False).alias(DELETED)).select(
        pl.col(name).cast(dtype) for name, dtype in schema.stored.items()
    )


def _joined(rows: pl.DataFrame, other: pl.DataFrame, on: Iterable[str]) -> pl.DataFrame:
    return rows.join(other, on=[*on], how="left", nulls_equal=True, maintain_order="left")


def _files(path: Path, what: str) -> list[Path]:
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not found or not path.exists():
        raise ConfigurationError(f"{what}: there is no Parquet file {path}")
    return found


def _read(path: Path, what: str) -> Iterator[pl.DataFrame]:
    try:
        with pq.ParquetFile(path) as file:
            yield _frame(pa.Table.from_batches([], schema=file.schema_arrow))
            for batch in file.iter_batches(BATCH_ROWS):
                yield _frame(pa.Table.from_batches([batch]))
    except (pa.ArrowException, OSError) as error:
        raise ConfigurationError(f"{what}: {path} cannot be read as Parquet: {error}") from error


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _named(values: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
