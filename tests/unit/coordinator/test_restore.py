"""Failure and restore: what is chosen, what is verified, what is fenced, what rolls back.

A ``RestoreRequest`` is the same for all callers, parsed where it enters and resolved once.  The dry
run names what a restore would do and every file it needs, and writes nothing.  At the aligned
checkpoint timeout a late stage is overtaken, catches up, and loses no row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.counting_store import CountingStore
from harness.hooked import Crash, hooked
from harness.jobs import (
    COUNT,
    ONE,
    RANK,
    STAGES,
    TWO,
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    answer_with,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.coordinator import duties
from sluice.coordinator import restore as coordinator_restore
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint, overtake, watch
from sluice.coordinator.requests import NewTimes, retime
from sluice.coordinator.restore import (
    RestoreRequest,
    foreign_target,
    plan,
    pointed_at,
    resolve,
    restore,
    savepoint_target,
    stop,
)
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.savepoints import dispose
from sluice.coordinator.submission import configure, submit
from sluice.core.answers import Ack
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import (
    CheckpointingMode,
    CheckpointType,
    ClaimMode,
    JobStatus,
    Retention,
)
from sluice.core.events import AttemptStarted
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import CheckpointId, SavepointId, SubtaskId
from sluice.core.plan import SnapshotOrigin
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.restoring import (
    Choice,
    Latest,
    RestoreApproval,
    RestoreOptions,
    RestoreTarget,
    Stop,
)
from sluice.core.transitions import Consent
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing, fixed_delay
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.results import Upsert
from sluice.errors import ConfigurationError, FencedError, RestoreError
from sluice.job.job import Job, open_job
from sluice.protocol.records import checksum
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.state.segments import encode_segment
from sluice.store.journal import Head, Journal
from sluice.store.memory import InMemoryStore
from sluice.store.open import StoreLocation
from tests.builders import SUBTASKS
from tests.in_flight import (
    THREE_STAGES,
    TIMEOUT_MS,
    TOP,
    a_patient_job,
    absorbed,
    an_overtaken_checkpoint,
    an_unaligned_job,
    complete,
    in_flight,
    is_one_cut,
    last_stage_first,
)
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    complete_one,
    decline,
    finish,
    state_records,
    table_of,
    take_checkpoint,
    take_checkpoints,
)

EXPIRED, TASK_FAILURE = Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE
SAVEPOINT = CheckpointType.SAVEPOINT
ROLL_BACK = RestoreOptions(roll_back_tables=True)
# A stage that is gone, whose rows stay in the table.
DROPPED = RestoreOptions(allow_non_restored_state=True, consent=Consent(kept=("results",)))


def read_from(job: Job, checkpoint_id: CheckpointId) -> list[int]:
    return state_records(job, job.metadata(checkpoint_id), STAGES[0])


def test_a_failed_stage_is_restored_from_the_latest_completed_checkpoint() -> None:
    job = a_running_job()
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])
    state = fail_checkpoint(job, TWO, TASK_FAILURE, "worker lost", is_task_failure=True)
    assert state.status is JobStatus.RESTARTING

    restored = restore(job, Latest(), only_generation=state.generation)

    assert (restored.checkpoint_id, restored.origin) == (1, None)
    assert (restored.state.status, restored.state.generation) == (JobStatus.RUNNING, 2)
    again = take_checkpoint(job)
    assert again == 3
    assert read_from(job, again) == list(range(20))
    assert published_records(job) == list(range(20))


def test_without_a_completed_checkpoint_the_job_starts_from_empty() -> None:
    job = a_running_job()
    trigger_one(job)
    fail_checkpoint(job, ONE, TASK_FAILURE, "worker lost", is_task_failure=True)

    restored = restore(job, Latest())

    assert restored.checkpoint_id is None
    assert read_from(job, take_checkpoint(job)) == list(range(10))


def test_a_job_that_was_never_submitted_is_not_restored_without_its_parameters() -> None:
    job = a_job()

    with pytest.raises(RestoreError, match=r"'auctions' was never submitted .*; submit it first"):
        restore(job, Latest())
    assert keys_of(job) == []
    restored = restore(job, Latest(), configuration=configure(job.pipeline, {}))
    assert restored.state.configuration.max_records_per_epoch == 10


def test_the_table_rolls_back_with_a_restore_to_an_older_checkpoint() -> None:
    job = a_running_job(a_pipeline(max_records_per_epoch=10))
    take_checkpoints(job, 3)
    assert published_records(job) == list(range(30))

    restore(job, Choice(ONE))
    fourth = take_checkpoint(job)

    assert job.metadata(fourth).parent == 1
    assert job.metadata(fourth).previous_tables["results"] == 1
    assert published_records(job) == list(range(20))
    assert results(job).versions() == (1, 2, 3, 4)
    assert read_from(job, fourth) == list(range(20))


def test_a_checkpoint_that_is_not_retained_is_refused_with_those_that_are() -> None:
    job = a_running_job(a_pipeline(num_retained=2))
    take_checkpoints(job, 3)

    with pytest.raises(RestoreError, match="checkpoint 1 is not retained; retained are: 2, 3"):
        restore(job, Choice(ONE))
    with pytest.raises(RestoreError, match="retained are: none"):
        restore(a_running_job(), Choice(ONE))


def test_every_missing_or_damaged_file_is_named() -> None:
    job = a_running_job()
    take_checkpoint(job)
    first, second = [handle.key for handle in job.metadata(ONE).files][:2]
    job.store.delete([first])
    job.store.put(second, b"short")
    before = job.state()

    with pytest.raises(RestoreError) as caught:
        restore(job, Latest())

    assert f"{first} is missing, expected" in str(caught.value)
    assert f"{second} has 5 bytes, expected" in str(caught.value)
    assert job.state() == before


def test_missing_metadata_is_named_with_what_to_do() -> None:
    job = a_running_job()
    take_checkpoint(job)
    job.store.delete([job.paths.metadata(ONE)])

    with pytest.raises(RestoreError, match=r"_metadata does not exist; .*'sluice checkpoints list"):
        restore(job, Latest())
    with pytest.raises(RestoreError, match="there is no savepoint 'nobodys' of job 'auctions'"):
        savepoint_target(job, "nobodys")


def test_state_of_a_removed_stage_is_refused_unless_it_may_be_dropped() -> None:
    job = a_running_job()
    take_checkpoint(job)
    smaller = replace(job, pipeline=a_pipeline(stages=STAGES[:1]))

    with pytest.raises(RestoreError, match="stage 'rank_bids' has state but is not in the pipel"):
        restore(smaller, Latest())
    with pytest.raises(RestoreError, match="stage 'rank_bids' is not declared any more, and sink"):
        restore(smaller, Latest(), RestoreOptions(allow_non_restored_state=True))
    restore(smaller, Latest(), DROPPED)

    assert read_from(smaller, take_checkpoint(smaller)) == list(range(20))


def same(rows: Any) -> Any:
    return rows


def with_spark_code(schema: str) -> Pipeline:
    pipeline = Pipeline("bids", Checkpointing(max_records_per_epoch=10), parallelism=1)
    events = pipeline.source("events", Nexmark(100))
    code = pipeline.spark(
        "code", same, reads={"rows": events}, schema=schema, result=Upsert("record"), version="1"
    )
    code.sink("out", FilesTable(upsert_key=("record",)))
    return pipeline


def test_spark_code_that_could_not_read_its_result_is_refused_by_the_restore() -> None:
    job = a_running_job(with_spark_code("record bigint"))
    plan = trigger_one(job)
    body = encode_segment(table_of([1, 2]))
    segment = SegmentHandle(
        key="", size_bytes=len(body), rows=2, checksum=checksum(body), inline=body
    )
    answer_with(
        job,
        plan,
        [
            Ack(
                checkpoint_id=plan.checkpoint_id,
                subtask=SubtaskId("code", 0),
                attempt=1,
                state=(StateHandle(segment=segment, table="rows"),),
            )
        ],
    )
    finish(job, plan.checkpoint_id)
    more = replace(job, pipeline=with_spark_code("record bigint, more string"))
    changed = replace(job, pipeline=with_spark_code("record decimal(20, 0)"))

    restore(more, Latest())
    planned = plan_restore(changed, Latest())

    problem = (
        "stage 'code' cannot read its state: key column 'record' was Int64 and is now "
        "Decimal(precision=20, scale=0), but the columns of a key may not change; restore with the "
        "former declaration, or give the stage another uid and allow non-restored state"
    )
    assert planned == Stop(problems=(problem,))
    with pytest.raises(
        RestoreError, match=f"^{re.escape(f'the job cannot be restored: {problem}')}"
    ):
        restore(changed, Latest())
    assert job.state().generation == 2


def test_a_removed_stage_without_state_is_skipped() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan, STAGES[0])
    acknowledge(job, plan, STAGES[1], writes_state=False)
    finish(job, ONE)

    kept = RestoreOptions(consent=DROPPED.consent)
    restore(replace(job, pipeline=a_pipeline(stages=STAGES[:1])), Latest(), kept)

    assert job.state().generation == 2


def test_a_restore_for_a_generation_that_is_over_changes_nothing() -> None:
    job = a_running_job()
    take_checkpoint(job)
    restore(job, Latest(), only_generation=1)
    before = job.state()

    with pytest.raises(FencedError, match=r"is of generation 2 already.*was for generation 1"):
        restore(job, Latest(), only_generation=1)
    assert job.state() == before


def test_who_was_fenced_by_a_restore_cannot_finalize() -> None:
    job = a_running_job()
    plan = trigger_one(job)
    acknowledge(job, plan)
    restore(job, Latest())

    with pytest.raises(FencedError, match="checkpoint 1 was aborted, JOB_FAILOVER_REGION"):
        finalize(job, ONE)
    assert results(job).versions() == ()


def test_an_unfinished_commit_is_replayed_by_the_restore() -> None:
    job = a_running_job()
    complete_one(job)

    restored = restore(job, Latest())

    assert published_records(job) == list(range(10))
    assert restored.state.completed[0].is_committed


def test_a_restore_may_change_the_parallelism_and_the_state_is_cut_anew() -> None:
    job = a_running_job()
    take_checkpoint(job)

    restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=3))
    wide = take_checkpoint(job)

    assert [task.parallelism for task in job.metadata(wide).stages] == [3, 3]
    assert read_from(job, wide) == list(range(20))
    restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=1))
    assert read_from(job, take_checkpoint(job)) == list(range(30))
    with pytest.raises(RestoreError, match=r"parallelism 200, which exceeds its max parallelism"):
        restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=200))


def test_a_max_parallelism_is_fixed_for_life() -> None:
    job = a_running_job()
    take_checkpoint(job)
    job.pipeline.max_parallelism = 64

    with pytest.raises(RestoreError, match=r"'count_bids' declares max parallelism 64, but its st"):
        restore(job, Latest())
    job.pipeline.max_parallelism = 128
    restore(job, Latest())

    assert {stage.max_parallelism for stage in job.metadata(take_checkpoint(job)).stages} == {128}


def test_a_resubmitted_job_reads_from_the_start_and_its_ids_go_on() -> None:
    job = a_running_job()
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)

    submit(job, configure(job.pipeline, {}))
    second = take_checkpoint(job)

    assert second == 2
    assert read_from(job, second) == list(range(10))
    assert published_records(job) == list(range(10))


def test_a_decline_is_the_better_reason() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    trigger_one(job)
    decline(job, 1, SUBTASKS[0])

    state = fail_checkpoint(job, ONE, EXPIRED, "too slow")

    (failed,) = state.failed
    assert failed.reason is Reason.CHECKPOINT_DECLINED
    assert failed.message == "count_bids/0: the input is odd"


def test_a_decline_names_its_reason_and_one_that_counts_goes_before_one_that_does_not() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    trigger_one(job)
    decline(job, 1, SUBTASKS[0], reason=Reason.CHECKPOINT_DECLINED_TASK_CLOSING)

    once = fail_checkpoint(job, ONE, EXPIRED, "too slow")
    trigger_one(job)
    decline(job, 2, SUBTASKS[0], reason=Reason.CHECKPOINT_DECLINED_TASK_CLOSING)
    decline(job, 2, SUBTASKS[1])
    twice = fail_checkpoint(job, TWO, EXPIRED, "too slow")

    assert [f.reason for f in once.failed] == [Reason.CHECKPOINT_DECLINED_TASK_CLOSING]
    assert once.failure_count.continuous == 0
    assert twice.failed[-1].reason is Reason.CHECKPOINT_DECLINED
    assert twice.failure_count.continuous == 1


def test_a_task_failure_is_told_in_the_words_of_the_subtask_that_declined() -> None:
    job = a_running_job()
    trigger_one(job)
    decline(job, 1, SUBTASKS[0])

    state = fail_checkpoint(job, ONE, TASK_FAILURE, "Spark says", is_task_failure=True)

    assert state.status is JobStatus.RESTARTING
    assert [(f.reason, f.message) for f in state.failed] == [
        (TASK_FAILURE, "count_bids/0: the input is odd")
    ]


def test_a_decline_of_an_overtaken_attempt_does_not_keep_the_checkpoint_alive() -> None:
    job = a_running_job(a_pipeline(tolerable_failed_checkpoints=1))
    trigger_one(job)
    decline(job, 1, SUBTASKS[0])
    job.journal.append(
        lambda state: AttemptStarted(
            generation=state.generation, checkpoint_id=ONE, stage=STAGES[0], attempt=2
        )
    )

    state = fail_checkpoint(job, ONE, EXPIRED, "too slow")

    assert [(f.reason, f.message) for f in state.failed] == [(EXPIRED, "too slow")]


def test_a_job_without_restarts_left_fails_and_can_be_restored_by_a_person() -> None:
    never = RestartStrategy(type=RestartType.NONE)
    job = a_running_job(a_pipeline(restart_strategy=never, timeout=timedelta(minutes=1)))
    take_checkpoint(job)
    trigger_one(job)

    state = fail_checkpoint(job, TWO, EXPIRED, "too slow")

    assert state.status is JobStatus.FAILED
    assert restore(job, Latest()).state.status is JobStatus.RUNNING
    assert isinstance(job.clock, ManualClock)


def test_a_restore_that_another_one_overtakes_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would report a checkpoint whose commit was not replayed."""
    job = a_running_job()
    take_checkpoint(job)
    resume_duties = duties.resume_duties

    def meanwhile(job: Job, head: Head) -> Head:
        monkeypatch.setattr(coordinator_restore, "resume_duties", resume_duties)
        restore(job, Latest())
        return resume_duties(job, job.journal.load())

    monkeypatch.setattr(coordinator_restore, "resume_duties", meanwhile)

    with pytest.raises(FencedError, match="another coordinator restored job 'auctions' meanwhile"):
        restore(job, Latest())
    assert job.state().generation == 3


