"""How fast rows flow: what the last completed epochs read and wrote, over the time they took.

Flink's numRecordsInPerSecond and its like are over a minute of a task's time.  Here rows move once
an epoch, so they are counted over the last ``EPOCHS`` completed checkpoints.  Those are kept with
the statistics of the newest, so that a rate costs no request of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from sluice.statistics.checkpoints import CheckpointStats, SourceStats, StageStats

EPOCHS = 5  # Enough to even out single epochs; few enough to follow a change within minutes.


class Flow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a source gave, or a stage read and wrote, in one epoch."""

    rows_in: int | None = None
    rows_out: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None


class EpochFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A completed epoch; ``nodes`` are its sources and stages by uid."""

    id: int
    trigger_timestamp: int
    completed_timestamp: int
    nodes: dict[str, Flow]


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
