"""Changelogs: frames of changes, each with a weight; and ``Bag``, the current rows of one in state.

A change has ``_weight`` 1 for a row, or -1 for one that is taken back.

``ChangelogNormalize`` makes such changes of those of a database's rows, as another system captured
them (Flink's operator of that name).  Changes of a key apply in the order of their position in the
database's log.  One that is not behind the newest applied one was delivered again, or came late,
and changes nothing.  State is the current row of each key, or, where changes bring the row that
they replace, its position and hash alone.  A deleted key keeps its position, as an older change may
still come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from sluice.declaration import operations as ops
from sluice.declaration.change_events import NOT_LOGGED
from sluice.declaration.changelog import ROW_KIND, RowKind
from sluice.declaration.expressions import Filter, Step, written
from sluice.declaration.nodes import SinkNode, StageNode
from sluice.errors import ConfigurationError, StageFailed, written_on
from sluice.operators.kernels import grouped, without_negative_zero
from sluice.operators.operator import (
    WEIGHT,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    RawRows,
    beside,
    column_type,
    differs,
    in_order,
    input_schema,
    key_types,
)
from sluice.operators.sql import NotCompiledError, spark_type
from sluice.operators.steps import applied
from sluice.state.at_once import chosen, constant, passing, without
from sluice.state.key_hash import can_hash, key_hash
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


EVENTS = "events"
ROWS = "rows"
IMAGES = "images"

_IMAGE = "_image"  # The hash of the current row; null for a key that is deleted.
_STATE = "_is_stored"
_FROM = "_place"  # The number of the row that has a row's value.
_NONE = -1


class ChangelogNormalizeOperator(RawRows):
    """Keeps current rows, so that a value that was not logged is that of the row before.

    Output is an upsert stream on the key: the rows that changed, with those that they replace.
    """

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        operation = stage.operation
        assert isinstance(operation, ops.ChangelogNormalize)
        self._input = input_schema(schema)
        self._uid, self._operation = stage.uid, operation
        self._keys = key_types(stage.uid, self._input, stage.keys)
        self._key = (HASH, *stage.keys)
        self._position = (*self._key, *operation.by)
        self.output_schema = pl.Schema(
            {
                name: column_type(stage.uid, self._input, name, "of the table")
                for name in operation.columns
            }
        )
        order = {name: self._input[name] for name in operation.by}
        columns = self._state_columns(self._keys | order)
        self._schema = StateSchema(columns=columns, key_columns=stage.keys, ttl_ms=stage.ttl_ms)
        self.tables = {self._table: self._schema}

    _table = ROWS

    def _state_columns(self, identity: Mapping[str, pl.DataType]) -> pl.Schema:
        deleted = {self._operation.deleted: pl.Boolean()}
        return pl.Schema({**identity, **deleted, **self.output_schema})

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        events = rows.select(HASH, *self._input)
        return Partial(groups={EVENTS: self._once(events)}, late=self._input.to_frame())

    def combine(self, groups: Frames) -> Frames:
        return {EVENTS: self._once(groups[EVENTS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        events = groups[EVENTS]
        before = state[self._table].lookup(newest_per_identity(events, self._key))
        known = before.select(*self._position, pl.lit(True).alias(_STATE))  # noqa: FBT003 - a value
        both = pl.concat(
            [events.with_columns(pl.lit(False).alias(_STATE)), known],  # noqa: FBT003 - as above
            how="diagonal",
        ).sort(*self._position, _STATE)  # An event of the same position is before the state's row.
        is_behind = pl.col(_STATE).cast(pl.Int8).cum_sum().over(self._key) > 0
        is_new = ~pl.col(_STATE).any().over(self._key) | is_behind
        news = both.filter(is_new & ~pl.col(_STATE)).drop(_STATE)
        first = news.unique(self._key, keep="first", maintain_order=True)
        news = self._whole(news, before)
        last = news.unique(self._key, keep="last", maintain_order=True)
        return self._outcome(first, last, beside(last, before, self._key))

    def held(self, state: Mapping[str, KeyedState]) -> pl.DataFrame:
        rows = state[ROWS].scan().filter(~pl.col(self._operation.deleted))
        return rows.select(self.output_schema.names())

    def _once(self, events: pl.DataFrame) -> pl.DataFrame:
        """*events* in the order of keys and positions, one of each position of a key."""
        ordered = events.sort(*self._position)
        again = ordered.select(*self._position).is_duplicated()
        if again.any():  # Only then by all columns, so that their content decides.
            ordered = in_order(ordered, (*self._position, self._operation.deleted))
        return ordered.unique(self._position, keep="last", maintain_order=True)

    def _whole(self, news: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """*news* with each value that was not logged as the row before it has it."""
        names = [name for name in self._operation.unlogged if name in self.output_schema]
        if not any((news[name] == self._operation.unlogged[name]).any() for name in names):
            return news
        kept = before.join(news, on=self._key, how="semi", nulls_equal=True)
        rows = pl.concat(
            [
                kept.with_columns(pl.lit(True).alias(_STATE)),  # noqa: FBT003 - a value
                news.select(kept.columns).with_columns(pl.lit(False).alias(_STATE)),  # noqa: FBT003 - as above
            ]
        ).sort(*self._position)
        is_left_out = {n: pl.col(n).eq_missing(self._operation.unlogged[n]) for n in names}
        number = pl.int_range(pl.len(), dtype=pl.Int64)
        gone = pl.col(self._operation.deleted)
        for name, left_out in is_left_out.items():
            place = pl.when(gone).then(_NONE).when(left_out).then(None).otherwise(number)
            found = rows.select(
                place.forward_fill().over(self._key).fill_null(_NONE).alias(_FROM),
                (left_out & ~gone).alias(_STATE),
            )
            missing = found[_STATE] & (found[_FROM] == _NONE)
            if missing.any():
                key = rows.filter(missing).select(self._key[1:]).row(0, named=True)
                raise StageFailed(
                    f"stage {self._uid!r}, key {_said(key)}, column {name!r}: {NOT_LOGGED}"
                )
            value = pl.when(found[_STATE]).then(pl.col(name).gather(found[_FROM].clip(0)))
            rows = rows.with_columns(value.otherwise(pl.col(name)).alias(name))
        return rows.filter(~pl.col(_STATE)).drop(_STATE)

    def _outcome(self, first: pl.DataFrame, last: pl.DataFrame, before: pl.DataFrame) -> Outcome:
        """*first* and *last* are the new changes of each key; *before* is its state, or null."""
        del first
        deleted = self._operation.deleted
        was = (before[HASH].is_not_null() & ~before[deleted].fill_null(value=True)).alias("was")
        return self._changed(last, was, before.select(self.output_schema.names()))

    def _changed(self, last: pl.DataFrame, was: pl.Series, former: pl.DataFrame) -> Outcome:
        result = self.output_schema.names()
        lives = ~last[self._operation.deleted]
        is_news = (lives != was) | differs(last, former, result)
        upserts = last.select(self._schema.live.names())
        return Outcome(
            output=last.filter(lives & is_news).select(result),
            retracted=former.filter(was & is_news),
            changes={self._table: Changes(upserts=upserts, deletes=upserts.clear())},
        )


class ImagesOperator(ChangelogNormalizeOperator):
    """Keeps no rows: a change brings the row that it replaces, which has to be the one sent.

    A change without that row (of a snapshot, taken again) has to be the row sent.
    """

    _table = IMAGES

    def _state_columns(self, identity: Mapping[str, pl.DataType]) -> pl.Schema:
        for name, dtype in self.output_schema.items():
            if not (can_hash(dtype) or dtype.is_float() or dtype.is_decimal()):
                raise ConfigurationError(
                    f"stage {self._uid!r} cannot compare the column {name!r} of type "
                    f"{spark_type(dtype)} with the row that was sent; leave it out, read it as "
                    "text, or keep the rows: before=False"
                )
        return pl.Schema({**identity, _IMAGE: pl.Int64()})

    def _whole(self, news: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:  # noqa: ARG002 - a value that was not logged is refused as it is read
        return news

    def _outcome(self, first: pl.DataFrame, last: pl.DataFrame, before: pl.DataFrame) -> Outcome:
        result = self.output_schema.names()
        images = self._operation.images
        has_image = pl.col(images[self._key[1]]).is_not_null()
        former = first.select(
            pl.when(has_image).then(pl.col(images[name])).otherwise(pl.col(name)).alias(name)
            for name in result
        )
        was = before[_IMAGE].is_not_null()
        other = was & (before[_IMAGE] != self._hashed(former)).fill_null(value=False)
        if other.any():
            key = first.filter(other).select(self._key[1:]).row(0, named=True)
            raise StageFailed(
                f"stage {self._uid!r}, key {_said(key)}: the row before a change is not the row "
                "that was sent; changes are missing, come in another order over partitions, or "
                "have no whole row before (REPLICA IDENTITY FULL); keep the rows: before=False"
            )
        lives = ~pl.col(self._operation.deleted)
        image = pl.when(lives).then(pl.lit(self._hashed(last))).alias(_IMAGE)
        return self._changed(last.with_columns(image), was, former)

    def _hashed(self, rows: pl.DataFrame) -> pl.Series:
        """A hash of each row; a null counts, wherever it is, and the order of columns does not."""
        parts: dict[str, pl.Series] = {}
        for name in sorted(self.output_schema, key=str.lower):
            value, dtype = rows[name], self.output_schema[name]
            if dtype.is_float():  # By their bits, with one zero: Polars would leave out the + 0.0.
                floats = value.cast(pl.Float64).fill_null(0).to_numpy() + 0.0
                value = pl.Series(floats.view(np.int64))
            elif dtype.is_decimal():
                value = value.cast(pl.String)
            elif dtype.is_integer():  # A narrower one may become it.
                value = value.cast(pl.Int64)
            parts |= {f"null {len(parts)}": rows[name].is_null(), f"value {len(parts)}": value}
        return pl.Series(_IMAGE, key_hash(pl.DataFrame(parts), list(parts)))


def changelog_normalize(stage: StageNode, schema: pl.Schema) -> ChangelogNormalizeOperator:
    """The operator of *stage*, by whether its changes bring the rows that they replace."""
    assert isinstance(stage.operation, ops.ChangelogNormalize)
    if stage.operation.images:
        return ImagesOperator(stage, schema)
    return ChangelogNormalizeOperator(stage, schema)


def _said(key: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in key.items())
