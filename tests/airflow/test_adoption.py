"""What people ask for outside of Airflow is carried out by runs of the DAGs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse

from sluice.coordinator.requests import UserRequest, request_checkpoint
from sluice.coordinator.trigger import trigger as trigger_checkpoint
from sluice.core.configuration import CheckpointType
from sluice.core.decider import CheckpointRequest
from sluice_airflow.compat import AirflowRescheduleException, AirflowSkipException
from sluice_airflow.trigger_task import TriggerSavepointOperator
from tests.airflow.acts import PIPELINE, a_checkpoint, a_context, complete, trigger, watch
from tests.airflow.stand_in import StandInSpark, a_job


def asked(root: str, name: str | None = "mine") -> CheckpointRequest:
    type_ = CheckpointType.CHECKPOINT if name is None else CheckpointType.SAVEPOINT
    return request_checkpoint(a_job(root), UserRequest(by="ada", type=type_, name=name))


def a_run_for(request: CheckpointRequest, run_id: str = "request-1") -> dict[str, Any]:
    params = {"request": request.request_id, "name": None, "stop": "none"}
    return a_context(dag_id="demo__savepoint", run_id=run_id, run_type="manual", params=params)


def test_a_periodic_run_takes_the_request_up(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    asked(root)

    taken = trigger(run_id="run-2")
    complete("run-2")

    assert (taken["checkpoint_id"], taken["type"]) == (2, "SAVEPOINT")
    assert a_job(root).savepoint_metadata("mine").checkpoint_id == 2


def test_a_run_for_the_request_carries_it_out_once(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")
    request = asked(root, name=None)
    task = TriggerSavepointOperator(task_id="trigger", pipeline=PIPELINE)

    first = task.execute(a_run_for(request))
    again = task.execute(a_run_for(request))  # It was killed before it could say so.
    with pytest.raises(AirflowSkipException, match="it is IN_PROGRESS, checkpoint 2"):
        task.execute(a_run_for(request, "request-2"))

    assert (first["checkpoint_id"], first["type"], again["checkpoint_id"]) == (2, "CHECKPOINT", 2)
    assert a_job(root).state().pending[0].cause == "airflow:demo__savepoint/request-1"


def test_a_run_whose_request_is_not_due_gives_its_slot_back(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_airflow.trigger_task.WAIT_IN_SLOT_S", 0.0)
    a_checkpoint("run-1")
    trigger(run_id="run-2")
    request = asked(root)

    with pytest.raises(AirflowRescheduleException):
        TriggerSavepointOperator(task_id="trigger", pipeline=PIPELINE).execute(a_run_for(request))


class Supervisor:
    """The process that a task asks for runs: it starts each once."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[str, Any]] = {}

    def send(self, message: Any) -> ErrorResponse | None:
        if message.run_id in self.runs:
            return ErrorResponse.model_construct(error="DAGRUN_ALREADY_EXISTS")
        self.runs[message.run_id] = (message.dag_id, message.conf)
        return None


def test_the_watchdog_starts_a_run_for_a_request_and_leaves_other_hosts_alone(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    airflow = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", airflow, raising=False)
    a_checkpoint("run-1")
    request = asked(root)

    first = watch()
    second = watch()

    assert airflow.runs == {
        f"request__{request.request_id}": ("demo__savepoint", {"request": request.request_id})
    }
    assert first == ["demo: started a run of demo__savepoint, asked for by ada"]
    assert second == []
    trigger_checkpoint(a_job(root), cause="sluice run")
    asked(root, "theirs")
    assert watch() == []


def test_a_watchdog_to_which_airflow_does_not_answer_goes_on(
    root: str, spark: StandInSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(_: object) -> None:
        raise RuntimeError("no such DAG")

    monkeypatch.setattr(
        task_runner, "SUPERVISOR_COMMS", SimpleNamespace(send=refuses), raising=False
    )
    a_checkpoint("run-1")
    asked(root)

    assert watch() == []
