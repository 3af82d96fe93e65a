"""The tasks as functions: each builds its operator and executes it in a made-up context.

They return what Airflow would keep as the task's result; ``executed`` also the one note.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from airflow.sdk import Asset

from sluice.declaration.pipeline import Pipeline
from sluice_airflow.acts import AbortOperator, RestoreOperator, VerifyOperator
from sluice_airflow.notes import NOTE_KEY, SILENCE_KEY, SWITCH_KEY, Switch
from sluice_airflow.operators import CheckpointOperator, CommitOperator, FinalizeOperator, assets_of
from sluice_airflow.stage import SnapshotOperator
from sluice_airflow.trigger_task import TriggerOperator, TriggerSavepointOperator
from sluice_airflow.watchdog import WatchOperator
from tests.airflow.stand_in import a_pipeline

PIPELINE = a_pipeline()


@dataclass
class ATaskInstance:
    dag_id: str = "demo"
    run_id: str = "run-1"
    task_id: str = "a_task"
    try_number: int = 1
    states: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    silences: list[str] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)

    def xcom_push(self, *, key: str, value: Any) -> None:
        kept: dict[str, list[Any]] = {
            NOTE_KEY: self.notes,
            SILENCE_KEY: self.silences,
            SWITCH_KEY: self.switches,
        }
        kept[key].append(value)

    def get_task_states(self, *, dag_id: str, run_ids: list[str]) -> dict[str, dict[str, str]]:
        assert (dag_id, run_ids) == (self.dag_id, [self.run_id])
        return {self.run_id: self.states}


class Outlets:
    """The events by asset; in Airflow 3.1 an asset has no hash."""

    def __init__(self) -> None:
        self.by_uri = {asset.uri: SimpleNamespace(extra={}) for asset in assets_of(PIPELINE)}

    def __getitem__(self, asset: Asset) -> SimpleNamespace:
        return self.by_uri[asset.uri]


def a_context(**changes: Any) -> dict[str, Any]:
    ti = ATaskInstance(**{k: v for k, v in changes.items() if k in ATaskInstance.__annotations__})
    return {
        "ti": ti,
        "run_id": ti.run_id,
        "dag_run": SimpleNamespace(run_type=changes.get("run_type", "scheduled")),
        "params": changes.get("params", {}),
        "outlet_events": Outlets(),
        "triggering_asset_events": changes.get("events", {}),
    }


RESTORE = {
    "target": "latest",
    "checkpoint_id": None,
    "savepoint": None,
    "allow_non_restored_state": False,
    "only_generation": None,
}


def execute(
    operator: type[CheckpointOperator], *, pipeline: Pipeline = PIPELINE, **context: Any
) -> Any:
    return operator(task_id="act", pipeline=pipeline).execute(a_context(**context))


def executed(
    operator: type[CheckpointOperator], *, pipeline: Pipeline = PIPELINE, **context: Any
) -> tuple[Any, str]:
    built = a_context(**context)
    result = operator(task_id="act", pipeline=pipeline).execute(built)
    (note,) = built["ti"].notes
    return result, note


def trigger(**context: Any) -> Any:
    return execute(TriggerOperator, **context)


def trigger_savepoint(run_id: str, name: str | None, **form: object) -> Any:
    params = {"name": name, "stop": "none"} | form
    return execute(TriggerSavepointOperator, run_id=run_id, params=params)


def snapshot(stage: str, **context: Any) -> Any:
    task = SnapshotOperator(task_id="snapshot", pipeline=PIPELINE, stage=stage)
    return task.execute(a_context(**context))


def finalize(**context: Any) -> Any:
    return execute(FinalizeOperator, **context)


def commit(**context: Any) -> Any:
    return execute(CommitOperator, **context)


def abort(**context: Any) -> Any:
    return execute(AbortOperator, **context)


def verify(**form: object) -> Any:
    return execute(VerifyOperator, params=RESTORE | form)


def restore(run_id: str, **form: object) -> tuple[Any, str]:
    """The result, and the note."""
    return executed(RestoreOperator, run_id=run_id, params=RESTORE | form)


def watch(ti: ATaskInstance | None = None, **pipelines: Pipeline) -> list[str]:
    task = WatchOperator(task_id="watch", load=lambda: pipelines or {"demo": PIPELINE})
    return task.execute(a_context() | ({} if ti is None else {"ti": ti}))


def a_checkpoint(run_id: str) -> None:
    trigger(run_id=run_id)
    complete(run_id)


def a_savepoint(name: str, **form: object) -> None:
    """By a run of that name."""
    trigger_savepoint(name, name, **form)
    complete(name)


def complete(run_id: str) -> None:
    """The rest of a run, once it has triggered."""
    for stage in PIPELINE.stages:
        snapshot(stage, run_id=run_id)
    finalize(run_id=run_id)
    commit(run_id=run_id)
