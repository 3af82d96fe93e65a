"""The four rows of ADR 16: what becomes of a table, what a person reads about it, and what is owed.

A restore or a submission decides the recovery of tables: it is journaled, then owed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.core.configuration import JobStatus
from sluice.core.coordinator import step
from sluice.core.events import Event, Verdict
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.core.tables import (
    TableAhead,
    TableComparison,
    TableDecision,
    TableRecovery,
    decide_tables,
    table_problems,
)
from sluice.core.timeline import TimelineComparison
from tests.builders import (
    a_checkpoint,
    a_submitted,
    after,
    committed,
    completed,
    restored,
    stopped,
    submitted,
    triggered,
)
from tests.core_events import tables_recovered

FIX_LACKING = (
    "restore a checkpoint that it shows, or accept tables as they are, which leaves the missing "
    "rows out"
)
FIX_OTHER_LIFE = (
    "give each sink a table of its own, take table 'alerts' over, which goes on behind those rows, "
    "or roll tables back, which takes them away: either way that job is refused from then on"
)


def ahead(*checkpoints: int, can: bool = True, by_itself: bool = False) -> TableAhead:
    return TableAhead(
        sink="alerts", checkpoints=checkpoints, can_roll_back=can, rolls_back_by_itself=by_itself
    )


def a_table(version: int | None = 7, *, shown: int | None = None, **given: Any) -> TableComparison:
    """Fields of ``TableComparison`` and of its ``comparison``, as *given*."""
    of_table = {"is_empty", "is_of_earlier_life", "can_roll_back", "rolls_back_by_itself"}
    known = {name: given.pop(name) for name in of_table & given.keys()}
    comparison = TimelineComparison(**{"newest": shown or 0} | given)
    return TableComparison(
        sink="alerts", version=version, shown=shown, comparison=comparison, **known
    )


AGREES = a_table(shown=7)
AHEAD = a_table(shown=9, ahead=(8, 9))
AHEAD_FOR_EVER = a_table(shown=9, ahead=(8, 9), can_roll_back=False)
LACKS = a_table(shown=5, lacks=True)
LACKS_ALL = a_table(lacks=True)
THEIRS = a_table(None, shown=5, other_life="theirs", ahead=(5,))
THEIRS_FOR_EVER = a_table(None, shown=5, other_life="theirs", can_roll_back=False)
THEIRS_WITH_IT = a_table(7, shown=9, other_life="theirs", ahead=(8, 9))
THEIRS_EMPTY = a_table(None, other_life="theirs", is_empty=True)
EARLIER = a_table(None, shown=5, other_life="before", is_of_earlier_life=True)
EARLIER_FILES = a_table(
    None, shown=5, other_life="before", is_of_earlier_life=True, rolls_back_by_itself=True
)


@pytest.mark.parametrize(
    ("table", "rolls_back", "told"),
    [
        (ahead(8), True, "1 checkpoint (8), and is rolled back"),
        (ahead(8, 9), False, ("2 checkpoints (8, 9), whose rows will be published again; rolling "
         "tables back takes them away")),
        (ahead(8, can=False), False, ("1 checkpoint (8), whose rows will be published again; it "
         "cannot go back")),
        (ahead(*range(8, 15), by_itself=True), False, ("7 checkpoints (8, 9, 10, 11, 12, ...); its "
         "next commit rolls it back, rolling tables back does so at once")),
    ],
)  # fmt: skip
def test_a_table_that_is_ahead_is_told_of(table: TableAhead, rolls_back: bool, told: str) -> None:
    assert table.sentence(rolls_back=rolls_back) == f"table 'alerts' is ahead by {told}"


@pytest.mark.parametrize(
    ("table", "alone", "roll_back", "accept"),
    [
        (AGREES, 7, 7, 7),
        (AHEAD, 7, 7, 7),
        (AHEAD_FOR_EVER, 7, ("table 'alerts' is ahead by 2 checkpoints (8, 9), and it cannot be "
         "rolled back; restore without rolling tables back"), 7),
        (LACKS, ("table 'alerts' lacks checkpoint 7, which the job would continue: it shows "
         f"checkpoint 5; {FIX_LACKING}"), "lacks checkpoint 7", 5),
        (LACKS_ALL, "it shows nothing", "it shows nothing", None),
        (THEIRS, ("table 'alerts' shows checkpoint 5, which life 'theirs' of a job wrote; "
         f"{FIX_OTHER_LIFE}"), None, 5),
        (THEIRS_FOR_EVER, "life 'theirs'", ("table 'alerts' shows checkpoint 5, and it cannot be "
         "rolled back; restore without rolling tables back"), 5),
        (THEIRS_WITH_IT, "life 'theirs'", 7, 7),
        (THEIRS_EMPTY, None, None, None),
        (EARLIER, "life 'before'", None, 5),
        (EARLIER_FILES, None, None, 5),
    ],
    ids=["agrees", "ahead", "ahead for ever", "lacks", "lacks all", "another life's",
         "another life's for ever", "another life's with the version", "another life's, empty",
         "an earlier life's", "an earlier life's files"],
)  # fmt: skip
def test_what_becomes_of_a_table(
    table: TableComparison,
    alone: int | str | None,
    roll_back: int | str | None,
    accept: int | str | None,
) -> None:
    """A text is the refusal, or a part of it; else the version that the job continues."""
    for expected, options in (
        (alone, {"roll_back": False, "accepts": False}),
        (roll_back, {"roll_back": True, "accepts": False}),
        (accept, {"roll_back": False, "accepts": True}),
    ):
        problem = table.problem(**options)
        if isinstance(expected, str):
            assert problem is not None
            assert expected in problem
        else:
            assert problem is None
            assert table.continued(accepts=options["accepts"]) == expected


def test_an_owed_commit_is_refused_where_another_life_may_have_used_its_id() -> None:
    theirs = replace(THEIRS_WITH_IT, version=6, owed=CheckpointId(7))
    theirs = replace(theirs, comparison=replace(theirs.comparison, newest=9))

    for options in ({"accepts": True, "roll_back": False}, {"accepts": False, "roll_back": True}):
        assert theirs.problem(**options) == (
            "checkpoint 7 was not published to table 'alerts' before life 'theirs' of a job took "
            "it over, which may have used its id; restore an earlier checkpoint"
        )
        behind = replace(theirs, owed=CheckpointId(10))
        assert behind.problem(**options) is None
    assert replace(AHEAD, version=6, owed=CheckpointId(7)).problem(
        roll_back=False, accepts=False
    ) is None  # fmt: skip


NOTHING_TO_TAKE = (
    "table 'alerts' shows no rows of another job, so there is nothing to take over; leave it out"
)


@pytest.mark.parametrize(
    ("table", "problem", "continued"),
    [
        (THEIRS, None, 5),
        (THEIRS_FOR_EVER, None, 5),
        (THEIRS_WITH_IT, None, 7),
        (replace(THEIRS_WITH_IT, rolls_back_by_itself=True), None, 9),
        (EARLIER, None, 5),
        (replace(THEIRS_WITH_IT, comparison=replace(THEIRS.comparison, lacks=True)),
         ("table 'alerts' lacks checkpoint 7, which the job would continue: it shows checkpoint 9; "
          f"{FIX_LACKING}"), 7),
        (AGREES, NOTHING_TO_TAKE, 7),
        (LACKS, NOTHING_TO_TAKE, 7),
        (THEIRS_EMPTY, NOTHING_TO_TAKE, None),
        (EARLIER_FILES, NOTHING_TO_TAKE, None),
    ],
    ids=["another life's", "for ever", "with the version", "files with the version",
         "an earlier life's", "lacks it", "its own", "its own, lacking", "empty",
         "an earlier life's files"],
)  # fmt: skip
def test_one_table_is_taken_over_with_its_rows_and_nothing_else_is_accepted(
    table: TableComparison, problem: str | None, continued: int | None
) -> None:
    assert table_problems([table], take_over=["alerts"]) == ([] if problem is None else [problem])
    other = replace(THEIRS, sink="sums")
    if problem is None:
        decided = decide_tables([table], take_over=["alerts"])
        assert decided.versions == {"alerts": continued}
        assert decided.replaces == {"alerts": (table.comparison.other_life,)}
        assert not decided.accepts
        (of_other,) = table_problems([table, other], take_over=["alerts"])
        assert of_other.startswith("table 'sums' shows checkpoint 5, which life 'theirs' of a job")


def test_what_is_taken_over_has_to_be_there_and_is_not_rolled_back() -> None:
    assert table_problems([THEIRS, replace(AGREES, sink="sums")], take_over=["alert"]) == [
        "there is no sink 'alert' whose table could be taken over; there are alerts, sums",
        f"table 'alerts' shows checkpoint 5, which life 'theirs' of a job wrote; {FIX_OTHER_LIFE}",
    ]
    assert table_problems([THEIRS], roll_back=True, take_over=["alerts"]) == [
        "tables are either rolled back or accepted as they are: choose one"
    ]


@pytest.mark.parametrize(
    ("table", "roll_back", "told"),
    [
        (THEIRS, False, ("shows checkpoint 5, which life 'theirs' of a job wrote, and is taken "
         "over: its rows stay, and this job goes on behind them, and that job is refused from then "
         "on")),
        (replace(THEIRS, shown=None), True, ("has rows, which life 'theirs' of a job wrote, and is "
         "taken over: its rows go, and that job is refused from then on")),
        (THEIRS_EMPTY, False, None),
        (AHEAD, False, None),
    ],
)  # fmt: skip
def test_who_consents_is_told_what_becomes_of_the_rows(
    table: TableComparison, roll_back: bool, told: str | None
) -> None:
    sentence = None if told is None else f"table 'alerts' {told}"
    assert table.taking_over(roll_back=roll_back) == sentence


def test_every_table_is_named_and_the_two_options_exclude_each_other() -> None:
    both = table_problems([LACKS, AGREES, THEIRS])

    assert [problem.split(",")[0] for problem in both] == [
        "table 'alerts' lacks checkpoint 7",
        "table 'alerts' shows checkpoint 5",
    ]
    assert table_problems([LACKS], roll_back=True, accepts=True) == [
        "tables are either rolled back or accepted as they are: choose one"
    ]


def test_a_decision_names_who_gives_way_and_begins_behind_all_that_is_known() -> None:
    """A gap of one behind another journal's files, whose generations are not known here."""
    tables = [
        TableComparison(sink="a", version=7, comparison=TimelineComparison(newest=9)),
        TableComparison(
            sink="b",
            version=None,
            comparison=TimelineComparison(newest=9, other_life="theirs"),
            is_empty=True,
            rolls_back_by_itself=True,
        ),
    ]

    decided = decide_tables(tables, continues=CheckpointId(8), roll_back=True)

    assert decided == TableDecision(
        versions={"a": 7},
        newest=10,
        continues=CheckpointId(8),
        roll_back=True,
        replaces={"b": ("theirs",)},
    )
    assert [decide_tables([one]).newest for one in (EARLIER_FILES, THEIRS)] == [5, 5]
    assert decide_tables([]) == TableDecision()


