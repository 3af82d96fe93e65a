"""A job that begins anew over tables of another life: no rows are lost or mixed up,
without a person who says so.
"""

from __future__ import annotations

import secrets

import pytest

from harness.jobs import (
    STAGES,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.connectors.files_table.table import ManifestTable as FilesTableSink
from sluice.coordinator.restore import foreign_target, restore, stop
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.submission import TableConsent, configure, submit
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.restoring import FromCheckpoint, Latest, RestoreOptions, Stop
from sluice.declaration.nodes import SinkNode
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import RollBack, SinkSpec
from sluice.errors import (
    ConfigurationError,
    FencedError,
    RestoreError,
    StoreUnavailable,
    TableMismatch,
)
from sluice.job.job import Job, open_job
from sluice.job.places import open_sinks
from sluice.sinks import FilesTable
from tests.noted_target import NotedTable
from tests.subtasks import a_savepoint, take_checkpoint

ACCEPT = TableConsent(accept=True)
ROLL_BACK = TableConsent(roll_back=True)


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
    for _ in range(checkpoints):
        take_checkpoint(job)
    return job


def begin(job: Job, consent: TableConsent | None = None) -> None:
    submit(job, configure(job.pipeline, {}), tables=consent or TableConsent())


def emptied(job: Job) -> Job:
    job.store.delete(keys_of(job))
    return job


def test_a_job_over_an_emptied_root_is_refused_while_its_table_shows_rows(sink: SinkSpec) -> None:
    job = a_life(sink, 3)
    life, before = job.state().life, seen(job, sink)
    emptied(job)

    with pytest.raises(ConfigurationError) as refused:
        begin(job)

    assert str(refused.value) == (
        f"job 'auctions' cannot begin in {job.store.root}: table 'results' shows checkpoint 3, "
        f"which life '{life}' of a job wrote; give each job a table of its own, roll tables back, "
        "which takes those rows away, or accept tables as they are, which goes on behind them"
    )
    assert keys_of(job) == []
    if isinstance(sink, NotedTable):
        assert seen(job, sink) == before


def test_its_rows_are_taken_away_if_a_person_says_so(sink: SinkSpec) -> None:
    job = emptied(a_life(sink, 3))

    begin(job, ROLL_BACK)

    assert seen(job, sink) == []
    first = 4 if isinstance(sink, NotedTable) else 5
    assert [take_checkpoint(job), take_checkpoint(job)] == [first, first + 1]
    assert seen(job, sink) == list(range(20))


def test_or_stay_and_the_job_goes_on_behind_them(sink: SinkSpec) -> None:
    job = emptied(a_life(sink, 3))

    begin(job, ACCEPT)
    take_checkpoint(job)

    assert seen(job, sink) == sorted([*range(30), *range(10)])


def test_a_table_that_was_emptied_with_its_root_gets_every_row_of_the_new_life() -> None:
    """Its notes survived, with ids 1 to 3, although its rows were deleted."""
    table = NotedTable()
    job = emptied(a_life(table, 3))
    table.place.rows = {key: [] for key in table.place.rows}

    begin(job)
    for _ in range(4):
        take_checkpoint(job)

    assert table.place.records == list(range(40))


def test_a_table_that_cannot_be_rolled_back_says_so_before_anything_is_journaled() -> None:
    topic = NotedTable(rolls_back=RollBack.NEVER)
    job = emptied(a_life(topic, 2))

    with pytest.raises(ConfigurationError, match="and it cannot be rolled back"):
        begin(job, ROLL_BACK)
    assert keys_of(job) == []


def test_the_life_whose_table_was_taken_over_is_fenced(sink: SinkSpec) -> None:
    first = a_life(sink, 2)
    second = a_job(a_pipeline(sink=sink, num_retained=9))

    begin(second, ACCEPT)

    with pytest.raises(TableMismatch, match=f"belongs to life '{second.state().life}' of a job"):
        take_checkpoint(first)
    take_checkpoint(second)
    assert seen(second, sink) == sorted([*range(20), *range(10)])
    with pytest.raises(RestoreError, match=r"'results' shows checkpoint \d, which life"):
        restore(first, FromCheckpoint(CheckpointId(1)))
    restore(first, FromCheckpoint(CheckpointId(1)), RestoreOptions(roll_back_tables=True))
    take_checkpoint(first)
    assert seen(first, sink) == list(range(20))
    with pytest.raises(TableMismatch, match=f"belongs to life '{first.state().life}' of a job"):
        take_checkpoint(second)


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
    begin(job, ROLL_BACK)
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
            begin(job, ACCEPT)

    take_checkpoint(first)
    take_checkpoint(first)  # It was not told of that.
    with pytest.raises(FencedError, match="another job writes it"):
        trigger_one(job)

    stop(job, JobStatus.CANCELED)
    begin(job, ACCEPT)
    take_checkpoint(job)
    assert seen(job, sink) == sorted([*range(40), *range(10)])


def test_equal_ids_of_another_roots_job_mean_nothing_to_a_table(sink: SinkSpec) -> None:
    """Here checkpoints 1 to 3 were published, too; there, checkpoint 2 stands for other rows."""
    elsewhere = a_running_job(a_pipeline(max_records_per_epoch=7))
    take_checkpoint(elsewhere)
    take_checkpoint(elsewhere)
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
    begin(job, ACCEPT)
    take_checkpoint(job)

    restore(job, FromCheckpoint(CheckpointId(2)), RestoreOptions(roll_back_tables=True))

    assert table.place.records == list(range(20))


def test_a_table_whose_sink_is_declared_again_goes_on_where_it_was() -> None:
    job = a_job(with_a_copy())
    begin(job)
    take_checkpoint(job)
    take_checkpoint(job)
    without = open_job(a_pipeline(), job.location)
    restore(without, FromCheckpoint(CheckpointId(1)), RestoreOptions(allow_non_restored_state=True))
    take_checkpoint(without)

    restore(job, Latest())
    take_checkpoint(job)

    copy = open_sinks(job, job.state().configuration.params)["copy"]
    assert isinstance(copy, FilesTableSink)
    shown = sorted(row["record"] for row in copy.read().to_pylist())
    assert shown == [*range(10), *range(20, 30)]
    assert published_records(job) == list(range(30))


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


def _is_down(*_: object, **__: object) -> None:
    raise StoreUnavailable("the table's place is down")
