"""Each task by itself, on a real job in a folder: what it asks for, and how it ends."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.restore import stop
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason, page_of
from sluice.core.ids import CheckpointId
from sluice.declaration.checkpointing import no_restart
from sluice.declaration.params import param
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ProtocolViolation, StageFailed
from sluice.sources import Nexmark
from sluice.store.object_store import ObjectStore
from sluice_airflow.acts import AbortOperator, RestartOperator, VerifyOperator, abort_on_failure
from sluice_airflow.compat import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    DagRunTriggerException,
)
from sluice_airflow.dag_factory import build_dags
from sluice_airflow.operators import CheckpointOperator, CommitOperator, FinalizeOperator
from sluice_airflow.trigger_task import TriggerOperator, TriggerSavepointOperator
from tests.airflow.acts import (
    PIPELINE,
    RESTORE,
    a_checkpoint,
    a_context,
    abort,
    commit,
    complete,
    execute,
    executed,
    finalize,
    snapshot,
    trigger,
)
from tests.airflow.stand_in import StandInSpark, a_job, a_pipeline, acknowledge, decline
from tests.patching import replace_in


def test_the_first_trigger_submits_the_job(root: str) -> None:
    result = trigger()

    state = a_job(root).state()
    assert result == {"checkpoint_id": 1, "records": 1_000, "parent": None, "type": "CHECKPOINT"}
    assert state.status is JobStatus.RUNNING
    assert state.pending[0].cause == "airflow:demo/run-1"


def test_a_misspelt_column_fails_the_first_trigger_and_nothing_is_submitted(
    root: str, spark: StandInSpark
) -> None:
    spark.misspelt = "stage 'by_auction' has no column 'acution' for its key"

    with pytest.raises(AirflowFailException, match="'by_auction' has no column 'acution'"):
        trigger()

    assert a_job(root).state().status is JobStatus.CREATED
    spark.misspelt = ""
    trigger()
    assert spark.checked == ["demo", "demo"]


def test_a_missing_parameter_fails_the_trigger_with_its_sentence(root: str) -> None:
    pipeline = a_pipeline()
    pipeline.source("more", Nexmark(param("rate", help="events per second")))

    with pytest.raises(AirflowFailException, match="parameter 'rate' is not set"):
        execute(TriggerOperator, pipeline=pipeline)
    assert abort(states={"trigger": "failed"}) == "CREATED"  # There is nothing to abort.


def test_a_trigger_that_died_after_it_journaled_is_adopted_by_its_retry(root: str) -> None:
    trigger()

    again = trigger(try_number=2)

    assert again == {"checkpoint_id": 1, "records": 1_000}
    assert len(a_job(root).state().pending) == 1


def test_a_request_waits_for_the_pending_checkpoint(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger(run_id="run-1")

    def meanwhile(_: float) -> None:
        queued = [request.cause for request in a_job(root).state().queue]
        assert queued == ["airflow:demo/run-2"]
        complete("run-1")

    replace_in(monkeypatch, "sluice_airflow.trigger_task", "time", sleep=meanwhile)

    second = trigger(run_id="run-2")

    assert second == {"checkpoint_id": 2, "records": 1_000, "parent": 1, "type": "CHECKPOINT"}
    assert a_job(root).state().queue == ()


def test_a_request_that_was_rejected_while_it_waited_skips_the_run(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger(run_id="run-1")
    replace_in(
        monkeypatch,
        "sluice_airflow.trigger_task",
        "time",
        sleep=lambda _: stop(a_job(root), JobStatus.CANCELED),
    )

    with pytest.raises(AirflowSkipException, match="CHECKPOINT_COORDINATOR_SUSPEND: it was rej"):
        trigger(run_id="run-2")


def test_a_run_that_was_rejected_and_is_cleared_asks_anew(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger(run_id="run-1")
    job = a_job(root)

    def meanwhile(_: float) -> None:
        stop(job, JobStatus.CANCELED)
        submit(job, configure(job.pipeline, {}))

    replace_in(monkeypatch, "sluice_airflow.trigger_task", "time", sleep=meanwhile)
    with pytest.raises(AirflowSkipException, match="CHECKPOINT_COORDINATOR_SUSPEND"):
        trigger(run_id="run-2")

    again = trigger(run_id="run-2", try_number=2)

    assert again == {"checkpoint_id": 2, "records": 1_000, "parent": None, "type": "CHECKPOINT"}


def test_a_cleared_run_goes_on_with_its_own_request_when_it_has_waited_for_long(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request of it would find its savepoint's name taken, by itself."""
    job = a_job(root)
    trigger(run_id="run-1")

    def ask(try_number: int) -> Any:
        return execute(
            TriggerSavepointOperator,
            run_id="run-2",
            try_number=try_number,
            params={"name": "mine", "stop": "none"},
        )

    def meanwhile(_: float) -> None:
        stop(job, JobStatus.CANCELED)
        submit(job, configure(job.pipeline, {}))
        trigger(run_id="run-3")

    replace_in(monkeypatch, "sluice_airflow.trigger_task", "time", sleep=meanwhile)
    with pytest.raises(AirflowFailException, match="CHECKPOINT_COORDINATOR_SUSPEND"):
        ask(1)
    monkeypatch.setattr("sluice_airflow.trigger_task.WAIT_IN_SLOT_S", 0.0)
    for _ in range(2):  # Airflow counts no further try.
        with pytest.raises(AirflowRescheduleException):
            ask(2)
        assert [queued.savepoint_name for queued in job.state().queue] == ["mine"]
    complete("run-3")

    assert ask(2)["type"] == "SAVEPOINT"
    assert job.state().queue == ()


