"""The rules of restores for every sink: readers see what the job continues, or a person was told.

A sink goes back by its next commit, on request, or never (``RollBack``); the rules hold for all.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from sluice.core.answers import Committable
from sluice.core.timeline import Recovery, TimelineComparison, Writer
from sluice.declaration.places import RollBack, Sink
from sluice.errors import ConfigurationError, FencedError, TableMismatch
from tests.contract.sink_case import (
    ANEW,
    JOB,
    RESTORED,
    RESTORED_AGAIN,
    SCHEMA,
    Row,
    SinkCase,
    publish,
    rows,
    seen,
    staged_rows,
)
from tests.contract.two_restores import (
    two_restores_one_after_the_other_leave_what_the_job_continues,
)


def what_is_ahead_of_a_version_is_named(case: SinkCase) -> None:
    assert case.open().compare(JOB.life, None) == TimelineComparison()
    publish_in_turn(case, 1, 2, 4)

    def comparison(version: int | None) -> TimelineComparison:
        return case.open().compare(JOB.life, version)

    assert comparison(None) == TimelineComparison(ahead=(1, 2, 4), newest=4)
    assert comparison(1) == TimelineComparison(ahead=(2, 4), newest=4)
    assert comparison(4) == TimelineComparison(newest=4)
    assert comparison(3) == TimelineComparison(ahead=(4,), lacks=True, newest=4)
    assert comparison(5) == TimelineComparison(lacks=True, newest=4)
    assert all(case.open().describe(version) for version in (1, 2, 4))


def a_commit_that_a_restore_left_behind_shows_nothing(case: SinkCase) -> None:
    """The job was restored to 1 while another coordinator was committing 2, and goes on with 4."""
    publish(case.open(), 1, None, rows(1))
    late = staged_rows(case.open(), 2, 2)
    for _ in range(2):
        case.open().recover(RESTORED, Recovery(version=1, through=3))
    for writer in (JOB, RESTORED):
        try_to_commit(case.open(), writer, 2, 1, late)
    assert seen(case) == rows(1)
    publish(case.open(), 4, 1, rows(4), RESTORED)
    for writer in (JOB, RESTORED):
        try_to_commit(case.open(), writer, 2, 1, late)
    assert seen(case) == rows(1, 4)


def a_commit_behind_a_later_one_shows_nothing(case: SinkCase) -> None:
    publish(case.open(), 1, None, rows(1))
    late = staged_rows(case.open(), 2, 2)
    publish(case.open(), 3, 1, rows(3))
    try_to_commit(case.open(), JOB, 2, 1, late)
    assert seen(case) == rows(1, 3)


def a_table_that_can_be_rolled_back_is_and_another_says_that_it_cannot(case: SinkCase) -> None:
    publish_in_turn(case, 1, 2, 3)
    to_the_first = Recovery(version=1, through=3, roll_back=True)
    if case.open().rolls_back is RollBack.NEVER:
        with pytest.raises(ConfigurationError, match="cannot be rolled back"):
            case.open().recover(RESTORED, to_the_first)
        assert seen(case) == rows(1, 2, 3)
        return
    for _ in range(2):
        case.open().recover(RESTORED, to_the_first)
        assert seen(case) == rows(1)
    assert case.open().compare(JOB.life, 1).ahead == ()
    publish(case.open(), 4, 1, rows(2, 4), RESTORED)
    assert seen(case) == rows(1, 2, 4)
    case.open().recover(RESTORED, to_the_first)  # The same restore, by a process that was slow.
    assert seen(case) == rows(1, 2, 4)


def a_table_is_rolled_back_to_nothing(case: SinkCase) -> None:
    if case.open().rolls_back is RollBack.NEVER:
        return
    publish(case.open(), 1, None, rows(1))
    case.open().recover(RESTORED, Recovery(version=None, through=1, roll_back=True))
    assert seen(case) == []
    publish(case.open(), 2, None, rows(2), RESTORED)
    assert seen(case) == rows(2)


def an_empty_table_can_always_be_rolled_back(case: SinkCase) -> None:
    assert case.open().is_empty()
    publish(case.open(), 1, None, [])
    publish(case.open(), 2, 1, [])
    assert case.open().is_empty()

    case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))

    assert case.open().compare(JOB.life, 1) == TimelineComparison(newest=2)
    publish(case.open(), 3, 1, rows(3), RESTORED)
    assert seen(case) == rows(3)
    assert not case.open().is_empty()


def a_table_that_went_back_is_known_to_lack_what_is_restored_then(case: SinkCase) -> None:
    publish_in_turn(case, 1, 2, 3)
    how = case.open().rolls_back
    if how is RollBack.NEVER:
        return
    case.open().recover(RESTORED, Recovery(version=1, through=3, roll_back=True))
    forward = Recovery(version=3, through=3)

    if how is RollBack.BY_NEXT_COMMIT:  # Its manifests are still there.
        assert not case.open().compare(JOB.life, 3).lacks
        case.open().recover(RESTORED_AGAIN, forward)
        publish(case.open(), 4, 3, rows(4), RESTORED_AGAIN)
        assert seen(case) == rows(1, 2, 3, 4)
        return
    assert case.open().compare(JOB.life, 3).lacks
    with pytest.raises(TableMismatch, match="does not show checkpoint 3"):
        case.open().recover(RESTORED_AGAIN, forward)
    with pytest.raises(TableMismatch, match="continues checkpoint 3"):
        publish(case.open(), 4, 3, rows(4), RESTORED_AGAIN)
    assert seen(case) == rows(1)
    accepted = Recovery(version=3, through=3, accepts=True)
    case.open().recover(RESTORED_AGAIN, accepted)
    publish(case.open(), 5, 3, rows(5), RESTORED_AGAIN)
    assert seen(case) == rows(1, 5)


def a_checkpoint_is_not_published_over_a_missing_one(case: SinkCase) -> None:
    """The place was put back: the job has published 2, and the table has nothing of it."""
    publish(case.open(), 1, None, rows(1))
    assert case.open().compare(JOB.life, 2).lacks
    with pytest.raises(TableMismatch, match="continues checkpoint 2"):
        publish(case.open(), 3, 2, rows(3))
    assert seen(case) == rows(1)


def a_restore_that_slept_changes_nothing_after_a_later_one(case: SinkCase) -> None:
    """It was about to go back to 1; meanwhile the job was restored to 3 and goes on."""
    publish_in_turn(case, 1, 2, 3)
    case.open().recover(RESTORED_AGAIN, Recovery(version=3, through=3))
    for does_roll_back in (True, False):
        slept = Recovery(version=1, through=3, roll_back=does_roll_back)
        with pytest.raises(FencedError, match="generation"):
            case.open().recover(RESTORED, slept)
    assert seen(case) == rows(1, 2, 3)
    publish(case.open(), 4, 3, rows(4), RESTORED_AGAIN)
    with pytest.raises(FencedError, match="generation"):
        case.open().recover(RESTORED, Recovery(version=1, through=3, roll_back=True))
    assert seen(case) == rows(1, 2, 3, 4)


def a_checkpoint_left_behind_and_chosen_again_is_published_by_that_restore_alone(
    case: SinkCase,
) -> None:
    """2 was completed and not yet published when the job was restored to 1, and then to 2."""
    publish(case.open(), 1, None, rows(1))
    chosen = staged_rows(case.open(), 2, 2)
    case.open().recover(RESTORED, Recovery(version=1, through=2))
    case.open().recover(RESTORED_AGAIN, Recovery(version=1, through=2, continues=2))
    for writer in (JOB, RESTORED):
        with pytest.raises(FencedError, match="generation"):
            case.open().commit(writer, 2, 1, [chosen])
    assert seen(case) == rows(1)

    for _ in range(2):
        case.open().commit(RESTORED_AGAIN, 2, 1, [chosen])
        assert seen(case) == rows(1, 2)
    publish(case.open(), 3, 2, rows(3), RESTORED_AGAIN)
    assert seen(case) == rows(1, 2, 3)


def a_second_life_is_refused_where_the_first_ones_rows_are(case: SinkCase) -> None:
    publish_in_turn(case, 1, 2)
    comparison = case.open().compare(ANEW.life, None)
    assert comparison == TimelineComparison(ahead=(1, 2), other_life=JOB.life, newest=2)
    assert not case.open().is_empty()

    for writer, checkpoint_id in ((ANEW, 1), (ANEW, 3)):
        with pytest.raises(TableMismatch, match="belongs to life 'first-life'"):
            publish(case.open(), checkpoint_id, None, rows(1), writer)
    for does_roll_back in (False, True):
        with pytest.raises(TableMismatch, match="belongs to life 'first-life'"):
            case.open().recover(ANEW, Recovery(version=None, through=2, roll_back=does_roll_back))
    assert seen(case) == rows(1, 2)
    publish(case.open(), 3, 2, rows(3))


def a_second_life_takes_an_empty_table_over(case: SinkCase) -> None:
    publish(case.open(), 1, None, [])
    late = staged_rows(case.open(), 2, 2)
    taken = Recovery(version=None, through=1, roll_back=True, replaces=(JOB.life,))
    for _ in range(2):
        case.open().recover(ANEW, taken)
    publish(case.open(), 2, None, rows(7), ANEW)
    with pytest.raises(TableMismatch, match="belongs to life 'second-life'"):
        case.open().commit(JOB, 2, 1, [late])
    with pytest.raises(TableMismatch, match="belongs to life 'second-life'"):
        case.open().recover(RESTORED, Recovery(version=1, through=2, roll_back=True))
    case.open().recover(ANEW, taken)
    assert seen(case) == rows(7)
    assert case.open().compare(ANEW.life, 2) == TimelineComparison(newest=2)


def a_second_life_has_the_first_ones_rows_rolled_back(case: SinkCase) -> None:
    publish_in_turn(case, 1, 2)
    taken = Recovery(version=None, through=2, roll_back=True, replaces=(JOB.life,))
    if case.open().rolls_back is RollBack.NEVER:
        with pytest.raises(ConfigurationError, match="cannot be rolled back"):
            case.open().recover(ANEW, taken)
        assert seen(case) == rows(1, 2)
        assert case.open().compare(ANEW.life, None).other_life == JOB.life
        return
    case.open().recover(ANEW, taken)
    assert seen(case) == []
    publish(case.open(), 3, None, rows(3), ANEW)
    assert seen(case) == rows(3)


def a_second_life_goes_on_behind_the_first_ones_rows_when_that_is_accepted(case: SinkCase) -> None:
    publish_in_turn(case, 1, 2)
    late = staged_rows(case.open(), 3, 3)
    accepted = Recovery(version=None, through=2, accepts=True, replaces=(JOB.life,))
    case.open().recover(ANEW, accepted)
    publish(case.open(), 4, None, rows(4), ANEW)
    with pytest.raises(TableMismatch, match="belongs to life 'second-life'"):
        case.open().commit(JOB, 3, 2, [late])
    starts_anew = case.open().rolls_back is RollBack.BY_NEXT_COMMIT
    assert seen(case) == (rows(4) if starts_anew else rows(1, 2, 4))


def check_and_publish(
    sink: Sink, checkpoint_id: int, parent: int, added: list[Row], writer: Writer
) -> None:
    """As a coordinator does it: a table is asked before the checkpoint is completed."""
    staged = staged_rows(sink, checkpoint_id, *(row["id"] for row in added))
    sink.check(parent, SCHEMA, [staged])
    sink.commit(writer, checkpoint_id, parent, [staged])


def a_table_has_one_writer_whichever_root_its_job_is_in(case: SinkCase, other: SinkCase) -> None:
    """*other* is the same table: the job's root was copied, or its savepoint restored elsewhere."""
    publish_in_turn(case, 1, 2, 3)
    comparison = other.open().compare(JOB.life, 2)
    assert (comparison.ahead, comparison.other_life) == ((3,), JOB.life)
    assert comparison.other_sink not in ("", case.open().compare(JOB.life, 2).other_sink)

    for writer in (JOB, RESTORED, ANEW):
        with pytest.raises(TableMismatch, match="belongs to life 'first-life' of a job at "):
            check_and_publish(other.open(), 4, 3, rows(9), writer)
        with pytest.raises(TableMismatch, match="belongs to life 'first-life' of a job at "):
            other.open().recover(writer, Recovery(version=3, through=3))
    assert seen(case) == rows(1, 2, 3)
    taken = Recovery(version=3, through=3, accepts=True, replaces=(JOB.life,))
    for _ in range(2):
        other.open().recover(RESTORED, taken)
    publish(other.open(), 4, 3, rows(4), RESTORED)

    with pytest.raises(TableMismatch, match="belongs to life 'first-life' of a job at "):
        publish(case.open(), 5, 3, rows(5))  # The first goes on, and was not told.
    with pytest.raises(TableMismatch, match="belongs to life 'first-life' of a job at "):
        case.open().recover(RESTORED, Recovery(version=3, through=5, roll_back=True))
    assert seen(case) == rows(1, 2, 3, 4)
    case.open().recover(RESTORED, replace(taken, version=4, through=5))
    publish(case.open(), 6, 4, rows(6), RESTORED)
    with pytest.raises(TableMismatch, match="belongs to life 'first-life' of a job at "):
        publish(other.open(), 7, 4, rows(7), RESTORED)
    assert seen(case) == rows(1, 2, 3, 4, 6)


