"""``ChangelogJoin``: a regular join that takes rows back when they leave its result.

Flink's regular join of any inputs, inner, left, right, full, semi and anti.  Both sides are bags of
rows.  An outer side yields a row without a partner with nulls for the other side; that row is taken
back when the first partner comes, and yielded again when the last one goes.  A semi join yields
each left row that has a partner, an anti join each that has none.  A row with a null in its key
never has a partner: an outer or anti join yields it at once, and it is not kept in state.

An epoch reads from state only the keys that it touches; of an outer side's own rows, only those
whose partners came or went.  Without a TTL both sides are kept for ever; with one, a row is
forgotten when it was not written for that long, and no result is taken back for that.

Output is sorted by hash, then by all columns.  A row that one epoch would both yield and take back
is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import RegularJoin as Declared
from sluice.subtask.operators.bag import COPIES, Bag, BagChange, repeated
from sluice.subtask.operators.grouping import grouped
from sluice.subtask.operators.join_rows import LEFT, RIGHT, SIDES, JoinColumns
from sluice.subtask.operators.operator import WEIGHT, EpochTime, Frames, Outcome, Partial
from sluice.subtask.operators.raw_rows import RawRows
from sluice.subtask.state.keyed import KeyedState, newest_per_identity
from sluice.subtask.state.segments import HASH

_OTHER_COPIES = "_other_copies"

_Keys = pl.DataFrame  # Distinct keys, with their hash.


class ChangelogJoin(RawRows):
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        """*left* and *right* are the schemas of the inputs.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
        assert isinstance(stage.operation, Declared)
        how = stage.operation.how
        ours = [COPIES, _OTHER_COPIES]
        columns = JoinColumns(stage, left, right, how, ours=ours, takes_updates=True)
        self._columns = columns
        self._bags = [Bag(kept, columns.keys, ttl_ms=stage.ttl_ms) for kept in columns.kept]
        self._how = how
        self._has_pairs = how not in ("semi", "anti")
        # The sides whose rows are yielded because they have a partner, or because they have none.
        self._yields_matched = how == "semi"
        self._yields_alone = (how in ("left", "full", "anti"), how in ("right", "full"))
        self.tables = {name: bag.schema for name, bag in zip(SIDES, self._bags, strict=True)}
        self.output_schema = columns.result

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        weight = [pl.col(WEIGHT)] if WEIGHT in rows.columns else []
        kept = self._columns.of_input(rows, side, *weight)
        if not self._yields_alone[side]:
            kept = kept.drop_nulls(self._columns.keys)
        late = self._columns.inputs[side].to_frame()
        return Partial(groups={SIDES[side]: self._bags[side].weighed(kept)}, late=late)

    def combine(self, groups: Frames) -> Frames:
        bags = dict(zip(SIDES, self._bags, strict=True))
        return {name: bags[name].folded(frame) for name, frame in groups.items()}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        keyless, changes = [], []
        for bag, name in zip(self._bags, SIDES, strict=True):
            rows = groups.get(name, bag.schema.live.to_frame())
            lacks_key = pl.any_horizontal(pl.col(self._columns.keys).is_null())
            keyless.append(rows.filter(lacks_key))
            changes.append(bag.changed(rows.filter(~lacks_key), state[name]))
        stored = self._stored(changes, state)
        names = [HASH, *self.output_schema, COPIES]
        parts = [pl.Schema({**self.output_schema, HASH: pl.Int64(), COPIES: pl.Int64()}).to_frame()]
        if self._has_pairs:
            parts += self._pairs(changes, stored)
        if self._yields_matched or self._yields_alone[0]:
            left = self._yielded(changes, stored, 0, matched=self._yields_matched)
            parts += [self._alone(rows, 0) for rows in (*left, keyless[0])]
        if self._yields_alone[1]:
            right = self._yielded(changes, stored, 1, matched=False)
            parts += [self._alone(rows, 1) for rows in (*right, keyless[1])]
        output, retracted = self._split(pl.concat([part.select(names) for part in parts]))
        return Outcome(
            output=output,
            retracted=retracted,
            changes={
                name: bag.changes(change)
                for name, bag, change in zip(SIDES, self._bags, changes, strict=True)
            },
        )

    def _stored(
        self, changes: list[BagChange], state: Mapping[str, KeyedState]
    ) -> list[pl.DataFrame]:
        """The stored rows of each side from before the epoch, of the keys that it needs."""
        keys = [self._columns.distinct_keys(change.came()) for change in changes]
        both = pl.concat(keys).unique()
        is_asked_for_partners = self._yields_alone[0] or not self._has_pairs
        right = state[RIGHT].lookup(both if is_asked_for_partners else keys[0])
        if self._has_pairs:
            return [state[LEFT].lookup(both if self._yields_alone[1] else keys[1]), right]
        had, has = self._partners(changes, [right.clear(), right], 1)
        turned = pl.concat([self._without(had, has), self._without(has, had)])
        return [state[LEFT].lookup(turned), right]

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
        change, mine = changes[side], stored[side]
        had, has = self._partners(changes, stored, 1 - side)
        goes_out, stays_in = self._with, self._without
        if not matched:
            goes_out, stays_in = stays_in, goes_out
        now = change.overlaid(mine, self._bags[side].identity)
        gone = stays_in(goes_out(mine, had), has)
        return [
            goes_out(goes_out(change.came(), had), has),
            goes_out(stays_in(now, had), has),
            gone.with_columns(-pl.col(COPIES)),
        ]

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
