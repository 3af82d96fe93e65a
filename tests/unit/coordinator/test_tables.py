"""Readers see what the job continues, whatever was restored before: back, forward, twice, with
tables rolled back and without, to a checkpoint whose commit never happened.

A job that begins anew over tables of another life neither loses nor mixes up rows, unless a person
accepts that.
"""

from __future__ import annotations

import secrets
import threading
from typing import Any

import pytest

from harness.jobs import (
    SINK,
    STAGES,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from harness.noted_target import NotedTable
from sluice.connectors.files_table.table import ManifestTable
from sluice.connectors.files_table.table import ManifestTable as FilesTableSink
from sluice.coordinator.duties import resume_duties
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import foreign_target, restore, stop
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.submission import TableConsent, configure, submit
from sluice.coordinator.tables import writer_of
from sluice.coordinator.trigger import trigger
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice, Latest, RestoreOptions, Stop
from sluice.core.timeline import Timeline
from sluice.core.transitions import Consent
from sluice.declaration.nodes import SinkNode
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import RollBack, SinkSpec
from sluice.errors import (
    ConfigurationError,
    FencedError,
    RestoreError,
    SluiceError,
    StoreUnavailable,
    TableMismatch,
)
from sluice.job.job import Job, open_job
from sluice.job.places import open_sinks
from sluice.sinks import FilesTable
from tests.subtasks import a_savepoint, complete_one, take_checkpoint, take_checkpoints
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
    take_checkpoints(noted.job, 3)
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
    take_checkpoints(case.job, 3)
    restore(case.job, to(1), ROLL_BACK)
    assert case.seen() == list(range(10))

    restore(case.job, to(3))

    assert case.seen() == list(range(30))
    take_checkpoint(case.job)
    assert case.seen() == list(range(40))


def test_a_table_can_be_rolled_back_after_a_restore_that_left_it(case: Case) -> None:
    take_checkpoints(case.job, 3)
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
    take_checkpoints(case.job, 3)
    sink = NotedTable if case.noted is not None else ManifestTable
    awake, asleep, told = threading.Event(), threading.Event(), list[str]()
    recover = sink.recover

    def sleepy(*given: Any) -> None:
        if threading.current_thread().name == "sleeper":
            asleep.set()
            assert awake.wait(60)
        recover(*given)

    def sleeps() -> None:
        try:
            restore(case.job, to(1), ROLL_BACK)
        except SluiceError as error:
            told.append(type(error).__name__)

    monkeypatch.setattr(sink, "recover", sleepy)
    sleeper = threading.Thread(target=sleeps, name="sleeper")
    sleeper.start()
    assert asleep.wait(60)
    restore(case.job, to(3))
    take_checkpoint(case.job)
    awake.set()
    sleeper.join(60)

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
    take_checkpoints(job, 3)

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


FIRST = Choice(CheckpointId(1))


@pytest.fixture
def job() -> Job:
    return a_running_job()


def table_of(job: Job) -> ManifestTable:
    table = open_sinks(job, job.state().configuration.params)[SINK]
    assert isinstance(table, ManifestTable)
    return table


def test_a_restore_names_the_tables_that_are_ahead_and_by_how_much(job: Job) -> None:
    take_checkpoints(job, 3)

    planned = plan_restore(job, FIRST)
    restored = restore(job, FIRST)

    assert not isinstance(planned, Stop)
    assert [str(ahead) for ahead in planned.tables_ahead] == [
        "table 'results' is ahead by 2 checkpoints (2, 3)"
    ]
    assert restored.tables_ahead == planned.tables_ahead
    assert published_records(job) == list(range(30))
    take_checkpoint(job)
    assert published_records(job) == list(range(20))


def test_with_roll_back_the_tables_go_back_at_once(job: Job) -> None:
    take_checkpoints(job, 3)

    restored = restore(job, FIRST, ROLL_BACK)

    assert restored.tables_ahead == ()
    assert job.state().table_recovery is None
    assert published_records(job) == list(range(10))
    take_checkpoint(job)
    assert published_records(job) == list(range(20))


def test_the_latest_checkpoint_leaves_no_table_behind_and_asks_none(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_checkpoint(job)

    def ask(*_: object, **__: object) -> None:
        raise AssertionError("nobody has to ask")

    monkeypatch.setattr(ManifestTable, "compare", ask)
    monkeypatch.setattr(ManifestTable, "recover", ask)
    assert restore(job, Latest()).tables_ahead == ()


def test_a_table_that_cannot_go_back_is_named_and_nothing_happens(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_checkpoints(job, 2)
    monkeypatch.setattr(ManifestTable, "rolls_back", RollBack.NEVER)

    with pytest.raises(RestoreError, match=r"'results' is ahead by 1 checkpoint \(2\), and it can"):
        restore(job, FIRST, ROLL_BACK)
    assert job.state().generation == 1


def test_a_commit_that_was_under_way_shows_nothing_after_the_restore(job: Job) -> None:
    take_checkpoint(job)
    plan = complete_one(job)
    metadata = job.metadata(plan.checkpoint_id)
    before = writer_of(job.state())

    restore(job, FIRST)
    mine = [one for one in metadata.committables if one.sink == SINK]
    with pytest.raises(FencedError, match="generation 2 of the job has written the table"):
        table_of(job).commit(before, 2, metadata.previous_tables.get(SINK), mine)
    with pytest.raises(FencedError, match="checkpoint 2 was left behind by a restore before it"):
        commit(job, plan.checkpoint_id)

    assert published_records(job) == list(range(10))
    take_checkpoint(job)
    assert published_records(job) == list(range(20))


def test_what_a_restore_could_not_do_the_next_coordinator_does_before_anything_new(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_checkpoints(job, 2)
    with monkeypatch.context() as patch:
        patch.setattr(ManifestTable, "recover", _is_down)
        with pytest.raises(StoreUnavailable):
            restore(job, FIRST, ROLL_BACK)
        with pytest.raises(StoreUnavailable):
            trigger_one(job)

    assert published_records(job) == list(range(20))
    resume_duties(job, job.journal.load())

    assert published_records(job) == list(range(10))
    take_checkpoint(job)
    assert published_records(job) == list(range(20))


def _is_down(*_: object, **__: object) -> None:
    raise StoreUnavailable("the table's place is down")


ACCEPT_ROWS = TableConsent(accept=True)
ROLL_BACK_ROWS = TableConsent(roll_back=True)


@pytest.fixture(params=["files", "noted"])
def sink(request: pytest.FixtureRequest) -> SinkSpec:
    """A table outside of every root."""
    if request.param == "noted":
        return NotedTable()
    return FilesTable(f"memory://{secrets.token_hex(6)}", changelog=True)


def seen(job: Job, sink: SinkSpec) -> list[int]:
    return sink.place.records if isinstance(sink, NotedTable) else published_records(job)


def a_life(sink: SinkSpec, checkpoints: int, *, root: str | None = None) -> Job:
    job = a_job(a_pipeline(sink=sink, num_retained=9), root=root)
    begin(job)
    take_checkpoints(job, checkpoints)
    return job


def begin(job: Job, consent: TableConsent | None = None) -> None:
    submit(job, configure(job.pipeline, {}), tables=consent or TableConsent())


def emptied(job: Job) -> Job:
    job.store.delete(keys_of(job))
    return job.anew()


def test_a_job_over_an_emptied_root_is_refused_while_its_table_shows_rows(sink: SinkSpec) -> None:
    job = a_life(sink, 3)
    life, before = job.state().life, seen(job, sink)
    job = emptied(job)

    with pytest.raises(ConfigurationError) as refused:
        begin(job)

    assert str(refused.value) == (
        f"job 'auctions' cannot begin in {job.store.root}: table 'results' shows checkpoint 3, "
        f"which life '{life}' of a job wrote; give each sink a table of its own, take table "
        "'results' over, which goes on behind those rows, or roll tables back, which takes them "
        "away: either way that job is refused from then on"
    )
    assert keys_of(job) == []
    if isinstance(sink, NotedTable):
        assert seen(job, sink) == before


def test_its_rows_are_taken_away_if_a_person_says_so(sink: SinkSpec) -> None:
    job = emptied(a_life(sink, 3))

    begin(job, ROLL_BACK_ROWS)

    assert seen(job, sink) == []
    first = 4 if isinstance(sink, NotedTable) else 5
    assert [take_checkpoint(job), take_checkpoint(job)] == [first, first + 1]
    assert seen(job, sink) == list(range(20))


def test_or_stay_and_the_job_goes_on_behind_them(sink: SinkSpec) -> None:
    job = emptied(a_life(sink, 3))

    begin(job, ACCEPT_ROWS)
    take_checkpoint(job)

    assert seen(job, sink) == sorted([*range(30), *range(10)])


def test_a_table_that_was_emptied_with_its_root_gets_every_row_of_the_new_life() -> None:
    """Its notes survived, with ids 1 to 3, although its rows were deleted."""
    table = NotedTable()
    job = emptied(a_life(table, 3))
    table.place.rows = {key: [] for key in table.place.rows}

    begin(job)
    take_checkpoints(job, 4)

    assert table.place.records == list(range(40))


def test_an_id_that_another_job_used_is_not_taken_for_the_commit_that_is_owed(
    sink: SinkSpec,
) -> None:
    """Both have a checkpoint behind the rows of 1, and readers see that of the other job."""
    first = a_life(sink, 1)
    complete_one(first)
    second = a_job(a_pipeline(sink=sink, num_retained=9))
    begin(second, TableConsent(take_over=(SINK,)))
    take_checkpoint(second)
    taken_over = RestoreOptions(take_over=(SINK,))

    with pytest.raises(RestoreError, match=r"checkpoint 2 was not published .* used its id"):
        restore(first, Latest(), taken_over)

    restore(first, Choice(CheckpointId(1)), taken_over)
    take_checkpoint(first)
    assert [*range(10, 20)] == sorted({*seen(first, sink)} - {*range(10)})


def test_nor_is_one_that_it_used_after_the_tables_were_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = NotedTable()
    first = a_life(table, 1)
    complete_one(first)
    second = a_job(a_pipeline(sink=table))
    begin(second, TableConsent(take_over=(SINK,)))
    recover = NotedTable.recover

    def late(self: NotedTable, *given: Any) -> None:
        monkeypatch.undo()
        take_checkpoint(second)
        recover(self, *given)

    monkeypatch.setattr(NotedTable, "recover", late)
    with pytest.raises(TableMismatch, match="may have used its id"):
        restore(first, Latest(), RestoreOptions(take_over=(SINK,)))
    with pytest.raises(TableMismatch, match="may have used its id"):
        resume_duties(first, first.journal.load())

    assert table.place.records == sorted([*range(10), *range(10)])


def test_a_table_that_cannot_be_rolled_back_says_so_before_anything_is_journaled() -> None:
    topic = NotedTable(rolls_back=RollBack.NEVER)
    job = emptied(a_life(topic, 2))

    with pytest.raises(ConfigurationError, match="and it cannot be rolled back"):
        begin(job, ROLL_BACK_ROWS)
    assert keys_of(job) == []


def test_the_life_whose_table_was_taken_over_is_fenced(sink: SinkSpec) -> None:
    first = a_life(sink, 2)
    second = a_job(a_pipeline(sink=sink, num_retained=9))

    begin(second, ACCEPT_ROWS)

    with pytest.raises(TableMismatch, match=f"belongs to life '{second.state().life}' of a job"):
        take_checkpoint(first)
    take_checkpoint(second)
    assert seen(second, sink) == sorted([*range(20), *range(10)])
    with pytest.raises(RestoreError, match=r"'results' shows checkpoint \d, which life"):
        restore(first, Choice(CheckpointId(1)))
    restore(first, Choice(CheckpointId(1)), RestoreOptions(roll_back_tables=True))
    take_checkpoint(first)
    assert seen(first, sink) == list(range(20))
    with pytest.raises(TableMismatch, match=f"belongs to life '{first.state().life}' of a job"):
        take_checkpoint(second)


def test_one_table_is_taken_over_back_and_forth_and_no_other_with_it(sink: SinkSpec) -> None:
    first, beside = a_life(sink, 2), NotedTable()
    both = a_pipeline(sink=sink, beside={"beside": beside}, num_retained=9)
    a_life(beside, 1)
    second = a_job(both)

    with pytest.raises(ConfigurationError, match="table 'beside' shows checkpoint 1, which life"):
        begin(second, TableConsent(take_over=("results",)))
    begin(second, TableConsent(take_over=("results", "beside")))
    take_checkpoint(second)
    assert seen(second, sink) == sorted([*range(20), *range(10)])
    with pytest.raises(TableMismatch, match="have this job take it over: see 'sluice tables take-"):
        take_checkpoint(first)
    restore(first, Choice(CheckpointId(2)), RestoreOptions(take_over=("results",)))
    assert take_checkpoint(first) > 3

    assert seen(first, sink) == sorted([*range(30), *range(10)])
    with pytest.raises(TableMismatch, match=f"belongs to life '{first.state().life}' of a job"):
        take_checkpoint(second)
    assert seen(first, sink) == sorted([*range(30), *range(10)])


def test_a_job_that_goes_on_takes_over_what_is_another_jobs_alone() -> None:
    table = NotedTable()
    job = a_life(table, 2)

    for sinks, says in (
        (("results",), "table 'results' shows no rows of another job, so there is nothing to"),
        (("result",), "there is no sink 'result' whose table could be taken over; there are coun"),
    ):
        with pytest.raises(RestoreError, match=says):
            restore(job, Latest(), RestoreOptions(take_over=sinks))
    table.place.timeline = table.place.timeline.showing([1])  # By somebody else.
    other = a_job(a_pipeline(sink=table))
    begin(other, TableConsent(take_over=("results",)))
    with pytest.raises(RestoreError, match="table 'results' lacks checkpoint 2, which the job"):
        restore(job, Latest(), RestoreOptions(take_over=("results",)))
    assert job.state().generation == 1


def test_a_files_table_of_an_earlier_life_of_the_same_journal_starts_anew() -> None:
    table = FilesTable(f"memory://{secrets.token_hex(6)}", changelog=True)
    job = a_life(table, 2)
    stop(job, JobStatus.CANCELED)

    begin(job)

    assert published_records(job) == list(range(20))
    take_checkpoint(job)
    assert published_records(job) == list(range(10))


def test_another_table_of_an_earlier_life_is_not_taken_over_silently() -> None:
    table = NotedTable()
    job = a_life(table, 2)
    stop(job, JobStatus.CANCELED)

    with pytest.raises(ConfigurationError, match="'results' shows checkpoint 2, which life"):
        begin(job)
    assert job.state().status is JobStatus.CANCELED
    begin(job, ROLL_BACK_ROWS)
    take_checkpoint(job)
    assert table.place.records == list(range(10))


def test_what_a_submission_owes_its_tables_outlives_the_life_that_could_not_do_it(
    sink: SinkSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = a_life(sink, 2)
    job = a_job(a_pipeline(sink=sink))
    target = NotedTable if isinstance(sink, NotedTable) else FilesTableSink
    with monkeypatch.context() as patch:
        patch.setattr(target, "recover", _is_down)
        with pytest.raises(StoreUnavailable):
            begin(job, ACCEPT_ROWS)

    take_checkpoint(first)
    take_checkpoint(first)  # It was not told of that.
    with pytest.raises(FencedError, match="another job writes it"):
        trigger_one(job)

    stop(job, JobStatus.CANCELED)
    begin(job, ACCEPT_ROWS)
    take_checkpoint(job)
    assert seen(job, sink) == sorted([*range(40), *range(10)])


def test_equal_ids_of_another_roots_job_mean_nothing_to_a_table(sink: SinkSpec) -> None:
    """Here checkpoints 1 to 3 were published, too; there, checkpoint 2 stands for other rows."""
    elsewhere = a_running_job(a_pipeline(max_records_per_epoch=7))
    take_checkpoints(elsewhere, 2)
    job = a_life(sink, 3)
    target = foreign_target(job, elsewhere.location.root)

    planned = plan_restore(job, target)
    restore(job, target)
    take_checkpoint(job)

    assert not isinstance(planned, Stop)
    assert [str(ahead) for ahead in planned.tables_ahead] == [
        "table 'results' is ahead by 3 checkpoints (1, 2, 3)"
    ]
    is_files = not isinstance(sink, NotedTable)
    assert seen(job, sink) == (
        [*range(14, 24)] if is_files else sorted([*range(30), *range(14, 24)])
    )


def test_a_table_moves_to_another_root_with_its_job_and_goes_back_with_it(sink: SinkSpec) -> None:
    there = a_life(sink, 3)
    stop(there, JobStatus.CANCELED)
    here = a_job(a_pipeline(sink=sink))
    target = foreign_target(here, there.location.root, checkpoint_id=CheckpointId(2))
    configuration = configure(here.pipeline, {})

    refused = plan_restore(here, target, configuration=configuration)
    restore(here, target, RestoreOptions(roll_back_tables=True), configuration=configuration)

    assert isinstance(refused, Stop)
    assert "'results' shows checkpoint 3, which life" in refused.problems[0]
    assert seen(here, sink) == list(range(20))
    assert take_checkpoint(here) >= 4
    assert seen(here, sink) == list(range(30))
    restore(here, Latest())
    take_checkpoint(here)
    assert seen(here, sink) == list(range(40))


def test_a_savepoint_of_an_earlier_life_is_known_to_the_tables_of_the_journal() -> None:
    table = NotedTable()
    job = a_life(table, 1)
    a_savepoint(job)
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)
    begin(job, ACCEPT_ROWS)
    take_checkpoint(job)

    restore(job, Choice(CheckpointId(2)), RestoreOptions(roll_back_tables=True))

    assert table.place.records == list(range(20))


def test_a_table_whose_sink_is_declared_again_goes_on_where_it_was_with_consent() -> None:
    job = a_job(with_a_copy())
    begin(job)
    take_checkpoints(job, 2)
    without = open_job(a_pipeline(), job.location)
    restore(without, Choice(CheckpointId(1)), RestoreOptions(allow_non_restored_state=True))
    take_checkpoint(without)

    with pytest.raises(RestoreError, match="sink 'copy' was not declared for a while"):
        restore(job, Latest())
    restore(job, Latest(), RestoreOptions(consent=Consent(kept=("copy",))))
    take_checkpoint(job)

    copy = open_sinks(job, job.state().configuration.params)["copy"]
    assert isinstance(copy, FilesTableSink)
    shown = sorted(row["record"] for row in copy.read().to_pylist())
    assert shown == [*range(10), *range(20, 30)]
    assert published_records(job) == list(range(30))


def test_what_is_owed_is_not_published_where_another_job_may_have_used_its_id() -> None:
    theirs = NotedTable()
    other = a_life(theirs, 2)
    job = a_case("noted").job
    complete(job)
    redeclared = open_job(a_pipeline(sink=theirs), job.location)

    planned = plan_restore(redeclared, Latest(), ACCEPT)

    problem = (
        f"checkpoint 1 was not published to table 'results' before life {other.state().life!r} of "
        f"a job at {other.location.root}/auctions/tables/results took it over, which may have used "
        "its id; restore an earlier checkpoint"
    )
    assert planned == Stop(problems=(problem,))


def with_a_copy() -> Pipeline:
    pipeline = a_pipeline()
    pipeline.add_sink(SinkNode(uid="copy", spec=FilesTable(changelog=True), input=STAGES[-1]))
    return pipeline


def test_a_restore_of_a_job_that_was_never_submitted_asks_its_tables_too(sink: SinkSpec) -> None:
    a_life(sink, 2)
    job = a_job(a_pipeline(sink=sink))
    configuration = configure(job.pipeline, {})

    refused = plan_restore(job, Latest(), configuration=configuration)
    with pytest.raises(RestoreError, match="'results' shows checkpoint 2, which life"):
        restore(job, Latest(), configuration=configuration)
    restore(job, Latest(), RestoreOptions(accept_tables=True), configuration=configuration)
    take_checkpoint(job)

    assert isinstance(refused, Stop)
    assert seen(job, sink) == sorted([*range(20), *range(10)])
