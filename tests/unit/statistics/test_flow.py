"""Rates: rows and bytes of the last completed epochs over the time that they took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.figures.rates import EPOCHS, NodeRates, flow_of, followed_by, rates_of
from sluice.figures.record import CheckpointStatus, EpochFlow, Flow, SourceStats, StageStats
from tests.unit.statistics.lines import FAILED, a_line

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
    stage = StageStats(
        id="count",
        status=CheckpointStatus.COMPLETED,
        num_subtasks=1,
        num_acknowledged_subtasks=1,
        rows_in=10,
        rows_out=3,
        bytes_out=40,
    )

    flow = flow_of(a_line(1, completed_timestamp=2_000), [source], [stage])

    assert flow is not None
    assert flow.nodes == {
        "events": Flow(rows_out=10, bytes_out=90),
        "count": Flow(rows_in=10, rows_out=3, bytes_out=40),
    }
