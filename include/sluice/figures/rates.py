"""The lag of a job, and the rates of its rows.

Lags: what its sources have that no completed checkpoint has, and the distance of its watermarks to
the clock.  A source is asked what it has when a checkpoint is triggered, and at no other time: each
lag names its moment, and costs no request to the source's place.

Rates: what the last completed epochs read and wrote, over the time they took.  Flink's
numRecordsInPerSecond and its like are over a minute of a task's time.  Here rows move once an
epoch, so they are counted over the last ``EPOCHS`` completed checkpoints.  Those are kept with the
statistics of the newest, so that a rate costs no request of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.plan import CheckpointPlan, SourceCut
from sluice.figures.record import (
    CheckpointStats,
    EpochFlow,
    Flow,
    SourceStats,
    StageStats,
    sum_if_whole,
    sum_of_measured,
)

EPOCHS = 5  # Enough to even out single epochs; few enough to follow a change within minutes.


class EventTime(msgspec.Struct, frozen=True, kw_only=True):
    """The event time of a source behind its barrier; see ``SourceStats``."""

    watermark: int | None = None
    latest: int | None = None
    emitted: int | None = None


class SourcesAtTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """The sources as they were when a checkpoint was triggered."""

    at_ms: int
    sources: tuple[SourceStats, ...]


class SourceLag(msgspec.Struct, frozen=True, kw_only=True):
    """The lag of a source's rows; None is what the source cannot say.

    ``pending_records`` and ``pending_bytes`` were there at ``as_of``, the newest trigger that is
    known, and are in no completed checkpoint; with ``pending_is_least`` there may be more.
    ``pending_splits`` and ``is_behind`` are about what waits for a later epoch than the newest.
    The others are of the newest completed checkpoint: ``records`` of its epoch, the ``watermark``
    and its distance to the trigger, and how old the latest row was when it had been read.
    """

    id: str
    as_of: int
    pending_records: int | None = None
    pending_bytes: int | None = None
    pending_splits: int | None = None
    pending_is_least: bool = False
    is_behind: bool = False
    exhausted: bool = False
    records: int | None = None
    watermark: int | None = None
    watermark_lag: int | None = None
    emit_event_time_lag: int | None = None


class NodeRates(msgspec.Struct, frozen=True, kw_only=True):
    """Rows and bytes per second; None for what was not measured in each epoch of the window."""

    rows_in_per_second: float | None = None
    rows_out_per_second: float | None = None
    bytes_in_per_second: float | None = None
    bytes_out_per_second: float | None = None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Over ``window`` milliseconds, which hold ``checkpoints`` epochs; ``nodes`` are by uid."""

    window: int
    checkpoints: int
    nodes: dict[str, NodeRates]


def moment_of(watermark: int | None) -> int | None:
    """A watermark that is a moment; at its bounds it means *nothing yet*, or *end of input*."""
    return None if watermark in (MIN_WATERMARK, MAX_WATERMARK) else watermark


def lag_behind(at_ms: int, watermark: int | None) -> int | None:
    """The time from *watermark* to *at_ms*; never negative, and None where it is no moment."""
    moment = moment_of(watermark)
    return None if moment is None else max(0, at_ms - moment)


def least_watermark(stages: Iterable[StageStats]) -> int | None:
    """The least over the stages; None while that of a stage is not known."""
    watermarks = [stage.watermark for stage in stages]
    known = [mark for mark in watermarks if mark is not None and mark != MIN_WATERMARK]
    return min(known, default=None) if len(known) == len(watermarks) else None


def measured_sources(
    plan: CheckpointPlan, times: Mapping[str, EventTime] | None = None
) -> tuple[SourceStats, ...]:
    """The figures of the sources that *plan* cuts; tables are pinned, and read whole."""
    known = times or {}
    return tuple(
        _measured(cut, known.get(cut.uid, EventTime())) for cut in plan.sources if cut.table is None
    )


def with_pending(line: CheckpointStats, sources: Sequence[SourceStats]) -> CheckpointStats:
    """*line* with what its *sources* left behind their barriers, over those that can say."""
    return msgspec.structs.replace(
        line,
        pending_records=sum_of_measured(source.pending_records for source in sources),
        pending_bytes=sum_of_measured(source.pending_bytes for source in sources),
    )


def lags_of(
    completed: SourcesAtTrigger | None, later: Sequence[SourcesAtTrigger]
) -> tuple[SourceLag, ...]:
    """The lag of each source.

    *later* are the sources at the triggers of checkpoints that have not completed, each of which
    continues the one before it, the first one *completed*: their epochs are behind, too.
    """
    newest = later[-1] if later else completed
    if newest is None:
        return ()
    return tuple(_lag(source, newest.at_ms, completed, later) for source in newest.sources)