def failed_over(job: Job) -> None:
    """A task of the next checkpoint fails, and the job restarts by itself."""
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True)
    restore(job, Latest(), only_generation=job.state().generation, cause="its own")


@pytest.mark.parametrize("between", [failed_over, lambda job: restore(job, Latest(), cause="B")])
@pytest.mark.parametrize("then", [0, 2])
def test_a_request_for_a_restore_is_served_once_however_often_it_is_tried(
    between: Callable[[Job], object], then: int
) -> None:
    """The first try did its work and died; what the job did since is not undone by the second."""
    job = a_running_job(a_pipeline(num_retained=9))
    take_checkpoints(job, 3)
    first = restore(job, Choice(ONE), ROLL_BACK, cause="A")
    take_checkpoints(job, 2)
    between(job)
    take_checkpoints(job, then)
    before = job.state()

    again = restore(job, Choice(ONE), ROLL_BACK, cause="A")

    assert (again.checkpoint_id, again.generation) == (ONE, first.generation)
    assert (first.has_moved_on, again.has_moved_on) == (False, True)
    assert job.state() == before


def test_two_tries_of_a_request_at_once_restore_once() -> None:
    job = a_running_job(a_pipeline(num_retained=9))
    take_checkpoints(job, 2)
    is_first = True

    def before(verb: str, key: str) -> None:
        nonlocal is_first
        if is_first and verb == "create" and "/journal/" in key:
            is_first = False
            restore(job, Choice(ONE), ROLL_BACK, cause="A")

    again = restore(hooked(job, before), Choice(ONE), ROLL_BACK, cause="A")

    assert (again.checkpoint_id, again.generation, job.state().generation) == (ONE, 2, 2)


