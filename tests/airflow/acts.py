"""The tasks as functions: each builds its operator and executes it in a made-up context.

They return what Airflow would keep as the task's result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sluice_airflow.acts import AbortOperator, VerifyOperator
from sluice_airflow.notes import NOTE_KEY, SILENCE_KEY, SWITCH_KEY, Switch
from sluice_airflow.operators import CommitOperator, FinalizeOperator, assets_of
from sluice_airflow.stage import SnapshotOperator
from sluice_airflow.trigger_task import TriggerOperator
from tests.airflow.stand_in import a_pipeline

PIPELINE = a_pipeline()


@dataclass
class ATaskInstance:
    dag_id: str = "demo"
    run_id: str = "run-1"
    task_id: str = "a_task"
    try_number: int = 1
    states: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    silences: list[str] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)

    def xcom_push(self, *, key: str, value: Any) -> None:
        kept: dict[str, list[Any]] = {
            NOTE_KEY: self.said,
            SILENCE_KEY: self.silences,
            SWITCH_KEY: self.switches,
        }
        kept[key].append(value)

    def get_task_states(self, *, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        assert (dag_id, run_ids) == (self.dag_id, [self.run_id])
        return {self.run_id: self.states}


def a_context(**changes: Any) -> dict[str, Any]:
    ti = ATaskInstance(**{k: v for k, v in changes.items() if k in ATaskInstance.__annotations__})
    return {
        "ti": ti,
        "run_id": ti.run_id,
        "dag_run": SimpleNamespace(run_type=changes.get("run_type", "scheduled")),
        "params": changes.get("params", {}),
        "outlet_events": {asset: SimpleNamespace(extra={}) for asset in assets_of(PIPELINE)},
        "triggering_asset_events": changes.get("events", {}),
    }


RESTORE = {
    "target": "latest",
    "checkpoint_id": None,
    "savepoint": None,
    "allow_non_restored_state": False,
    "only_generation": None,
}


def trigger(**context: Any) -> Any:
    return TriggerOperator(task_id="trigger", pipeline=PIPELINE).execute(a_context(**context))


def snapshot(stage: str, **context: Any) -> Any:
    task = SnapshotOperator(task_id="snapshot", pipeline=PIPELINE, stage=stage)
    return task.execute(a_context(**context))


def finalize(**context: Any) -> Any:
    return FinalizeOperator(task_id="finalize", pipeline=PIPELINE).execute(a_context(**context))


def commit(**context: Any) -> Any:
    return CommitOperator(task_id="commit", pipeline=PIPELINE).execute(a_context(**context))


def abort(**context: Any) -> Any:
    return AbortOperator(task_id="abort", pipeline=PIPELINE).execute(a_context(**context))


def verify(**context: Any) -> Any:
    return VerifyOperator(task_id="verify", pipeline=PIPELINE).execute(a_context(**context))


def a_checkpoint(run_id: str) -> None:
    trigger(run_id=run_id)
    snapshot("bids", run_id=run_id)
    snapshot("by_auction", run_id=run_id)
    finalize(run_id=run_id)
    commit(run_id=run_id)