def flow_of(
    done: CheckpointStats, sources: Iterable[SourceStats], stages: Iterable[StageStats]
) -> EpochFlow | None:
    """The flow of a checkpoint; None of one that has not completed."""
    if done.completed_timestamp is None:
        return None
    nodes = {
        source.id: Flow(rows_out=source.records, bytes_out=source.size) for source in sources
    } | {
        stage.id: Flow(rows_in=stage.rows_in, rows_out=stage.rows_out, bytes_out=stage.bytes_out)
        for stage in stages
    }
    return EpochFlow(
        id=done.id,
        trigger_timestamp=done.trigger_timestamp,
        completed_timestamp=done.completed_timestamp,
        nodes=nodes,
    )


def followed_by(before: Sequence[EpochFlow], newest: EpochFlow | None) -> tuple[EpochFlow, ...]:
    """*before* with the *newest*, in the order of their ids: the last ``EPOCHS``, and one more from
    whose completion on they are counted.
    """
    epochs = {epoch.id: epoch for epoch in before}
    if newest is not None:
        epochs[newest.id] = newest
    return tuple(epochs[number] for number in sorted(epochs)[-EPOCHS - 1 :])


def rates_of(flow: Sequence[EpochFlow], now_ms: int) -> Rates | None:
    """The rates as of *now_ms*; None before the first checkpoint has completed.

    The window is from the completion of the first epoch to that of the last one; where there is but
    one, from its trigger.  When the next one is overdue, by the mean distance of two, the window
    grows with the clock: the rates of a job that stands still approach 0.
    """
    if not flow:
        return None
    first, last = flow[0], flow[-1]
    counted = flow[1:] or flow
    begun = first.completed_timestamp if len(flow) > 1 else first.trigger_timestamp
    length = max(1, last.completed_timestamp - begun)
    overdue = max(0, now_ms - last.completed_timestamp - length // len(counted))
    window = length + overdue
    uids = dict.fromkeys(uid for epoch in counted for uid in epoch.nodes)
    return Rates(
        window=window,
        checkpoints=len(counted),
        nodes={
            uid: _rates([epoch.nodes[uid] for epoch in counted if uid in epoch.nodes], window)
            for uid in uids
        },
    )


def _measured(cut: SourceCut, time: EventTime) -> SourceStats:
    stats = SourceStats(
        id=cut.uid,
        records=cut.records,
        size=cut.size_bytes,
        exhausted=cut.exhausted,
        watermark=time.watermark,
        event_time=time.latest,
        emit_timestamp=time.emitted,
    )
    if cut.unread is None:
        return stats
    return msgspec.structs.replace(
        stats,
        pending_records=cut.unread.records,
        pending_bytes=cut.unread.size_bytes,
        pending_splits=cut.unread.partitions,
        pending_is_least=cut.unread.is_least,
    )


def _lag(
    newest: SourceStats,
    as_of_ms: int,
    completed: SourcesAtTrigger | None,
    later: Sequence[SourcesAtTrigger],
) -> SourceLag:
    epochs = [source for sources in later for source in sources.sources if source.id == newest.id]
    lag = SourceLag(
        id=newest.id,
        as_of=as_of_ms,
        # Behind the newest barrier, and in the epochs before it.
        pending_records=sum_if_whole(
            [newest.pending_records, *(epoch.records for epoch in epochs)]
        ),
        pending_bytes=sum_if_whole(
            [newest.pending_bytes, *(epoch.size if epoch.records else 0 for epoch in epochs)]
        ),
        pending_splits=newest.pending_splits,
        pending_is_least=newest.pending_is_least,
        is_behind=bool(newest.pending_records or newest.pending_splits),
        exhausted=newest.exhausted,
    )
    if completed is None:
        return lag
    done = next((source for source in completed.sources if source.id == newest.id), None)
    return lag if done is None else _with_event_time(lag, done, completed.at_ms)


def _with_event_time(lag: SourceLag, done: SourceStats, triggered_at_ms: int) -> SourceLag:
    """*lag* with the event time of *done*, the source in the newest completed checkpoint."""
    emitted, latest = done.emit_timestamp, moment_of(done.event_time)
    return msgspec.structs.replace(
        lag,
        records=done.records,
        watermark=None if done.watermark == MIN_WATERMARK else done.watermark,
        watermark_lag=lag_behind(triggered_at_ms, done.watermark),
        emit_event_time_lag=None if emitted is None else lag_behind(emitted, latest),
    )


def _rates(flows: Sequence[Flow], window_ms: int) -> NodeRates:
    """*flows* are the epochs that the node took part in: in others it read and wrote nothing."""

    def rate(values: Iterable[int | None]) -> float | None:
        total = sum_if_whole(values)
        return None if total is None else total * 1_000 / window_ms

    return NodeRates(
        rows_in_per_second=rate(flow.rows_in for flow in flows),
        rows_out_per_second=rate(flow.rows_out for flow in flows),
        bytes_in_per_second=rate(flow.bytes_in for flow in flows),
        bytes_out_per_second=rate(flow.bytes_out for flow in flows),
    )