def test_a_try_finishes_what_the_one_before_it_had_not_done() -> None:
    job = a_running_job(a_pipeline(num_retained=9))
    take_checkpoint(job)
    complete_one(job)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator_restore, "resume_duties", die)
        with pytest.raises(Crash):
            restore(job, Latest(), cause="A")

    restore(job, Latest(), cause="A")

    assert job.state().generation == 2
    assert job.state().completed[-1].is_committed


def die(*_: object) -> None:
    raise Crash


CLAIM = RestoreOptions(claim_mode=ClaimMode.CLAIM)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"checkpoint": ONE, "savepoint": "mine"},
            "checkpoint 1 and savepoint 'mine' exclude one another; give one",
        ),
        ({"pipeline": "bids"}, "pipeline 'bids' needs the root where its checkpoints are"),
        (
            {"pointer": "auctions/checkpoints/1", "savepoint": "mine"},
            "'auctions/checkpoints/1' names the snapshot to restore already; leave out savepoint",
        ),
        ({"options": CLAIM}, "CLAIM is given with the latest one, but only a savepoint"),
        (
            {"options": CLAIM, "checkpoint": ONE},
            "CLAIM is given with checkpoint 1, but only",
        ),
    ],
)
def test_a_request_that_contradicts_itself_is_refused_where_it_enters(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        RestoreRequest(**fields)


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({}, Latest()),
        ({"checkpoint": ONE}, Choice(ONE)),
        (
            {"savepoint": "mine"},
            Choice.of(SnapshotOrigin(checkpoint_id=ONE, savepoint="mine")),
        ),
        ({"root": "own"}, Latest()),
        (
            {"root": "own", "pipeline": "auctions", "checkpoint": ONE},
            Choice(ONE),
        ),
        ({"pointer": "auctions/checkpoints/1"}, Choice(ONE)),
        (
            {"pointer": "auctions/savepoints/mine/_metadata"},
            Choice.of(SnapshotOrigin(checkpoint_id=ONE, savepoint="mine")),
        ),
    ],
)
def test_a_request_names_what_it_says_and_the_jobs_own_root_is_not_another_one(
    fields: dict[str, Any], target: RestoreTarget
) -> None:
    job = a_running_job()
    a_savepoint(job, "mine")
    if "root" in fields:
        fields = fields | {"root": job.store.root}

    resolved = resolve(job, job.state(), RestoreRequest(**fields))

    assert (without_identity(resolved.target), resolved.configuration) == (target, None)


