"""The four rows of ADR 16: what becomes of a table, and what a person is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.core.ids import CheckpointId
from sluice.core.tables import (
    TableAhead,
    TableComparison,
    TableDecision,
    decide_tables,
    table_problems,
)
from sluice.core.timeline import TimelineComparison

FIX_LACKING = (
    "restore a checkpoint that it shows, or accept tables as they are, which leaves the missing "
    "rows out"
)
FIX_OTHER_LIFE = (
    "give each job a table of its own, roll tables back, which takes those rows away, or accept "
    "tables as they are, which goes on behind them"
)


def ahead(*checkpoints: int, can: bool = True, by_itself: bool = False) -> TableAhead:
    return TableAhead(
        sink="alerts", checkpoints=checkpoints, can_roll_back=can, rolls_back_by_itself=by_itself
    )


def a_table(version: int | None = 7, *, shown: int | None = None, **given: Any) -> TableComparison:
    """Whose standing, but for what is a field of ``TableStanding``, is as *given*."""
    of_table = {"is_empty", "is_of_earlier_life", "can_roll_back", "rolls_back_by_itself"}
    known = {name: given.pop(name) for name in of_table & given.keys()}
    standing = TimelineComparison(**{"newest": shown or 0} | given)
    return TableComparison(sink="alerts", version=version, shown=shown, standing=standing, **known)


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
    assert table.told(rolls_back=rolls_back) == f"table 'alerts' is ahead by {told}"


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
    theirs = replace(theirs, standing=replace(theirs.standing, newest=9))

    for options in ({"accepts": True, "roll_back": False}, {"accepts": False, "roll_back": True}):
        assert theirs.problem(**options) == (
            "checkpoint 7 was not published to table 'alerts' before life 'theirs' took it over, "
            "which may have used its id; restore an earlier checkpoint"
        )
        behind = replace(theirs, owed=CheckpointId(10))
        assert behind.problem(**options) is None
    assert replace(AHEAD, version=6, owed=CheckpointId(7)).problem(
        roll_back=False, accepts=False
    ) is None  # fmt: skip


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
        TableComparison(sink="a", version=7, standing=TimelineComparison(newest=9)),
        TableComparison(
            sink="b",
            version=None,
            standing=TimelineComparison(newest=9, other_life="theirs"),
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
