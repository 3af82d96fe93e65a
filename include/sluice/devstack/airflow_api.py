"""A client of Airflow's REST API, with the calls that the demo, tests and the CLI need.

It is used over loopback only, where ``simple_auth_manager_all_admins`` makes every client an admin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self, TypeAlias, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from sluice.errors import ConfigurationError, StoreUnavailable

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"

_T = TypeVar("_T")
_ANSWER_TIMEOUT_S = 30.0  # The first request after a start imports half of Airflow.
_BUILD_TIMEOUT_S = 120.0
_POLL_S = 0.2
_BUSY_RETRIES = 10
_PAGE = 100  # Airflow's own maximum.


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


@dataclass(frozen=True, slots=True)
class _Token:
    access_token: str


@dataclass(frozen=True, slots=True)
class _DagFile:
    file_token: str


@dataclass(frozen=True, slots=True)
class _Runs:
    dag_runs: list[DagRun]


@dataclass(frozen=True, slots=True)
class _Component:
    status: str | None = None


@dataclass(frozen=True, slots=True)
class _Health:
    metadatabase: _Component
    scheduler: _Component
    triggerer: _Component
    dag_processor: _Component | None = None


class AirflowApi:
    """A client of one Airflow; use it as a context manager, or close it."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        # trust_env=False: no proxy of the environment for loopback.
        self._http = httpx.Client(base_url=base_url, timeout=_ANSWER_TIMEOUT_S, trust_env=False)
        self._token: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        """Whether Airflow is healthy, and its first task will not wait for the API server.

        The server builds the API for tasks at its first request, which takes 7 to 12 s; requested
        early, that happens while the scheduler is still starting.
        """
        try:
            answer = self._http.get("/execution/health", timeout=_BUILD_TIMEOUT_S)
        except httpx.TransportError:
            return False
        return answer.is_success and self.is_healthy()

    def is_healthy(self) -> bool:
        """Whether scheduler, triggerer and DAG processor have heartbeats; False if unreachable."""
        try:
            answer = self._http.get("/api/v2/monitor/health")
            health = msgspec.json.decode(answer.content, type=_Health)
        except (httpx.TransportError, msgspec.MsgspecError):
            return False
        parts = (health.metadatabase, health.scheduler, health.triggerer, health.dag_processor)
        return all(part is not None and part.status == "healthy" for part in parts)

    def knows(self, dag_id: str) -> bool:
        """Whether the DAG was parsed and stored."""
        return self._call("GET", _dag(dag_id), missing_ok=True) is not None

    def wait_until_known(self, dag_id: str, *, timeout_s: float = 120.0) -> None:
        self._wait(lambda: self.knows(dag_id), f"DAG {dag_id!r} did not appear", timeout_s)

    def unpause(self, dag_id: str) -> None:
        """Airflow watches for the events of a DAG once it has parsed its file: have it done now."""
        patched = self._must("PATCH", _dag(dag_id), body={"is_paused": False})
        token = _decoded(patched, _DagFile).file_token
        self._send("PUT", f"/api/v2/parseDagFile/{token}", None)  # Refused if it is asked already.

    def pause(self, dag_id: str) -> None:
        self._call("PATCH", _dag(dag_id), body={"is_paused": True})

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
        return _decoded(self._must("POST", f"{_dag(dag_id)}/dagRuns", body=body), DagRun)

    def dag_run(self, dag_id: str, run_id: str) -> DagRun | None:
        content = self._call("GET", _run(dag_id, run_id), missing_ok=True)
        return None if content is None else _decoded(content, DagRun)

    def runs(self, dag_id: str) -> list[DagRun]:
        """Return the latest runs, newest first."""
        path = f"{_dag(dag_id)}/dagRuns?order_by=-run_after&limit={_PAGE}"
        return _decoded(self._must("GET", path), _Runs).dag_runs

    def _must(
        self, method: str, path: str, *, body: Mapping[str, JsonValue] | None = None
    ) -> bytes:
        content = self._call(method, path, body=body)
        assert content is not None
        return content

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, JsonValue] | None = None,
        missing_ok: bool = False,
    ) -> bytes | None:
        answer = self._send(method, path, body)
        if answer.status_code == httpx.codes.UNAUTHORIZED:  # The token expired.
            self._token = None
            answer = self._send(method, path, body)
        for _ in range(_BUSY_RETRIES):
            if not answer.is_server_error:
                break
            time.sleep(1)  # SQLite was locked by the scheduler, and the call was rolled back.
            answer = self._send(method, path, body)
        if missing_ok and answer.status_code == httpx.codes.NOT_FOUND:
            return None
        if answer.is_error:
            raise ConfigurationError(
                f"Airflow refused {method} {path} with {answer.status_code}: {answer.text[:300]}"
            )
        return answer.content

    def _send(self, method: str, path: str, body: Mapping[str, JsonValue] | None) -> httpx.Response:
        try:
            if self._token is None:
                token = self._http.get("/auth/token").raise_for_status()
                self._token = _decoded(token.content, _Token).access_token
            headers = {"Authorization": f"Bearer {self._token}"}
            return self._http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise StoreUnavailable(
                f"Airflow at {self.base_url} does not answer ({error})"
            ) from error

    def _wait(self, is_true: Callable[[], bool], complaint: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_true():
            if time.monotonic() > deadline:
                raise ConfigurationError(f"{complaint} within {timeout_s:.0f} s")
            time.sleep(_POLL_S)


def _dag(dag_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id, safe='')}"


def _run(dag_id: str, run_id: str) -> str:
    return f"{_dag(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _decoded(content: bytes, kind: type[_T]) -> _T:
    return msgspec.json.decode(content, type=kind)
