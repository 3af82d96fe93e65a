"""Cancel, the whole restore form, savepoints that go elsewhere, and runs that were abandoned."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.execution_time.timeout import timeout

from sluice import Append
from sluice.coordinator.restore import stop
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import JobStatus
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId, SavepointId
from sluice.declaration.checkpointing import no_restart
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.store.open import StoreLocation
from sluice.store.savepoints import SavepointStore
from sluice.surface.acts import STAY_SUSPENDED
from sluice_airflow.acts import AbortOperator, CancelOperator, ExportOperator, RestoreOperator
from sluice_airflow.compat import (
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
    AirflowTaskTimeout,
)
from sluice_airflow.operators import CheckpointOperator
from sluice_airflow.stage import CancelStagesOperator, SnapshotOperator
from sluice_airflow.trigger_task import WAIT_IN_SLOT_S, TriggerOperator
from tests.airflow.acts import (
    PIPELINE,
    RESTORE,
    ATaskInstance,
    a_checkpoint,
    a_context,
    a_savepoint,
    abort,
    execute,
    executed,
    restore,
    trigger,
    trigger_savepoint,
    verify,
    watch,
)
from tests.airflow.stand_in import StandInSpark, a_job, a_pipeline
from tests.patching import replace_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def test_cancel_ends_the_job_and_says_what_is_left(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    trigger(run_id="run-2")

    result, said = executed(CancelOperator)

    assert result == {"status": "CANCELED", "aborted": "2", "retained": "1"}
    assert said == "the job is CANCELED; retained checkpoints: 1"
    assert a_job(root).state().status is JobStatus.CANCELED
    with pytest.raises(AirflowSkipException, match="CANCELED already"):
        execute(CancelOperator)


def test_what_never_ran_is_not_cancelled(root: str) -> None:
    with pytest.raises(AirflowSkipException, match="never submitted"):
        execute(CancelOperator)


def test_a_cancelled_job_is_restored(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    execute(CancelOperator)

    result, said = restore("again")

    assert result == {
        "checkpoint_id": 1, "savepoint": None, "generation": 2, "status": "RUNNING"
    }  # fmt: skip
    assert said == "restored checkpoint 1, generation 2; RUNNING"


def test_a_dry_run_changes_nothing(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    before = a_job(root).state()

    verify(dry_run=True)
    with pytest.raises(AirflowSkipException, match="a dry run"):
        restore("dry", dry_run=True)

    assert a_job(root).state() == before


def test_a_restored_job_may_stay_suspended_and_goes_on_from_there(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")
    a_checkpoint("run-2")

    _, said = restore("first", target="checkpoint", checkpoint_id=1, then=STAY_SUSPENDED)
    with pytest.raises(AirflowSkipException, match="the job is SUSPENDED"):
        trigger(run_id="run-3")
    resumed, _ = restore("second")

    assert said == (
        "restored checkpoint 1, generation 2; SUSPENDED; table 'counts' is ahead by 1 checkpoint "
        "(2); its next commit rolls it back, rolling tables back does so at once"
    )
    assert resumed["checkpoint_id"] == 1
    assert trigger(run_id="run-4")["parent"] == 1


def test_parallelism_is_given_per_stage_and_stays(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    job = a_job(root)

    restore("first", parallelism="by_auction=4")
    restore("second", parallelism=" 3 ")
    restore("third")
    trigger(run_id="run-2")

    tasks = job.state().pending[0].tasks
    assert {task.uid: task.parallelism for task in tasks} == {"bids": 3, "by_auction": 4}


def test_a_savepoint_goes_to_another_root_and_is_restored_from_there(
    root: str, spark: StandInSpark, tmp_path: Path
) -> None:
    elsewhere = f"file://{tmp_path / 'elsewhere'}"
    a_checkpoint("run-1")
    form = {"name": "kept", "target": elsewhere}
    a_savepoint("kept", target=elsewhere)

    places = [execute(ExportOperator, run_id="kept", params=form) for _ in range(2)]
    result, said = restore("there", target="savepoint", savepoint="kept", root=elsewhere)

    assert places[0] == places[1]
    assert places[0].startswith(elsewhere)
    assert result["savepoint"] == "kept"
    assert elsewhere in said
    origin = a_job(root).state().origin
    assert origin is not None
    assert origin.root == elsewhere


def test_another_savepoint_of_that_name_is_not_overwritten(
    root: str, spark: StandInSpark, tmp_path: Path
) -> None:
    elsewhere = f"file://{tmp_path / 'elsewhere'}"
    a_checkpoint("run-1")
    a_savepoint("kept")
    job = a_job(root)
    another, names = (
        SavepointId("kept", "theirs"),
        SavepointStore(job.store_at(elsewhere), job.paths),
    )
    names.reserve(another, CheckpointId(7))
    names.publish(another, "digest")

    with pytest.raises(AirflowFailException, match="savepoint 'kept' exists in"):
        execute(ExportOperator, params={"name": "kept", "target": elsewhere})

    found = names.newest("kept")
    assert found is not None
    assert found.token == "theirs"


def test_a_savepoint_without_a_target_stays_where_it_is(root: str) -> None:
    with pytest.raises(AirflowSkipException, match="stays in the job's own root"):
        execute(ExportOperator, params={"name": "kept", "target": ""})


def test_a_canonical_savepoint_asks_for_merged_state(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")

    trigger_savepoint("save", "merged", format="canonical")

    plan = a_job(root).plan(CheckpointId(2))
    assert plan is not None
    assert plan.is_canonical


def test_a_task_that_hangs_is_ended_and_its_note_says_so(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(*_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # The time is up at once, and not before.
        time.sleep(600)

    monkeypatch.setattr(TriggerOperator, "act", hangs)
    limit = timedelta(minutes=5)
    task = TriggerOperator(task_id="trigger", pipeline=PIPELINE, execution_timeout=limit)
    context = a_context(run_id="run-1")

    with pytest.raises(AirflowTaskTimeout), timeout(600):  # As Airflow's task runner does.
        task.execute(context)

    assert context["ti"].notes == ["trigger took longer than 0:05:00"]


def test_a_full_checkpoint_is_asked_for_by_the_form(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")

    trigger(run_id="run-2", params={"checkpoint_type": "FULL"})

    plan = a_job(root).plan(CheckpointId(2))
    assert plan is not None
    assert plan.is_full


def test_a_forced_savepoint_does_not_wait_for_the_checkpoint_before_it(root: str) -> None:
    trigger(run_id="run-1")

    trigger_savepoint("save", "now", format="native", forced=True)

    assert [(p.checkpoint_id, p.savepoint_name) for p in a_job(root).state().pending] == [
        (1, None),
        (2, "now"),
    ]


def test_who_waits_for_long_gives_its_slot_back(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trigger(run_id="run-1")
    clock = iter(n * WAIT_IN_SLOT_S / 3 for n in range(100))
    replace_in(
        monkeypatch,
        "sluice_airflow.trigger_task",
        "time",
        monotonic=lambda: next(clock),
        sleep=lambda _: None,
    )
    context = a_context(run_id="run-2")

    with pytest.raises(AirflowRescheduleException):
        TriggerOperator(task_id="trigger", pipeline=PIPELINE).execute(context)

    assert [said.partition(":")[0] for said in context["ti"].notes] == ["waiting"]
    assert [queued.cause for queued in a_job(root).state().queue] == ["airflow:demo/run-2"]


def test_stages_of_an_aborted_checkpoint_are_cancelled_on_spark(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")
    trigger(run_id="run-2")
    abort(run_id="run-2", states={"bids.snapshot": "failed"})
    task = CancelStagesOperator(task_id="cancel_stages", pipeline=PIPELINE)

    assert task.execute(a_context(run_id="run-2")) == ["2-bids", "2-by_auction"]
    assert task.execute(a_context(run_id="run-1")) == []


def seen_by_name(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("rows")
    return rows.sparkSession.table("rows")


def test_who_may_register_has_a_session_of_its_own(root: str, spark: StandInSpark) -> None:
    pipeline = a_pipeline()
    events = pipeline.source("others", Nexmark(0))
    given: dict[str, Any] = {"reads": {"rows": events}, "schema": "bid bigint", "result": Append()}
    pipeline.spark("code", lambda rows: rows, **given).sink("codes", FilesTable())
    events.transform("viewed", seen_by_name).sink("seen", FilesTable())
    execute(TriggerOperator, pipeline=pipeline, run_id="run-1")
    spark.attached.clear()

    for stage in ("bids", "code", "viewed"):
        task = SnapshotOperator(task_id="snapshot", pipeline=pipeline, stage=stage)
        task.execute(a_context(run_id="run-1"))
    abort(pipeline=pipeline, run_id="run-1", states={"by_auction.snapshot": "failed"})
    cancelled = CancelStagesOperator(task_id="cancel_stages", pipeline=pipeline).execute(
        a_context(run_id="run-1")
    )

    assert cancelled == ["1-bids", "1-by_auction", "1-code", "1-viewed"]
    place = StoreLocation(root).name  # Another root's jobs may be on the server, too.
    sessions = [f"demo.@{place}", f"demo.code@{place}", f"demo.viewed@{place}"]
    assert spark.attached == [*sessions, *sessions]


@dataclass
class AnAirflow(ATaskInstance):
    """An Airflow that answers the watchdog: how many of these runs are active, is a DAG paused."""

    active: tuple[str, ...] = ()
    paused: bool = False

    def get_dag(self, *, dag_id: str) -> SimpleNamespace:
        assert dag_id == "demo"
        return SimpleNamespace(is_paused=self.paused)

    def get_dr_count(self, *, dag_id: str, run_ids: list[str], states: list[str]) -> int:
        assert dag_id == "demo"
        assert set(states) == {"queued", "running"}
        return sum(run_id in self.active for run_id in run_ids)


def test_a_checkpoint_whose_run_was_deleted_is_aborted_and_the_job_restored(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")
    trigger(run_id="run-2")

    assert watch(AnAirflow(active=("run-2",))) == []
    actions = watch(AnAirflow())

    state = a_job(root).state()
    assert [(f.checkpoint_id, f.reason) for f in state.failed] == [
        (2, CheckpointFailureReason.TASK_FAILURE)
    ]
    assert (state.status, state.generation) == (JobStatus.RUNNING, 2)
    assert [action.partition(",")[0] for action in actions] == [
        "demo: aborted checkpoint 2: airflow:demo/run-2 ended",
        "demo: restored the job from checkpoint 1",
    ]


def test_a_paused_dag_is_named_while_it_holds_up_a_checkpoint(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[object] = []
    monkeypatch.setattr("sluice_airflow.watchdog.send_newest_trace", traced.append)
    airflow = AnAirflow(active=("run-1",), paused=True)
    idle = watch(airflow)
    trigger(run_id="run-1")

    said = watch(airflow)
    monkeypatch.delattr(AnAirflow, "get_dag")
    unknown = watch(airflow)

    sentence = "demo: the DAG demo is paused, and so is the checkpoint of run-1; unpause it in time"
    assert said == [sentence]
    assert (idle, unknown) == ([], [])
    assert traced == []  # Nothing has ended.


def test_when_airflow_cannot_say_the_timeout_decides(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise RuntimeError("the supervisor is gone")

    trigger(run_id="run-1")
    monkeypatch.setattr(AnAirflow, "get_dr_count", broken)

    assert watch(AnAirflow()) == []
    assert len(a_job(root).state().pending) == 1


OFF = {"dag_id": "demo", "is_paused": True}
ON = {"dag_id": "demo", "is_paused": False}


def switches_of(task: CheckpointOperator, **context: Any) -> list[object]:
    built = a_context(**context)
    with suppress(AirflowSkipException):
        task.execute(built)
    return list(built["ti"].switches)


def restored(**form: object) -> list[object]:
    task = RestoreOperator(task_id="restore", pipeline=PIPELINE)
    return switches_of(task, dag_id="demo__restore", params=RESTORE | form)


@pytest.mark.parametrize("status", [JobStatus.CANCELED, JobStatus.SUSPENDED])
def test_a_trigger_that_finds_its_job_stopped_switches_the_dag_off(
    root: str, status: JobStatus
) -> None:
    trigger()
    stop(a_job(root), status)
    task = TriggerOperator(task_id="trigger", pipeline=PIPELINE)

    assert switches_of(task, run_id="run-2") == [OFF]
    assert switches_of(task, run_id="run-3", dag_id="demo__savepoint") == []


@pytest.mark.parametrize(("restarts", "stored"), [(True, []), (False, [OFF])])
def test_a_failure_switches_the_dag_off_where_it_ends_the_job(
    root: str, spark: StandInSpark, restarts: bool, stored: list[object]
) -> None:
    pipeline = a_pipeline() if restarts else a_pipeline(restart_strategy=no_restart())
    submit(a_job(root, pipeline), configure(pipeline, {}))
    a_checkpoint("run-1")
    trigger(run_id="run-2")
    task = AbortOperator(task_id="abort", pipeline=pipeline)

    found = switches_of(task, run_id="run-2", dag_id="demo", states={"bids.snapshot": "failed"})

    assert found == stored
    expected = JobStatus.RESTARTING if restarts else JobStatus.FAILED
    assert a_job(root).state().status is expected


def test_a_restore_switches_on_what_had_ended_and_goes_on(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    while_running = restored()
    stop(a_job(root), JobStatus.SUSPENDED)
    to_look_first = restored(then=STAY_SUSPENDED)
    resumed = restored()

    assert (while_running, to_look_first, resumed) == ([], [], [ON])
