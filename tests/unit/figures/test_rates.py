"""Lags: what was there at the newest trigger, and is in no completed checkpoint.

Rates: rows and bytes of the last completed epochs over the time that they took.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.plan import SourceCut, Unread
from sluice.figures.rates import (
    EPOCHS,
    EventTime,
    NodeRates,
    SourceLag,
    SourcesAtTrigger,
    flow_of,
    followed_by,
    lag_behind,
    lags_of,
    least_watermark,
    measured_sources,
    rates_of,
    with_pending,
)
from sluice.figures.record import EpochFlow, Flow, SourceStats
from tests.builders import a_plan
from tests.unit.figures.lines import FAILED, a_line, a_stage


def a_look(at_ms: int, **given: Any) -> SourcesAtTrigger:
    usual: dict[str, Any] = {"id": "events", "records": 10}
    return SourcesAtTrigger(at_ms=at_ms, sources=(SourceStats(**usual | given),))


def lag_of(completed: SourcesAtTrigger | None, *later: SourcesAtTrigger) -> SourceLag:
    (found,) = lags_of(completed, later)
    return found


def test_before_the_first_trigger_nothing_is_known() -> None:
    assert lags_of(None, ()) == ()


def test_what_the_newest_completed_checkpoint_left_behind_is_pending() -> None:
    lag = lag_of(a_look(1_000, pending_records=7, pending_bytes=70, pending_splits=2))

    assert (lag.pending_records, lag.pending_bytes, lag.pending_splits) == (7, 70, 2)
    assert (lag.as_of, lag.is_behind, lag.records) == (1_000, True, 10)


def test_epochs_that_have_not_completed_are_behind_too_as_of_the_newest_trigger() -> None:
    lag = lag_of(
        a_look(1_000, pending_records=7),
        a_look(2_000, records=5, pending_records=4),
        a_look(3_000, records=6, pending_records=0, pending_splits=0),
    )

    assert (lag.pending_records, lag.as_of, lag.is_behind) == (11, 3_000, False)
    assert lag.records == 10


def test_one_that_never_completed_any_is_behind_by_all_that_it_saw() -> None:
    lag = lag_of(None, a_look(2_000, records=5, pending_records=4))

    assert (lag.pending_records, lag.records, lag.watermark) == (9, None, None)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), min_size=1, max_size=6),
    st.data(),
)
def test_completing_a_checkpoint_lowers_the_lag_by_its_epoch(
    epochs: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Whatever has completed: the lag and what is in a checkpoint are together what there is."""
    arrived = read = 0
    looks: list[SourcesAtTrigger] = []
    for number, (new, most) in enumerate(epochs):
        arrived += new
        records = min(most, arrived - read)
        read += records
        looks.append(a_look(number, records=records, pending_records=arrived - read))
    done = data.draw(st.integers(0, len(looks) - 1))

    lag = lag_of(looks[done], *looks[done + 1 :])

    assert lag.pending_records is not None
    in_checkpoints = sum(look.sources[0].records for look in looks[: done + 1])
    assert lag.pending_records + in_checkpoints == arrived


def test_what_a_source_cannot_say_is_unknown_and_not_zero() -> None:
    assert lag_of(a_look(1_000)).pending_records is None
    assert lag_of(a_look(1, pending_bytes=3), a_look(2, pending_bytes=1)).pending_bytes is None
    with_sizes = lag_of(a_look(1, pending_bytes=3), a_look(2, size=5, pending_bytes=1))
    assert with_sizes.pending_bytes == 6


def test_event_time_is_behind_the_trigger_and_the_moment_when_it_had_been_read() -> None:
    lag = lag_of(
        a_look(10_000, watermark=4_000, event_time=4_500, emit_timestamp=12_000),
        a_look(20_000, watermark=9_000),
    )

    assert (lag.watermark, lag.watermark_lag, lag.emit_event_time_lag) == (4_000, 6_000, 7_500)


def test_a_watermark_that_is_no_moment_has_no_lag_and_none_is_negative() -> None:
    assert lag_behind(5, None) is None
    assert lag_behind(5, MIN_WATERMARK) is None
    assert lag_behind(5, MAX_WATERMARK) is None
    assert lag_behind(5, 9) == 0
    assert lag_of(a_look(5, watermark=MIN_WATERMARK)).watermark is None


def test_the_least_watermark_is_known_when_that_of_each_stage_is() -> None:
    known = a_stage(watermark=4)

    assert least_watermark([known, a_stage(watermark=3)]) == 3
    assert least_watermark([known, a_stage(watermark=None)]) is None
    assert least_watermark([known, a_stage(watermark=MIN_WATERMARK)]) is None
    assert least_watermark([]) is None


