"""The best rows of each key: ``Latest``, ``TopN``, ``WindowTopN`` and ``Deduplicate``.

Which row is better is decided by the columns of a ``Ranking`` and, of rows equal in these, by all
other columns: the order of arrival decides nothing.  Over a changelog all current rows are kept, in
a ``Bag``, beside those that were sent (``RetractableRanking``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from sluice.core.event_time import MIN_WATERMARK
from sluice.core.transitions import Adoption
from sluice.declaration import operations as ops
from sluice.declaration.nodes import StageNode
from sluice.errors import ConfigurationError
from sluice.operators.changes import COPIES, Bag, BagChange, repeated
from sluice.operators.kernels import is_ordered
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
    differs_from_previous,
    input_schema,
    key_types,
    require_distinct,
    wrong_type,
)
from sluice.operators.windows import (
    INSTANT,
    TIMER,
    WINDOW,
    WINDOW_START,
    panes_of,
)
from sluice.state.at_once import chosen, passing, without
from sluice.state.keyed import Changes, KeyedState
from sluice.state.runs import gathered, newest_per_identity, order_of, with_next
from sluice.state.segments import HASH, StateSchema

ROWS = "rows"
BAG = "bag"
KEYS = "keys"
RANK = "rank"

_RANK = "_rank"  # Always 1; not the input's own column ``rank``.
_PLACE = "_place"
_POSITION = "_position"
_IS_FORMER = "_is_former"
_RUN = "_run"

# Fewer rows are sorted by all columns at once: that takes less time than pruning them and sorting
# by one column after the other (1,000: 0.8 ms, not 3.4 ms; 100,000: 20 ms, not 9 ms).
_FEW_ROWS = 10_000

# From this many rows for each that is kept, it is faster to drop most of the others by hashing
# before the sort (a million rows of 10,000 groups: 0.1 s instead of 0.2 s).
_WORTH_PRUNING = 32

# One in so many hashes, a power of two, is sampled to estimate the number of groups.
_SAMPLED = 16


class BestRows(RawRows):
    """The common base of ``Latest`` and ``TopN``: the rows that are ranked, as they change.

    Output is an upsert stream on the key, and on the rank, if there is one: the rows that changed,
    with the rows that they replace as retractions.
    """

    _input: pl.Schema

    def _rank_by(
        self,
        stage: StageNode,
        schema: pl.Schema,
        ranking: Ranking,
        ranks: Mapping[str, pl.DataType],
    ) -> None:
        """*schema* is that of the input; *ranks* is the column of ranks, or empty."""
        keys, rank = stage.keys, next(iter(ranks), _RANK)
        self._key = (HASH, *keys)
        self._is_refreshed = stage.ttl_ms is not None
        self._ranking = ranking
        columns = {key: self._input[key] for key in keys if ranks}
        self.output_schema = pl.Schema({**columns, **ranks, **self._input})
        self._schema = StateSchema(
            columns=self.output_schema,
            key_columns=keys,
            sub_key_columns=tuple(ranks),
            ttl_ms=stage.ttl_ms,
        )
        self.tables = {ROWS: self._schema}
        self._bag = Bag(self._input, keys, ttl_ms=stage.ttl_ms)
        self._retractable: RetractableRanking | None = None
        if WEIGHT in schema:
            self._retractable = RetractableRanking(self._bag, ranking, self._key, rank=rank)
            self.tables[BAG] = self._bag.schema

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        late = self._input.to_frame()
        if self._retractable is not None:
            return Partial(groups={BAG: self._bag.weighed(rows)}, late=late)
        return Partial(groups={ROWS: self._best(rows)}, late=late)

    def combine(self, groups: Frames) -> Frames:
        if self._retractable is not None:
            return {BAG: self._bag.folded(groups[BAG])}
        return {ROWS: self._best(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        if self._retractable is None:
            return self._of_added(groups[ROWS], state[ROWS])
        change = self._bag.changed(groups[BAG], state[BAG])
        before = state[ROWS].lookup(change.rows.select(self._key).unique())
        ranked = self._retractable.best(change, before, state[BAG])
        return self._compared(ranked, before, {BAG: self._bag.changes(change)})

    def adopted(
        self,
        groups: Frames,
        state: Mapping[str, KeyedState],
        time: EpochTime,  # noqa: ARG002 - as above
        was: Adoption,  # noqa: ARG002 - what was sent says enough
    ) -> Outcome:
        """The result of another ranking of kept rows: all of updates, or those of a larger n."""
        if self._retractable is None:
            return self._of_added(groups[ROWS], state[ROWS], is_adopted=True)
        change = self._bag.changed(groups[BAG], state[BAG])
        ranked = self._retractable.best_of_all(change, state[BAG])
        return self._compared(ranked, state[ROWS].scan(), {BAG: self._bag.changes(change)})

    def held(self, state: Mapping[str, KeyedState]) -> pl.DataFrame:
        return state[ROWS].scan().select(self.output_schema.names())

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that may be ranked: no other row can be."""
        raise NotImplementedError

    def _of_added(
        self, rows: pl.DataFrame, state: KeyedState, *, is_adopted: bool = False
    ) -> Outcome:
        """The outcome of *rows* that are only added, perhaps to those of another n."""
        raise NotImplementedError

    def _compared(
        self,
        ranked: pl.DataFrame,
        before: pl.DataFrame,
        changes: Mapping[str, Changes] | None = None,
    ) -> Outcome:
        """*before* are the rows that were sent of the keys of *ranked*; some may be gone."""
        identity = self._schema.identity
        gone = before.join(ranked, on=identity, how="anti", nulls_equal=True)
        return self._outcome(ranked, beside(ranked, before, identity), gone, changes)

    def _outcome(
        self,
        ranked: pl.DataFrame,
        former: pl.DataFrame,
        gone: pl.DataFrame,
        changes: Mapping[str, Changes] | None = None,
    ) -> Outcome:
        """*former* are the rows that were sent in the place of each of *ranked*."""
        names, result = self._schema.live.names(), self.output_schema.names()
        ranked = ranked.select(names)
        is_news = differs(ranked, former, names)
        replaced = former.filter(is_news & former[HASH].is_not_null())
        if gone.height:
            replaced = newest_per_identity(pl.concat([replaced, gone]), self._schema.identity)
        news = ranked.filter(is_news)
        rows = Changes(upserts=ranked if self._is_refreshed else news, deletes=gone)
        return Outcome(
            output=news.select(result),
            retracted=replaced.select(result),
            changes={ROWS: rows, **(changes or {})},
        )


