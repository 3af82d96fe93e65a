"""``IntervalJoin``: each left row with the right rows of its key whose time lies in its interval.

Flink's interval join.  The interval goes from the left row's time plus the lower bound to its time
plus the upper bound, or to the instant in one of its columns; both ends are included.  A null there
makes it empty.  Each pair is emitted once, in the epoch in which the second of the two arrives.

A row leaves the state as soon as no partner can arrive any more; a left join then emits it with
nulls if none did.  A row is late, and goes to the late rows unchanged, if its own time is null or
not after the watermark at the epoch's start.  So as long as no row is late, the result does not
depend on where epochs end.  A TTL does not apply: the interval bounds the state.

Output is sorted by hash.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import IntervalJoin as Declared
from sluice.errors import ConfigurationError
from sluice.subtask.operators.interval_pairs import Indices, interval_pairs
from sluice.subtask.operators.join_rows import (
    LEFT,
    RIGHT,
    SIDES,
    US_PER_MS,
    JoinColumns,
    require_instant,
)
from sluice.subtask.operators.operator import Changes, EpochTime, Frames, Outcome, Partial
from sluice.subtask.operators.raw_rows import SEQUENCE, RawRows, by_hash, sequenced
from sluice.subtask.state.keyed import KeyedState, StateSchema
from sluice.subtask.state.segments import HASH

_EXPIRES_MS = "_expires_ms"  # The watermark after which no partner can arrive.
_MATCHED = "_matched"  # Of a left join: whether a partner has arrived.
_LONGEST_MS = 10_000 * 366 * 24 * 3_600_000  # No two datetimes are farther apart.


class IntervalJoin(RawRows):
    """An ``Operator``; see ``sluice.subtask.operators.operator``."""

    def __init__(self, stage: StageNode, left: pl.Schema, right: pl.Schema) -> None:
        """*left* and *right* are the schemas of the inputs.

        Raises:
            ConfigurationError: the inputs cannot be joined so.
        """
        declared = stage.operation
        assert isinstance(declared, Declared)
        _check_bounds(stage.uid, declared)
        ours = [_EXPIRES_MS, _MATCHED, SEQUENCE]
        columns = JoinColumns(stage, left, right, declared.how, ours=ours)
        self._columns = columns
        self._times = [
            require_instant(stage.uid, columns.inputs[side], given.event_time, "as event time")
            for side, given in enumerate(stage.inputs)
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
        old_right = self._by_time(state[RIGHT].lookup(columns.distinct_keys(left)))
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

    def _by_time(self, right: pl.DataFrame) -> pl.DataFrame:
        """Stored *right* rows as ``_pairs`` needs them; state is sorted by sequence."""
        return right.sort(*self._columns.key, self._right_time, SEQUENCE)

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


def _check_bounds(uid: str, declared: Declared) -> None:
    for bound in (declared.lower_ms, declared.upper_ms):
        if abs(bound) > _LONGEST_MS:
            raise ConfigurationError(
                f"stage {uid!r} has an interval bound of {bound} ms; use at most {_LONGEST_MS} ms, "
                "or a regular join, which has no bounds"
            )
    if declared.upper_column is None and declared.upper_ms < declared.lower_ms:
        raise ConfigurationError(
            f"stage {uid!r} has an interval from {declared.lower_ms} ms to {declared.upper_ms} ms, "
            "which is empty; swap the bounds"
        )