def test_parallelism_replaces_the_jobs() -> None:
    job = a_running_job()
    request = RestoreRequest(parallelism=("4", "rank_bids=8"))

    configuration = resolve(job, job.state(), request).configuration

    assert configuration is not None
    assert (configuration.parallelism, configuration.stage_parallelism) == (4, {"rank_bids": 8})


def test_a_job_that_was_never_submitted_begins_by_a_form_alone() -> None:
    location = StoreLocation(root="memory://never-submitted")
    job = open_job(a_pipeline(), location, store=InMemoryStore("never-submitted"))

    with pytest.raises(ConfigurationError, match="was never submitted in memory://never-submitted"):
        resolve(job, job.state(), RestoreRequest())
    assert resolve(job, job.state(), RestoreRequest(may_submit=True)).configuration is not None


def test_a_restart_for_a_generation_that_is_over_plans_nothing() -> None:
    job = a_running_job()
    take_checkpoint(job)
    of_another = RestoreRequest(only_generation=7)
    resolved = replace(resolve(job, job.state(), RestoreRequest()), only_generation=7)

    for planning in (partial(resolve, request=of_another), partial(plan, resolved=resolved)):
        with pytest.raises(FencedError, match=r"generation 1 already; .* was for generation 7"):
            planning(job, job.state())


EVERY_OPTION: dict[str, Any] = {
    "num_retained": 9,
    "mode": CheckpointingMode.AT_LEAST_ONCE,
    "externalized_checkpoint_retention": Retention.RETAIN_ON_FAILURE,
    "min_pause": timedelta(seconds=5),
    "tolerable_failed_checkpoints": 2,
    "max_records_per_epoch": 20,
    "restart_strategy": fixed_delay(attempts=7),
}