class LatestOperator(BestRows):
    """The row of each key with the largest ``by``, compared column by column; null is the smallest.

    Of rows equal in ``by`` the row that is larger in its other columns wins.  Over a changelog,
    when the latest row is taken back, the one before it is the latest again, and a key without rows
    has none.  Output is in the columns of the input.
    """

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        operation = stage.operation
        assert isinstance(operation, ops.Latest)
        self._input = input_schema(schema)
        key_types(stage.uid, self._input, stage.keys)
        require_distinct(stage.uid, [*self._input, _RANK])
        if not operation.by:
            raise ConfigurationError(
                f"stage {stage.uid!r} needs a column by which one row is later than another: by=..."
            )
        _require_ordered(stage, self._input, operation.by, "to tell which row is the latest")
        order = dict.fromkeys((*operation.by, *self._input))
        order = {name: None for name in order if name not in stage.keys}
        self._rank_by(stage, schema, Ranking(n=1, order=descending(order or stage.keys)), {})

    def _of_added(
        self,
        rows: pl.DataFrame,
        state: KeyedState,
        *,
        is_adopted: bool = False,  # noqa: ARG002 - it is 1
    ) -> Outcome:
        rows = newest_per_identity(rows, self._key)
        before = state.find(rows)
        latest = self._best(pl.concat([rows, before.drop_nulls(HASH)]))  # In the order of *rows*.
        return self._outcome(latest, before, before.clear())

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        return chosen(self._ranking.best(rows, self._key), self._schema.live)


