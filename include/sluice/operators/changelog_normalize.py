"""``ChangelogNormalize``: changes of a database's rows, as another system captured them, as changes
of ours (Flink's operator of that name).

Changes of a key apply in the order of their position in the database's log.  One that is not behind
the newest applied one was delivered again, or came late, and changes nothing.  State is the current
row of each key, or, where changes bring the row that they replace, its position and hash alone.
A deleted key keeps its position, as an older change may still come.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from sluice.declaration import operations as ops
from sluice.declaration.change_events import NOT_LOGGED
from sluice.declaration.nodes import StageNode
from sluice.errors import ConfigurationError, StageFailed
from sluice.operators.operator import (
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
from sluice.operators.sql import spark_type
from sluice.state.key_hash import can_hash, key_hash
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import newest_per_identity
from sluice.state.segments import HASH, StateSchema

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
        """*schema* is that of the input.

        Raises:
            ConfigurationError: rows have a column whose values cannot be told apart by a hash.
        """
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