def test_a_persons_restore_takes_the_options_that_are_declared_now() -> None:
    job = a_running_job()
    take_checkpoint(job)
    changed = replace(job, pipeline=a_pipeline(**EVERY_OPTION))

    resolved = resolve(changed, job.state(), RestoreRequest())
    restore(changed, resolved.target, configuration=resolved.configuration)

    assert resolved.configuration == configure(changed.pipeline, {})
    assert job.state().configuration == configure(changed.pipeline, {})
    assert job.state().configuration.num_retained == 9
    assert job.state().configuration.restart.attempts == 7
    assert resolve(changed, job.state(), RestoreRequest()).configuration is None


def test_a_failures_own_restart_goes_on_with_the_options_that_failed() -> None:
    job = a_running_job()
    changed = replace(job, pipeline=a_pipeline(**EVERY_OPTION))

    restart = RestoreRequest(only_generation=1)

    assert resolve(changed, job.state(), restart).configuration is None


def test_what_a_person_gave_or_changed_is_not_replaced_by_what_is_declared() -> None:
    job = a_job()
    submit(job, configure(job.pipeline, {}, parallelism=3, max_records_per_epoch=7))
    retime(job, NewTimes(min_pause=timedelta(seconds=1)), by="ada")
    changed = replace(job, pipeline=a_pipeline(**EVERY_OPTION))

    resolved = resolve(changed, job.state(), RestoreRequest(parallelism=("rank_bids=8",)))
    restore(changed, resolved.target, configuration=resolved.configuration)

    after = job.state()
    given = after.configuration
    assert (given.parallelism, given.stage_parallelism) == (3, {"rank_bids": 8})
    assert (given.max_records_per_epoch, given.num_retained) == (7, 9)
    assert (given.min_pause_ms, after.min_pause_ms) == (5_000, 1_000)


def without_identity(target: RestoreTarget) -> RestoreTarget:
    """Where the snapshot is, whichever it is."""
    if isinstance(target, Choice) and target.origin is not None:
        return Choice.of(replace(target.origin, token="", digest=""))
    return target


CHECKPOINT_BY_PATH = SnapshotOrigin(checkpoint_id=ONE, pipeline="auctions")
SAVEPOINT_BY_PATH = replace(CHECKPOINT_BY_PATH, savepoint="mine")


@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
@pytest.mark.parametrize(
    ("path", "target"),
    [("checkpoints/0000000001", CHECKPOINT_BY_PATH), ("savepoints/mine", SAVEPOINT_BY_PATH)],
)
def test_a_path_names_a_snapshot_of_any_root_by_its_folder_or_its_metadata(
    tmp_path: Path, path: str, target: SnapshotOrigin, end: str
) -> None:
    """Flink's resolveCheckpoint: with a scheme, absolute without one, or below the job's root."""
    job = a_job(root=f"file://{tmp_path}/backup")
    submit(job, configure(job.pipeline, {}))
    a_savepoint(job, "mine")
    other = a_job(root=f"file://{tmp_path}")
    there = replace(target, root=f"file://{tmp_path}/backup")
    submit(other, configure(other.pipeline, {}))

    for begin in (f"file://{tmp_path}/backup/", f"{tmp_path}/backup/", "backup/"):
        request = RestoreRequest(pointer=f"{begin}auctions/{path}{end}")
        found = resolve(other, other.state(), request).target
        assert without_identity(found) == Choice.of(there)
    restored = restore(other, found, RestoreOptions(accept_tables=True))
    assert Choice.of(restored.origin or there) == found


def test_the_path_of_an_incarnation_is_of_that_one_alone() -> None:
    job = a_running_job()
    a_savepoint(job, "nightly")
    folder = job.paths.incarnation(job.state().completed[-1].savepoint or SavepointId("", ""))
    found = resolve(job, job.state(), RestoreRequest(pointer=f"{folder}_metadata"))
    dispose(job, "nightly")
    a_savepoint(job, "nightly")

    assert found.target != savepoint_target(job, "nightly")
    for path in (folder, f"{job.store.root}/{folder}_metadata"):
        with pytest.raises(RestoreError, match=r"'nightly' in .* is another one now: .* as checkp"):
            resolve(job, job.state(), RestoreRequest(pointer=path))


def test_the_path_of_a_journals_checkpoint_is_of_that_journal_alone() -> None:
    job, other = a_running_job(), a_running_job()
    take_checkpoint(job)
    path = job.paths.metadata(ONE)
    there = resolve(other, other.state(), RestoreRequest(pointer=f"{job.store.root}/{path}"))
    here = resolve(job, job.state(), RestoreRequest(pointer=path))
    job.store.delete(keys_of(job))
    anew = job.anew()
    submit(anew, configure(anew.pipeline, {}))
    take_checkpoint(anew)

    assert here.target == Choice(ONE)
    assert isinstance(there.target, Choice)
    assert there.target.origin is not None
    assert there.target.origin.token == job.paths.token
    for asking, where in ((anew, path), (other, f"{job.store.root}/{path}")):
        with pytest.raises(RestoreError, match=r"journal j-\w+ is not that of job 'auctions' in"):
            resolve(asking, asking.state(), RestoreRequest(pointer=where))


