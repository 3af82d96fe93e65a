"""What readers see is what the job continues, whatever was restored before: back, forward, twice,
with tables rolled back and without, to a checkpoint whose commit never happened.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from harness.jobs import a_pipeline, a_running_job
from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.trigger import trigger
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest, RestoreOptions, Stop
from sluice.core.timeline import Timeline
from sluice.declaration.places import RollBack
from sluice.errors import RestoreError, SluiceError, TableMismatch
from tests.noted_target import NotedTable
from tests.subtasks import take_checkpoint
from tests.table_cases import ACCEPT, ROLL_BACK, Case, a_case, complete, to


@pytest.fixture(params=["files", "noted"])
def case(request: pytest.FixtureRequest) -> Case:
    return a_case(request.param)


@pytest.fixture
def noted() -> Case:
    return a_case("noted")


def test_a_table_that_was_rolled_back_is_missed_when_the_job_goes_forward_again(
    noted: Case,
) -> None:
    for _ in range(3):
        take_checkpoint(noted.job)
    restore(noted.job, to(1), ROLL_BACK)
    problem = (
        "table 'results' lacks checkpoint 3, which the job would continue: it shows checkpoint 1; "
        "restore a checkpoint that it shows, or accept tables as they are, which leaves the "
        "missing rows out"
    )

    planned = plan_restore(noted.job, to(3))

    assert planned == Stop(problems=(problem,))
    with pytest.raises(RestoreError, match="lacks checkpoint 3"):
        restore(noted.job, to(3))
    assert noted.job.state().base == 1
    restore(noted.job, to(3), ACCEPT)
    take_checkpoint(noted.job)
    assert noted.seen() == [*range(10), *range(30, 40)]


def test_a_files_table_goes_forward_with_the_job_and_at_once() -> None:
    case = a_case("files")
    for _ in range(3):
        take_checkpoint(case.job)
    restore(case.job, to(1), ROLL_BACK)
    assert case.seen() == list(range(10))

    restore(case.job, to(3))

    assert case.seen() == list(range(30))
    take_checkpoint(case.job)
    assert case.seen() == list(range(40))


def test_a_table_can_be_rolled_back_after_a_restore_that_left_it(case: Case) -> None:
    for _ in range(3):
        take_checkpoint(case.job)
    restore(case.job, to(1))
    assert case.seen() == list(range(30))

    restored = restore(case.job, to(1), ROLL_BACK)

    assert restored.tables_ahead == ()
    assert case.seen() == list(range(10))
    take_checkpoint(case.job)
    assert case.seen() == list(range(20))


def test_a_restore_that_slept_in_its_roll_back_changes_nothing_when_it_wakes(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        take_checkpoint(case.job)
    sink = NotedTable if case.noted is not None else ManifestTable
    awake, asleep, told = threading.Event(), threading.Event(), list[str]()
    recover = sink.recover

    def sleepy(*given: Any) -> None:
        if threading.current_thread().name == "sleeper":
            asleep.set()
            assert awake.wait(10)
        recover(*given)

    def sleeps() -> None:
        try:
            restore(case.job, to(1), ROLL_BACK)
        except SluiceError as error:
            told.append(type(error).__name__)

    monkeypatch.setattr(sink, "recover", sleepy)
    sleeper = threading.Thread(target=sleeps, name="sleeper")
    sleeper.start()
    assert asleep.wait(10)
    restore(case.job, to(3))
    take_checkpoint(case.job)
    awake.set()
    sleeper.join(10)

    assert told == ["FencedError"]
    assert case.seen() == list(range(40))
    take_checkpoint(case.job)
    assert case.seen() == list(range(50))


def test_a_table_that_was_put_back_is_told_of_and_a_restore_to_what_it_shows_heals(
    noted: Case,
) -> None:
    """A database's point-in-time recovery: rows and notes are those of checkpoint 1."""
    assert noted.noted is not None
    place = noted.noted.place
    take_checkpoint(noted.job)
    timeline, rows = place.timeline, dict(place.rows)
    take_checkpoint(noted.job)
    complete(noted.job)
    place.timeline, place.rows = timeline, rows

    for act in (lambda: commit(noted.job, CheckpointId(3)), lambda: trigger(noted.job)):
        with pytest.raises(TableMismatch, match=r"checkpoint 3 continues checkpoint 2, which the"):
            act()
    assert noted.seen() == list(range(10))
    restore(noted.job, to(1))
    take_checkpoint(noted.job)

    assert noted.seen() == list(range(20))


def test_or_its_rows_stay_missing_if_a_person_accepts_that(noted: Case) -> None:
    assert noted.noted is not None
    place = noted.noted.place
    take_checkpoint(noted.job)
    timeline, rows = place.timeline, dict(place.rows)
    take_checkpoint(noted.job)
    complete(noted.job)
    place.timeline, place.rows = timeline, rows

    restore(noted.job, Latest(), ACCEPT)

    assert noted.seen() == [*range(10), *range(20, 30)]
    take_checkpoint(noted.job)
    assert noted.seen() == [*range(10), *range(20, 40)]


def test_a_table_that_cannot_go_back_takes_rows_again_and_says_so() -> None:
    topic = NotedTable(rolls_back=RollBack.NEVER)
    job = a_running_job(a_pipeline(sink=topic, num_retained=9))
    for _ in range(3):
        take_checkpoint(job)

    planned = plan_restore(job, to(1), ROLL_BACK)
    restored = restore(job, to(1))
    take_checkpoint(job)

    assert planned == Stop(problems=(
        ("table 'results' is ahead by 2 checkpoints (2, 3), and it cannot be rolled back; restore "
        "without rolling tables back"),
    ))  # fmt: skip
    assert [str(ahead) for ahead in restored.tables_ahead] == [
        "table 'results' is ahead by 2 checkpoints (2, 3)"
    ]
    assert topic.place.records == sorted([*range(30), *range(10, 20)])


def test_rolling_back_and_accepting_exclude_each_other(case: Case) -> None:
    take_checkpoint(case.job)
    both = RestoreOptions(roll_back_tables=True, accept_tables=True)

    assert plan_restore(case.job, Latest(), both) == Stop(
        problems=("tables are either rolled back or accepted as they are: choose one",)
    )


def test_a_table_that_nobody_wrote_to_is_never_asked_for_more_than_it_has() -> None:
    case = a_case("noted")
    assert case.noted is not None

    restore(case.job, Latest(), ROLL_BACK)

    assert case.noted.timeline() == Timeline()
    take_checkpoint(case.job)
    assert case.seen() == list(range(10))