class TopNOperator(BestRows):
    """The n rows of each key with the largest value.

    Without ``unique`` columns every row counts, duplicates too (Flink's AppendOnlyTopNFunction).
    With them, over an append-only stream, a row replaces the earlier one with the same ``unique``
    columns, and ``by`` must never decrease (Flink's UpdatableTopNFunction): so a row below rank n
    is dropped.  Over a changelog, when a ranked row is taken back, the next one moves up (Flink's
    RetractableTopNFunction); ``unique`` then only decides ties.

    Ties in ``by`` go to the smallest ``ties_by``, then the smallest ``unique``, then the smallest
    other columns; nulls in ``by`` come last.  Of two versions of a row with equal ``by`` in one
    epoch, the one with the larger other columns is kept.

    State is a row per key and rank; an unchanged rank is not written again.  With a TTL, ranks
    expire when their key was not touched for that long, rows of the bag when they themselves were
    not.
    """

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        operation = stage.operation
        assert isinstance(operation, ops.TopN)
        self._input = input_schema(schema)
        key_types(stage.uid, self._input, stage.keys)
        _require_ordered(stage, self._input, (operation.by,), "to rank by")
        _require_ordered(stage, self._input, operation.ties_by, "to rank equal ones by")
        for column in operation.unique:
            column_type(stage.uid, self._input, column, "to make its rows unique")
        require_distinct(stage.uid, [RANK, *self._input])
        self._unique = operation.unique
        self._others = tuple(name for name in self._input if name not in stage.keys)
        newest = dict.fromkeys((operation.by, *self._others))
        self._newest = Ranking(n=1, order=descending(newest))
        ties = dict.fromkeys((*operation.ties_by, *operation.unique, *self._others))
        done = (*stage.keys, operation.by)
        ties_by = ascending(name for name in ties if name not in done)
        order = (*descending([operation.by]), *ties_by)
        self._rank_by(stage, schema, Ranking(n=operation.n, order=order), {RANK: pl.Int32()})

    def _of_added(
        self, rows: pl.DataFrame, state: KeyedState, *, is_adopted: bool = False
    ) -> Outcome:
        touched = rows.select(self._key).unique()
        before = state.scan() if is_adopted else state.lookup(touched)
        # *unique* keeps the first of two versions, which is the newer one.
        both = pl.concat([rows, before.select(rows.columns)])
        if self._unique:
            both = newest_per_identity(both, [*self._key, *self._unique])
        ranked = self._ranking.ranked(both, self._key)
        if is_adopted:
            return self._compared(ranked, before)
        former = beside(ranked, before, self._schema.identity)
        return self._outcome(ranked, former, before.clear())  # No rank goes.

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The n best rows per key, each in its last version."""
        rows = chosen(rows, (*self._key, *self._others))
        if self._unique:
            rows = self._newest.best(rows, [*self._key, *self._unique])
        return self._ranking.best(rows, self._key)


class WindowTopNOperator(RawRows):
    """The n rows with the largest value of each key and window, when it has ended.

    Windows, late rows and firing are those of ``AlignedWindow``, without allowed lateness.  Of rows
    equal in ``by`` the smallest in the other columns wins; with ``has_ties`` they have the same
    rank.  Nulls come last.  Without key columns the window is the key.

    Output is append-only: the columns of the input, the bounds of the window unless the rows had
    them, and the rank.  State is the best rows of each pane, each with its position.
    """

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        operation = stage.operation
        assert isinstance(operation, ops.WindowTopN)
        self._input = input_schema(schema)
        for key in stage.keys:
            column_type(stage.uid, self._input, key, "for its key")
        _require_ordered(stage, self._input, (operation.by,), "to rank by")
        self._panes = panes_of(stage, operation.window, self._input)
        added = WINDOW if self._panes.event_time is not None else ()
        require_distinct(stage.uid, [*self._input, *added, RANK, TIMER, _POSITION])
        keys = stage.keys or (WINDOW_START,)
        within = [name for name in self._panes.columns if name not in keys]
        self._pane = (HASH, *keys, *within)
        rest = [name for name in self._input if name != operation.by]
        others = ascending(name for name in rest if name not in self._pane)
        order = (*descending([operation.by]), *others)
        self._ranking = Ranking(n=operation.n, order=order, has_ties=operation.has_ties)
        reserved = {_POSITION: pl.Int32(), TIMER: pl.Int64()}
        columns = {**self._input, **dict.fromkeys(added[:1], INSTANT)}
        self._columns = (HASH, *columns)
        self._schema = StateSchema(
            columns=pl.Schema({**columns, **reserved}),
            key_columns=keys,
            sub_key_columns=(*within, _POSITION),
            time_column=TIMER,
        )
        self.tables = {ROWS: self._schema}
        self.output_schema = pl.Schema(
            {**self._input, **dict.fromkeys(added, INSTANT), RANK: pl.Int32()}
        )

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - it has one input
        placed = rows.select(HASH, *self._input).with_columns(self._panes.of_rows())
        is_open = self._panes.last_fires_ms() > time.previous_watermark_ms
        is_live = placed.select(is_open.fill_null(value=False)).to_series()
        late = rows.select(self._input.names()).filter(~is_live)
        return Partial(groups={ROWS: self._best(placed.filter(is_live))}, late=late)

    def combine(self, groups: Frames) -> Frames:
        return {ROWS: self._best(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:
        new = groups[ROWS]
        panes = new.select(self._pane).unique()
        stored = state[ROWS].lookup(new.select(self._schema.key).unique())
        before = stored.join(panes, on=self._pane, how="semi", nulls_equal=True)
        after = self._placed(pl.concat([new, before.select(self._columns)]))
        due = self._due(state[ROWS], time)
        untouched = due.join(panes, on=self._pane, how="anti", nulls_equal=True)

        begun = self._panes.first_fires_ms() <= time.watermark_ms
        ripe = pl.concat([untouched, after]).filter(begun).select(self._columns)
        is_kept = self._panes.last_fires_ms() > time.watermark_ms
        identity = self._schema.identity
        is_changed = differs(after, beside(after, before, identity), after.columns)
        dropped = before.join(after, on=identity, how="anti", nulls_equal=True)
        gone = pl.concat([due.filter(~is_kept), dropped]).select(identity)
        changes = Changes(
            upserts=after.filter(is_changed).filter(is_kept),
            deletes=newest_per_identity(gone, identity),
        )
        return Outcome(output=self._ended(ripe, time), changes={ROWS: changes})

    def _due(self, state: KeyedState, time: EpochTime) -> pl.DataFrame:
        """The stored panes of every window that ends in this epoch."""
        start_ms, end_ms = time.previous_watermark_ms, time.watermark_ms
        if not self._panes.fires(start_ms, end_ms):
            return self._schema.live.to_frame()
        return state.due(end_ms, after_ms=max(start_ms - self._panes.overhang_ms, MIN_WATERMARK))

    def _best(self, rows: pl.DataFrame) -> pl.DataFrame:
        return self._ranking.best(rows, self._pane).select(self._columns)

    def _placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The best of *rows* in each pane, in the columns of the state."""
        best = self._ranking.best(rows, self._pane)
        numbered = best.with_columns(_row_number(self._pane).alias(_POSITION))
        placed = numbered.with_columns(self._panes.first_fires_ms().alias(TIMER))
        return placed.select(self._schema.live.names())

    def _ended(self, panes: pl.DataFrame, time: EpochTime) -> pl.DataFrame:
        """The result of every window that ends in this epoch."""
        windows = self._panes.windows(
            panes, time.previous_watermark_ms, time.watermark_ms, self._best
        )
        return self._ranking.ranked(windows, self._pane).select(self.output_schema.names())


