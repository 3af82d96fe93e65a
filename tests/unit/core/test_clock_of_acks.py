"""What the acks of a stage say of its clock, to its driver and to what is chained to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.answers import Ack
from sluice.core.event_time import MIN_WATERMARK, SourceClock, StageClock, measured_by
from sluice.core.ids import SubtaskId
from sluice.core.plan import PartitionOffset, Slice, SourceCut
from tests.builders import an_ack

SOURCE = SourceClock(
    uid="rows",
    cut=SourceCut(
        uid="rows",
        position=(PartitionOffset(partition="a", offset=9, records=9),),
        slices=(Slice(partition="a", start=0, end=9, first_record=0, records=9),),
    ),
    before_ms={},
    out_of_orderness_ms=10,
    drains=False,
    has_event_time=True,
)
OF_STREAMS = StageClock(sources=(), streams_ms=None, floor_ms=4)


def acks(*said: tuple[dict[str, int], int | None]) -> list[Ack]:
    return [
        replace(an_ack(SubtaskId("s", index)), event_times_ms=times, watermark_ms=watermark_ms)
        for index, (times, watermark_ms) in enumerate(said)
    ]


def test_the_latest_time_that_any_subtask_measured_counts() -> None:
    told = acks(({"rows/b": 3, "rows/a": 5}, None), ({"rows/a": 7}, None), ({"rows/a": 6}, None))

    assert [*measured_by(told).items()] == [("rows/a", 7), ("rows/b", 3)]
    assert StageClock(sources=(SOURCE,), streams_ms=None).behind_ms(told) == 7 - 10 - 1


@pytest.mark.parametrize(
    ("watermarks_ms", "behind_ms", "has_no_say"),
    [((9, 7), 7, False), ((None, 7), 7, False), ((3, 9), 4, False), ((None, None), 4, True)],
)
def test_the_least_of_what_its_streams_said_counts(
    watermarks_ms: tuple[int | None, ...], behind_ms: int, *, has_no_say: bool
) -> None:
    told = acks(*(({}, watermark_ms) for watermark_ms in watermarks_ms))

    assert OF_STREAMS.behind_ms(told) == behind_ms
    assert OF_STREAMS.has_no_say(told) is has_no_say


def test_a_source_that_was_silent_has_no_say_beside_a_stream_that_has() -> None:
    clock = StageClock(sources=(SOURCE,), streams_ms=None)

    assert clock.behind_ms(acks(({}, 8))) == 8
    assert clock.has_no_say(acks(({}, None)))
    assert clock.behind_ms(acks(({}, None))) == MIN_WATERMARK
