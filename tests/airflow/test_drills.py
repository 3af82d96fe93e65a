"""Drills: a run's form plants a fault where the deployment allows it, and nowhere else."""

from __future__ import annotations

import os
import signal

import pytest

from sluice.core.configuration import JobStatus
from sluice_airflow.acts import VerifyOperator
from sluice_airflow.compat import AirflowFailException
from sluice_airflow.dag_factory import build_dags
from sluice_airflow.operators import CheckpointOperator
from sluice_airflow.trigger_task import TriggerOperator
from tests.airflow.acts import RESTORE, execute, snapshot, trigger
from tests.airflow.stand_in import StandInSpark, a_job, a_pipeline
from tests.patching import replace_in


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
