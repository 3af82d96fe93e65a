"""A restore to an older checkpoint, and the tables that are ahead of it by then."""

from __future__ import annotations

import pytest

from harness.jobs import SINK, a_running_job, published_records, trigger_one
from sluice.connectors.files_table.table import ManifestTable
from sluice.coordinator.completion import finalize
from sluice.coordinator.duties import resume
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.tables import writer_of
from sluice.core.ids import CheckpointId
from sluice.core.restoring import FromCheckpoint, Latest, RestoreOptions, Stop
from sluice.declaration.places import RollBack
from sluice.errors import FencedError, RestoreError, StoreUnavailable
from sluice.job.job import Job
from sluice.job.places import open_sinks
from tests.subtasks import acknowledge, take_checkpoint

ROLL_BACK = RestoreOptions(roll_back_tables=True)
FIRST = FromCheckpoint(CheckpointId(1))


@pytest.fixture
def job() -> Job:
    return a_running_job()


def table_of(job: Job) -> ManifestTable:
    table = open_sinks(job, job.state().configuration.params)[SINK]
    assert isinstance(table, ManifestTable)
    return table


def test_a_restore_names_the_tables_that_are_ahead_and_by_how_much(job: Job) -> None:
    for _ in range(3):
        take_checkpoint(job)

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
    for _ in range(3):
        take_checkpoint(job)

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

    monkeypatch.setattr(ManifestTable, "standing", ask)
    monkeypatch.setattr(ManifestTable, "recover", ask)
    assert restore(job, Latest()).tables_ahead == ()


def test_a_table_that_cannot_go_back_is_named_and_nothing_happens(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_checkpoint(job)
    take_checkpoint(job)
    monkeypatch.setattr(ManifestTable, "rolls_back", RollBack.NEVER)

    with pytest.raises(RestoreError, match=r"'results' is ahead by 1 checkpoint \(2\), and it can"):
        restore(job, FIRST, ROLL_BACK)
    assert job.state().generation == 1


def test_a_commit_that_was_under_way_shows_nothing_after_the_restore(job: Job) -> None:
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
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
    take_checkpoint(job)
    take_checkpoint(job)
    with monkeypatch.context() as patch:
        patch.setattr(ManifestTable, "recover", _is_down)
        with pytest.raises(StoreUnavailable):
            restore(job, FIRST, ROLL_BACK)
        with pytest.raises(StoreUnavailable):
            trigger_one(job)

    assert published_records(job) == list(range(20))
    resume(job, job.journal.load())

    assert published_records(job) == list(range(10))
    take_checkpoint(job)
    assert published_records(job) == list(range(20))


def _is_down(*_: object, **__: object) -> None:
    raise StoreUnavailable("the table's place is down")
