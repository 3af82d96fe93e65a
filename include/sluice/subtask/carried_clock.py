"""A stage's clock that is carried by the rows: senders measure, and each subtask reads it.

Each subtask gets the event times that every sender measured, through the shuffle that brings its
rows.  When it has all its rows it has all times, too; so all subtasks compute the same watermark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl

from sluice.core.stage_clock import StageClock, latest
from sluice.subtask.feed import Feed, TimedFeed
from sluice.subtask.operators.operator import EpochTime

Times = Mapping[str, tuple[int, int]]  # The least and the largest, in milliseconds, by partition.

_SCHEMA = pl.Schema({"partition": pl.String(), "least": pl.Int64(), "most": pl.Int64()})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedInput:
    """An input whose event times are measured as its rows pass.

    ``feed`` is its ``Feed.of_event_time``; ``heads`` the same of records that this epoch reads for
    their times alone.
    """

    feed: Feed
    heads: Feed

    def reader(self, share: int) -> TimedFeed:
        """A measurement of one reader's share, which knows the times of its heads already."""
        timed, heads = TimedFeed(self.feed), TimedFeed(self.heads)
        heads.read(share)
        timed.times_ms |= heads.times_ms
        return timed


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedClock:
    """The clock of a stage whose senders measure the inputs ``sources``, by their numbers.

    ``heads`` are the partitions of which only the first records were looked at.
    """

    stage: StageClock
    sources: Mapping[int, str]
    heads: Mapping[int, frozenset[str]]

    def measured_ms(self, seen: Mapping[int, pl.DataFrame]) -> dict[str, int]:
        """Per ``source/partition`` what the senders measured; *seen* is by input."""
        measured: dict[str, int] = {}
        for side, times in seen.items():
            own = decisive_times(times_of(times), self.heads[side])
            named = {f"{self.sources[side]}/{name}": at_ms for name, at_ms in own.items()}
            measured = latest(measured, named)
        return measured

    def read(self, before: EpochTime, measured_ms: Mapping[str, int]) -> EpochTime:
        """The times of the epoch, of which *before* has all but the watermark of its end."""
        return replace(before, watermark_ms=self.stage.watermark_ms(measured_ms))


def times_frame(times: Times) -> pl.DataFrame:
    rows = [(partition, *ends) for partition, ends in times.items()]
    return pl.DataFrame(rows, _SCHEMA, orient="row")


def times_of(frame: pl.DataFrame) -> Times:
    """The times in rows of ``times_frame``, of one sender or of several."""
    found: dict[str, tuple[int, int]] = {}
    for partition, least, most in frame.rows():
        first, last = found.get(partition, (least, most))
        found[partition] = min(first, least), max(last, most)
    return found


def decisive_times(times: Times, heads: frozenset[str]) -> dict[str, int]:
    """The largest time of each partition that is read; the least of one of *heads*."""
    return {
        partition: least if partition in heads else most
        for partition, (least, most) in times.items()
    }
