"""Frames of changes: rows with ``_weight``, 1 for a row and -1 for one that is taken back."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from sluice.declaration.changelog import ROW_KIND, RowKind
from sluice.subtask.operators.operator import WEIGHT

# A row taken back and the row that replaces it have one key, even where a projection drops it.
KEY = "_key"
OURS = (WEIGHT, KEY)


def changes_of(
    rows: pl.DataFrame, retracted: pl.DataFrame | None, keys: Sequence[str]
) -> pl.DataFrame:
    """The changes that a stage keyed by *keys* yields: *retracted* rows first, then *rows*."""
    added = _weighed(rows, 1)
    changes = added if retracted is None else pl.concat([_weighed(retracted, -1), added])
    return changes.with_columns(pl.struct(keys).alias(KEY))


def without_pairs(changes: pl.DataFrame) -> pl.DataFrame:
    """*changes* without pairs of a row that is taken back and an equal row that is added."""
    columns = [name for name in changes.columns if name != WEIGHT]
    is_taken_back = pl.col(WEIGHT) < 0
    if not columns or not _has_pairs(changes, columns):
        return changes
    place = pl.int_range(pl.len()).over([*columns, WEIGHT])
    added, taken_back = ((one).sum().over(columns) for one in (~is_taken_back, is_taken_back))
    opposite = pl.when(is_taken_back).then(added).otherwise(taken_back)
    return changes.filter(place >= opposite)


def split(changes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that are added, and those that are taken back, without reserved columns."""
    is_taken_back = changes[WEIGHT] < 0
    plain = changes.drop(*OURS, strict=False)
    return plain.filter(~is_taken_back), plain.filter(is_taken_back)


def changelog_of(
    rows: pl.DataFrame, taken_back: pl.DataFrame, replaced_by: Sequence[str]
) -> pl.DataFrame:
    """Every change as a row; the column ``kind`` says whether it inserts, updates or deletes.

    A row that is taken back and has an equal one in the columns *replaced_by* is updated, and comes
    before it; without such columns rows are inserted and deleted.
    """
    before = _told(taken_back, rows, replaced_by, RowKind.UPDATE_BEFORE, RowKind.DELETE)
    after = _told(rows, taken_back, replaced_by, RowKind.UPDATE_AFTER, RowKind.INSERT)
    return pl.concat([before, after])


def sink_schema(streamed: bytes, changelog: bool) -> pa.Schema:  # noqa: FBT001 - of a spec
    """The columns that a sink gets of a stage whose stream has the schema *streamed*."""
    schema = pa.ipc.read_schema(pa.py_buffer(streamed)).remove_metadata()
    schema = pa.schema([field for field in schema if field.name not in OURS])
    return schema.insert(0, pa.field(ROW_KIND, pa.large_string())) if changelog else schema


def _weighed(rows: pl.DataFrame, weight: int) -> pl.DataFrame:
    return rows.with_columns(pl.lit(weight, pl.Int8).alias(WEIGHT))


def _has_pairs(changes: pl.DataFrame, columns: Sequence[str]) -> bool:
    weight = changes[WEIGHT]
    if not changes.height or not bool((weight < 0).any()) or not bool((weight > 0).any()):
        return False
    signs = changes.lazy().group_by(columns).agg(pl.col(WEIGHT).n_unique())
    return bool((signs.select(WEIGHT).collect().to_series() > 1).any())


def _told(
    rows: pl.DataFrame,
    others: pl.DataFrame,
    key: Sequence[str],
    of_known: RowKind,
    of_unknown: RowKind,
) -> pl.DataFrame:
    """*rows* with their ``kind``: *of_known* where *others* have their key, else *of_unknown*."""
    kind: pl.Expr = pl.lit(of_unknown.value)
    if key:
        known = others.select(key).unique().with_columns(pl.lit(of_known.value).alias(ROW_KIND))
        found = rows.select(key).join(
            known, on=list(key), how="left", nulls_equal=True, maintain_order="left"
        )
        kind = pl.lit(found[ROW_KIND].fill_null(of_unknown.value))
    return rows.select(kind.alias(ROW_KIND), pl.all())