def publish_in_turn(case: SinkCase, *ids: int) -> None:
    for parent, checkpoint_id in zip((None, *ids), ids, strict=False):
        publish(case.open(), checkpoint_id, parent, rows(checkpoint_id))


def try_to_commit(
    sink: Sink, writer: Writer, checkpoint_id: int, parent: int, staged: Committable
) -> None:
    with suppress(FencedError):
        sink.commit(writer, checkpoint_id, parent, [staged])


RESTORE_RULES = (
    what_is_ahead_of_a_version_is_named,
    a_commit_that_a_restore_left_behind_shows_nothing,
    a_commit_behind_a_later_one_shows_nothing,
    a_table_that_can_be_rolled_back_is_and_another_says_that_it_cannot,
    a_table_is_rolled_back_to_nothing,
    an_empty_table_can_always_be_rolled_back,
    a_table_that_went_back_is_known_to_lack_what_is_restored_then,
    a_checkpoint_is_not_published_over_a_missing_one,
    a_restore_that_slept_changes_nothing_after_a_later_one,
    a_checkpoint_left_behind_and_chosen_again_is_published_by_that_restore_alone,
    a_second_life_is_refused_where_the_first_ones_rows_are,
    a_second_life_takes_an_empty_table_over,
    a_second_life_has_the_first_ones_rows_rolled_back,
    a_second_life_goes_on_behind_the_first_ones_rows_when_that_is_accepted,
    two_restores_one_after_the_other_leave_what_the_job_continues,
)
