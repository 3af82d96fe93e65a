"""How far a job is behind: what its sources have that no completed checkpoint has, and the distance
of its watermarks to the clock.

What a source has is seen when a checkpoint is triggered, and at no other time: each lag says as of
when.  So it costs no request to the source's place.

How fast rows flow: what the last completed epochs read and wrote, over the time they took.

Flink's numRecordsInPerSecond and its like are over a minute of a task's time.  Here rows move once
an epoch, so they are counted over the last ``EPOCHS`` completed checkpoints.  Those are kept with
the statistics of the newest, so that a rate costs no request of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.plan import CheckpointPlan, SourceCut
from sluice.figures.record import CheckpointStats, EpochFlow, Flow, SourceStats, StageStats


class EventTime(msgspec.Struct, frozen=True, kw_only=True):
    """Of a source behind its barrier; see ``SourceStats``."""

    watermark: int | None = None
    latest: int | None = None
    emitted: int | None = None


class SourcesAtTrigger(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of the sources when a checkpoint was triggered."""

    at_ms: int
    sources: tuple[SourceStats, ...]


class SourceLag(msgspec.Struct, frozen=True, kw_only=True):
    """How far a source's rows are behind; None is what the source cannot say.

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


def moment_of(watermark: int | None) -> int | None:
    """A watermark that is a moment; at its bounds it says *nothing yet*, or *end of input*."""
    return None if watermark in (MIN_WATERMARK, MAX_WATERMARK) else watermark


def lag_behind(at_ms: int, watermark: int | None) -> int | None:
    """How far *watermark* is behind *at_ms*; never negative, and None where it is no moment."""
    moment = moment_of(watermark)
    return None if moment is None else max(0, at_ms - moment)


def least_watermark(stages: Iterable[StageStats]) -> int | None:
    """None while that of a stage is not known."""
    all_of_them = [None if s.watermark == MIN_WATERMARK else s.watermark for s in stages]
    known = [one for one in all_of_them if one is not None]
    return min(known, default=None) if len(known) == len(all_of_them) else None


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
        pending_records=_sum(one.pending_records for one in sources),
        pending_bytes=_sum(one.pending_bytes for one in sources),
    )


def lags_of(
    completed: SourcesAtTrigger | None, later: Sequence[SourcesAtTrigger]
) -> tuple[SourceLag, ...]:
    """The lag of each source; *later* are the looks of checkpoints that continue *completed*, each
    the one before it, and have not completed: their epochs are behind, too.
    """
    looks = [*([completed] if completed is not None else []), *later]
    newest = looks[-1] if looks else SourcesAtTrigger(at_ms=0, sources=())
    return tuple(_lag(source, newest.at_ms, completed, later) for source in newest.sources)


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
    epochs = [one for look in later for one in look.sources if one.id == newest.id]
    lag = SourceLag(
        id=newest.id,
        as_of=as_of_ms,
        pending_records=_with(newest.pending_records, [one.records for one in epochs]),
        pending_bytes=_with(
            newest.pending_bytes, [one.size if one.records else 0 for one in epochs]
        ),
        pending_splits=newest.pending_splits,
        pending_is_least=newest.pending_is_least,
        is_behind=bool(newest.pending_records or newest.pending_splits),
        exhausted=newest.exhausted,
    )
    done = {} if completed is None else {one.id: one for one in completed.sources}
    return (
        lag
        if completed is None or newest.id not in done
        else _since(completed.at_ms, done[newest.id], lag)
    )


def _since(triggered_at_ms: int, done: SourceStats, lag: SourceLag) -> SourceLag:
    """*lag* with the event time of *done*, the source in the newest completed checkpoint."""
    emitted, latest = done.emit_timestamp, moment_of(done.event_time)
    return msgspec.structs.replace(
        lag,
        records=done.records,
        watermark=None if done.watermark == MIN_WATERMARK else done.watermark,
        watermark_lag=lag_behind(triggered_at_ms, done.watermark),
        emit_event_time_lag=None if emitted is None else lag_behind(emitted, latest),
    )


def _with(behind: int | None, epochs: Sequence[int | None]) -> int | None:
    """What lies behind the newest barrier, and the *epochs* before it, where all of it is known."""
    known = [one for one in (behind, *epochs) if one is not None]
    return sum(known) if len(known) == 1 + len(epochs) else None


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


EPOCHS = 5  # Enough to even out single epochs; few enough to follow a change within minutes.


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


def flow_of(
    done: CheckpointStats, sources: Iterable[SourceStats], stages: Iterable[StageStats]
) -> EpochFlow | None:
    """The flow of a checkpoint; None of one that has not completed."""
    if done.completed_timestamp is None:
        return None
    read = {one.id: Flow(rows_out=one.records, bytes_out=one.size) for one in sources}
    worked = {
        one.id: Flow(rows_in=one.rows_in, rows_out=one.rows_out, bytes_out=one.bytes_out)
        for one in stages
    }
    return EpochFlow(
        id=done.id,
        trigger_timestamp=done.trigger_timestamp,
        completed_timestamp=done.completed_timestamp,
        nodes=read | worked,
    )


def followed_by(before: Sequence[EpochFlow], newest: EpochFlow | None) -> tuple[EpochFlow, ...]:
    """*before* with the *newest*, in the order of their ids: the last ``EPOCHS``, and the one whose
    completion they are counted from.
    """
    found = {one.id: one for one in before}
    if newest is not None:
        found[newest.id] = newest
    return tuple(found[number] for number in sorted(found)[-EPOCHS - 1 :])


def rates_of(flow: Sequence[EpochFlow], now_ms: int) -> Rates | None:
    """The rates as of *now_ms*; None before the first checkpoint has completed.

    The window is from the completion of the first epoch to that of the last one; where there is but
    one, from its trigger.  When the next one is overdue, by the usual distance of two, the window
    grows with the clock: a job that stands still comes to 0.
    """
    if not flow:
        return None
    first, last = flow[0], flow[-1]
    counted = flow[1:] or flow
    begun = first.completed_timestamp if len(flow) > 1 else first.trigger_timestamp
    length = max(1, last.completed_timestamp - begun)
    overdue = max(0, now_ms - last.completed_timestamp - length // len(counted))
    window = length + overdue
    uids = dict.fromkeys(uid for one in counted for uid in one.nodes)
    return Rates(
        window=window,
        checkpoints=len(counted),
        nodes={
            uid: _rates([one.nodes[uid] for one in counted if uid in one.nodes], window)
            for uid in uids
        },
    )


def _rates(flows: Sequence[Flow], window_ms: int) -> NodeRates:
    """*flows* are the epochs that the node took part in: in others it read and wrote nothing."""

    def rate(values: Iterable[int | None]) -> float | None:
        all_of_them = [*values]
        known = [value for value in all_of_them if value is not None]
        is_whole = len(known) == len(all_of_them)
        return sum(known) * 1_000 / window_ms if is_whole else None

    return NodeRates(
        rows_in_per_second=rate(one.rows_in for one in flows),
        rows_out_per_second=rate(one.rows_out for one in flows),
        bytes_in_per_second=rate(one.bytes_in for one in flows),
        bytes_out_per_second=rate(one.bytes_out for one in flows),
    )
