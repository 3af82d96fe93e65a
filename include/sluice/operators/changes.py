"""Changelogs: frames of changes, each with a weight; and ``Bag``, the current rows of one in state.

A change has ``_weight`` 1 for a row, or -1 for one that is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.declaration.changelog import ROW_KIND, RowKind
from sluice.declaration.expressions import Filter, Step, written
from sluice.declaration.nodes import SinkNode
from sluice.errors import ConfigurationError, written_on
from sluice.operators.kernels import grouped, without_negative_zero
from sluice.operators.operator import WEIGHT
from sluice.operators.sql import NotCompiledError
from sluice.operators.steps import applied
from sluice.state.at_once import chosen, constant, passing, without
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import gathered, newest_per_identity
from sluice.state.segments import HASH, StateSchema, empty_frame, to_table

# A row taken back and the row that replaces it have one key, even where a projection drops it.
KEY = "_key"
OURS = (WEIGHT, KEY)

COPIES = "_copies"
_STEPS = b"sluice.steps"


def changes_of(
    rows: pl.DataFrame, retracted: pl.DataFrame | None, keys: Sequence[str]
) -> pl.DataFrame:
    """The changes that a stage keyed by *keys* yields: *retracted* rows first, then *rows*."""
    added = with_weight(rows, 1)
    changes = added if retracted is None else pl.concat([with_weight(retracted, -1), added])
    return changes.hstack([chosen(changes, keys).to_struct(KEY)])


def behind(steps: Sequence[Step], rows: pl.DataFrame, stage: str) -> pl.DataFrame:
    """*rows* of the result of *stage* after the filters and projections of its reader; *steps* may
    be the stage's own.  Columns of ours stay, whatever is selected.

    Raises:
        ConfigurationError: the result lacks columns that a step names, or has a row for which Spark
            would not compute it, either.
    """
    kept = tuple(name for name in OURS if name in rows.columns)
    for step in steps:
        try:
            rows = applied(step, rows, kept=kept)
        except (NotCompiledError, ConfigurationError) as error:
            sql = [step.condition] if isinstance(step, Filter) else step.columns
            with written_on(step.line):
                raise ConfigurationError(
                    f"stage {stage!r} cannot keep {', '.join(sql)} of its result: {error}"
                ) from error
    return rows


def without_pairs(changes: pl.DataFrame) -> pl.DataFrame:
    """*changes* without pairs of a row that is taken back and an equal row that is added."""
    columns = [name for name in changes.columns if name != WEIGHT]
    is_taken_back = pl.col(WEIGHT) < 0
    if not columns or not _has_pairs(changes, columns):
        return changes
    place = pl.int_range(pl.len()).over([*columns, WEIGHT])
    added, taken_back = (is_so.sum().over(columns) for is_so in (~is_taken_back, is_taken_back))
    opposite = pl.when(is_taken_back).then(added).otherwise(taken_back)
    return changes.filter(place >= opposite)


def split_by_weight(changes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that are added, and those that are taken back, without reserved columns."""
    is_taken_back = changes[WEIGHT] < 0
    plain = without(changes, OURS)
    return passing(plain, ~is_taken_back), passing(plain, is_taken_back)


def changelog_of(
    rows: pl.DataFrame, taken_back: pl.DataFrame, replaced_by: Sequence[str]
) -> pl.DataFrame:
    """Every change as a row; the column ``kind`` says whether it inserts, updates or deletes.

    A row that is taken back and has an equal one in the columns *replaced_by* is updated, and comes
    before it; without such columns rows are inserted and deleted.
    """
    before = _with_row_kind(taken_back, rows, replaced_by, RowKind.UPDATE_BEFORE, RowKind.DELETE)
    after = _with_row_kind(rows, taken_back, replaced_by, RowKind.UPDATE_AFTER, RowKind.INSERT)
    return pl.concat([before, after])


def stream_schema(rows: pl.DataFrame, steps: Sequence[Step]) -> bytes:
    """The serialized Arrow schema of a stream whose stage applied *steps* to its *rows*."""
    schema = to_table(rows.clear()).schema
    if steps:
        schema = schema.with_metadata({_STEPS: written(steps)})
    body: bytes = schema.serialize().to_pybytes()
    return body


def steps_of(streamed: bytes) -> str:
    """The steps, ``written``, that a stage applied to a stream with the schema *streamed*."""
    metadata = pa.ipc.read_schema(pa.py_buffer(streamed)).metadata or {}
    return str(metadata.get(_STEPS, b""), "utf-8")


