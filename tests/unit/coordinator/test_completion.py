"""A checkpoint becomes true, and its sinks publish: finalize and commit.

A plan that is gone while its checkpoint is pending is a loss, and no takeover.  With AT_LEAST_ONCE
rows show as soon as their stage has answered, and an abort takes them back.  A side output's table
is asked like a sink's before its checkpoint completes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import tests.subtasks
from harness.jobs import (
    COUNT,
    ONE,
    RANK,
    STAGES,
    TWO,
    a_pipeline,
    a_running_job,
    answer_with,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from harness.noted_target import NotedTable
from sluice.connectors.files_table.table import ManifestTable
from sluice.connectors.staged_sink import EpochRows
from sluice.coordinator import publication
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, start_attempt
from sluice.coordinator.garbage import collect_garbage
from sluice.coordinator.publication import commit, publish_early
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.submission import configure
from sluice.core.answers import Attempt, Committable
from sluice.core.configuration import CheckpointingMode, CheckpointType, JobStatus
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Latest
from sluice.declaration.places import Sink
from sluice.errors import (
    ConfigurationError,
    FencedError,
    NotYetAcknowledged,
    ProtocolViolation,
    StageFailed,
    StoreUnavailable,
)
from sluice.job.answers import plan_of
from sluice.job.job import Job
from sluice.job.lineage import lineage_of_tip
from sluice.job.places import open_side_table, open_sinks
from sluice.store.journal import Journal
from sluice.store.object_store import Created, CreateResult, ObjectStore
from sluice.surface.checkpoints import history
from tests.builders import SUBTASKS, an_ack
from tests.contract.journals import Delayed
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    carry_out,
    complete_one,
    finish,
    state_records,
    take_checkpoint,
    take_checkpoints,
)

EXPIRED, TASK_FAILURE = Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE
SAVEPOINT = CheckpointType.SAVEPOINT


def test_a_checkpoint_goes_from_its_plan_to_published_rows() -> None:
    job = a_running_job()

    plan = trigger_one(job)
    assert job.state().pending_checkpoint(ONE) is not None
    acknowledge(job, plan)
    assert published_records(job) == []
    completed = finalize(job, ONE)
    assert published_records(job) == []
    state = commit(job, ONE)

    assert published_records(job) == list(range(10))
    assert (completed.checkpoint_id, completed.records, completed.checkpointed_bytes) == (1, 10, 40)
    assert (state.base, state.latest_completed) == (1, replace(completed, is_committed=True))


def test_its_keys_are_those_of_the_layout() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    carry_out(job, plan)

    keys, folder = keys_of(job), f"auctions/{job.paths.token}"

    own = [key for key in keys if key.startswith(job.paths.checkpoints())]
    assert own == [
        f"{folder}/checkpoints/0000000001/_metadata",
        *(job.paths.answer(ONE, stage, 1, plan.token) for stage in STAGES),
        f"{folder}/checkpoints/0000000001/plan",
    ]
    assert [key for key in keys if "journal" in key] == [
        f"{folder}/journal/{seq:012d}" for seq in (1, 2, 3, 4)
    ]
    assert len([key for key in keys if key.startswith(f"{folder}/shared/")]) == 4
    assert len([key for key in keys if key.startswith(f"{folder}/streams/count_bids/")]) == 2
    assert "auctions/tables/results/_manifests/00000000000000000001.json" in keys


def test_an_epoch_continues_where_the_one_before_ended() -> None:
    job = a_running_job()
    first, second = take_checkpoint(job), take_checkpoint(job)

    metadata = job.metadata(second)

    assert (metadata.parent, metadata.checkpoint_id) == (first, second)
    assert metadata.sources[0].slices[0].start == 10
    assert metadata.previous_tables["results"] == 1
    assert metadata.tables["results"] == 2
    for stage in STAGES:
        assert state_records(job, metadata, stage) == list(range(20))
    assert published_records(job) == list(range(20))


def test_the_last_epoch_of_a_bounded_source_finishes_the_job() -> None:
    job = a_running_job(a_pipeline(events=15))
    take_checkpoint(job)
    assert job.state().status is JobStatus.RUNNING

    last = take_checkpoint(job)

    assert last == 2
    assert job.state().status is JobStatus.FINISHED
    assert published_records(job) == list(range(15))


def test_finalizing_without_an_ack_names_the_subtask() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan, "count_bids")
    answer_with(job, plan, [an_ack(SUBTASKS[2])])  # No driver of ours leaves one out.

    with pytest.raises(NotYetAcknowledged, match=r"^checkpoint 1 lacks the acks of rank_bids/1$"):
        finalize(job, ONE)
    assert job.state().pending_checkpoint(ONE) is not None


def test_an_ack_of_an_earlier_attempt_does_not_complete_the_checkpoint() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    assert start_attempt(job, ONE, "rank_bids") == 2

    with pytest.raises(NotYetAcknowledged, match=r"lacks the acks of rank_bids/0, rank_bids/1$"):
        finalize(job, ONE)
    late, _ = acknowledge(job, plan, "rank_bids", attempt=2)
    finish(job, ONE)

    assert late.committables[0] in job.metadata(ONE).committables
    assert published_records(job) == list(range(10))


def test_finalizing_and_committing_again_change_nothing() -> None:
    job = a_running_job()
    take_checkpoint(job)
    before = keys_of(job)

    assert finalize(job, ONE) == job.state().completed[0]
    assert commit(job, ONE) == job.state()
    assert keys_of(job) == before


def test_a_coordinator_that_died_between_metadata_and_journal_is_taken_over() -> None:
    job = a_running_job()
    complete_one(job)
    head = max(key for key in keys_of(job) if "/journal/" in key)
    job.store.delete([head])  # As if it had died right before this entry.
    raw = job.store.get(job.paths.metadata(ONE))

    finish(job, ONE)

    assert job.store.get(job.paths.metadata(ONE)) == raw
    assert published_records(job) == list(range(10))


@pytest.mark.parametrize("act", [finalize, commit])
def test_an_aborted_checkpoint_is_neither_finalized_nor_committed(
    act: Callable[[Job, CheckpointId], object],
) -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    fail_checkpoint(job, ONE, EXPIRED, "too slow")

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, CHECKPOINT_EXPIRED: too slow"):
        act(job, ONE)


def test_an_unknown_checkpoint_is_fenced_and_not_an_error() -> None:
    job = a_running_job()

    for act in (finalize, commit):
        with pytest.raises(FencedError, match="checkpoint 7 is neither pending nor retained"):
            act(job, CheckpointId(7))


def test_the_history_tells_how_each_checkpoint_ended() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1, num_retained=1))
    take_checkpoints(job, 2)
    fail_checkpoint(job, trigger_one(job).checkpoint_id, EXPIRED, "too slow")
    trigger_one(job)

    records = history(job)

    assert [(r.id, r.status, r.reason, r.committed) for r in records] == [
        (1, "COMPLETED", None, True),
        (2, "COMPLETED", None, True),
        (3, "FAILED", "CHECKPOINT_EXPIRED", False),
        (4, "IN_PROGRESS", None, False),
    ]
    assert [r.records for r in records] == [10] * 4
    assert results(job).versions() == (1, 2)


def test_a_second_driver_answers_with_the_answer_that_is_there() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    first = acknowledge(job, plan)

    assert acknowledge(job, plan) == first


def test_small_state_travels_inside_the_ack() -> None:
    job = a_running_job(a_pipeline(data_inline_threshold=20_480))
    take_checkpoint(job)

    second = job.metadata(take_checkpoint(job))

    assert (second.files, keys_of(job, job.paths.all_shared())) == ((), [])
    assert state_records(job, second, "rank_bids") == list(range(20))
    a_savepoint(job)
    job.store.delete([key for key in keys_of(job) if "/savepoints/" not in key])
    job = job.anew()
    restored = restore(
        job, savepoint_target(job, "mine"), configuration=configure(job.pipeline, {})
    )
    assert restored.checkpoint_id == 3


def test_ending_a_checkpoint_that_another_coordinator_completed_tells_what_it_became() -> None:
    job = a_running_job()
    acknowledge(job, trigger_one(job))
    completed = finalize(job, ONE)

    state = fail_checkpoint(job, ONE, EXPIRED, "too slow")

    assert (state.failed, state.completed) == ((), (completed,))
    assert job.plan(ONE) is not None


def test_a_stray_journal_entry_does_not_deceive_who_finalizes() -> None:
    """A suspension arrives late, when its number was taken and truncated long ago."""
    job = a_running_job()
    late = Delayed(job.store)
    with pytest.raises(StoreUnavailable):
        stop(replace(job, journal=Journal(late, job.names)), JobStatus.SUSPENDED)
    plan = trigger_one(job)
    for attempt in range(2, 7):
        assert start_attempt(job, ONE, "rank_bids") == attempt
    job.journal.truncate(keep=2)
    assert late.deliver() == Created()
    acknowledging, job = job, job.anew()
    assert job.journal.load(after=plan.journal_seq).state.status is JobStatus.SUSPENDED
    acknowledge(acknowledging, plan, "count_bids")
    acknowledge(acknowledging, plan, "rank_bids", attempt=6)

    finalize(job, ONE)

    assert commit(job, ONE).status is JobStatus.RUNNING
    assert published_records(job) == list(range(10))


def asked_while(ends: Callable[[Job], object], patch: pytest.MonkeyPatch) -> Job:
    """A job whose first checkpoint *ends* while its sink's place is asked about the rows."""
    job = a_running_job(a_pipeline(sink=NotedTable()))
    acknowledge(job, trigger_one(job))

    def check(_: NotedTable, __: pa.Schema, rows: EpochRows) -> None:
        patch.undo()
        ends(job)
        assert rows.schema() is not None  # It reads what was staged.

    patch.setattr(NotedTable, "check", check)
    return job


