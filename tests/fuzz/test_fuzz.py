"""Random pipelines hold, at every commit, what batch SQL says; a share of what ``make fuzz`` plays.

Method: a seed draws a declaration, rows and a history of checkpoints, kills and restores.  The real
coordinator, stages and subtasks play it in one process; DuckDB computes each sink anew from all the
input up to the barrier.  A failure prints its seed and the smallest declaration that still fails.

FUZZ_PLANS=20000 plays more; ``python -m tests.fuzz --help`` says how to see one again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice

import pytest

from sluice.core.transitions import (
    BOUND,
    ROWS,
    TIME,
    TRANSITIONS,
    PartDifference,
    TransitionRow,
    row_of,
)
from tests.fuzz.changing import takes_back
from tests.fuzz.drawing import draw
from tests.fuzz.mutations import MUTATIONS, PAGE, hunt_all, page
from tests.fuzz.plans import Change, Plan, from_json, to_json
from tests.fuzz.queries import QUERIES
from tests.fuzz.seeds import check_refusals, play_seeds

PLANS = int(os.environ.get("FUZZ_PLANS", "6"))
CHANGED = 3  # With another declaration between epochs.
REFUSALS = 25
# What reads updates and goes by event time at once is not drawn.
NEVER_OVER_UPDATES = (TIME, BOUND)

# A handful, of each kind one, that few plans show; ``make fuzz`` plants all.
SAMPLE = (
    "mean_of_nulls", "hops_once", "first_again", "rank_forgets", "filter_is_dropped",
    "keys_are_names", "begun_is_full",
)  # fmt: skip


@pytest.mark.timeout(0)
def test_every_sink_holds_what_batch_sql_says(
    record_property: Callable[[str, object], None],
) -> None:
    played = play_seeds(range(PLANS))

    record_property("fuzz", str(played))
    if played.failed:
        from tests.fuzz.shrink import explain

        pytest.fail(explain(min(played.failed)), pytrace=False)


@pytest.mark.timeout(0)
def test_a_changed_declaration_does_what_the_table_of_transitions_says() -> None:
    plans = map(draw, range(1_000))
    is_changed = (plan for plan in plans if any(isinstance(act, Change) for act in plan.acts))
    played = play_seeds([plan.seed for plan in islice(is_changed, CHANGED)])

    assert played.failed == {}


@pytest.mark.timeout(0)
def test_a_mistake_in_a_declaration_is_refused_by_name() -> None:
    assert check_refusals(range(REFUSALS)) == []


@pytest.mark.timeout(0)
def test_a_planted_fault_is_seen() -> None:
    missed = [name for name, caught in hunt_all(SAMPLE).items() if caught is None]

    assert missed == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_can_be_planted_still(name: str) -> None:
    MUTATIONS[name].check()


def test_the_page_of_planted_faults_has_those_that_are_planted_and_all_seen() -> None:
    text = PAGE.read_text()

    assert page({}, text) == text
    assert "none of" not in text


def test_a_plan_that_was_printed_is_the_same_plan() -> None:
    for seed in range(50):
        plan = draw(seed)

        assert from_json(to_json(plan)) == from_json(to_json(from_json(to_json(plan))))
        assert to_json(from_json(to_json(plan))) == to_json(plan)


def test_a_seed_is_the_same_plan_every_time() -> None:
    assert [draw(seed) for seed in range(30)] == [draw(seed) for seed in range(30)]


def test_every_operation_is_drawn_and_has_its_query() -> None:
    drawn = {stage.op for seed in range(400) for stage in draw(seed).stages}

    assert drawn == {*QUERIES}


def test_every_row_of_the_table_of_transitions_is_drawn() -> None:
    """Where rows only come, and where they are taken back; in a sink's table they always may be."""
    drawn = {
        (row, _is_over_updates(plan, act))
        for plan in map(draw, range(4_000))
        for act in plan.acts
        if isinstance(act, Change) and act.part
        if (row := _row_of(act))
    }
    missing = [
        (row.part, row.differences, "updates" if is_over_updates else "append")
        for row in TRANSITIONS
        for is_over_updates in (False, True)
        if (row.updates if is_over_updates else row.append) is not None
        if (row, is_over_updates or row.part == ROWS) not in drawn
        if not (is_over_updates and row.part in NEVER_OVER_UPDATES)
    ]

    assert missing == []


def _row_of(act: Change) -> TransitionRow | None:
    return row_of(None if act.part == "column" else act.part, PartDifference(act.difference))


def _is_over_updates(plan: Plan, act: Change) -> bool:
    if any(sink.uid == act.uid for sink in plan.sinks):
        return True
    stages = [stage for stage in plan.stages if stage.uid == act.uid]
    return any(takes_back(plan, given.producer) for one in stages for given in one.inputs)