def test_a_path_in_a_bucket_or_at_the_top_of_a_file_system_has_its_root() -> None:
    job = a_job()
    found = {
        path: pointed_at(job, path).root
        for path in (
            "s3://bucket/auctions/checkpoints/0000000007/_metadata",
            "s3://bucket/a/b/auctions/savepoints/before-2.0",
            "/auctions/checkpoints/7",
            "file:///auctions/checkpoints/7",
            "auctions_of_old/checkpoints/7",
        )
    }

    assert [*found.values()] == [
        "s3://bucket", "s3://bucket/a/b", "file:///", "file:///", job.store.root
    ]  # fmt: skip
    assert pointed_at(job, "auctions_of_old/checkpoints/7").pipeline == "auctions_of_old"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "mine",
        "s3://bucket/auctions",
        "s3://bucket/auctions/checkpoints",
        "s3://bucket/auctions/checkpoints/0",
        "s3://bucket/auctions/checkpoints/latest",
        "s3://bucket/auctions/checkpoints/7/plan",
        "s3://bucket/auctions/savepoints/mine/_metadata/",
        "s3://bucket/Auctions/savepoints/mine",
        "s3://bucket/savepoint-1a2b/_metadata",
    ],
)
def test_another_path_is_refused_with_the_form_it_has_to_have(path: str) -> None:
    with pytest.raises(ConfigurationError, match="ROOT/PIPELINE/checkpoints/ID or ROOT/PIPELINE/s"):
        pointed_at(a_job(), path)


def test_a_savepoint_that_a_path_names_can_be_claimed_and_a_checkpoint_cannot() -> None:
    job = a_running_job()
    a_savepoint(job, "mine")
    own = f"{job.store.root}/auctions"

    claimed = resolve(
        job, job.state(), RestoreRequest(pointer=f"{own}/savepoints/mine", options=CLAIM)
    )
    restore(job, claimed.target, claimed.options)

    assert [one.name for one in job.state().claimed_savepoints] == ["mine"]
    with pytest.raises(ConfigurationError, match="CLAIM is given with checkpoint 1"):
        resolve(job, job.state(), RestoreRequest(pointer=f"{own}/checkpoints/1", options=CLAIM))


def counting(job: Job) -> tuple[Job, CountingStore]:
    store = CountingStore(job.store)
    return replace(job, store=store, journal=Journal(store, job.names)), store


def latest(_: Job) -> RestoreTarget:
    return Latest()


def older(_: Job) -> RestoreTarget:
    return Choice(ONE)


def a_savepoint_of_it(job: Job) -> RestoreTarget:
    return savepoint_target(job, "mine")


def of_job(checkpoint_id: int) -> Callable[[Job], CheckpointMetadata]:
    return lambda job: job.metadata(CheckpointId(checkpoint_id))


def of_savepoint(job: Job) -> CheckpointMetadata:
    return job.savepoint_metadata("mine")


@pytest.mark.parametrize(
    ("target", "metadata"),
    [(latest, of_job(3)), (older, of_job(1)), (a_savepoint_of_it, of_savepoint)],
    ids=["latest", "older", "savepoint"],
)
def test_it_names_every_file_and_writes_nothing(
    target: Callable[[Job], RestoreTarget], metadata: Callable[[Job], CheckpointMetadata]
) -> None:
    job, store = counting(a_running_job())
    take_checkpoint(job)
    a_savepoint(job)
    take_checkpoint(job)
    trigger_one(job)
    before, wanted = keys_of(job), target(job)

    with store.counted() as asked:
        decision = plan_restore(job, wanted)

    assert isinstance(decision, RestoreApproval)
    assert decision.files == metadata(job).files != ()
    assert {handle.key for handle in decision.files} <= set(before)
    assert set(asked) == {"get", "list"}
    assert keys_of(job) == before


def test_of_another_root_it_names_the_files_there() -> None:
    there = a_running_job()
    take_checkpoint(there)
    here, store = counting(a_job())
    target = foreign_target(here, there.location.root)

    decision = plan_restore(here, target, configuration=configure(here.pipeline, {}))

    assert isinstance(decision, RestoreApproval)
    assert [handle.key for handle in decision.files] == [
        handle.key for handle in there.metadata(ONE).files
    ]
    assert {handle.root for handle in decision.files} == {there.location.root}
    assert not store.requests["put"] + store.requests["create"] + store.requests["delete"]
    assert keys_of(here) == []


def test_of_a_job_that_has_nothing_it_starts_from_empty() -> None:
    decision = plan_restore(a_running_job(), Latest())

    assert isinstance(decision, RestoreApproval)
    assert (decision.choice.checkpoint_id, decision.files) == (None, ())


def test_it_tells_what_is_published_dropped_and_lost() -> None:
    job = a_patient_job()
    take_checkpoint(job)
    an_overtaken_checkpoint(job)
    complete_one(job)
    smaller = replace(job, pipeline=a_pipeline(stages=STAGES[:1]))

    plain = plan_restore(job, Latest())
    lossy = plan_restore(job, Choice(TWO), RestoreOptions(ignore_in_flight_of=TWO))
    dropping = plan_restore(smaller, Latest(), DROPPED)

    assert isinstance(plain, RestoreApproval)
    assert isinstance(lossy, RestoreApproval)
    assert isinstance(dropping, RestoreApproval)
    assert (plain.replays_commit, plain.ignores_in_flight) == (True, False)
    assert (lossy.replays_commit, lossy.ignores_in_flight) == (False, True)
    assert dropping.dropped_stages == ("rank_bids",)


