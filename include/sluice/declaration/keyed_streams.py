"""Streams whose rows of equal key meet in one subtask: what can be computed with keyed state.

``ttl`` forgets the state of a key that has not been written for so long.  It is counted between
barriers, by when they were triggered (Flink's StateTtlConfig: processing time, updated on write).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from sluice.declaration.aggregates import Aggregate
from sluice.declaration.join_sides import check_broadcast, check_side
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import (
    Deduplicate,
    IntervalJoin,
    JoinKind,
    KeyedAggregate,
    Latest,
    Process,
    ProcessKeyed,
    RegularJoin,
    RegularJoinKind,
    Stateful,
    TopN,
    WindowAggregate,
    WindowJoin,
    WindowTopN,
)
from sluice.declaration.streams import Stream, uid_first
from sluice.declaration.windows import Window
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import polars as pl

    from sluice.declaration.keyed_process import KeyedProcessFunction

_MS = timedelta(milliseconds=1)


@uid_first
@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream and the columns it is keyed by; ``expressions`` are those computed by Spark SQL."""

    stream: Stream
    keys: tuple[str, ...]
    expressions: Mapping[str, str]

    def aggregate(
        self,
        uid: str,
        *,
        ttl: timedelta | None = None,
        parallelism: int | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Running result per key; the output holds the current row of every key that changed."""
        operation = KeyedAggregate(aggregates=self._checked(uid, aggregates))
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism)

    def window(
        self,
        uid: str,
        window: Window,
        *,
        allowed_lateness: timedelta = timedelta(0),
        parallelism: int | None = None,
        **aggregates: Aggregate,
    ) -> Stream:
        """Result per key and event-time window, once the watermark passed the window's end.

        A row that comes later, but within ``allowed_lateness``, has the result replaced; one that
        comes after that goes to the side output ``late``.
        """
        operation = WindowAggregate(
            window=window,
            aggregates=self._checked(uid, aggregates),
            allowed_lateness_ms=allowed_lateness // _MS,
        )
        return self.stage(uid, operation, parallelism=parallelism)

    def window_top_n(
        self,
        uid: str,
        window: Window,
        n: int,
        *,
        by: str,
        ties: bool = False,
        parallelism: int | None = None,
    ) -> Stream:
        """The *n* rows with the largest ``by`` per key and window, with their ``rank``."""
        operation = WindowTopN(window=window, n=n, by=by, has_ties=ties)
        return self.stage(uid, operation, parallelism=parallelism)

    def top_n(
        self,
        uid: str,
        n: int,
        *,
        by: str,
        ties_by: str | tuple[str, ...] = (),
        unique: str | tuple[str, ...] = (),
        ttl: timedelta | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The *n* best rows per key, with their ``rank``; output are the ranks that changed.

        Best is the largest ``by``, of equal ones the smallest ``ties_by``.  Where rows are updated,
        ``unique`` says which columns identify one.
        """
        if n < 1:
            raise ConfigurationError(f"top_n {uid!r} has n = {n}; use 1 or more")
        operation = TopN(n=n, by=by, ties_by=_names(ties_by), unique=_names(unique))
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism)

    def latest(
        self,
        uid: str,
        *,
        by: str | tuple[str, ...],
        ttl: timedelta | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The row of each key with the largest ``by``."""
        operation = Latest(by=_names(by))
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism)

    def deduplicate(
        self,
        uid: str,
        *,
        by: str | None = None,
        ttl: timedelta | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """The first row of each key; of several in one epoch that with the smallest ``by``, which
        is the event time unless named, and then that with the smallest other columns.
        """
        source = self.stream.pipeline.sources.get(self.stream.producer)
        has_lost_it = source is not None and source.event_time != self.stream.event_time
        if by is None and has_lost_it:
            raise ConfigurationError(
                f"deduplicate {uid!r} takes the first row by event time, and the select() of "
                f"{self.stream.producer!r} leaves that out; select it, or name a column: by=..."
            )
        return self.stage(uid, Deduplicate(by=by), ttl=ttl, parallelism=parallelism)

    def join(
        self,
        uid: str,
        other: KeyedStream,
        *,
        how: RegularJoinKind = "inner",
        ttl: timedelta | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Every row with every row of *other* that has its key, whenever they come.

        ``left``, ``right`` and ``full`` also yield the rows of that side, or of both, that have no
        partner, with nulls for the other's columns; ``semi`` the rows that have one, ``anti`` those
        that have none, once each and without columns of *other*.  A null key has no partner.  A
        row without a partner is taken back when one comes, and comes again when the last one goes:
        but for ``inner`` and ``semi`` of two append-only streams, the result is a changelog.

        Both sides are kept for ever, or for the *ttl* of each row: what was yielded of a row that
        is forgotten then stays as it is.
        """
        return self.stage(
            uid, RegularJoin(how=how), others=(other,), ttl=ttl, parallelism=parallelism
        )

    def interval_join(
        self,
        uid: str,
        other: KeyedStream,
        *,
        lower: timedelta = timedelta(0),
        upper: timedelta | str,
        how: Literal["inner", "left"] = "inner",
        parallelism: int | None = None,
    ) -> Stream:
        """Each row with the rows of *other* from ``lower`` to ``upper`` after its event time.

        Where both call it ``at``, that of *other* is ``right_at`` in the result.  *upper* may name
        a column of this stream that holds the instant.
        """
        operation = IntervalJoin(
            lower_ms=lower // _MS,
            upper_ms=0 if isinstance(upper, str) else upper // _MS,
            upper_column=upper if isinstance(upper, str) else None,
            how=how,
        )
        if operation.upper_column is None and operation.upper_ms < operation.lower_ms:
            raise ConfigurationError(
                f"interval join {uid!r} goes from {lower} to {upper}; the upper bound comes first"
            )
        return self.stage(uid, operation, others=(other,), parallelism=parallelism)

    def window_join(
        self,
        uid: str,
        other: KeyedStream,
        window: Window,
        *,
        how: JoinKind = "inner",
        parallelism: int | None = None,
    ) -> Stream:
        """Each row with the rows of *other* of its key and window, once the window has ended."""
        operation = WindowJoin(window=window, how=how)
        return self.stage(uid, operation, others=(other,), parallelism=parallelism)

    def process(
        self,
        uid: str,
        function: Callable[[pl.DataFrame, pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame]],
        *,
        state: Mapping[str, object],
        result: Mapping[str, object],
        ttl: timedelta | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Apply *function(rows, state)* to the epoch's rows and the state of the keys they touch.

        ``state`` and ``result`` name columns and types, ``{"visits": int}``; see ``Process``.
        """
        operation = Process(function=function, state=state, result=result)
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism)

    def process_keyed(
        self,
        uid: str,
        function: KeyedProcessFunction,
        *,
        result: Mapping[str, object],
        broadcast: Stream | None = None,
        ttl: timedelta | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Run *function* a row and a timer at a time; each subtask sees all rows of *broadcast*."""
        operation = ProcessKeyed(function=function, result=result)
        check_broadcast(uid, function, self, broadcast)
        return self.stage(uid, operation, ttl=ttl, parallelism=parallelism, broadcast=broadcast)

    def stage(
        self,
        uid: str,
        operation: Stateful,
        *,
        others: tuple[KeyedStream, ...] = (),
        broadcast: Stream | None = None,
        ttl: timedelta | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Declare the stage that computes *operation*; the methods above are its short forms."""
        # A row that is emitted in the epoch it came in is not late behind the stage either.
        keeps_event_time = isinstance(operation, Deduplicate)
        inputs = [self._input(), *(self._right_input(other) for other in others)]
        if broadcast is not None:
            inputs.append(replace(broadcast.as_input(), is_broadcast=True))
        node = StageNode(
            uid=uid,
            operation=operation,
            inputs=tuple(inputs),
            parallelism=parallelism,
            ttl_ms=None if ttl is None else ttl // _MS,
        )
        _ = node.kind  # Who may not read updates is told so, not that they have no event time.
        for side in (self, *others):
            check_side(uid, operation, self, side)
        if ttl is not None and ttl < _MS:
            raise ConfigurationError(f"stage {uid!r} has a TTL of {ttl}; use 1 ms or more")
        return self.stream.pipeline.add_stage(
            node, event_time=self.stream.event_time if keeps_event_time else None
        )

    def _input(self) -> Input:
        return self.stream.as_input(self.keys, self.expressions)

    def _right_input(self, other: KeyedStream) -> Input:
        """Two streams of one source call their event time alike; a result cannot hold both."""
        given = other._input()
        name = given.event_time
        if name is None or name != self.stream.event_time or name in given.keys:
            return given
        return replace(given, event_time=f"right_{name}", renames={name: f"right_{name}"})

    def _checked(self, uid: str, aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
        if not aggregates:
            raise ConfigurationError(f"stage {uid!r} computes nothing; pass name=count(), ...")
        return dict(aggregates)


def _names(columns: str | tuple[str, ...]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else columns