def sink_schema(streamed: bytes, sink: SinkNode) -> pa.Schema:
    """The columns that *sink* gets of its stage, whose stream has the schema *streamed*."""
    schema = pa.ipc.read_schema(pa.py_buffer(streamed)).remove_metadata()
    schema = pa.schema([field for field in schema if field.name not in OURS])
    if sink.steps:
        rows = behind(sink.steps, empty_frame(schema), sink.input)
        schema = to_table(rows).schema
    kind = pa.field(ROW_KIND, pa.large_string())
    return schema.insert(0, kind) if sink.spec.changelog else schema


def with_weight(rows: pl.DataFrame, weight: int) -> pl.DataFrame:
    """*rows*, each of which counts *weight*."""
    return rows.hstack([constant(WEIGHT, weight, pl.Int8(), rows.height)])


def _has_pairs(changes: pl.DataFrame, columns: Sequence[str]) -> bool:
    weight = changes[WEIGHT]
    if not changes.height or not bool((weight < 0).any()) or not bool((weight > 0).any()):
        return False
    signs = changes.lazy().group_by(columns).agg(pl.col(WEIGHT).n_unique())
    return bool((signs.select(WEIGHT).collect().to_series() > 1).any())


def _with_row_kind(
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


class Bag:
    """The current rows of a changelog, and the number of copies of each, in a table of state.

    A row is identified by all its columns, so a row that is taken back is found by its values (as
    in Flink's RetractableTopNFunction and its join views without a unique key).  State has a row
    for each distinct one, and drops it with its last copy; taking back a row that is not there,
    because its TTL has passed, for example, does nothing.

    Of 0.0 and -0.0, which are equal, a bag keeps 0.0.
    """

    def __init__(self, columns: pl.Schema, keys: Sequence[str], *, ttl_ms: int | None) -> None:
        self.schema = StateSchema(
            columns=pl.Schema({**columns, COPIES: pl.Int64()}),
            key_columns=tuple(keys),
            sub_key_columns=tuple(name for name in columns if name not in keys),
            ttl_ms=ttl_ms,
        )
        self.identity = self.schema.identity
        self._is_refreshed = ttl_ms is not None
        self._names = self.schema.live.names()

    def weighed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The group frame of a chunk: distinct rows, each with the sum of its weights.

        Rows without weights are all new.
        """
        weight = pl.col(WEIGHT).cast(pl.Int64) if WEIGHT in rows.columns else pl.lit(1, pl.Int64)
        copies = rows.select(*self._names[:-1], weight.alias(COPIES))
        floats = [n for n, dtype in self.schema.columns.items() if dtype.is_float()]
        return self.folded(copies.with_columns(map(without_negative_zero, floats)))

    def folded(self, groups: pl.DataFrame) -> pl.DataFrame:
        """The groups of several chunks as one; rows that were added and taken back cancel out."""
        found = grouped(groups, self.identity[1:], [pl.col(HASH).first(), pl.col(COPIES).sum()])
        return found.filter(pl.col(COPIES) != 0).select(self._names)

    def changed(self, groups: pl.DataFrame, state: KeyedState) -> BagChange:
        """The bag after the folded *groups* are applied to it."""
        deltas = newest_per_identity(groups, self.identity)
        before = state.find(deltas)[COPIES].fill_null(0)
        after = (before + deltas[COPIES]).clip(lower_bound=0).alias(COPIES)
        return BagChange(rows=deltas.with_columns(after), before=before)

    def changes(self, change: BagChange) -> Changes:
        """The changes to write; with a TTL, every row that was touched."""
        is_there = change.copies > 0
        written = is_there if self._is_refreshed else is_there & (change.copies != change.before)
        return Changes(
            upserts=change.rows.filter(written),
            deletes=change.rows.filter(~is_there & (change.before > 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BagChange:
    """The distinct rows that an epoch touched, sorted, with the number of copies after it.

    ``before`` is the number of copies before it, row by row.
    """

    rows: pl.DataFrame
    before: pl.Series

    @property
    def copies(self) -> pl.Series:
        return self.rows[COPIES]

    def came(self) -> pl.DataFrame:
        """The rows whose number of copies changed, with the difference."""
        grown = self.rows.with_columns(self.copies - self.before)
        return grown.filter(pl.col(COPIES) != 0)

    def overlaid(self, stored: pl.DataFrame, identity: Sequence[str]) -> pl.DataFrame:
        """*stored* rows of the same bag with the epoch's changes applied; sorted."""
        together = newest_per_identity(pl.concat([self.rows, stored]), identity)
        return together.filter(pl.col(COPIES) > 0)


def repeated(rows: pl.DataFrame, copies: pl.Series) -> pl.DataFrame:
    """The rows, each as often as *copies* says; those with none are left out."""
    if rows.is_empty() or (copies.min() == 1 and copies.max() == 1):
        return rows
    return gathered(rows, np.repeat(np.arange(rows.height), copies.to_numpy()))