class DeduplicateOperator(RawRows):
    """The first row of each key, emitted once.

    Of several rows of one key in one epoch, the row with the smallest ``by`` is the first (the
    event time by default; null comes last), then the row that is smallest in its other columns.
    Output is append-only; state is the keys alone.  With a TTL a key is forgotten when no row of it
    came for that long.
    """

    def __init__(self, stage: StageNode, schema: pl.Schema) -> None:
        operation = stage.operation
        assert isinstance(operation, ops.Deduplicate)
        self._input = input_schema(schema)
        key_columns = key_types(stage.uid, self._input, stage.keys)
        require_distinct(stage.uid, self._input)
        by = stage.inputs[0].event_time if operation.by is None else operation.by
        first = () if by is None else (by,)
        _require_ordered(stage, self._input, first, "to tell which row is the first")
        self._key = (HASH, *stage.keys)
        self._is_refreshed = stage.ttl_ms is not None
        order = dict.fromkeys((*first, *self._input))
        names = [name for name in order if name not in stage.keys] or stage.keys
        self._ranking = Ranking(n=1, order=ascending(names, nulls_last=True))
        self.output_schema = self._input
        self._schema = StateSchema(columns=key_columns, key_columns=stage.keys, ttl_ms=stage.ttl_ms)
        self.tables = {KEYS: self._schema}

    def partial(self, rows: pl.DataFrame, time: EpochTime, side: int = 0) -> Partial:  # noqa: ARG002 - time plays no part here
        return Partial(groups={ROWS: self._first(rows)}, late=self._input.to_frame())

    def combine(self, groups: Frames) -> Frames:
        return {ROWS: self._first(groups[ROWS])}

    def process(self, groups: Frames, state: Mapping[str, KeyedState], time: EpochTime) -> Outcome:  # noqa: ARG002 - as above
        rows = newest_per_identity(groups[ROWS], self._key)
        is_new = state[KEYS].find(rows)[HASH].is_null()
        keys = chosen(rows, self._schema.live)
        return Outcome(
            output=chosen(passing(rows, is_new), self.output_schema),
            changes={
                KEYS: Changes(
                    upserts=keys if self._is_refreshed else passing(keys, is_new),
                    deletes=keys.clear(),
                )
            },
        )

    def _first(self, rows: pl.DataFrame) -> pl.DataFrame:
        return chosen(self._ranking.best(rows, self._key), (HASH, *self._input))


