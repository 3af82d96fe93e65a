"""Each task on its own, on a real job in a folder: what it asks of the runner, and how it ends."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    DagRunTriggerException,
)

from sluice.core.properties import JobStatus
from sluice.core.reasons import CheckpointFailureReason
from sluice.errors import StageFailed
from sluice.params import param
from sluice.runner.recovery import fail_checkpoint, stop
from sluice.sources import Nexmark
from sluice_airflow.abort import AbortOperator, RestartOperator, abort_on_failure
from sluice_airflow.operators import (
    CommitOperator,
    FinalizeOperator,
    SnapshotOperator,
    TriggerOperator,
    TriggerSavepointOperator,
    checkpoints_asset,
)
from sluice_airflow.restoring import RestoreOperator, VerifyOperator
from sluice_airflow.watchdog import WatchOperator
from tests.airflow.stand_in import (
    StandInSpark,
    a_job,
    a_pipeline,
    acknowledge,
    decline,
)

PIPELINE = a_pipeline()


@dataclass
class ATaskInstance:
    dag_id: str = "demo"
    run_id: str = "run-1"
    task_id: str = "a_task"
    try_number: int = 1
    states: dict[str, str] = field(default_factory=dict)

    def get_task_states(self, *, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        assert (dag_id, run_ids) == (self.dag_id, [self.run_id])
        return {self.run_id: self.states}


def a_context(**changes: object) -> dict[str, object]:
    ti = ATaskInstance(**{k: v for k, v in changes.items() if k in ATaskInstance.__annotations__})
    return {
        "ti": ti,
        "run_id": ti.run_id,
        "dag_run": SimpleNamespace(run_type=changes.get("run_type", "scheduled")),
        "params": changes.get("params", {}),
        "outlet_events": {checkpoints_asset("demo"): SimpleNamespace(extra={})},
    }


RESTORE = {
    "target": "latest",
    "checkpoint_id": None,
    "savepoint": None,
    "allow_non_restored_state": False,
    "only_generation": None,
}


@pytest.fixture(name="spark")
def _spark(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    spark = StandInSpark()
    spark.install(monkeypatch)
    return spark


def trigger(**context: object) -> object:
    return TriggerOperator(task_id="trigger", pipeline=PIPELINE).execute(a_context(**context))


def snapshot(stage: str, **context: object) -> None:
    task = SnapshotOperator(task_id="snapshot", pipeline=PIPELINE, stage=stage)
    task.execute(a_context(**context))


def finalize(**context: object) -> object:
    return FinalizeOperator(task_id="finalize", pipeline=PIPELINE).execute(a_context(**context))


def commit(**context: object) -> object:
    return CommitOperator(task_id="commit", pipeline=PIPELINE).execute(a_context(**context))


def abort(**context: object) -> str:
    return AbortOperator(task_id="abort", pipeline=PIPELINE).execute(a_context(**context))


def verify(**context: object) -> object:
    return VerifyOperator(task_id="verify", pipeline=PIPELINE).execute(a_context(**context))


def a_checkpoint(run_id: str) -> None:
    trigger(run_id=run_id)
    snapshot("bids", run_id=run_id)
    snapshot("by_auction", run_id=run_id)
    finalize(run_id=run_id)
    commit(run_id=run_id)


def test_the_first_trigger_submits_the_job(root: str) -> None:
    result = trigger()

    state = a_job(root).state()
    assert result == {"checkpoint_id": 1, "records": 1_000, "parent": None, "type": "CHECKPOINT"}
    assert state.status is JobStatus.RUNNING
    assert state.pending[0].cause == "airflow:demo/run-1"


def test_a_missing_parameter_fails_the_trigger_with_its_sentence(root: str) -> None:
    pipeline = a_pipeline()
    pipeline.source("more", Nexmark(param("rate", help="events per second")))
    task = TriggerOperator(task_id="trigger", pipeline=pipeline)

    with pytest.raises(AirflowFailException, match="parameter 'rate' is not set"):
        task.execute(a_context())
    assert abort(states={"trigger": "failed"}) == "CREATED"  # There is nothing to abort.


def test_a_trigger_that_died_after_it_journaled_is_adopted_by_its_retry(root: str) -> None:
    trigger()

    again = trigger(try_number=2)

    assert again == {"checkpoint_id": 1, "records": 1_000}
    assert len(a_job(root).state().pending) == 1


def test_a_dropped_request_skips_the_run_and_names_the_reason(root: str) -> None:
    trigger(run_id="run-1")

    with pytest.raises(AirflowSkipException, match="TOO_MANY_CHECKPOINT_REQUESTS: checkpoint 1 is"):
        trigger(run_id="run-2")


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
    assert context["outlet_events"][checkpoints_asset("demo")].extra == {
        "checkpoint_id": 1,
        "records": 1_000,
        "bytes": 0,
    }


def test_finalize_and_commit_may_be_repeated(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")

    assert finalize(run_id="run-1") == finalize(run_id="run-1")
    assert commit(run_id="run-1") == commit(run_id="run-1")


def test_a_retried_snapshot_fences_the_attempt_before(root: str, spark: StandInSpark) -> None:
    trigger()
    snapshot("bids")

    snapshot("bids", try_number=2)
    snapshot("bids", try_number=3)

    assert spark.ran == [(1, "bids", 1), (1, "bids", 2), (1, "bids", 3)]
    assert a_job(root).state().pending[0].attempt_of("bids") == 3


def test_a_snapshot_of_an_aborted_checkpoint_is_skipped(root: str, spark: StandInSpark) -> None:
    trigger()
    job = a_job(root)
    fail_checkpoint(job, 1, CheckpointFailureReason.CHECKPOINT_EXPIRED, "late")

    with pytest.raises(AirflowSkipException):
        snapshot("bids")
    assert spark.ran == []


@pytest.mark.parametrize("run_id", ["run-1", "run-2"])
def test_a_fault_kills_the_task_it_names(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch, run_id: str
) -> None:
    struck: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: struck.append((pid, number)))
    trigger(run_id=run_id)

    snapshot("bids", run_id=run_id, params={"fault": "kill-task stage=bids checkpoint=1"})
    snapshot("by_auction", run_id=run_id, params={"fault": "kill-task stage=bids"})

    assert struck == [(os.getpid(), signal.SIGKILL)]


def test_a_worker_fault_is_handed_on(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_FAULT", "")
    trigger()

    snapshot("bids", params={"fault": "kill-worker stage=bids"})

    assert os.environ["SLUICE_FAULT"] == "kill-worker stage=bids"


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


def test_abort_finds_an_expired_checkpoint(root: str) -> None:
    pipeline = a_pipeline(timeout=timedelta(milliseconds=10))
    TriggerOperator(task_id="trigger", pipeline=pipeline).execute(a_context())
    time.sleep(0.02)

    abort(states={"bids.await_acks": "failed"})

    failed = a_job(root).state().failed
    assert [f.reason for f in failed] == [CheckpointFailureReason.CHECKPOINT_EXPIRED]


def test_abort_and_callback_in_any_order_fail_the_job_over_once(root: str) -> None:
    trigger()
    context = a_context(task_id="bids.snapshot") | {"exception": StageFailed("boom")}

    abort_on_failure(PIPELINE)(context)
    abort(states={"bids.snapshot": "failed"})
    abort_on_failure(PIPELINE)(context)

    state = a_job(root).state()
    assert state.status is JobStatus.RESTARTING
    assert state.restarts.failures == 1
    assert [f.message for f in state.failed] == ["the snapshot task of stage 'bids' failed: boom"]


def test_restart_asks_for_the_restore_dag_with_an_id_made_of_the_failure(root: str) -> None:
    trigger()
    abort(states={"bids.snapshot": "failed"})
    restart = RestartOperator(task_id="restart", pipeline=PIPELINE)

    asked = []
    for _ in range(2):
        with pytest.raises(DagRunTriggerException) as caught:
            restart.execute(a_context())
        asked.append((caught.value.trigger_dag_id, caught.value.dag_run_id, caught.value.conf))

    state = a_job(root).state()
    run_id = f"failover__generation-1__{state.restart_at_ms}"
    assert asked == [("demo__restore", run_id, {"target": "latest", "only_generation": 1})] * 2


def test_restart_does_nothing_while_the_job_runs(root: str) -> None:
    trigger()

    with pytest.raises(AirflowSkipException, match="the job is RUNNING: nothing to restore"):
        RestartOperator(task_id="restart", pipeline=PIPELINE).execute(a_context())


def test_restore_continues_the_job_once(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    trigger(run_id="run-2")
    abort(run_id="run-2", states={"bids.snapshot": "failed"})
    context = a_context(params=RESTORE | {"only_generation": 1})
    restore = RestoreOperator(task_id="restore", pipeline=PIPELINE)

    verified = verify(params=context["params"])
    restored = restore.execute(context)
    with pytest.raises(AirflowSkipException, match="generation 2 already"):
        restore.execute(context)

    assert verified == {"checkpoint_id": 1, "bytes": 0}
    assert restored == {"checkpoint_id": 1, "savepoint": None, "generation": 2}
    assert a_job(root).state().status is JobStatus.RUNNING


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"target": "checkpoint"}, "checkpoint_id is empty"),
        ({"target": "savepoint"}, "savepoint is empty"),
        ({"target": "checkpoint", "checkpoint_id": 9}, "does not exist"),
        ({"target": "savepoint", "savepoint": "none-such"}, "does not exist"),
        ({"target": "newest"}, "choose latest, checkpoint or savepoint"),
    ],
)
def test_verify_names_what_is_wrong_with_the_form(
    root: str, form: dict[str, object], sentence: str
) -> None:
    trigger()

    with pytest.raises(AirflowFailException, match=sentence):
        VerifyOperator(task_id="verify", pipeline=PIPELINE).execute(
            a_context(params=RESTORE | form)
        )


def test_a_savepoint_waits_for_the_pending_checkpoint(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger(run_id="run-1")
    job = a_job(root)

    def finish_the_pending_one(seconds: float) -> None:
        acknowledge(job, 1, "bids", 0, 1)
        acknowledge(job, 1, "by_auction", 0, 1)
        finalize(run_id="run-1")

    monkeypatch.setattr("sluice_airflow.operators.time.sleep", finish_the_pending_one)
    save = TriggerSavepointOperator(task_id="trigger", pipeline=PIPELINE)
    save.execute(a_context(run_id="manual__1:2+00", params={"name": None, "stop": "suspend"}))

    pending = job.state().pending[0]
    assert (pending.checkpoint_id, pending.type.value) == (2, "SAVEPOINT_SUSPEND")
    assert pending.savepoint_name == "manual__1-2-00"


def test_a_savepoint_of_a_job_that_is_not_running_fails(root: str) -> None:
    trigger()
    stop(a_job(root), JobStatus.SUSPENDED)
    save = TriggerSavepointOperator(task_id="trigger", pipeline=PIPELINE)

    with pytest.raises(AirflowFailException, match="the job is SUSPENDED"):
        save.execute(a_context(run_id="run-2", params={"name": "one", "stop": "none"}))


def test_a_savepoint_is_never_overwritten(root: str, spark: StandInSpark) -> None:
    trigger(run_id="run-0")
    abort(run_id="run-0", states={"finalize": "failed"})
    RestoreOperator(task_id="restore", pipeline=PIPELINE).execute(a_context(params=RESTORE))
    save = TriggerSavepointOperator(task_id="trigger", pipeline=PIPELINE)
    form = {"name": "one", "stop": "none"}
    save.execute(a_context(run_id="run-1", params=form))
    snapshot("bids", run_id="run-1")
    snapshot("by_auction", run_id="run-1")
    finalize(run_id="run-1")
    commit(run_id="run-1")

    with pytest.raises(AirflowFailException, match="'one' exists"):
        save.execute(a_context(run_id="run-2", params=form))


def test_the_watchdog_looks_at_every_job_before_it_names_the_broken_one(root: str) -> None:
    broken, late = a_pipeline("broken"), a_pipeline("late")
    TriggerOperator(task_id="trigger", pipeline=late).execute(a_context(dag_id="late"))
    decline(a_job(root, late), 1, "bids", 0)
    job = a_job(root, broken)
    job.store.put(job.paths.journal_entry(1), b"not an entry")
    watch = WatchOperator(
        task_id="watch", load=lambda: {"broken": broken, "late": late, "new": a_pipeline("new")}
    )

    with pytest.raises(AirflowFailException, match="cannot watch broken: "):
        watch.execute(a_context())

    failed = a_job(root, late).state().failed
    assert [f.reason for f in failed] == [CheckpointFailureReason.CHECKPOINT_DECLINED]
