"""Joins over all time, regular joins and lookups in a table; and joins bounded by event time.

Output is sorted by hash.  A regular join keeps both sides in state, for ever without a TTL.  As in
SQL and in Flink, a null in a key column equals nothing.

``IntervalJoin`` and ``WindowJoin`` are as in Flink.  Late rows go to the late rows of their input
unchanged.  A TTL does not apply: event time bounds the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal, assert_never

import numpy as np
import numpy.typing as npt
import polars as pl

from sluice.core.transitions import Adoption
from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import Attached, RegularJoinKind, Session, Window
from sluice.errors import ConfigurationError
from sluice.operators.changes import (
    COPIES,
    Bag,
    BagChange,
    repeated,
    split_by_weight,
    without_pairs,
)
from sluice.operators.common_types import a_cast
from sluice.operators.kernels import grouped
from sluice.operators.operator import (
    SEQUENCE,
    WEIGHT,
    EpochTime,
    Frames,
    Outcome,
    Partial,
    RawRows,
    by_hash,
    column_type,
    differs_from_previous,
    in_order,
    input_schema,
    key_types,
    place_in_run,
    require_distinct,
    sequenced,
    wrong_type,
)
from sluice.operators.sql import spark_type
from sluice.operators.windows import (
    INSTANT,
    US,
    US_PER_MS,
    WINDOW,
    WINDOW_END,
    WINDOW_START,
    max_timestamp_ms,
    panes_of,
)
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import newest_per_identity
from sluice.state.segments import HASH, StateSchema

LEFT = "left"
RIGHT = "right"
SIDES = (LEFT, RIGHT)
MATCHED = ("matched:left", "matched:right")
SENT = "sent"

_OTHER_COPIES = "_other_copies"
_MATCHED = "_matched"
_BEFORE = "_before"
_HAD = "_had"
_HAS = "_has"
_NUMBER = "_number"  # Distinguishes the rows that were sent of one key.

_NO_COLUMNS: Mapping[str, pl.DataType] = {}

_Keys = pl.DataFrame  # Distinct keys, with their hash.


class RegularJoinOperator(RawRows):
    """Flink's regular join of append-only inputs, inner and semi; ``ChangelogJoin`` has all others.

    Every left row meets every right row of its key, in whatever order they arrive.  Duplicate rows
    count, and each pair is emitted once, in the epoch in which the second of the two arrives.  A
    semi join emits a left row once, as soon as there is a right row of its key: it keeps only the
    keys of right rows, and only those left rows that have no partner yet.
    """

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        assert isinstance(stage.operation, ops.RegularJoin)
        assert stage.operation.how in ("inner", "semi")
        columns = JoinColumns(stage, left, right, stage.operation.how, reserved=[SEQUENCE])
        self._columns = columns
        self._is_semi = stage.operation.how == "semi"
        self._is_refreshed = stage.ttl_ms is not None
        rows = [
            StateSchema(
                columns=pl.Schema({**kept, SEQUENCE: pl.Int64()}),
                key_columns=columns.keys,
                sub_key_columns=(SEQUENCE,),
                ttl_ms=stage.ttl_ms,
            )
            for kept in columns.kept
        ]
        keys = StateSchema(columns=columns.kept[1], key_columns=columns.keys, ttl_ms=stage.ttl_ms)
        self.tables = {LEFT: rows[0], RIGHT: keys if self._is_semi else rows[1]}
        self.output_schema = columns.result

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        kept = self._columns.of_input(rows, side).drop_nulls(self._columns.keys)
        late = self._columns.inputs[side].to_frame()
        return Partial(groups=self.combine({SIDES[side]: kept}), late=late)

    def combine(self, groups: Frames) -> Frames:
        if not self._is_semi or RIGHT not in groups:
            return groups
        return {**groups, RIGHT: groups[RIGHT].unique()}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        left = self._new(groups, 0, time)
        if self._is_semi:
            return self._semi(left, groups, state)
        right = self._new(groups, 1, time)
        old_left = state[LEFT].lookup(self._columns.distinct_keys(right))
        old_right = state[RIGHT].lookup(self._columns.distinct_keys(left))
        pairs = [
            self._columns.joined(left, pl.concat([old_right, right]), "inner"),
            self._columns.joined(old_left, right, "inner"),
        ]
        return Outcome(
            output=by_hash(pairs).drop(HASH),
            changes={
                LEFT: Changes(upserts=left, deletes=left.clear()),
                RIGHT: Changes(upserts=right, deletes=right.clear()),
            },
        )

    def _semi(self, left: pl.DataFrame, groups: Frames, state: Mapping[str, KeyedState]) -> Outcome:
        keys = self._frame(groups, 1).sort(self._columns.key)
        is_known = state[RIGHT].find(keys)[HASH].is_not_null()
        new_keys = keys.filter(~is_known)
        known = state[RIGHT].lookup(self._columns.distinct_keys(left))
        partners = pl.concat([known, new_keys])
        released = state[LEFT].lookup(new_keys)
        matched = self._columns.matched(left, partners, "semi")
        waiting = self._columns.matched(left, partners, "anti")
        return Outcome(
            output=by_hash([released, matched]).select(self.output_schema.names()),
            changes={
                LEFT: Changes(upserts=waiting, deletes=released),
                RIGHT: Changes(
                    upserts=keys if self._is_refreshed else new_keys, deletes=keys.clear()
                ),
            },
        )

    def _new(self, groups: Frames, side: int, time: EpochTime) -> pl.DataFrame:
        return sequenced(self._frame(groups, side), self._columns.key, time)

    def _frame(self, groups: Frames, side: int) -> pl.DataFrame:
        """The rows of one input; an input without groups had none."""
        empty = pl.Schema({HASH: pl.Int64(), **self._columns.kept[side]}).to_frame()
        return groups.get(SIDES[side], empty)


class ChangelogJoin(RawRows):
    """Flink's regular join of any inputs: inner, left, right, full, semi and anti.

    Both sides are bags of rows.  An outer side yields a row without a partner with nulls for the
    other side; that row is taken back when the first partner comes, and yielded again when the last
    one goes.  A semi join yields each left row that has a partner, an anti join each that has none.
    A row with a null in its key never has a partner: an outer or anti join yields it at once.  A
    semi or anti join does not keep it; the others do, as another of them would yield, or take back,
    other rows without a partner.

    An epoch reads from state only the keys that it touches; of an outer side's own rows, only those
    whose partners came or went.  With a TTL, a row is forgotten when it was not written for that
    long, and no result is taken back for that; so a table more says how many copies of a row were
    yielded, or taken back, for a partner that may be forgotten since.

    Output is sorted by hash, then by all columns.  A row that one epoch would both yield and take
    back is left out.
    """

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        assert isinstance(stage.operation, ops.RegularJoin)
        how = stage.operation.how
        reserved = [COPIES, _OTHER_COPIES, _MATCHED, _BEFORE, _HAD, _HAS]
        columns = JoinColumns(stage, left, right, how, reserved=reserved)
        self._columns = columns
        self._bags = [Bag(kept, columns.keys, ttl_ms=stage.ttl_ms) for kept in columns.kept]
        self._has_pairs = how not in ("semi", "anti")
        # The sides whose rows are yielded because they have a partner, or because they have none.
        self._yields_matched = how == "semi"
        self._yields_alone = _yield_alone(how)
        self.tables = {name: bag.schema for name, bag in zip(SIDES, self._bags, strict=True)}
        self._forgets = stage.ttl_ms is not None
        depends = (self._yields_matched or self._yields_alone[0], self._yields_alone[1])
        for name, does, kept in zip(MATCHED, depends, columns.kept, strict=True):
            if self._forgets and does:
                self.tables[name] = StateSchema(
                    columns=pl.Schema({**kept, _MATCHED: pl.Int64()}),
                    key_columns=columns.keys,
                    sub_key_columns=tuple(column for column in kept if column not in columns.keys),
                    ttl_ms=stage.ttl_ms,
                )
        self.output_schema = columns.result

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        weight = [pl.col(WEIGHT)] if WEIGHT in rows.columns else []
        kept = self._columns.of_input(rows, side, *weight)
        if not (self._has_pairs or self._yields_alone[side]):
            kept = kept.drop_nulls(self._columns.keys)
        late = self._columns.inputs[side].to_frame()
        return Partial(groups={SIDES[side]: self._bags[side].weighed(kept)}, late=late)

    def combine(self, groups: Frames) -> Frames:
        bags = dict(zip(SIDES, self._bags, strict=True))
        return {name: bags[name].folded(frame) for name, frame in groups.items()}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        return self._outcome(groups, state, [])

    def adopted(
        self,
        groups: Frames,
        state: Mapping[str, KeyedState],
        time: EpochTime,  # noqa: ARG002 - time plays no part here
        was: Adoption,
    ) -> Outcome:
        """The rows of before the epoch without a partner, yielded, or taken back, where the other
        kind did not, or did.  Both sides were kept.  With a TTL, rows that have a partner are
        written anew, with that, so that they are forgotten together.
        """
        stored = [state[name].scan() for name in SIDES]
        keys = [self._columns.distinct_keys(rows) for rows in stored]
        parts = []
        if "how" in was.parts:
            did = _yield_alone(was.parts["how"])
            for side, does in enumerate(self._yields_alone):
                alone = self._without(stored[side], keys[1 - side])
                copies = pl.col(COPIES) * (int(does) - int(did[side]))
                parts.append(self._alone(alone.with_columns(copies), side))
        outcome = self._outcome(groups, state, parts)
        written: dict[str, Changes] = {}
        for side, (name, table) in enumerate(zip(SIDES, MATCHED, strict=True)):
            if table in self.tables:
                rows = self._with(stored[side], keys[1 - side])
                matched = rows.rename({COPIES: _MATCHED})
                written[name] = self._with_rows(outcome.changes[name], rows, name)
                written[table] = self._with_rows(outcome.changes[table], matched, table)
        return replace(outcome, changes={**outcome.changes, **written})

    def held(self, state: Mapping[str, KeyedState]) -> pl.DataFrame:
        """The result as of the state; anti joins have none, as rows without a key are not kept."""
        stored = [state[name].scan() for name in SIDES]
        keys = [self._columns.distinct_keys(rows) for rows in stored]
        parts = [self._no_result()]
        if self._has_pairs:
            parts.append(self._joined(*stored))
        if self._yields_matched:
            parts.append(self._alone(self._with(stored[0], keys[1]), 0))
        parts += [
            self._alone(self._without(stored[side], keys[1 - side]), side)
            for side, does in enumerate(self._yields_alone)
            if does
        ]
        return self._split(pl.concat([part.select(parts[0].columns) for part in parts]))[0]

    def _no_result(self) -> pl.DataFrame:
        schema = {HASH: pl.Int64(), **self.output_schema, COPIES: pl.Int64()}
        return pl.Schema(schema).to_frame()

    def _outcome(
        self, groups: Frames, state: Mapping[str, KeyedState], more: list[pl.DataFrame]
    ) -> Outcome:
        """The outcome of the epoch's rows, with *more* to yield and to take back."""
        keyless, changes = [], []
        for bag, name in zip(self._bags, SIDES, strict=True):
            rows = groups.get(name, bag.schema.live.to_frame())
            is_unkept = pl.lit(self._has_pairs).not_() & self._lacks_key()
            keyless.append(rows.filter(is_unkept))
            changes.append(bag.changed(rows.filter(~is_unkept), state[name]))
        stored = self._stored(changes, state)
        parts = [self._no_result(), *more]
        told: dict[str, Changes] = {}
        if self._has_pairs:
            parts += self._pairs(changes, stored)
        for side, is_matched in enumerate((self._yields_matched, False)):
            if not (is_matched or self._yields_alone[side]):
                continue
            if self._forgets:
                name = MATCHED[side]
                rows, told[name] = self._told(changes, stored, side, state[name])
                yielded = [rows]
            else:
                yielded = self._yielded(changes, stored, side, matched=is_matched)
            parts += [self._alone(rows, side) for rows in (*yielded, keyless[side])]
        output, retracted = self._split(
            pl.concat([part.select(parts[0].columns) for part in parts])
        )
        return Outcome(
            output=output,
            retracted=retracted,
            changes={
                name: bag.changes(change)
                for name, bag, change in zip(SIDES, self._bags, changes, strict=True)
            }
            | told,
        )

    def _stored(
        self, changes: list[BagChange], state: Mapping[str, KeyedState]
    ) -> list[pl.DataFrame]:
        """The stored rows of each side from before the epoch, of the keys that it needs."""
        came = [change.came().filter(~self._lacks_key()) for change in changes]
        keys = [self._columns.distinct_keys(rows) for rows in came]
        both = pl.concat(keys).unique()
        depends_on_partners = self._yields_alone[0] or not self._has_pairs
        right = state[RIGHT].lookup(both if depends_on_partners else keys[0])
        if self._has_pairs:
            return [state[LEFT].lookup(both if self._yields_alone[1] else keys[1]), right]
        had, has = self._partners(changes, [right.clear(), right], 1)
        turned = pl.concat([self._without(had, has), self._without(has, had)])
        return [state[LEFT].lookup(turned), right]

    def _lacks_key(self) -> pl.Expr:
        return pl.any_horizontal(pl.col(self._columns.keys).is_null())

    def _pairs(self, changes: list[BagChange], stored: list[pl.DataFrame]) -> list[pl.DataFrame]:
        """Changed left rows with all right rows, then stored left rows with changed right ones."""
        right = changes[1].overlaid(stored[1], self._bags[1].identity)
        return [
            self._joined(changes[0].came(), right),
            self._joined(stored[0], changes[1].came()),
        ]

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        columns = self._columns
        keyed = right.select(*columns.key, pl.col(COPIES).alias(_OTHER_COPIES))
        pairs = left.join(keyed.hstack(columns.of_right(right)), on=columns.key, how="inner")
        return pairs.with_columns(pl.col(COPIES) * pl.col(_OTHER_COPIES))

    def _yielded(
        self, changes: list[BagChange], stored: list[pl.DataFrame], side: int, *, matched: bool
    ) -> list[pl.DataFrame]:
        """The rows of a side that are yielded, or taken back, because they are *matched* or not."""
        change, before = changes[side], stored[side]
        had, has = self._partners(changes, stored, 1 - side)
        goes_out, stays_in = self._with, self._without
        if not matched:
            goes_out, stays_in = stays_in, goes_out
        now = change.overlaid(before, self._bags[side].identity)
        gone = stays_in(goes_out(before, had), has)
        return [
            goes_out(goes_out(change.came(), had), has),
            goes_out(stays_in(now, had), has),
            gone.with_columns(-pl.col(COPIES)),
        ]

    def _told(
        self, changes: list[BagChange], stored: list[pl.DataFrame], side: int, state: KeyedState
    ) -> tuple[pl.DataFrame, Changes]:
        """``_yielded`` where a partner may be forgotten, which changes nothing that was yielded:
        *state* has of each row the copies that had a partner when that was last told.
        """
        had, has = self._partners(changes, stored, 1 - side)
        change, key = changes[side], self._columns.key
        turned = pl.concat([self._without(had, has), self._without(has, had)])
        others = self._with(stored[side], turned)
        touched = change.rows.with_columns(change.before.alias(_BEFORE))
        rows = pl.concat([touched, others.with_columns(pl.col(COPIES).alias(_BEFORE))])
        rows = newest_per_identity(rows, self._bags[side].identity)
        for name, keys in ((_HAD, had), (_HAS, has)):
            marked = keys.with_columns(pl.lit(value=True).alias(name))
            rows = rows.join(marked, on=key, how="left", maintain_order="left")
        rows = rows.hstack([state.find(rows)[_MATCHED].fill_null(0)])

        before, now = pl.col(_BEFORE), pl.col(COPIES)
        matched_before = (
            pl.when(pl.col(_HAD))
            .then(before)
            .otherwise(pl.min_horizontal(pl.col(_MATCHED), before))
        )
        kept = pl.when(pl.col(_HAD)).then(0).otherwise(pl.min_horizontal(matched_before, now))
        matched = pl.when(pl.col(_HAS)).then(now).otherwise(kept)
        came = matched - matched_before
        if not self._yields_matched:
            came = now - before - came
        yielded = rows.with_columns(came.alias(COPIES)).filter(pl.col(COPIES) != 0)
        after = rows.with_columns(matched.alias(_MATCHED)).select(state.schema.live.names())
        is_kept = after[_MATCHED] > 0
        was_kept = rows.select((pl.col(_MATCHED) > 0) | (matched_before > 0)).to_series()
        return yielded, Changes(
            upserts=after.filter(is_kept), deletes=after.filter(~is_kept & was_kept)
        )

    def _with_rows(self, changes: Changes, rows: pl.DataFrame, table: str) -> Changes:
        """*changes* of a *table* that write *rows* of before the epoch, too, as far as it left them
        as they were.
        """
        schema = self.tables[table]
        frames = (changes.upserts, changes.deletes, rows)
        together = pl.concat([frame.select(schema.live.names()) for frame in frames])
        written = newest_per_identity(together, schema.identity)
        return replace(changes, upserts=written.filter(pl.nth(-1) > 0))

    def _partners(
        self, changes: list[BagChange], stored: list[pl.DataFrame], side: int
    ) -> tuple[_Keys, _Keys]:
        """The keys that had a row of that side before the epoch, and those that have one now."""
        now = changes[side].overlaid(stored[side], self._bags[side].identity)
        return self._columns.distinct_keys(stored[side]), self._columns.distinct_keys(now)

    def _with(self, rows: pl.DataFrame, keys: _Keys) -> pl.DataFrame:
        return rows.join(keys, on=self._columns.key, how="semi")

    def _without(self, rows: pl.DataFrame, keys: _Keys) -> pl.DataFrame:
        return rows.join(keys, on=self._columns.key, how="anti")

    def _alone(self, rows: pl.DataFrame, side: int) -> pl.DataFrame:
        alone = self._columns.without_left if side else self._columns.without_right
        return alone(rows).hstack(rows.select(COPIES))

    def _split(self, parts: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """The rows to yield and the rows to take back, repeated by their number of copies."""
        names = self.output_schema.names()
        net = grouped(parts, names, [pl.col(HASH).first(), pl.col(COPIES).sum()])
        net = net.filter(pl.col(COPIES) != 0)
        net = newest_per_identity(net.select(HASH, *names, COPIES), [HASH, *names])
        new, old = net.filter(pl.col(COPIES) > 0), net.filter(pl.col(COPIES) < 0)
        return (
            repeated(new, new[COPIES]).select(names),
            repeated(old, -old[COPIES]).select(names),
        )


def _yield_alone(how: str) -> tuple[bool, bool]:
    """Whether a join yields the rows of each side that have no partner."""
    return how in ("left", "full", "anti"), how in ("right", "full")


class KeyedLookupOperator(RawRows):
    """A lookup in a table for rows of a changelog.

    Spark looks up the new rows of an epoch, in the table as of the same barrier, and marks the keys
    that have rows taken back.  The operator keeps the rows that it sent of each key.  When the key
    changes, it takes back those that no longer hold, exactly as they were sent: the table may have
    changed since, so another lookup might not find the same row.
    """

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        """*schema* is that of the rows with the columns that the table adds to them.

        Raises:
            ConfigurationError: the columns that the input is updated by are missing.
        """
        self.output_schema = input_schema(schema)
        key_types(stage.uid, self.output_schema, stage.keys)
        require_distinct(stage.uid, [*self.output_schema, _NUMBER])
        self._schema = StateSchema(
            columns=pl.Schema({**self.output_schema, _NUMBER: pl.Int64()}),
            key_columns=stage.keys,
            sub_key_columns=(_NUMBER,),
        )
        self.tables = {SENT: self._schema}

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        groups = rows.select(HASH, *self.output_schema, WEIGHT)
        return Partial(groups={SENT: groups}, late=self.output_schema.to_frame())

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        rows, key, identity = groups[SENT], self._schema.key, self._schema.identity
        before = state[SENT].lookup(newest_per_identity(rows.select(key), key))
        after = in_order(rows.filter(pl.col(WEIGHT) > 0).drop(WEIGHT), key)
        after = after.with_columns(place_in_run(key).alias(_NUMBER))
        weighed = [
            frame.drop(_NUMBER).with_columns(pl.lit(weight, pl.Int8).alias(WEIGHT))
            for frame, weight in ((before, -1), (after, 1))
        ]
        output, retracted = split_by_weight(without_pairs(pl.concat(weighed)))
        names = self.output_schema.names()
        return Outcome(
            output=output.select(names),
            retracted=retracted.select(names),
            changes={
                SENT: Changes(
                    upserts=after.join(
                        before,
                        on=after.columns,
                        how="anti",
                        nulls_equal=True,
                        maintain_order="left",
                    ),
                    deletes=before.select(identity).join(
                        after, on=identity, how="anti", nulls_equal=True, maintain_order="left"
                    ),
                )
            },
        )


class JoinColumns:
    """The columns of a join: all of its ``inputs``, those ``kept`` of each, and the ``result``.

    Key columns are kept under the names they have on the left.  The result has the columns of the
    left, then those of the right but key columns that are called alike on both sides, which come
    once, from whichever side has the row (SQL's USING); a semi or anti join has those of the left
    alone.
    """

    def __init__(
        self,
        stage: StageNode,
        left: pl.Schema,
        right: pl.Schema,
        how: RegularJoinKind,
        *,
        apart: Sequence[str] = (),
        added: Mapping[str, pl.DataType] = _NO_COLUMNS,
        reserved: Sequence[str] = (),
    ) -> None:
        """Columns *apart* of the inputs are not among those kept; *added* end the result.

        *reserved* are the names of further columns, of the operator, in its state.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
        self.inputs = (input_schema(left), input_schema(right))
        self.keys = stage.inputs[0].keys
        _check_keys(stage, *self.inputs)
        own_names = dict(zip(stage.inputs[1].keys, self.keys, strict=True))
        left_kept = {name: of for name, of in self.inputs[0].items() if name not in apart}
        from_right = {
            name: of
            for name, of in self.inputs[1].items()
            if how not in ("semi", "anti") and name not in apart and own_names.get(name) != name
        }
        _check_names(stage, self.keys, apart, [name for name in from_right if name in left_kept])
        key_columns = {key: left_kept[key] for key in self.keys}
        others = {name: of for name, of in from_right.items() if name not in own_names}
        self.kept = (pl.Schema(left_kept), pl.Schema({**key_columns, **others}))
        self.result = pl.Schema({**left_kept, **from_right, **added})
        require_distinct(stage.uid, [*left_kept, *from_right, *added])
        for kept in self.kept:
            require_distinct(stage.uid, [*kept, *added, *reserved])
        keys = [pl.col(name).alias(kept) for name, kept in own_names.items()]
        self._kept_columns = ([pl.col(*left_kept)], [*keys, *(pl.col(name) for name in others)])
        self._own_names = own_names
        self._from_right = [pl.col(self.kept_name(n)).alias(n) for n in from_right]
        self._from_right_names = tuple(from_right)

    @property
    def key(self) -> tuple[str, ...]:
        return (HASH, *self.keys)

    def kept_name(self, name: str) -> str:
        """The name in state of a column of the right input."""
        return self._own_names.get(name, name)

    def of_input(self, rows: pl.DataFrame, side: int, *more: pl.Expr) -> pl.DataFrame:
        """The rows of an input as they are kept in state: hash, kept columns, and *more*."""
        return rows.select(HASH, *self._kept_columns[side], *more)

    def distinct_keys(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.select(self.key).unique()

    def of_right(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The columns of the result that come from rows of the right input."""
        return rows.select(self._from_right)

    def without_right(self, left: pl.DataFrame) -> pl.DataFrame:
        """The result for left rows without a partner, with its hash."""
        nulls = [pl.lit(None, self.result[name]).alias(name) for name in self._from_right_names]
        return left.select(HASH, *self.kept[0], *nulls)

    def without_left(self, right: pl.DataFrame) -> pl.DataFrame:
        """The result for right rows without a partner, with its hash."""
        known = {name: self.kept_name(name) for name in self._from_right_names}
        known |= {name: name for name, kept in self._own_names.items() if name == kept}
        columns = [
            (pl.col(known[name]) if name in known else pl.lit(None, dtype)).alias(name)
            for name, dtype in self.result.items()
        ]
        return right.select(HASH, *columns)

    def joined(
        self,
        left: pl.DataFrame,
        right: pl.DataFrame,
        how: Literal["inner", "left"],
        also_on: Sequence[str] = (),
    ) -> pl.DataFrame:
        """The result for all pairs, with hash and *also_on*; in order of *left*, then *right*."""
        on = [*self.key, *also_on]
        return left.select(*dict.fromkeys((HASH, *self.kept[0], *also_on))).join(
            right.select(*on, *self._from_right), on=on, how=how, maintain_order="left_right"
        )

    def matched(
        self,
        left: pl.DataFrame,
        right: pl.DataFrame,
        how: Literal["semi", "anti"],
        also_on: Sequence[str] = (),
    ) -> pl.DataFrame:
        """The rows of *left* with a partner in *right* (semi), or without one (anti); in order."""
        on = [*self.key, *also_on]
        return left.join(right.select(on), on=on, how=how, maintain_order="left")


def _check_keys(stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
    names = [node.keys for node in stage.inputs]
    assert len(names) == len(SIDES), "a join has two inputs"
    types = [
        key_types(stage.uid, schema, keys)
        for schema, keys in zip((left, right), names, strict=True)
    ]
    for one, other in zip(*names, strict=True):
        if types[0][one] != types[1][other]:
            sides = [
                f"{name!r} of {node.producer!r}, which is {spark_type(of[name])},"
                for name, node, of in zip((one, other), stage.inputs, types, strict=True)
            ]
            raise ConfigurationError(
                f"stage {stage.uid!r} joins {' with '.join(sides)} so that their hashes never "
                f"meet; {a_cast(one, types[0][one], types[1][other], other)}, in a select() before"
            )


def _check_names(
    stage: StageNode, keys: Sequence[str], apart: Sequence[str], on_both_sides: Sequence[str]
) -> None:
    for name in apart:
        if name in keys:
            raise ConfigurationError(
                f"stage {stage.uid!r} cannot be keyed by {name!r}, which its join compares "
                "anyway; key it by the other columns"
            )
    if on_both_sides:
        raise ConfigurationError(
            f"stage {stage.uid!r} has a column {on_both_sides[0]!r} on both sides; "
            "rename it on one of them with select()"
        )


def require_instant(uid: str, schema: pl.Schema, column: str | None, purpose: str) -> str:
    """The name of a column that must hold instants.

    Raises:
        ConfigurationError: it is not there, or has another type.
    """
    assert column is not None, "the declaration has refused an input without event time"
    if column_type(uid, schema, column, purpose) != INSTANT:
        raise wrong_type(uid, schema, column, f"{purpose}, which needs a timestamp")
    return column


Indices = npt.NDArray[np.int64]

_EXPIRES_MS = "_expires_ms"  # The watermark after which no partner can arrive.
_STRETCH = "_stretch"
_MAX_TIMESTAMP_MS = "window_max_timestamp_ms"  # Flink's maxTimestamp(): end - 1.


class IntervalJoinOperator(RawRows):
    """The pairs of a left row and the right rows of its key whose time lies in its interval.

    The interval goes from the left row's time plus the lower bound to its time plus the upper
    bound, or to the instant in one of its columns; both ends are included.  A null there makes it
    empty.  Each pair is emitted once, in the epoch in which the second of the two arrives.

    A row leaves the state as soon as no partner can arrive any more; a left join then emits it with
    nulls if none did.  A row is late if its own time is null or not after the watermark at the
    epoch's start.  So as long as no row is late, the result does not depend on where epochs end.
    """

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        declared = stage.operation
        assert isinstance(declared, ops.IntervalJoin)
        reserved = [_EXPIRES_MS, _MATCHED, SEQUENCE]
        columns = JoinColumns(stage, left, right, declared.how, reserved=reserved)
        self._columns = columns
        self._times = [
            require_instant(stage.uid, columns.inputs[side], node.event_time, "as event time")
            for side, node in enumerate(stage.inputs)
        ]
        if declared.upper_column is not None:
            require_instant(
                stage.uid, columns.inputs[0], declared.upper_column, "as the end of its interval"
            )
        self._right_time = columns.kept_name(self._times[1])
        self._declared = declared
        self._is_left = declared.how == "left"
        matched = {_MATCHED: pl.Boolean()} if self._is_left else {}
        self.tables = {
            name: StateSchema(
                columns=pl.Schema({**kept, _EXPIRES_MS: pl.Int64(), **more, SEQUENCE: pl.Int64()}),
                key_columns=columns.keys,
                sub_key_columns=(SEQUENCE,),
                time_column=_EXPIRES_MS,
                is_written_once=not more,  # A match is noted in the left row of a left join.
            )
            for name, kept, more in zip(SIDES, columns.kept, (matched, {}), strict=True)
        }
        self.output_schema = columns.result

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:
        at_ms = pl.col(self._times[side]).dt.epoch("us") // US_PER_MS
        is_open = (at_ms > time.previous_watermark_ms).fill_null(value=False)
        is_live = rows.select(is_open).to_series()
        expires_ms = at_ms - self._declared.lower_ms if side else self._left_expires_ms(at_ms)
        kept = self._columns.of_input(rows.filter(is_live), side, expires_ms.alias(_EXPIRES_MS))
        if side or not self._is_left:
            kept = kept.drop_nulls(self._columns.keys)
        return Partial(
            groups={SIDES[side]: kept},
            late=rows.filter(~is_live).select(self._columns.inputs[side].names()),
        )

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        columns = self._columns
        left, right = (self._new(groups, side, time) for side in range(len(SIDES)))
        old_left = state[LEFT].lookup(columns.distinct_keys(right))
        old_right = state[RIGHT].lookup(columns.distinct_keys(left))
        # Sorted as ``interval_pairs`` needs it; state is sorted by sequence.
        old_right = old_right.sort(*columns.key, self._right_time, SEQUENCE)
        which, where = self._pairs(left, right)
        which_before, where_before = self._pairs(left, old_right)
        old_which, old_where = self._pairs(old_left, right)
        frames = [
            self._joined(left, right, which, where),
            self._joined(left, old_right, which_before, where_before),
            self._joined(old_left, right, old_which, old_where),
        ]
        waits = pl.col(_EXPIRES_MS) > time.watermark_ms
        due_left, due_right = (
            state[name].due(time.watermark_ms, after_ms=time.previous_watermark_ms)
            for name in SIDES
        )
        if self._is_left:
            left = _marked(left, np.append(which, which_before))
            was_alone = ~old_left[_MATCHED]
            newly = _marked(old_left, old_which).filter(was_alone & pl.col(_MATCHED))
            alone = ~pl.col(_MATCHED)
            due_alone = due_left.filter(alone).join(
                newly,
                on=self.tables[LEFT].identity,
                how="anti",
                nulls_equal=True,
                maintain_order="left",
            )
            frames.append(columns.without_right(due_alone))
            frames.append(columns.without_right(left.filter(~waits & alone)))
            left = by_hash([left, newly])
        return Outcome(
            output=by_hash(frames).drop(HASH),
            changes={
                LEFT: Changes(upserts=left.filter(waits), deletes=due_left),
                RIGHT: Changes(upserts=right.filter(waits), deletes=due_right),
            },
        )

    def _left_expires_ms(self, at_ms: pl.Expr) -> pl.Expr:
        if self._declared.upper_column is None:
            return at_ms + self._declared.upper_ms
        upper_ms = pl.col(self._declared.upper_column).dt.epoch("us") // US_PER_MS
        return upper_ms.fill_null(at_ms)  # An empty interval: no partner to wait for.

    def _pairs(self, left: pl.DataFrame, right: pl.DataFrame) -> tuple[Indices, Indices]:
        """All pairs whose times fit, to the microsecond."""
        left_us = pl.col(self._times[0]).dt.epoch("us")
        upper_us = (
            left_us + self._declared.upper_ms * US_PER_MS
            if self._declared.upper_column is None
            else pl.col(self._declared.upper_column).dt.epoch("us")
        )
        return interval_pairs(
            left,
            right,
            self._columns.key,
            lower=left_us + self._declared.lower_ms * US_PER_MS,
            upper=upper_us,
            at=pl.col(self._right_time).dt.epoch("us"),
        )

    def _joined(
        self, left: pl.DataFrame, right: pl.DataFrame, which: Indices, where: Indices
    ) -> pl.DataFrame:
        left = left[which].select(HASH, *self._columns.kept[0])
        return pl.concat([left, self._columns.of_right(right[where])], how="horizontal")

    def _new(self, groups: Frames, side: int, time: EpochTime) -> pl.DataFrame:
        schema = self.tables[SIDES[side]]
        if SIDES[side] not in groups:
            return schema.live.to_frame()
        then = (self._right_time,) if side else ()
        rows = sequenced(groups[SIDES[side]], schema.key, time, then=then)
        if _MATCHED in schema.columns:
            rows = rows.with_columns(pl.lit(False).alias(_MATCHED))  # noqa: FBT003 - a value
        return rows.select(schema.live.names())


def _marked(left: pl.DataFrame, which: Indices) -> pl.DataFrame:
    """*left* with the rows at the places *which* marked as matched."""
    is_matched = np.zeros(left.height, np.bool_)
    is_matched[which] = True
    return left.with_columns(pl.Series(_MATCHED, is_matched))


def interval_pairs(
    left: pl.DataFrame,
    right: pl.DataFrame,
    key: Sequence[str],
    *,
    lower: pl.Expr,
    upper: pl.Expr,
    at: pl.Expr,
) -> tuple[Indices, Indices]:
    """All pairs of equal *key* with ``lower <= at <= upper``, as places in *left* and in *right*.

    *right* is sorted by *key*, and the rows of a key by *at*, so nothing is sorted here: the cost
    follows the left rows and the pairs.  The pairs are in the order of *left*, then of *right*.
    *lower* and *upper*, of left rows, and *at*, of right rows, are int64.  A null, in a key or a
    bound, matches nothing.
    """
    if left.is_empty() or right.is_empty():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    starts, ends = _stretches(left, right, key)
    times = right.select(at).to_series().to_numpy()
    bounds = left.select(lower.alias("lower"), upper.alias("upper"))
    is_bounded = bounds.select(pl.all_horizontal(pl.all().is_not_null())).to_series().to_numpy()
    filled = bounds.fill_null(0)
    first = _places(times, filled["lower"].to_numpy(), starts, ends, after_equals=False)
    end = _places(times, filled["upper"].to_numpy(), starts, ends, after_equals=True)
    counts = np.where(is_bounded, np.maximum(end - first, 0), 0)  # An interval may be empty.
    offsets = np.cumsum(counts) - counts
    found = np.repeat(first - offsets, counts) + np.arange(counts.sum())
    return np.repeat(np.arange(left.height), counts), found


def _stretches(
    left: pl.DataFrame, right: pl.DataFrame, key: Sequence[str]
) -> tuple[Indices, Indices]:
    """For each left row, the first place of its key in *right*, and the one behind its last."""
    heads = right.select(differs_from_previous(key)).to_series().to_numpy(writable=True)
    heads[0] = True
    starts = np.flatnonzero(heads)
    numbered = right[starts].select(key).with_row_index(_STRETCH)
    joined = left.select(key).join(numbered, on=list(key), how="left", maintain_order="left")
    stretch = joined[_STRETCH].cast(pl.Int64).fill_null(len(starts)).to_numpy()
    # The last stretch, of keys that are missing on the right, is empty.
    firsts = np.append(starts, right.height)
    ends = np.append(firsts[1:], right.height)
    return firsts[stretch], ends[stretch]


def _places(
    times: Indices, sought: Indices, starts: Indices, ends: Indices, *, after_equals: bool
) -> Indices:
    """The places where each time *sought* would be inserted between its start and its end."""
    low, high = starts.copy(), ends.copy()
    while len(still := np.flatnonzero(low < high)):
        middle = (low[still] + high[still]) // 2
        found, wanted = times[middle], sought[still]
        is_before = found <= wanted if after_equals else found < wanted
        low[still[is_before]] = middle[is_before] + 1
        high[still[~is_before]] = middle[~is_before]
    return low


class WindowJoinOperator(RawRows):
    """Pairs of rows with equal keys in the same window, emitted when it has ended.

    Rows are kept in state until the watermark reaches the last millisecond of their window; then
    the window is joined, once, and its rows are deleted.  An inner join pairs them; a left join
    pairs them, and emits left rows without a partner with nulls; a semi or anti join emits the left
    rows that have or do not have a partner, and keeps only the keys of right rows.

    A row is late if it has no time, or if all its windows ended before the epoch began.  Output
    ends with ``window_start`` and ``window_end``.
    """

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        assert isinstance(stage.operation, ops.WindowJoin)
        self._how = stage.operation.how
        window = stage.operation.window
        bounds = dict.fromkeys(WINDOW, INSTANT)
        columns = JoinColumns(
            stage,
            left,
            right,
            self._how,
            apart=WINDOW if isinstance(window, Attached) else (),
            added=bounds,
            reserved=[_MAX_TIMESTAMP_MS, SEQUENCE],
        )
        self._columns = columns
        self._windows = [
            _windows(stage, side, window, schema) for side, schema in enumerate(columns.inputs)
        ]
        self._keeps_null_keys = (self._how in ("left", "anti"), False)
        self._counts = (True, self._how in ("inner", "left"))  # Whether duplicate rows count.
        self.tables = {
            name: StateSchema(
                columns=pl.Schema(
                    {
                        **kept,
                        **bounds,
                        _MAX_TIMESTAMP_MS: pl.Int64(),
                        **({SEQUENCE: pl.Int64()} if counts else {}),
                    }
                ),
                key_columns=columns.keys,
                sub_key_columns=(*WINDOW, SEQUENCE) if counts else WINDOW,
                time_column=_MAX_TIMESTAMP_MS,
                is_written_once=True,
            )
            for name, kept, counts in zip(SIDES, columns.kept, self._counts, strict=True)
        }
        self.output_schema = columns.result

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:
        windows = self._windows[side]
        is_open = max_timestamp_ms(windows[0][1]) > time.previous_watermark_ms  # The last one.
        is_live = rows.select(is_open.fill_null(value=False)).to_series()
        live = rows.filter(is_live)
        kept = pl.concat(
            self._columns.of_input(
                live,
                side,
                start.alias(WINDOW_START),
                end.alias(WINDOW_END),
                max_timestamp_ms(end).alias(_MAX_TIMESTAMP_MS),
            )
            for start, end in windows
        ).filter(pl.col(_MAX_TIMESTAMP_MS) > time.previous_watermark_ms)
        if not self._keeps_null_keys[side]:
            kept = kept.drop_nulls(self._columns.keys)
        return Partial(
            groups=self.combine({SIDES[side]: kept}),
            late=rows.filter(~is_live).select(self._columns.inputs[side].names()),
        )

    def combine(self, groups: Frames) -> Frames:
        if self._counts[1] or RIGHT not in groups:
            return groups
        return {**groups, RIGHT: groups[RIGHT].unique()}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        fires = pl.col(_MAX_TIMESTAMP_MS) <= time.watermark_ms
        fired: dict[str, pl.DataFrame] = {}
        changes: dict[str, Changes] = {}
        for side, name in enumerate(SIDES):
            new = self._new(groups, side, time)
            due = state[name].due(time.watermark_ms, after_ms=time.previous_watermark_ms)
            fired[name] = pl.concat([due, new.filter(fires)])
            kept = self._unknown(new.filter(~fires), state[name])
            changes[name] = Changes(upserts=kept, deletes=due)
        pairs = self._joined(fired[LEFT], fired[RIGHT])
        return Outcome(output=by_hash([pairs]).select(self.output_schema.names()), changes=changes)

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
        match self._how:
            case "inner" | "left" as how:
                return self._columns.joined(left, right, how, also_on=WINDOW)
            case "semi" | "anti" as how:
                return self._columns.matched(left, right, how, also_on=WINDOW)
            case _:
                assert_never(self._how)

    def _new(self, groups: Frames, side: int, time: EpochTime) -> pl.DataFrame:
        schema = self.tables[SIDES[side]]
        if SIDES[side] not in groups:
            return schema.live.to_frame()
        if not self._counts[side]:
            return groups[SIDES[side]].sort(schema.identity)
        return sequenced(groups[SIDES[side]], (*schema.key, *WINDOW), time)

    def _unknown(self, rows: pl.DataFrame, state: KeyedState) -> pl.DataFrame:
        """*rows* without keys that are in state already."""
        if SEQUENCE in rows.columns:
            return rows
        return rows.filter(state.find(rows)[HASH].is_null())


def _windows(
    stage: StageNode, side: int, window: Window, schema: pl.Schema
) -> list[tuple[pl.Expr, pl.Expr]]:
    """Start and end of each window that a row of the input is in; the last to end comes first.

    Raises:
        ConfigurationError: the rows cannot be windowed so.
    """
    if isinstance(window, Session):
        raise ConfigurationError(
            f"stage {stage.uid!r} cannot join in session windows, which differ from side to side; "
            "use Tumbling, Hopping or Attached"
        )
    panes = panes_of(replace(stage, inputs=(stage.inputs[side],)), window, schema)
    if panes.event_time is None:
        start, end = panes.of_rows()
        return [(start, end)]
    (last,) = replace(panes, size_us=panes.slide_us).of_rows()
    slide, size = panes.slide_us * US, panes.size_us * US
    starts = [last - earlier * slide for earlier in range(-(-panes.size_us // panes.slide_us))]
    if not panes.is_even:  # The first one may have ended before a row: then it is null.
        at = pl.col(panes.event_time)
        starts[-1] = pl.when(starts[-1] + size > at).then(starts[-1])
    return [(start, start + size) for start in starts]
