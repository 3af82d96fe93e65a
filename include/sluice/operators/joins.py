"""Joins over all time: regular joins, which keep both sides in state, and lookups in a table.

Output is sorted by hash.  A regular join without a TTL keeps both sides for ever.  As in SQL and in
Flink, a null in a key column equals nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import polars as pl

from sluice.core.transitions import Adoption
from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import RegularJoinKind
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
    in_order,
    input_schema,
    key_types,
    place_in_run,
    require_distinct,
    sequenced,
    wrong_type,
)
from sluice.operators.sql import spark_type
from sluice.operators.windows import INSTANT
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
        """*left* and *right* are the schemas of the inputs.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
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
        """*left* and *right* are the schemas of the inputs.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
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