def test_tables_are_recovered_once_through_the_last_id_that_was_handed_out() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, triggered(3, parent=2))
    decided = TableDecision(
        versions={"alerts": 1}, roll_back=True, accepts=True, replaces={"alerts": ("theirs",)}
    )

    restored_state = after(state, restored(1, tables=decided))
    again = step(restored_state, tables_recovered())

    assert restored_state.tables == {"alerts": 1}
    assert restored_state.table_recovery == TableRecovery(
        through=CheckpointId(3), roll_back=True, accepts=True, replaces={"alerts": ("theirs",)}
    )
    assert again.state == replace(
        restored_state, table_recovery=None, tables_recovered_by=restored_state.generation
    )
    assert step(again.state, tables_recovered()).verdict is Verdict.IGNORED
    assert step(restored_state, tables_recovered(generation=1)).verdict is Verdict.FENCED


def test_ids_begin_behind_those_that_a_sink_knows_and_the_recovery_covers_them() -> None:
    knows = TableDecision(newest=40)

    submitted_ = after(CoordinatorState(), replace(submitted(), tables=knows))
    restored_ = after(a_submitted(), restored(7, savepoint="s", tables=knows))

    for state in (submitted_, restored_):
        assert state.next_checkpoint_id == 41
        assert state.table_recovery == TableRecovery(through=CheckpointId(40))