def test_a_plans_sources_are_measured_and_summed_as_far_as_they_say() -> None:
    plan = a_plan(
        1,
        sources=(
            SourceCut(uid="topic", position=(), unread=Unread(partitions=2, records=9)),
            SourceCut(
                uid="files",
                position=(),
                size_bytes=5,
                unread=Unread(partitions=1, size_bytes=80, is_least=True),
            ),
            SourceCut(uid="endless", position=()),
        ),
    )

    sources = measured_sources(plan, {"topic": EventTime(watermark=3, latest=4, emitted=5)})
    line = with_pending(a_line(1), sources)

    assert sources == (
        SourceStats(
            id="topic", records=0, pending_records=9, pending_splits=2,
            watermark=3, event_time=4, emit_timestamp=5,
        ),
        SourceStats(
            id="files", records=0, size=5, pending_bytes=80, pending_splits=1,
            pending_is_least=True,
        ),
        SourceStats(id="endless", records=0),
    )  # fmt: skip
    assert (line.pending_records, line.pending_bytes) == (9, 80)


MINUTE = 60_000


def an_epoch(checkpoint_id: int, *, rows: int | None = 600, uid: str = "count") -> EpochFlow:
    """Triggered a minute after the one before, completed half a minute later."""
    return EpochFlow(
        id=checkpoint_id,
        trigger_timestamp=checkpoint_id * MINUTE,
        completed_timestamp=checkpoint_id * MINUTE + MINUTE // 2,
        nodes={uid: Flow(rows_in=rows)},
    )


def rate(*flow: EpochFlow, after_ms: int = 0) -> float | None:
    found = rates_of(flow, flow[-1].completed_timestamp + after_ms)
    assert found is not None
    return found.nodes["count"].rows_in_per_second


def test_before_the_first_completed_checkpoint_there_is_no_rate() -> None:
    assert rates_of((), 5) is None


def test_the_first_checkpoint_counts_from_its_trigger() -> None:
    assert rate(an_epoch(1)) == 600 / 30


def test_later_ones_count_from_the_completion_before_them() -> None:
    assert rate(an_epoch(1, rows=10**6), an_epoch(2), an_epoch(3)) == 1_200 / 120


def test_within_the_usual_interval_the_rate_stands_and_then_it_falls() -> None:
    flow = [an_epoch(1), an_epoch(2), an_epoch(3)]

    assert rate(*flow, after_ms=MINUTE) == 10
    assert rate(*flow, after_ms=3 * MINUTE) == 5
    assert rate(*flow, after_ms=10**12) == pytest.approx(0, abs=1e-5)


def test_what_was_not_measured_in_one_epoch_has_no_rate() -> None:
    assert rate(an_epoch(1), an_epoch(2), an_epoch(3, rows=None)) is None


def test_a_node_that_took_no_part_in_an_epoch_read_nothing_in_it() -> None:
    found = rates_of([an_epoch(1), an_epoch(2), an_epoch(3, uid="rank")], 3 * MINUTE + 30_000)

    assert found is not None
    assert (found.window, found.checkpoints) == (2 * MINUTE, 2)
    assert found.nodes == {
        "count": NodeRates(rows_in_per_second=5.0),
        "rank": NodeRates(rows_in_per_second=5.0),
    }


@given(st.permutations(range(1, 12)))
def test_the_last_epochs_stay_in_the_order_of_their_ids_and_each_once(order: list[int]) -> None:
    kept: tuple[EpochFlow, ...] = ()
    for number in order:
        kept = followed_by(followed_by(kept, an_epoch(number)), an_epoch(number))

    assert [one.id for one in kept] == sorted({one.id for one in kept})
    assert len(kept) == EPOCHS + 1
    assert kept[-1].id == 11


def test_a_failed_checkpoint_passes_on_what_was_before_it() -> None:
    kept = (an_epoch(1),)

    assert followed_by(kept, flow_of(a_line(2, FAILED), (), ())) == kept


def test_a_checkpoints_flow_is_that_of_its_sources_and_stages() -> None:
    source = SourceStats(id="events", records=10, size=90)
    stage = a_stage(rows_in=10, rows_out=3, bytes_out=40)

    flow = flow_of(a_line(1, completed_timestamp=2_000), [source], [stage])

    assert flow is not None
    assert flow.nodes == {
        "events": Flow(rows_out=10, bytes_out=90),
        "count": Flow(rows_in=10, rows_out=3, bytes_out=40),
    }