def test_a_checkpoint_that_was_aborted_while_its_place_was_asked_is_not_called_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = asked_while(lambda job: fail_checkpoint(job, ONE, EXPIRED, "too slow"), monkeypatch)

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, CHECKPOINT_EXPIRED"):
        finalize(job, ONE)


def test_a_checkpoint_that_was_committed_while_its_place_was_asked_is_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = asked_while(lambda job: (finalize(job, ONE), commit(job, ONE)), monkeypatch)

    assert finalize(job, ONE) == job.state().completed_checkpoint(ONE)


def an_early_job(**checkpointing: Any) -> Job:
    return a_running_job(
        a_pipeline(
            mode=CheckpointingMode.AT_LEAST_ONCE, tolerable_failed_checkpoints=9, **checkpointing
        )
    )


def answer(job: Job, plan: CheckpointPlan, stage: str, *, attempt: int = 1) -> None:
    """Acknowledge and then publish, as ``run_stage`` does."""
    acknowledge(job, plan, stage, attempt=attempt)
    publish_early(job, plan.checkpoint_id, stage)


def test_rows_show_once_their_stage_has_answered() -> None:
    job = an_early_job()
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    assert published_records(job) == []
    with pytest.raises(NotYetAcknowledged, match="0 of 2 subtasks of stage 'rank_bids'"):
        publish_early(job, ONE, RANK)

    answer(job, plan, RANK)

    assert published_records(job) == list(range(10))
    publish_early(job, ONE, RANK)
    finish(job, ONE)
    assert published_records(job) == list(range(10))
    assert job.metadata(ONE).tables["results"] == 1