def test_tables_that_nobody_wrote_to_are_owed_nothing() -> None:
    assert a_submitted().table_recovery is None
    assert after(a_submitted(), restored(7, savepoint="s")).table_recovery is None


def test_the_latest_checkpoint_changes_nothing_for_the_tables() -> None:
    state = after(a_submitted(), *a_checkpoint(1), triggered(2, parent=1))

    state = after(state, restored(1))

    assert (state.tables, state.table_recovery) == (None, None)


@pytest.mark.parametrize(
    ("chosen", "events"),
    [
        (restored(1), [triggered(2, parent=1), completed(2)]),
        (restored(2, tables=TableDecision(continues=CheckpointId(2))),
         [triggered(2, parent=1), completed(2), committed(2)]),
        (restored(2, tables=TableDecision(continues=CheckpointId(2))), []),
    ],
    ids=["another completed", "it was committed", "it is gone"],
)  # fmt: skip
def test_what_was_decided_of_tables_is_not_journaled_once_it_is_not_so_any_more(
    chosen: Event, events: list[Event]
) -> None:
    state = after(a_submitted(), *a_checkpoint(1), *events)

    assert step(state, chosen).verdict is Verdict.REFUSED


def test_a_job_that_nobody_submitted_gets_its_life_from_the_restore() -> None:
    nobodys = CoordinatorState()

    state = after(nobodys, restored(None, generation=1, life="mine", tables=TableDecision()))

    assert (state.life, state.status) == ("mine", JobStatus.RUNNING)
    for chosen in (restored(None, generation=1), restored(None, generation=1, life="mine")):
        assert step(nobodys, chosen).verdict is Verdict.REFUSED