def _require_ordered(stage: StageNode, schema: pl.Schema, columns: Iterable[str], why: str) -> None:
    """Refuse columns that do not exist, or whose values cannot be compared.

    Raises:
        ConfigurationError: one of *columns* is of that kind.
    """
    for column in columns:
        if not is_ordered(column_type(stage.uid, schema, column, why)):
            raise wrong_type(stage.uid, schema, column, why)


@dataclass(frozen=True, slots=True)
class By:
    """A column of a ranking.  Null is the smallest value, as in SQL, unless ``nulls_last``."""

    column: str
    descending: bool = False
    nulls_last: bool = False


def descending(columns: Iterable[str]) -> tuple[By, ...]:
    """A ranking by *columns*, largest first and nulls last."""
    return tuple(By(column, descending=True, nulls_last=True) for column in columns)


def ascending(columns: Iterable[str], *, nulls_last: bool = False) -> tuple[By, ...]:
    return tuple(By(column, nulls_last=nulls_last) for column in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The *n* first rows of a group; rows that are equal in all columns of *order* are equal rows.

    ``has_ties`` keeps all rows whose first column of *order* equals the n-th's.  Ranks are those of
    SQL's RANK() with ``has_ties``, otherwise those of ROW_NUMBER().
    """

    n: int
    order: tuple[By, ...]
    has_ties: bool = False

    def best(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """The best rows of each *group*, which starts with the hash; sorted."""
        return without(self.ranked(rows, group, _PLACE), (_PLACE,))

    def ranked(self, rows: pl.DataFrame, group: Sequence[str], name: str = RANK) -> pl.DataFrame:
        """The rows of ``best``, with the rank of each in a new column *name*."""
        assert name not in rows.columns, f"the rows have a column {name!r} of their own"
        if rows.height < _FEW_ROWS:
            ordered = self._sorted_at_once(rows, group)
        else:
            ordered = self._sorted(self._pruned(rows, group), group)
        equal = (*group, self.order[0].column) if self.has_ties else None
        ranked = ordered.with_columns(_row_number(group, equal).alias(name))
        return ranked.filter(pl.col(name) <= self.n)

    def _sorted_at_once(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """*rows* sorted by *group*, which starts with the hash, then as ranked."""
        return rows[self._order_of(rows, group)]

    def _sorted(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """The same for many rows.

        Sorting by the first column, then by the hash, and only what is equal in both by all columns
        takes half the time of sorting by all at once.
        """
        first = self.order[0]
        by_first = rows[first.column].arg_sort(
            descending=first.descending, nulls_last=first.nulls_last
        )
        order = by_first.cast(pl.Int64).to_numpy()
        by_hash = order_of(rows[HASH].to_numpy()[order])
        order = order.copy() if by_hash is None else order[by_hash]
        ordered = gathered(rows.select({*group, first.column}), order)
        is_same_hash = pl.col(HASH) == pl.col(HASH).shift()
        mixed = ordered.select(is_same_hash & differs_from_previous(group)).to_series()
        if mixed.any():
            return self._sorted_at_once(rows, group)  # Keys share a hash.
        is_tie = ~differs_from_previous((HASH, first.column))
        ties = ordered.select(is_tie.arg_true()).to_series().to_numpy()
        if len(ties):
            shared = with_next(ties - 1, rows.height)
            within = self._order_of(gathered(rows, order[shared]), group)
            order[shared] = order[shared[within.to_numpy()]]
        return gathered(rows, order)

    def _order_of(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.Series:
        names = [*group, *(by.column for by in self.order)]
        before = [False] * len(group)
        # Polars 2.1 ends the process at some lists that a filter has left: 3100042 of the fuzz.
        nested = [name for name in names if rows.schema[name].is_nested()]
        if nested:
            rows = rows.with_columns(pl.col(nested).gather(pl.int_range(pl.len())))
        order = pl.arg_sort_by(
            names,
            descending=[*before, *(by.descending for by in self.order)],
            nulls_last=[*before, *(by.nulls_last for by in self.order)],
        )
        return rows.select(order).to_series()

    def _pruned(self, rows: pl.DataFrame, group: Sequence[str]) -> pl.DataFrame:
        """*rows* without most of those that *n* others of their group precede."""
        first = self.order[0]
        if first.column in group or not (first.descending or self.n == 1):
            return rows
        if rows.schema[first.column].is_nested():  # Polars has no minimum of these.
            return rows
        if rows.height <= _WORTH_PRUNING * self.n * _group_count(rows, group):
            return rows
        value = pl.col(first.column)
        by = group[1:] or group  # The hash is a function of the others.
        if first.descending:
            is_within = value >= value.top_k(self.n).min().over(by)
        else:
            is_within = value <= value.min().over(by)
        return rows.filter(value.is_null() | is_within)  # Nulls are left to the sort.


def _row_number(group: Sequence[str], equal: Sequence[str] | None = None) -> pl.Expr:
    """The number of a sorted row in *group*; rows equal in the columns *equal* share the first."""
    position = pl.int_range(pl.len(), dtype=pl.Int32)
    start = pl.when(differs_from_previous(group)).then(position).forward_fill()
    if equal is not None:
        position = pl.when(differs_from_previous(equal)).then(position).forward_fill()
    return position - start + 1


def _group_count(rows: pl.DataFrame, group: Sequence[str]) -> int:
    """An estimate of the number of groups."""
    sample = rows.select(group).filter(pl.col(group[0]) & (_SAMPLED - 1) == 0)
    return _SAMPLED * sample.n_unique()


class RetractableRanking:
    """The n best rows of each key of a changelog, where rows are taken back.

    All current rows are kept in *bag*, beside the ranked ones that were sent.  An epoch reads from
    it the rows that it touches, and all rows of a key only where an unranked row may move up:
    because a ranked one was taken back, or fell behind the last rank that was sent.  No two
    different rows may tie in *ranking*.
    """

    def __init__(self, bag: Bag, ranking: Ranking, key: Sequence[str], *, rank: str) -> None:
        """*rank* is the name of the column of ranks."""
        self._bag = bag
        self._rank = rank
        self._ranking = ranking
        self._key = tuple(key)
        order = (*ranking.order, By(_IS_FORMER))
        self._better = Ranking(n=1, order=order)

    def best(self, change: BagChange, before: pl.DataFrame, state: KeyedState) -> pl.DataFrame:
        """The ranked rows, with their ranks, of every key that *change* touches.

        *before* are the ranked rows that were sent of these keys, by key and rank; *state* is the
        bag's.
        """
        ranked = self._of(change.overlaid(self._counted(before), self._bag.identity))
        short = self._short(ranked, before)
        if short.is_empty():
            return ranked
        everything = change.overlaid(state.lookup(short), self._bag.identity)
        of_short = everything.join(short, on=self._key, how="semi", nulls_equal=True)
        others = ranked.join(short, on=self._key, how="anti", nulls_equal=True)
        again = pl.concat([others, self._of(of_short)])
        return again.sort(*self._key, self._rank)

    def best_of_all(self, change: BagChange, state: KeyedState) -> pl.DataFrame:
        """The ranked rows, with their ranks, of all keys, whatever was sent of them."""
        return self._of(change.overlaid(state.scan(), self._bag.identity))

    def _of(self, rows: pl.DataFrame) -> pl.DataFrame:
        copies = rows[COPIES].clip(upper_bound=self._ranking.n)
        return self._ranking.ranked(repeated(rows.drop(COPIES), copies), self._key, self._rank)

    def _counted(self, ranked: pl.DataFrame) -> pl.DataFrame:
        """Ranked rows, sorted, as distinct rows of the bag; equal rows have neighbouring ranks."""
        names = self._bag.schema.live.names()
        identity = self._bag.identity
        runs = ranked.with_columns(differs_from_previous(identity).cum_sum().alias(_RUN))
        copies = pl.len().over(_RUN).cast(pl.Int64).alias(COPIES)
        return runs.with_columns(copies).select(names)

    def _short(self, ranked: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
        """The keys where a row that is neither ranked nor touched may now be among the best.

        Rows that were not sent are no better than the former n-th, so these are the keys that had
        an n-th row, and now have a worse one or none.
        """
        n = self._ranking.n
        place = pl.len().over(self._key)
        former = before.filter(place == n).unique(self._key, keep="last", maintain_order=True)
        last = ranked.filter(pl.col(self._rank) == n).select(self._bag.identity)
        both = pl.concat(
            [
                rows.with_columns(pl.lit(is_former).alias(_IS_FORMER))
                for rows, is_former in ((last, False), (former.select(last.columns), True))
            ]
        )
        better = self._better.best(both, self._key)
        held = better.filter(~pl.col(_IS_FORMER)).select(self._key)
        return former.select(self._key).join(held, on=self._key, how="anti", nulls_equal=True)