def test_what_was_shown_too_early_is_replaced_after_an_abort() -> None:
    job = an_early_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    answer(job, plan, RANK)

    fail_checkpoint(job, TWO, Reason.CHECKPOINT_EXPIRED, "too slow")

    assert published_records(job) == list(range(20))  # Once or more: two is still to be replaced.
    with pytest.raises(FencedError, match="checkpoint 2 was aborted"):
        publish_early(job, TWO, RANK)
    third = trigger_one(job)
    answer(job, third, COUNT)
    answer(job, third, RANK)
    assert [manifest.checkpoint_id for manifest in results(job).chain()] == [1, 3]
    finish(job, third.checkpoint_id)
    assert published_records(job) == list(range(20))


def test_rows_show_after_those_of_a_checkpoint_that_is_completed_and_not_published() -> None:
    job = an_early_job(max_concurrent_checkpoints=2)
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one)
    finalize(job, ONE)
    acknowledge(job, two)

    publish_early(job, TWO, RANK)

    assert published_records(job) == list(range(20))


class Interrupted:
    """The place of the results, whose first create of a manifest is preceded by something else."""

    def __init__(self, store: ObjectStore, before: Callable[[], object]) -> None:
        self._store = store
        self._before = before

    def create(self, key: str, body: bytes) -> CreateResult:
        if "_manifests/" in key:
            self._before()
        return self._store.create(key, body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_an_abort_while_rows_are_being_shown_leaves_them_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The publisher sleeps just before it, while the watchdog and the garbage collector run."""
    job = an_early_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    acknowledge(job, plan, RANK)

    def abort() -> None:
        aborted.append(fail_checkpoint(job, TWO, Reason.CHECKPOINT_EXPIRED, "too slow"))
        collect_garbage(job, grace_ms=0)

    aborted: list[object] = []

    def interrupted(job: Job, params: Mapping[str, str]) -> dict[str, Sink]:
        tables = open_sinks(job, params)
        table = tables["results"]
        assert isinstance(table, ManifestTable)
        return tables | {"results": replace(table, store=Interrupted(table.store, abort))}

    monkeypatch.setattr(publication, "open_sinks", interrupted)
    publish_early(job, TWO, RANK)

    assert aborted
    assert published_records(job) == list(range(20))
    assert collect_garbage(job, grace_ms=0).files == ()


def test_rows_are_not_shown_once_an_abort_was_journaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher looks before the aborting process has deleted anything."""
    job = an_early_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    acknowledge(job, plan, RANK)
    create = type(job.store).create

    def aborting(self: ObjectStore, key: str, body: bytes) -> CreateResult:
        if "/early/" in key:
            monkeypatch.undo()
            fail_checkpoint(job, TWO, Reason.CHECKPOINT_EXPIRED, "too slow")
        return create(self, key, body)

    monkeypatch.setattr(type(job.store), "create", aborting)
    with pytest.raises(FencedError, match="checkpoint 2 was aborted, CHECKPOINT_EXPIRED"):
        publish_early(job, TWO, RANK)

    assert published_records(job) == list(range(10))
    assert results(job).versions() == (1,)


def test_after_a_failure_every_row_is_there_once() -> None:
    job = an_early_job()
    for number in range(1, 6):
        plan = trigger_one(job)
        answer(job, plan, COUNT)
        answer(job, plan, RANK)
        if number in (2, 4):
            fail_checkpoint(
                job, plan.checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True
            )
            restore(job, Latest())
        else:
            finish(job, plan.checkpoint_id)

    assert published_records(job) == list(range(30))
    assert state_records(job, job.metadata(plan.checkpoint_id), RANK) == list(range(30))


def test_the_rows_of_another_attempt_than_readers_see_complete_no_checkpoint() -> None:
    """They need not be the same, as a transform may ask the time; the next epoch brings them."""
    job = an_early_job()
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    answer(job, plan, RANK)
    start_attempt(job, ONE, RANK)
    acknowledge(job, plan, RANK, attempt=2)

    with pytest.raises(StageFailed, match="readers of 'results' may see what an earlier attempt"):
        finalize(job, ONE)

    fail_checkpoint(job, ONE, Reason.FINALIZE_CHECKPOINT_FAILURE, "shown before")
    second = trigger_one(job)
    answer(job, second, COUNT)
    answer(job, second, RANK)
    finish(job, TWO)
    assert published_records(job) == list(range(10))
    assert [manifest.checkpoint_id for manifest in results(job).chain()] == [2]


def test_an_attempt_shows_nothing_where_an_earlier_one_is_about_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = an_early_job()
    plan = trigger_one(job)
    answer(job, plan, COUNT)
    acknowledge(job, plan, RANK)
    with monkeypatch.context() as patch:
        patch.setattr(Job, "state", _dies_behind_the_note(Job.state, calls=2))
        with pytest.raises(InterruptedError):
            publish_early(job, ONE, RANK)
    start_attempt(job, ONE, RANK)

    with pytest.raises(StageFailed, match="its rows come again with the next one"):
        answer(job, plan, RANK, attempt=2)

    assert published_records(job) == []


def _dies_behind_the_note(state: Callable[[Job], Any], *, calls: int) -> Callable[[Job], Any]:
    made = iter(range(1, calls + 1))

    def dying(job: Job) -> Any:
        if next(made) == calls:
            raise InterruptedError
        return state(job)

    return dying


def test_an_attempt_shows_nothing_where_the_checkpoint_names_the_rows_of_an_earlier_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A coordinator wrote ``_metadata``, died before it was journaled, and the stage ran again."""
    job = an_early_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    with monkeypatch.context() as patch:
        patch.setattr("sluice.coordinator.completion.require_shown", _dies)
        with pytest.raises(InterruptedError):
            finalize(job, ONE)
    start_attempt(job, ONE, RANK)

    with pytest.raises(StageFailed, match="cannot complete with the rows of another"):
        answer(job, plan, RANK, attempt=2)

    assert published_records(job) == []


def _dies(*_: object) -> None:
    raise InterruptedError


def test_a_commit_shows_what_nobody_showed_early() -> None:
    job = an_early_job()

    take_checkpoint(job)

    assert published_records(job) == list(range(10))


def test_overlapping_epochs_show_in_order() -> None:
    job = an_early_job(max_concurrent_checkpoints=2)
    one, two = trigger_one(job), trigger_one(job)
    acknowledge(job, one)
    acknowledge(job, two)

    publish_early(job, TWO, RANK)  # The driver of one's stage has not come to it yet.

    assert results(job).versions() == (1, 2)
    assert published_records(job) == list(range(20))
    finish(job, ONE)
    finish(job, TWO)
    assert published_records(job) == list(range(20))


def test_exactly_once_shows_nothing_before_the_checkpoint_is_complete() -> None:
    job = a_running_job()
    acknowledge(job, trigger_one(job))

    finalize(job, ONE)

    assert results(job).versions() == ()


LOST = r"checkpoint 1 is lost: it is pending, but its plan, memory://.*/plan, is gone"


def lose_the_plan(job: Job) -> None:
    plan = trigger_one(job)
    acknowledge(job, plan)
    job.store.delete([job.paths.plan(plan.checkpoint_id)])


def test_a_checkpoint_without_its_plan_is_lost_whoever_works_for_it() -> None:
    job = a_running_job(a_pipeline(mode=CheckpointingMode.AT_LEAST_ONCE))
    lose_the_plan(job)

    for act in (
        lambda: plan_of(job, CheckpointId(1)),
        lambda: finalize(job, CheckpointId(1)),
        lambda: publish_early(job, CheckpointId(1), "rank_bids"),
        lambda: lineage_of_tip(job, job.state()),
    ):
        with pytest.raises(ProtocolViolation, match=LOST):
            act()


def test_an_aborted_checkpoint_has_no_plan_and_is_fenced() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "late")

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, CHECKPOINT_EXPIRED: late"):
        plan_of(job, plan.checkpoint_id)
    with pytest.raises(FencedError, match="checkpoint 1 was aborted, CHECKPOINT_EXPIRED: late"):
        finalize(job, plan.checkpoint_id)


LATE = f"{STAGES[0]}.late"


def with_late(job: Job, patch: pytest.MonkeyPatch, *late: pa.Table) -> CheckpointId:
    """The next checkpoint, whose first subtask has *late* rows, in a file for each table."""
    plan = trigger_one(job)
    table = open_side_table(job, LATE)
    staged = [
        table.stage(
            rows,
            Attempt(
                checkpoint_id=plan.checkpoint_id,
                subtask=0,
                checkpoint_token=job.paths.checkpoint_token(plan.token),
                attempt_token=f"1-{number}",
            ),
        )
        for number, rows in enumerate(late)
    ]
    of_sinks = tests.subtasks.staged_for_sinks

    def files(told: Any, index: int, rows: pa.Table) -> tuple[Committable, ...]:
        beside = [one for one in staged if one is not None] if index == 0 else []
        is_first = told.task.uid == STAGES[0]
        return (*of_sinks(told, index, rows), *(beside if is_first else []))

    with patch.context() as within:
        within.setattr(tests.subtasks, "staged_for_sinks", files)
        acknowledge(job, plan)
    return plan.checkpoint_id


def rows_of(job: Job) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_side_table(job, LATE).read().to_pylist()
    return found


def test_late_rows_of_another_type_than_the_table_has_abort_their_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=9))
    first = with_late(job, monkeypatch, pa.table({"n": [1]}), pa.table({"n": [2], "m": ["x"]}))
    finish(job, first)
    second = with_late(job, monkeypatch, pa.table({"n": ["three"]}))

    with pytest.raises(
        ConfigurationError,
        match=rf"^side output '{LATE}' cannot be published: column 'n' of the table at "
        r".*/side/.* is int64, and the rows to be added have string",
    ):
        finalize(job, second)

    fail_checkpoint(job, second, Reason.FINALIZE_CHECKPOINT_FAILURE, "told")
    third = with_late(job, monkeypatch, pa.table({"n": [4]}))
    finish(job, third)
    found = sorted(rows_of(job), key=str)
    assert found == [{"n": 1, "m": None}, {"n": 2, "m": "x"}, {"n": 4, "m": None}]


def test_late_rows_of_two_types_in_one_checkpoint_abort_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = a_running_job()
    first = with_late(job, monkeypatch, pa.table({"n": [1]}), pa.table({"n": ["two"]}))

    with pytest.raises(ConfigurationError, match=f"^side output '{LATE}' cannot be published"):
        finalize(job, first)