def test_every_problem_is_told_at_once() -> None:
    job = a_running_job()
    take_checkpoint(job)
    missing, short, *_ = (handle.key for handle in job.metadata(ONE).files)
    job.store.delete([missing])
    job.store.put(short, b"short")
    other = a_pipeline(stages=STAGES[:1])
    other.max_parallelism = 64
    before = keys_of(job)

    decision = plan_restore(replace(job, pipeline=other), Latest())

    assert isinstance(decision, Stop)
    for number, problem in enumerate(
        [
            "stage 'rank_bids' has state but is not in the pipeline any more",
            "stage 'count_bids' declares max parallelism 64, but its state has 128",
            f"{missing} is missing",
            f"{short} has 5 bytes",
        ]
    ):
        assert decision.problems[number].startswith(problem)
    assert keys_of(job) == before


def test_a_stage_that_is_behind_is_overtaken_and_what_it_has_not_read_stays_in_flight() -> None:
    clock = ManualClock()
    job = a_patient_job(clock)
    take_checkpoint(job)
    plan = trigger_one(job)
    assert [(t.is_unaligned, t.may_be_overtaken) for t in plan.tasks] == [
        (False, False),
        (False, True),
    ]
    acknowledge(job, plan, COUNT)
    clock.advance(TIMEOUT_MS - 1)
    assert watch(job).actions == ()

    clock.advance(1)

    assert watch(job).actions == ("made checkpoint 2 unaligned: rank_bids is behind",)
    assert watch(job).actions == ()
    complete(job, plan)
    assert (absorbed(job, TWO), in_flight(job, TWO)) == ([*range(10)], [*range(10, 20)])
    assert published_records(job) == list(range(10))


def test_what_an_overtaken_stage_answers_late_changes_nothing() -> None:
    job = a_patient_job()
    plan = trigger_one(job)
    acknowledge(job, plan, COUNT)
    overtake(job, ONE, [RANK])

    acknowledge(job, plan, RANK)
    decline(job, 1, plan.task(RANK).subtasks[0])
    complete(job, plan)

    assert (absorbed(job, ONE), in_flight(job, ONE)) == ([], list(range(10)))
    assert published_records(job) == []


def test_a_decline_of_an_overtaken_stage_does_not_keep_the_checkpoint_alive() -> None:
    job = a_patient_job()
    plan = trigger_one(job)
    overtake(job, ONE, [RANK])
    decline(job, 1, plan.task(RANK).subtasks[0])

    state = fail_checkpoint(job, ONE, Reason.CHECKPOINT_EXPIRED, "too slow")

    assert [(f.reason, f.message) for f in state.failed] == [
        (Reason.CHECKPOINT_EXPIRED, "too slow")
    ]


def test_who_reads_a_source_and_who_has_answered_is_not_overtaken() -> None:
    job = a_patient_job()
    plan = trigger_one(job)
    acknowledge(job, plan)

    assert overtake(job, ONE, [COUNT]).pending[0].overtaken == ()
    assert watch(job).actions == ()
    assert overtake(job, CheckpointId(9), [RANK]) == job.state()


def test_who_has_a_reader_of_a_source_behind_it_is_not_overtaken() -> None:
    """That one would be overtaken with it, and its source's records of the epoch are read once."""
    timeout = timedelta(milliseconds=TIMEOUT_MS)
    checkpointing = Checkpointing(
        unaligned=True, aligned_checkpoint_timeout=timeout, max_records_per_epoch=10
    )
    pipeline = Pipeline("auctions", checkpointing=checkpointing)
    bids = pipeline.source("bids", Nexmark())
    counted = bids.key_by("bid_auction").aggregate("counted", n=agg.count())
    per_count = counted.key_by("n").aggregate("per_count", auctions=agg.count())
    others = pipeline.source("others", Nexmark()).key_by(n="bid_auction")
    joined = per_count.key_by("n").join("joined", others, how="anti")
    joined.key_by("auctions").aggregate("behind", n=agg.count()).sink(
        "out", FilesTable(changelog=True)
    )
    job = a_running_job(pipeline)
    take_checkpoint(job)  # Behind it the columns of every stream are known.
    plan = trigger_one(job)

    state = overtake(job, plan.checkpoint_id, ["per_count"])

    assert state.pending[0].overtaken == ()
    assert [task.uid for task in plan.tasks if task.may_be_overtaken] == ["behind"]


def test_who_was_overtaken_catches_up_first_and_then_takes_part_again() -> None:
    """A stage that is late in every epoch it may be late in, still advances."""
    job = a_patient_job()
    may_be_overtaken: list[bool] = []
    for _ in range(6):
        plan = trigger_one(job)
        task = plan.task(RANK)
        may_be_overtaken.append(task.may_be_overtaken)
        acknowledge(job, plan, COUNT)
        if task.may_be_overtaken:
            overtake(job, plan.checkpoint_id, [RANK])
        else:
            acknowledge(job, plan, RANK)
        taken = complete(job, plan)
        assert is_one_cut(job, taken)

    assert may_be_overtaken == [True, False] * 3
    assert absorbed(job, taken) == list(range(50))
    assert published_records(job) == list(range(50))


