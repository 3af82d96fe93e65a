"""What is broken, and how: a fault that the run's form injects, or a strike from outside while the
tasks at all points stand still.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.airflow_api import AirflowApi
from harness.own_stack import own_stack
from sluice.devstack import processes, stack
from sluice.devstack.child import COMPONENT_VARIABLE
from sluice.devstack.processes import STACK_ID_VARIABLE
from sluice.devstack.stack import Stack, StackOptions, sluice_folder
from sluice.store.open import StoreLocation
from tests.chaos.under_fire import (
    FIRST_STAGE,
    FOLDER_VARIABLE,
    POINTS,
    SECOND_STAGE,
    TIMEOUT,
    uid_of,
)

REPOSITORY = Path(__file__).resolve().parents[2]

HANG_S = 75  # Until the slowest of six jobs stands, too; less than the checkpoint timeout.
OUTAGE_S = 60
IN_SPARK = ("snapshot", "await")  # Where subtasks are at work, and may decline or die.
TASK = {
    "trigger": "task=trigger when=after",  # The checkpoint is pending.
    "snapshot": f"stage={FIRST_STAGE}",  # No subtask has acknowledged.
    "await": f"stage={SECOND_STAGE}",  # The first stage has; the second's sensor waits.
    "finalize": "task=finalize",  # All have acknowledged.
    "commit": "task=commit",  # It is completed, and nothing is published.
    "restore": "task=restore",  # Verified, not fenced.
}
TASK_ID = {
    "snapshot": f"{FIRST_STAGE}.snapshot",
    "await": f"{SECOND_STAGE}.snapshot",
}


@dataclass(frozen=True, slots=True)
class Struck:
    """One run that was stopped, or struck, at its point."""

    point: str
    dag_id: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Field:
    """The processes and jobs that a strike may use."""

    running: Stack
    airflow: AirflowApi
    options: StackOptions
    extra_env: dict[str, str]

    @property
    def location(self) -> StoreLocation:
        """With the endpoint, by which clients are kept: this process may have had another stack."""
        root = self.running.client_env["SLUICE_ROOT"]
        return StoreLocation(root=root, endpoint_url=self.running.s3_url)

    def component(self, name: str) -> None:
        """Kill one component of Airflow; what it forked dies when it is started anew."""
        mark = f"{COMPONENT_VARIABLE}={name}".encode()
        stack_id = f"{STACK_ID_VARIABLE}={self._stack_id()}".encode()
        marked = {
            info.pid
            for info in processes.all_processes()
            if processes.carries(info.pid, mark) and processes.carries(info.pid, stack_id)
        }
        first = min(marked)  # It forked all others.
        os.kill(first, signal.SIGKILL)

    def _stack_id(self) -> str:
        recorded = stack.read_stack_file(sluice_folder(self.running.root_dir))
        assert recorded is not None
        return recorded.stack_id

    def service(self, name: str, *, down_s: float = 0) -> threading.Thread:
        """Kill a service; what starts it anew is what a process manager would do."""
        record = next(one for one in self.running.records if one.name == name)
        os.killpg(record.pid, signal.SIGKILL)

        def restart() -> None:
            time.sleep(down_s)
            stack.start_stack(self.running.root_dir, options=self.options, extra_env=self.extra_env)

        thread = threading.Thread(target=restart)
        thread.start()
        return thread


@contextmanager
def own_field(root: Path, options: StackOptions, **env: str) -> Iterator[Field]:
    """A stack of one's own, whose Airflow watches a folder for files; this process builds the
    pipelines, too.
    """
    arrivals = root / "arrivals"
    arrivals.mkdir()
    extra_env = {
        FOLDER_VARIABLE: str(arrivals),
        "SLUICE_CACHE_DIR": str(root / "cache"),
        "PYTHONPATH": f"{REPOSITORY / 'include'}{os.pathsep}{REPOSITORY}",
        **env,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(arrivals))
        with (
            own_stack(root, options, extra_env) as started,
            AirflowApi(started.airflow_url) as airflow,
        ):
            yield Field(started, airflow, options, extra_env)


Strike = Callable[[Field, Sequence[Struck]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """``fault`` is what a run's form asks for at a point; ``strike`` comes from outside."""

    name: str
    fault: Callable[[str], str]
    strike: Strike | None = None
    points: tuple[str, ...] = POINTS


def _hang(point: str, seconds: int = HANG_S) -> str:
    return f"hang {TASK[point]} tries=1 seconds={seconds}"


def _hang_within(point: str) -> str:
    """Where a Spark job is at work, within it."""
    if point not in IN_SPARK:
        return _hang(point)
    return f"hang-worker {TASK[point]} seconds={HANG_S}"


def _each(act: Callable[[Field, Struck], None]) -> Strike:
    def strike(on: Field, struck: Sequence[Struck]) -> None:
        for one in struck:
            act(on, one)

    return strike


def _delete(on: Field, one: Struck) -> None:
    """Airflow deletes no running run, so a person ends it first."""
    on.airflow.mark_run(one.dag_id, one.run_id, "failed")
    on.airflow.delete_run(one.dag_id, one.run_id)


def _pause(on: Field, one: Struck) -> None:
    on.airflow.pause(one.dag_id)

    def unpause() -> None:
        time.sleep(TIMEOUT.total_seconds() + 70)
        on.airflow.unpause(one.dag_id)

    threading.Thread(target=unpause, daemon=True).start()


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="exception",
            fault=lambda point: (
                f"{'fail-worker' if point in IN_SPARK else 'fail-task'} {TASK[point]}"
            ),
        ),
        Kind(name="decline", fault=lambda point: f"decline {TASK[point]}", points=IN_SPARK),
        Kind(
            name="python-worker-killed",
            fault=lambda point: f"kill-worker {TASK[point]}",
            points=IN_SPARK,
        ),
        Kind(name="task-killed", fault=lambda point: f"kill-task {TASK[point]} tries=1"),
        Kind(
            name="supervisor-killed", fault=lambda point: f"kill-supervisor {TASK[point]} tries=1"
        ),
        Kind(
            name="spark-killed",
            fault=_hang_within,
            strike=lambda on, _: on.service("spark").join(),
        ),
        Kind(name="scheduler-killed", fault=_hang, strike=lambda on, _: on.component("scheduler")),
        Kind(name="triggerer-killed", fault=_hang, strike=lambda on, _: on.component("triggerer")),
        Kind(name="run-deleted", fault=_hang, strike=_each(_delete)),
        Kind(
            name="run-marked-success",
            fault=_hang,
            strike=_each(lambda on, one: on.airflow.mark_run(one.dag_id, one.run_id, "success")),
        ),
        Kind(
            name="run-marked-failed",
            fault=_hang,
            strike=_each(lambda on, one: on.airflow.mark_run(one.dag_id, one.run_id, "failed")),
        ),
        Kind(
            name="store-down",
            fault=_hang,
            strike=lambda on, _: on.service("s3", down_s=OUTAGE_S).join(),
        ),
        Kind(
            name="checkpoint-timeout",
            fault=lambda point: _hang(point, int(TIMEOUT.total_seconds()) + 30),
        ),
        Kind(name="dag-paused", fault=_hang, strike=_each(_pause)),
    )
}


def task_id_of(point: str) -> str:
    return TASK_ID.get(point, point)


def dag_of(point: str) -> str:
    return f"{uid_of(point)}__restore" if point == "restore" else uid_of(point)
