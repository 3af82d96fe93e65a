"""A client of the local stack's Airflow that also asks what only tests and benchmarks ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from sluice.devstack import airflow
from sluice.devstack.airflow import JsonValue

_PAGE = 100  # Airflow's own maximum.
_ANSWER_TIMEOUT_S = 240.0  # Beside all other tests, on a machine that is ten times slower.
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DagRun:
    """One run of a DAG, as the API returns it."""

    dag_id: str
    dag_run_id: str
    state: str
    run_type: str
    queued_at: datetime | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    note: str | None = None

    @property
    def is_finished(self) -> bool:
        return self.state in {"success", "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInstance:
    """The latest try of one task of a run; ``state`` is None before it is scheduled."""

    task_id: str
    map_index: int
    try_number: int
    state: str | None = None
    start_date: datetime | None = None
    end_date: datetime | None = None
    duration: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetEvent:
    """An asset event; ``extra`` is the task's data."""

    uri: str
    extra: dict[str, Any]
    source_run_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Runs:
    dag_runs: list[DagRun]


@dataclass(frozen=True, slots=True)
class _TaskInstances:
    task_instances: list[TaskInstance]


@dataclass(frozen=True, slots=True)
class _AssetEvents:
    asset_events: list[AssetEvent]


@dataclass(frozen=True, slots=True)
class _XCom:
    value: Any


class AirflowApi(airflow.AirflowApi):
    def __init__(self, base_url: str) -> None:
        super().__init__(base_url)
        self._http.timeout = _ANSWER_TIMEOUT_S

    def trigger(
        self,
        dag_id: str,
        *,
        conf: Mapping[str, JsonValue] | None = None,
        run_id: str | None = None,
    ) -> DagRun:
        """Start a run, or return the existing run of that id."""
        if run_id is not None:
            existing = self.dag_run(dag_id, run_id)
            if existing is not None:
                return existing
        body: dict[str, JsonValue] = {"logical_date": None, "conf": dict(conf or {})}
        if run_id is not None:
            body["dag_run_id"] = run_id
        started = self._must("POST", f"{_dag(dag_id)}/dagRuns", body=body)
        return msgspec.json.decode(started, type=DagRun)

    def dag_run(self, dag_id: str, run_id: str) -> DagRun | None:
        content = self._call("GET", _run(dag_id, run_id), missing_ok=True)
        return None if content is None else msgspec.json.decode(content, type=DagRun)

    def runs(self, dag_id: str) -> list[DagRun]:
        """Return the latest runs, newest first."""
        path = f"{_dag(dag_id)}/dagRuns?order_by=-run_after&limit={_PAGE}"
        return self._get(path, _Runs).dag_runs

    def delete_run(self, dag_id: str, run_id: str) -> None:
        self._call("DELETE", _run(dag_id, run_id), missing_ok=True)

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """End the run by hand, as *state*: success or failed."""
        self._call("PATCH", _run(dag_id, run_id), body={"state": state})

    def task_instances(self, dag_id: str, run_id: str) -> list[TaskInstance]:
        path = f"{_run(dag_id, run_id)}/taskInstances?limit={_PAGE}"
        return self._get(path, _TaskInstances).task_instances

    def asset_events(self, dag_id: str) -> list[AssetEvent]:
        """The asset events of the DAG's tasks, newest first."""
        path = f"/api/v2/assets/events?source_dag_id={quote(dag_id)}&order_by=-timestamp"
        return self._get(f"{path}&limit={_PAGE}", _AssetEvents).asset_events

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str) -> Any:
        path = f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}/xcomEntries/{key}"
        return self._get(path, _XCom).value

    def wait_until_finished(self, dag_id: str, run_id: str, *, timeout_s: float = 300.0) -> DagRun:
        """Return the run once it succeeded or failed."""
        self._wait(
            lambda: (run := self.dag_run(dag_id, run_id)) is not None and run.is_finished,
            f"run {run_id!r} of DAG {dag_id!r} did not finish",
            timeout_s,
        )
        run = self.dag_run(dag_id, run_id)
        assert run is not None
        return run

    def _get(self, path: str, kind: type[_T]) -> _T:
        return msgspec.json.decode(self._must("GET", path), type=kind)


def _dag(dag_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id, safe='')}"


def _run(dag_id: str, run_id: str) -> str:
    return f"{_dag(dag_id)}/dagRuns/{quote(run_id, safe='')}"