def test_a_life_begins_once_and_those_before_it_are_remembered() -> None:
    ended = after(a_submitted(), stopped(JobStatus.CANCELED))

    second = after(ended, submitted(generation=2), stopped(JobStatus.CANCELED, generation=2))

    assert (second.life, second.earlier_lives) == ("life-2", ("life-1",))
    for life in ("", "life-1", "life-2"):
        again = replace(submitted(generation=3), life=life)
        assert step(second, again).verdict is Verdict.REFUSED


def test_what_is_owed_to_the_tables_outlives_a_failure_a_cancel_and_a_new_submission() -> None:
    back = restored(1, tables=TableDecision(versions={"alerts": 1}, roll_back=True))
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1), back)
    owed = TableRecovery(through=CheckpointId(2), roll_back=True)

    failed_over = after(state, restored(1, generation=3))
    canceled = after(failed_over, stopped(JobStatus.CANCELED, generation=3))
    resubmitted = after(canceled, submitted(generation=4))

    for one in (failed_over, canceled):
        assert (one.tables, one.table_recovery) == ({"alerts": 1}, owed)
    assert not canceled.must_recover_tables
    assert resubmitted.table_recovery == TableRecovery(through=CheckpointId(2))


def test_a_later_decision_about_the_tables_replaces_one_that_is_owed() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, restored(1, tables=TableDecision(versions={"a": 1}, roll_back=True)))

    state = after(state, restored(2, generation=3, tables=TableDecision(versions={"a": 2})))

    assert state.tables == {"a": 2}
    assert state.table_recovery == TableRecovery(through=CheckpointId(2))


def test_a_commit_that_is_owed_is_the_one_that_may_still_happen_and_moves_the_tables() -> None:
    """It was left behind before its commit, and is restored: the tables are recovered before."""
    state = after(a_submitted(), *a_checkpoint(1), triggered(2, parent=1), completed(2))
    state = after(state, restored(1, tables=TableDecision(versions={"a": 1, "b": 1})))
    owes = TableDecision(versions={"a": 1, "b": 1}, continues=CheckpointId(2))

    state = after(state, restored(2, generation=3, tables=owes))
    suspended = after(state, stopped(JobStatus.SUSPENDED, generation=3))
    published = after(state, replace(committed(2, generation=3), sinks=("a",)))
    late = after(state, replace(committed(1, generation=3), sinks=("a",)))

    assert state.table_recovery == TableRecovery(through=CheckpointId(2), continues=CheckpointId(2))
    assert suspended.must_recover_tables
    assert published.tables == {"a": 2, "b": 1}
    assert late.tables == {"a": 1, "b": 1}


def test_once_a_checkpoint_has_completed_it_says_itself_what_the_tables_show() -> None:
    state = after(a_submitted(), *a_checkpoint(1), *a_checkpoint(2, parent=1))
    state = after(state, restored(1, tables=TableDecision(versions={"a": 1})), tables_recovered())

    state = after(state, triggered(3, parent=1, generation=2), completed(3, generation=2))

    assert state.tables is None
    assert after(state, committed(3, generation=2)).tables is None