def test_a_request_that_is_rejected_while_its_task_gave_its_slot_back_skips_the_run(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_job(root)
    trigger(run_id="run-1")
    monkeypatch.setattr("sluice_airflow.trigger_task.WAIT_IN_SLOT_S", 0.0)
    with pytest.raises(AirflowRescheduleException):
        trigger(run_id="run-2")
    stop(job, JobStatus.CANCELED)
    submit(job, configure(job.pipeline, {}))

    with pytest.raises(AirflowSkipException, match="CHECKPOINT_COORDINATOR_SUSPEND"):
        trigger(run_id="run-2")


def test_a_concurrent_checkpoint_is_finalized_after_the_one_it_continues(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    concurrent = a_pipeline(max_concurrent_checkpoints=2)
    submit(a_job(root, concurrent), configure(concurrent, {}))
    for run_id in ("run-1", "run-2"):
        trigger(run_id=run_id)
        for stage in ("bids", "by_auction"):
            snapshot(stage, run_id=run_id)
    order: list[dict[str, Any]] = []

    def meanwhile(_: float) -> None:
        order.append(finalize(run_id="run-1"))

    replace_in(monkeypatch, "sluice_airflow.operators", "time", sleep=meanwhile)
    order.append(finalize(run_id="run-2"))

    assert [one["checkpoint_id"] for one in order] == [1, 2]
    assert [c.is_committed for c in a_job(root).state().completed] == [True, False]


def a_hooked_pipeline(breaks: Callable[[], bool]) -> Pipeline:
    def raises(checkpoint_id: int, timestamp_ms: int) -> None:
        if breaks():
            raise LookupError("no flags")

    pipeline = a_pipeline()
    pipeline.hook("flags", trigger=raises, restore=lambda checkpoint_id, state: None)
    return pipeline


def test_a_trigger_that_somebody_refuses_fails_the_run_and_its_note_has_the_cause(
    root: str, spark: StandInSpark
) -> None:
    """A run that is skipped has nothing to do."""
    broken = [True]
    pipeline = a_hooked_pipeline(lambda: broken[0])
    context = a_context()

    for n in (1, 2):
        with pytest.raises(AirflowFailException, match="no checkpoint was triggered: TRIGGER_CHEC"):
            TriggerOperator(task_id="act", pipeline=pipeline).execute(context)
        assert a_job(root).state().num_unsuccessful_triggers == n

    reason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
    assert context["ti"].notes[-1] == (
        "no checkpoint was triggered: TRIGGER_CHECKPOINT_FAILURE: master hook 'flags' failed: no "
        f"flags; see {page_of(reason)}"
    )
    assert abort(states={"trigger": "failed"}) == "RUNNING"
    broken[0] = False
    assert execute(TriggerOperator, pipeline=pipeline)["checkpoint_id"] == 1
    assert a_job(root).state().num_unsuccessful_triggers == 0


def test_an_error_of_the_users_source_fails_the_run_and_is_journaled(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger()
    complete("run-1")

    def raises(*_: object) -> None:
        raise LookupError("no such partition")

    monkeypatch.setattr("sluice.coordinator.trigger.make_plan", raises)
    context = a_context(run_id="run-2")
    with pytest.raises(LookupError):
        TriggerOperator(task_id="trigger", pipeline=PIPELINE).execute(context)

    (refused,) = a_job(root).state().unsuccessful_triggers
    assert refused.message.endswith("LookupError: no such partition")
    assert refused.cause == "airflow:demo/run-2"
    assert context["ti"].notes == ["trigger failed: LookupError: no such partition"]


def test_a_stopped_job_skips_the_run(root: str) -> None:
    trigger()
    stop(a_job(root), JobStatus.CANCELED)

    with pytest.raises(AirflowSkipException, match="the job is CANCELED"):
        trigger(run_id="run-2")


def test_a_whole_checkpoint_becomes_true_and_an_asset_event(root: str, spark: StandInSpark) -> None:
    trigger()
    snapshot("bids")
    snapshot("by_auction")
    finalize()
    context = a_context()
    CommitOperator(task_id="commit", pipeline=PIPELINE).execute(context)

    latest = a_job(root).state().latest_completed
    assert latest is not None
    assert latest.is_committed
    assert spark.ran == [(1, "bids", 1), (1, "by_auction", 1)]
    told = {"checkpoint_id": 1, "bytes": 0, "watermark": "1970-01-01T00:00:00+00:00"}
    assert {uri: event.extra for uri, event in context["outlet_events"].by_uri.items()} == {
        "sluice://demo/checkpoints": told | {"records": 1_000},
        "sluice://demo/tables/counts": told | {"rows": 0},
    }
    told = context["ti"].notes[-1]
    assert told.startswith("checkpoint 1 completed, 0 B, ")
    assert told.endswith("s, 1,000 records")


def test_a_commit_reads_its_metadata_once(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger()
    snapshot("bids")
    snapshot("by_auction")
    finalize()
    job, read = a_job(root), Counter[str]()
    store = type(job.store)
    get = store.get

    def counted(self: ObjectStore, key: str) -> bytes | None:
        read[key] += 1
        return get(self, key)

    monkeypatch.setattr(store, "get", counted)
    commit()

    assert read[job.paths.metadata(CheckpointId(1))] == 1


def test_finalize_and_commit_may_be_repeated(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")

    assert finalize(run_id="run-1") == finalize(run_id="run-1")
    assert commit(run_id="run-1") == commit(run_id="run-1")


def test_a_retried_snapshot_fences_the_attempt_before(root: str, spark: StandInSpark) -> None:
    """And that of every stage behind it, which may have read what it wrote."""
    trigger()
    for try_number in (1, 2):
        spark.failing = {"bids": StageFailed("no disk")}
        with pytest.raises(AirflowFailException):
            snapshot("bids", try_number=try_number)

    snapshot("bids", try_number=3)
    snapshot("by_auction")
    finalize()

    assert spark.ran == [*[(1, "bids", attempt) for attempt in (1, 2, 3)], (1, "by_auction", 3)]
    assert len(a_job(root).state().completed) == 1


def test_a_stage_that_has_acknowledged_does_not_run_again(root: str, spark: StandInSpark) -> None:
    """Clearing its task changes nothing, as the stage behind it has read its output."""
    trigger()
    snapshot("bids")
    snapshot("by_auction")

    again = snapshot("bids", try_number=2)
    finalize()

    assert again == {"checkpoint_id": 1, "attempt": 1, "stage_ms": 0}
    assert spark.ran == [(1, "bids", 1), (1, "by_auction", 1)]
    assert a_job(root).metadata(CheckpointId(1)).checkpoint_id == 1


def test_a_stage_that_ran_chained_to_another_asks_no_spark(root: str, spark: StandInSpark) -> None:
    trigger()
    for stage in ("by_auction", "bids"):  # The driver of the first one wrote all, from the back.
        acknowledge(a_job(root), 1, stage)

    chained = snapshot("by_auction")

    assert chained == {"checkpoint_id": 1, "attempt": 1, "stage_ms": 0}
    assert spark.ran == []


def test_a_chained_stage_whose_checkpoint_is_completed_before_its_task_begins_has_succeeded(
    root: str, spark: StandInSpark
) -> None:
    """Skipped, it would say in the run's note that no checkpoint is pending any more."""
    trigger()
    for stage in ("by_auction", "bids"):
        acknowledge(a_job(root), 1, stage)
    finalize()

    assert snapshot("by_auction") == {"checkpoint_id": 1, "stage_ms": 0}


def test_a_snapshot_of_an_aborted_checkpoint_is_skipped(root: str, spark: StandInSpark) -> None:
    trigger()
    job = a_job(root)
    fail_checkpoint(job, CheckpointId(1), CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    with pytest.raises(AirflowSkipException):
        snapshot("bids")
    assert spark.ran == []


def test_a_run_whose_checkpoint_somebody_else_ended_fails_and_says_so(root: str) -> None:
    """As its sensors do, where they are not done before."""
    trigger()
    fail_checkpoint(
        a_job(root), CheckpointId(1), CheckpointFailureReason.CHECKPOINT_EXPIRED, "late"
    )
    context = a_context()

    with pytest.raises(AirflowFailException):
        FinalizeOperator(task_id="finalize", pipeline=PIPELINE).execute(context)

    assert context["ti"].notes == ["checkpoint 1 was aborted, CHECKPOINT_EXPIRED: late"]


@pytest.mark.parametrize(
    ("states", "declined", "reason"),
    [
        ({"bids.snapshot": "failed"}, False, CheckpointFailureReason.TASK_FAILURE),
        ({"bids.snapshot": "failed"}, True, CheckpointFailureReason.CHECKPOINT_DECLINED),
        ({"bids.await_acks": "failed"}, True, CheckpointFailureReason.CHECKPOINT_DECLINED),
        ({"finalize": "failed"}, False, CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE),
        ({"trigger": "failed"}, False, CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE),
        ({"bids.await_acks": "failed"}, False, CheckpointFailureReason.TASK_FAILURE),
    ],
)
def test_abort_journals_one_reason(
    root: str, states: dict[str, str], declined: bool, reason: CheckpointFailureReason
) -> None:
    trigger()
    job = a_job(root)
    if declined:
        decline(job, 1, "bids", 0)

    abort(states=states)

    assert [(f.checkpoint_id, f.reason) for f in job.state().failed] == [(1, reason)]


def test_the_note_of_an_aborted_run_names_the_page_about_its_reason(root: str) -> None:
    trigger()

    _, said = executed(AbortOperator, states={"finalize": "failed"})

    reason = CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
    assert said == (
        f"checkpoint 1 aborted, {reason.value}: the finalize task failed; the job is RESTARTING; "
        f"see {page_of(reason)}"
    )


def test_abort_finds_an_expired_checkpoint(root: str) -> None:
    pipeline = a_pipeline(timeout=timedelta(milliseconds=10))
    execute(TriggerOperator, pipeline=pipeline)
    time.sleep(0.02)

    abort(states={"bids.await_acks": "failed"})

    failed = a_job(root).state().failed
    assert [f.reason for f in failed] == [CheckpointFailureReason.CHECKPOINT_EXPIRED]


@pytest.mark.parametrize("reader", ["abort", "callback", "watchdog"])
def test_the_root_cause_is_what_the_failed_task_has_written_whoever_aborts(
    root: str, spark: StandInSpark, reader: str
) -> None:
    """However slow the store is: the callback may not get there first, or at all."""
    trigger()
    cause = "stage 'bids' failed over records 1 to 9 of x: a.py line 3: ValueError: poison"
    spark.failing["bids"] = StageFailed(cause, stage="bids", cause="ValueError: poison")
    with pytest.raises(AirflowFailException):
        snapshot("bids")
    assert a_job(root).state().pending, "nobody has aborted it yet"

    if reader == "abort":
        _, said = executed(AbortOperator, states={"bids.snapshot": "failed"})
        assert f"the snapshot task of stage 'bids' failed: {cause}" in said
    elif reader == "callback":
        abort_on_failure(PIPELINE)(a_context(task_id="bids.snapshot"))
    else:
        fail_checkpoint(
            a_job(root), CheckpointId(1), CheckpointFailureReason.CHECKPOINT_EXPIRED, "too late"
        )

    (failed,) = a_job(root).state().failed
    noticed = "too late" if reader == "watchdog" else "the snapshot task of stage 'bids' failed"
    assert failed.message == f"{noticed}: {cause}"


def test_finalize_leaves_its_cause_and_an_attempt_that_was_fenced_is_not_to_blame(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger()
    spark.failing["bids"] = StageFailed("stage 'bids' failed: a lost worker", stage="bids")
    with pytest.raises(AirflowFailException):
        snapshot("bids")
    snapshot("bids", try_number=2)
    snapshot("by_auction")

    def refuses(*_: object) -> None:
        raise ProtocolViolation("a staged file is gone")

    monkeypatch.setattr("sluice.coordinator.completion.check_sinks", refuses)
    with pytest.raises(AirflowFailException):
        FinalizeOperator(task_id="finalize", pipeline=PIPELINE).execute(a_context())
    abort(states={"finalize": "failed"})

    (failed,) = a_job(root).state().failed
    assert failed.message == "the finalize task failed: a staged file is gone"


def test_abort_and_callback_in_any_order_fail_the_job_over_once(root: str) -> None:
    trigger()
    context = a_context(task_id="bids.snapshot") | {"exception": StageFailed("boom")}

    abort_on_failure(PIPELINE)(context)
    abort(states={"bids.snapshot": "failed"})
    abort_on_failure(PIPELINE)(context)

    state = a_job(root).state()
    assert state.status is JobStatus.RESTARTING
    assert state.restarts.attempts == 1
    assert [f.message for f in state.failed] == ["the snapshot task of stage 'bids' failed: boom"]


def test_restart_asks_for_the_restore_dag_with_an_id_made_of_the_failure(root: str) -> None:
    trigger()
    abort(states={"bids.snapshot": "failed"})

    asked = []
    for _ in range(2):
        with pytest.raises(DagRunTriggerException) as caught:
            execute(RestartOperator)
        asked.append((caught.value.trigger_dag_id, caught.value.dag_run_id, caught.value.conf))

    state = a_job(root).state()
    run_id = f"failover__generation-1__{state.restart_at_ms}"
    assert asked == [("demo__restore", run_id, {"target": "latest", "only_generation": 1})] * 2


def test_restart_does_nothing_while_the_job_runs(root: str) -> None:
    trigger()

    with pytest.raises(AirflowSkipException, match="the job is RUNNING: nothing to restore"):
        execute(RestartOperator)


def test_when_the_restart_strategy_gives_up_the_note_says_what_to_do(
    root: str, spark: StandInSpark
) -> None:
    pipeline = a_pipeline(restart_strategy=no_restart())
    submit(a_job(root, pipeline), configure(pipeline, {}))
    a_checkpoint("run-1")
    trigger(run_id="run-2")
    failed = {"run_id": "run-2", "states": {"bids.snapshot": "failed"}}

    status, said = executed(AbortOperator, pipeline=pipeline, **failed)

    assert status == "FAILED"
    assert "the job is FAILED: the restart strategy gave up" in said
    page = page_of(CheckpointFailureReason.TASK_FAILURE)
    assert said.endswith(f"mend the cause, then run demo__restore; see {page}")
    assert [c.checkpoint_id for c in a_job(root).state().completed] == [1]
    with pytest.raises(AirflowSkipException, match="the job is FAILED: nothing to restore"):
        execute(RestartOperator, pipeline=pipeline, run_id="run-2")


@pytest.fixture(name="drills")
def _drills(root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The root of a test, on a deployment that allows drills."""
    monkeypatch.setenv("SLUICE_DRILLS", "1")
    return root


def forms_with_a_fault() -> list[str]:
    return [uid for uid, dag in build_dags({"demo": a_pipeline()}).items() if "fault" in dag.params]


def test_forms_have_the_field_only_where_drills_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLUICE_DRILLS", raising=False)
    unsaid = forms_with_a_fault()
    monkeypatch.setenv("SLUICE_DRILLS", "0")
    forbidden = forms_with_a_fault()
    monkeypatch.setenv("SLUICE_DRILLS", "1")

    assert (unsaid, forbidden) == ([], [])
    assert forms_with_a_fault() == ["demo", "demo__savepoint", "demo__restore"]


@pytest.mark.parametrize("act", [TriggerOperator, VerifyOperator])
def test_elsewhere_a_run_whose_configuration_has_a_fault_is_refused_in_a_sentence(
    root: str, act: type[CheckpointOperator]
) -> None:
    with pytest.raises(AirflowFailException) as refused:
        execute(act, params=RESTORE | {"fault": "fail-task task=trigger"})

    assert str(refused.value) == (
        "this run's configuration plants the fault 'fail-task task=trigger', and drills are off "
        "here; set SLUICE_DRILLS=1 in every Airflow component, or leave fault out"
    )
    assert a_job(root).state().status is JobStatus.CREATED


@pytest.mark.parametrize("run_id", ["run-1", "run-2"])
def test_a_fault_kills_the_task_it_names(
    drills: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch, run_id: str
) -> None:
    struck: list[tuple[int, int]] = []
    replace_in(
        monkeypatch,
        "sluice_airflow.operators",
        "os",
        kill=lambda pid, number: struck.append((pid, number)),
    )
    trigger(run_id=run_id)

    fault = {"fault": "kill-task stage=bids checkpoint=1"}
    snapshot("bids", run_id=run_id, task_id="bids.snapshot", params=fault)
    snapshot("by_auction", run_id=run_id, task_id="by_auction.snapshot", params=fault)

    assert struck == [(os.getpid(), signal.SIGKILL)]


@pytest.mark.parametrize("stage", ["bids", "by_auction"])
def test_a_worker_fault_is_handed_on_also_to_what_is_chained(
    drills: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setenv("SLUICE_FAULT", "")
    trigger()

    snapshot("bids", params={"fault": f"kill-worker stage={stage}"})

    assert os.environ["SLUICE_FAULT"] == f"kill-worker stage={stage}"