@pytest.mark.parametrize("first", [an_overtaken_checkpoint, take_checkpoint])
@pytest.mark.parametrize("second", [an_overtaken_checkpoint, take_checkpoint, a_savepoint])
def test_whatever_was_overtaken_every_row_arrives_once(
    first: Callable[[Job], CheckpointId], second: Callable[[Job], CheckpointId]
) -> None:
    job = a_patient_job()
    first(job)
    if first is an_overtaken_checkpoint and second is an_overtaken_checkpoint:
        take_checkpoint(job)  # A stage that was overtaken is not overtaken again.
    second(job)
    restore(job, Latest())
    take_checkpoint(job)

    last = a_savepoint(job, "last")

    read = job.metadata(last).sources[0].position[0].offset
    assert absorbed(job, last) == list(range(read))
    assert published_records(job) == list(range(read))


def test_two_stages_in_a_row_may_be_overtaken() -> None:
    job = a_patient_job(stages=THREE_STAGES)
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan, COUNT)
    overtake(job, TWO, [RANK, TOP])
    complete(job, plan)
    assert is_one_cut(job, TWO)
    watermark_ms = job.metadata(TWO).stages[2].watermark_ms

    third = last_stage_first(job)

    assert is_one_cut(job, third)
    assert [len(absorbed(job, third, uid)) for uid in THREE_STAGES] == [30, 20, 10]
    assert job.metadata(third).stages[2].watermark_ms >= watermark_ms
    last = a_savepoint(job)
    assert published_records(job) == absorbed(job, last, TOP) == list(range(40))


def test_ignoring_in_flight_data_drops_exactly_those_rows() -> None:
    job = a_patient_job()
    take_checkpoint(job)
    lost = in_flight(job, an_overtaken_checkpoint(job))
    assert lost == list(range(10, 20))

    restore(job, Latest(), RestoreOptions(ignore_in_flight_of=TWO))
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, Reason.CHECKPOINT_EXPIRED, "too slow")
    take_checkpoint(job)
    last = a_savepoint(job)

    kept = [record for record in range(40) if record not in lost]
    assert absorbed(job, last) == kept
    assert published_records(job) == kept
    assert absorbed(job, last, COUNT) == list(range(40))


def test_a_failure_before_the_first_checkpoint_does_not_bring_the_dropped_rows_back() -> None:
    job = a_patient_job()
    take_checkpoint(job)
    an_overtaken_checkpoint(job)
    restore(job, Latest(), RestoreOptions(ignore_in_flight_of=TWO))
    fail_checkpoint(
        job, trigger_one(job).checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True
    )

    restore(job, Latest())
    last = take_checkpoint(job)

    assert (absorbed(job, last), in_flight(job, last)) == ([*range(10)], [*range(20, 30)])
    restore(job, Choice(TWO))
    assert absorbed(job, a_savepoint(job)) == list(range(30))  # A person chose anew.


def test_the_in_flight_data_of_another_checkpoint_cannot_be_ignored() -> None:
    job = a_patient_job()
    take_checkpoint(job)
    an_overtaken_checkpoint(job)

    with pytest.raises(RestoreError, match="of checkpoint 1 cannot be ignored: checkpoint 2 is re"):
        restore(job, Choice(TWO), RestoreOptions(ignore_in_flight_of=ONE))

    restore(job, Choice(TWO))
    assert absorbed(job, a_savepoint(job)) == list(range(30))


def test_rows_in_flight_survive_the_checkpoint_of_their_producer_and_go_when_they_arrived() -> None:
    job = a_patient_job(num_retained=1)
    take_checkpoint(job)
    an_overtaken_checkpoint(job)
    files = {handle.key for handle in job.metadata(TWO).stages[1].in_flight_segments}
    assert files

    plan = trigger_one(job)
    acknowledge(job, plan, COUNT)
    assert files <= set(keys_of(job))  # TWO is retained: RANK is about to read them.
    acknowledge(job, plan, RANK)
    third = complete(job, plan)
    assert not keys_of(job, job.paths.checkpoint(TWO))
    assert not files & set(keys_of(job))

    of_third = {handle.key for handle in job.metadata(third).stages[1].in_flight_segments}
    assert of_third <= set(keys_of(job))
    take_checkpoint(job)
    assert not of_third & set(keys_of(job))


def test_rows_in_flight_outlive_the_checkpoint_that_first_named_them() -> None:
    """Unaligned from the start, then aligned: the stage is overtaken with rows of two epochs."""
    job = an_unaligned_job(COUNT, RANK, num_retained=1)
    last_stage_first(job)
    of_first = {handle.key for handle in job.metadata(ONE).stages[1].in_flight_segments}
    patient = replace(job, pipeline=a_patient_job(num_retained=1).pipeline)
    restore(patient, Latest(), configuration=configure(patient.pipeline, {}))

    second = an_overtaken_checkpoint(patient)

    assert in_flight(job, second) == list(range(20))
    assert not keys_of(job, job.paths.checkpoint(ONE))
    assert of_first <= set(keys_of(job))
    third = take_checkpoint(patient)
    assert absorbed(job, third) == list(range(20))
    assert not of_first & set(keys_of(job))
    assert published_records(job) == list(range(20))
