"""The time line of a table: the checkpoints that each writer may publish after a restore."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.timeline import Recovery, Timeline, TimelineComparison, Writer, spans_of
from sluice.errors import FencedError, TableMismatch

FIRST = Writer(life="a", generation=1)
SECOND = Writer(life="a", generation=2)
THIRD = Writer(life="a", generation=3)
OTHER_LIFE = Writer(life="b", generation=1)


def published(*ids: int, writer: Writer = FIRST) -> Timeline:
    """A table to which the ids were published, each after the one before it."""
    timeline, parent = Timeline(), None
    for checkpoint_id in ids:
        after = timeline.publishing(writer, checkpoint_id, parent)
        assert after is not None
        timeline, parent = after, checkpoint_id
    return timeline


def recovered(timeline: Timeline, writer: Writer, recovery: Recovery) -> Timeline:
    after = timeline.recovered(writer, recovery)
    assert after is not None
    return after


def test_ids_that_follow_each_other_are_one_span() -> None:
    assert published(1, 2, 4).published == ((1, 2), (4, 4))
    assert [*published(1, 2, 4).after(1)] == [2, 4]
    assert [*published(1, 2, 4).after(None)] == [1, 2, 4]


def test_spans_are_those_of_any_ids_in_any_order() -> None:
    assert spans_of([4, 2, 1, 2]) == ((1, 2), (4, 4))
    assert spans_of([]) == ()


def test_what_is_shown_is_not_published_again() -> None:
    assert published(1, 2).publishing(FIRST, 2, 1) is None


def test_a_checkpoint_behind_a_later_one_is_left_behind() -> None:
    with pytest.raises(FencedError, match="checkpoint 2 was left behind: the table shows check"):
        published(1, 3).publishing(FIRST, 2, 1)


def test_a_checkpoint_is_not_published_over_a_missing_parent() -> None:
    put_back = replace(published(1, 2, 3), published=((1, 2),))  # As a database restored by hand.

    with pytest.raises(TableMismatch, match=r"continues checkpoint 3, .* \(its newest is 2\)"):
        put_back.publishing(FIRST, 4, 3)


def test_a_table_put_back_to_before_a_roll_back_is_not_published_beside_its_rows() -> None:
    before = published(1, 2, 3)
    after_roll_back = Writer(life="a", generation=2, recovered_by=2)

    with pytest.raises(TableMismatch, match="shows checkpoint 3, which a restore of generation 2"):
        before.publishing(after_roll_back, 4, 1)
    onwards = before.publishing(after_roll_back, 4, 3)  # Nothing is ahead of what it continues.
    assert onwards is not None
    assert onwards.fenced_by == 2


def test_after_a_roll_back_only_later_ids_are_published() -> None:
    back = recovered(published(1, 2, 3), SECOND, Recovery(version=1, through=4, roll_back=True))

    assert back.published == ((1, 1),)
    with pytest.raises(FencedError, match="a restore has passed checkpoint 4"):
        back.publishing(SECOND, 4, 1)
    assert back.publishing(SECOND, 5, 1) is not None


def test_a_table_that_was_rolled_back_lacks_what_is_restored_later() -> None:
    back = recovered(published(1, 2, 3), SECOND, Recovery(version=1, through=3, roll_back=True))

    assert back.compare("a", 3) == TimelineComparison(lacks=True, newest=3)
    with pytest.raises(TableMismatch, match="does not show checkpoint 3"):
        back.recovered(THIRD, Recovery(version=3, through=3))
    accepted = recovered(back, THIRD, Recovery(version=3, through=3, accepts=True))
    assert accepted.published == ((1, 1), (3, 3))


def test_a_suspended_restore_changes_nothing_after_a_later_one() -> None:
    later = recovered(published(1, 2, 3), THIRD, Recovery(version=3, through=3))

    with pytest.raises(FencedError, match="generation 3 of the job has written the table"):
        later.recovered(SECOND, Recovery(version=1, through=3, roll_back=True))
    assert later.recovered(THIRD, Recovery(version=3, through=3)) is None


def test_a_coordinator_of_an_older_generation_publishes_nothing() -> None:
    later = published(1, writer=SECOND)

    with pytest.raises(FencedError, match="a coordinator of generation 1 was left behind"):
        later.publishing(FIRST, 2, 1)


def test_a_commit_that_the_job_continues_is_published_behind_the_fence() -> None:
    left = recovered(published(1), SECOND, Recovery(version=1, through=2))
    chosen = recovered(left, THIRD, Recovery(version=1, through=2, continues=2))

    with pytest.raises(FencedError):
        chosen.publishing(SECOND, 2, 1)
    after = chosen.publishing(THIRD, 2, 1)
    assert after is not None
    assert (after.published, after.continues) == (((1, 2),), None)


def test_another_life_neither_publishes_nor_recovers_unless_it_replaces_the_first() -> None:
    table = published(1, 2)

    with pytest.raises(
        TableMismatch, match="the table belongs to life 'a' of a job, not to life 'b'"
    ):
        table.publishing(OTHER_LIFE, 1, None)
    with pytest.raises(TableMismatch, match="belongs to life 'a'"):
        table.recovered(OTHER_LIFE, Recovery(version=None, through=2))
    taken = recovered(
        table,
        OTHER_LIFE,
        Recovery(version=None, through=2, roll_back=True, replaces=("a",)),
    )
    assert taken == Timeline(life="b", generation=1, fenced_by=1, through=2, past=(("a", 1),))
    with pytest.raises(TableMismatch, match="belongs to life 'b'"):
        taken.publishing(FIRST, 3, 2)


def test_a_table_that_moved_since_it_was_looked_at_is_not_taken_over() -> None:
    with pytest.raises(FencedError, match="published after the job looked at it"):
        published(1, 2, 3).recovered(
            OTHER_LIFE, Recovery(version=None, through=2, roll_back=True, replaces=("a",))
        )


def test_rows_of_an_owed_commit_that_came_after_all_are_not_taken_away() -> None:
    owed = Recovery(version=1, through=3, continues=2, roll_back=True)

    with pytest.raises(FencedError, match="checkpoint 2, whose commit was owed, was published"):
        published(1, 2).recovered(SECOND, owed)


def test_a_recovery_that_slept_does_not_take_the_table_back_from_another_life() -> None:
    taken_back = Recovery(version=2, through=2, accepts=True, replaces=("b",))
    anew = Recovery(version=None, through=2, roll_back=True, replaces=("a",))
    kept = Recovery(version=None, through=2, accepts=True, replaces=("a",))
    table = recovered(published(1, 2), OTHER_LIFE, kept)
    table = recovered(table, SECOND, taken_back)
    table = recovered(table, replace(OTHER_LIFE, generation=2), anew)

    with pytest.raises(TableMismatch, match="life 'a' of a job has left the table to life 'b'"):
        table.recovered(SECOND, taken_back)
    assert recovered(table, THIRD, taken_back).past == (("b", 2),)


def test_a_life_that_comes_back_publishes_no_id_that_the_other_may_have_used() -> None:
    kept = Recovery(version=None, through=1, accepts=True, replaces=("a",))
    table = recovered(published(1), OTHER_LIFE, kept)
    table = table.publishing(OTHER_LIFE, 2, None) or table

    for continues in (1, 2):
        back = Recovery(version=1, through=2, continues=continues, replaces=("b",))
        with pytest.raises(TableMismatch, match=f"checkpoint {continues}, which the job contin"):
            table.recovered(SECOND, back)
    back = Recovery(version=1, through=3, continues=3, replaces=("b",))
    assert recovered(table, SECOND, back).continues == 3


def test_a_commit_that_is_owed_is_published_though_a_shortened_time_line_takes_it_as_shown() -> (
    None
):
    short = published(1, 3, 5, 7).shortened(1)
    choice = Recovery(version=1, through=7, continues=2)
    with pytest.raises(TableMismatch, match="does not show checkpoint 1"):
        short.recovered(SECOND, choice)
    assert short.compare("a", 1).lacks
    chosen = recovered(short, SECOND, replace(choice, accepts=True))
    assert chosen.published == ((7, 7),)

    after = chosen.publishing(SECOND, 2, 1)
    assert after == replace(chosen, continues=None)
    assert after.publishing(SECOND, 2, 1) is None


def test_few_lives_that_gave_way_are_remembered() -> None:
    table = published(1)
    for number in range(9):
        replaces = (table.life,)
        writer = Writer(life=f"life-{number}", generation=number + 1)
        table = recovered(table, writer, Recovery(version=None, through=1, replaces=replaces))

    assert table.past == tuple((f"life-{number}", number + 1) for number in range(4, 8))


def test_the_standing_names_what_is_ahead_and_whose_it_is() -> None:
    assert published(1, 2, 4).compare("a", 1) == TimelineComparison(ahead=(2, 4), newest=4)
    assert published(1).compare("b", None) == TimelineComparison(
        ahead=(1,), other_life="a", newest=1
    )
    assert Timeline().compare("a", None) == TimelineComparison()


def test_a_shortened_time_line_takes_the_forgotten_as_shown() -> None:
    short = published(1, 3, 5).shortened(2)

    assert short.published == ((3, 3), (5, 5))
    assert short.shows(1)
    assert not short.shows(4)
    assert short.shortened(2) is short
    emptied = recovered(short, SECOND, Recovery(version=None, through=5, roll_back=True))
    assert emptied.published == ()
    assert not emptied.shows(1)


HERE = Writer(life="a", generation=1, sink="s3://a/shop/tables/sales")
COPY = Writer(life="a", generation=2, sink="s3://copy/shop/tables/sales")


def test_another_sink_of_the_same_life_is_another_writer() -> None:
    """A copied root has the life and the generations of the first, and other rows from then on."""
    table = published(1, 2, writer=HERE)
    words = "belongs to life 'a' of a job at s3://a/shop/tables/sales, not to life 'a' of a job at "

    with pytest.raises(TableMismatch, match=words):
        table.publishing(COPY, 3, 2)
    with pytest.raises(TableMismatch, match=words):
        table.publishing(COPY, 2, 1)  # Not taken for its own, although the id is shown.
    with pytest.raises(TableMismatch, match=words):
        table.recovered(COPY, Recovery(version=2, through=2))
    assert table.compare("a", 2, COPY.sink) == TimelineComparison(
        other_life="a", other_sink=HERE.sink, newest=2
    )
    assert table.compare("b", 2, HERE.sink) == TimelineComparison(other_life="a", newest=2)


def test_a_writer_that_gave_way_is_known_by_life_and_sink() -> None:
    taken = Recovery(version=2, through=2, accepts=True, replaces=("a",))
    table = recovered(published(1, 2, writer=HERE), COPY, taken)

    with pytest.raises(TableMismatch, match="belongs to life 'a' of a job at s3://copy"):
        table.publishing(replace(HERE, generation=2), 3, 2)
    with pytest.raises(TableMismatch, match="at s3://a/shop/tables/sales has left the table to"):
        table.recovered(HERE, taken)
    back = recovered(table, replace(HERE, generation=2), replace(taken, through=3))
    assert table.compare("a", 2, HERE.sink).past_lives == ("a",)
    assert back.compare("a", 2, "elsewhere").past_lives == ()
    assert (back.life, back.sink, back.generation) == ("a", HERE.sink, 2)


def test_a_table_that_somebody_put_back_shows_what_is_there_and_gives_no_id_again() -> None:
    table = published(1, 2, 3).showing([1])

    assert table.compare("a", 3) == TimelineComparison(lacks=True, newest=3)
    assert table.compare("a", 1) == TimelineComparison(newest=3)
    with pytest.raises(TableMismatch, match="continues checkpoint 3, which the table does not"):
        table.publishing(FIRST, 4, 3)
    again = table.publishing(FIRST, 2, 1)  # Its commit was owed.
    assert again is not None
    assert again.published == ((1, 2),)
    assert published(1, 2).showing([]).compare("a", None) == TimelineComparison(newest=2)
