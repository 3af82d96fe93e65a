"""Faults, each provoked: the first screen says it, and what it names as the next step, done to the
letter, is the way out.  How soon is logged: an epoch has to meet some of them first.

The first screen is what the overview asks the REST API for.  What ``sluice checkpoints list``
prints is logged beside it.  The faults are of a stack of this module's own; its disk that gets full
is a small file system in memory, which only root may mount.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest

from harness.airflow_api import AirflowApi
from harness.own_stack import own_stack
from harness.postgres_database import Database, running_postgres
from sluice.coordinator.submission import configure, submit
from sluice.declaration.project import PIPELINES_VARIABLE, load_pipeline
from sluice.devstack import processes
from sluice.devstack.child import COMPONENT_VARIABLE
from sluice.devstack.stack import Stack, StackOptions
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from tests.e2e.conftest import REPOSITORY

log = logging.getLogger(__name__)

pytestmark = pytest.mark.skipif(os.environ.get("SLUICE_E2E") != "all", reason="make e2e runs it")

STRUCK_WITHIN_S = 300.0  # Until an epoch has met the fault, on a busy machine.
CURED_WITHIN_S = 600.0

HEAD = """
from datetime import timedelta

from sluice import Checkpointing, Pipeline, env
from sluice import aggregates as agg
from sluice.declaration.checkpointing import fixed_delay
from sluice.sinks import FilesTable, PostgresTable
from sluice.sources import Files, Nexmark

OFTEN = Checkpointing(
    interval=timedelta(seconds=3),
    max_records_per_epoch=2_000,
    restart_strategy=fixed_delay(attempts=1, delay=timedelta(seconds=15)),
)
"""
COUNTED = """
pipeline = Pipeline("{uid}", checkpointing=OFTEN, parallelism=1)
rows = pipeline.source("rows", {source})
rows.key_by("{key}").aggregate("count", n=agg.count()).sink("counts", {sink})
"""
JSON_FILES = "Files({folder!r}, format='json', schema='word string', bounded=False)"


@dataclass(kw_only=True)
class Ground:
    """The stack, the places that its jobs read and write, and the jobs that have begun."""

    running: Stack
    airflow: AirflowApi
    folder: Path
    database: Database
    env: dict[str, str]
    asking: httpx.Client
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])

    def job(self, uid: str) -> Job:
        """A job that goes on, and has completed a checkpoint."""
        if uid not in self.jobs:
            location = StoreLocation(
                root=self.running.client_env["SLUICE_ROOT"], endpoint_url=self.running.s3_url
            )
            self.feed(uid)
            pipeline = load_pipeline(uid)
            job = self.jobs[uid] = open_job(pipeline, location)
            for dag in (uid, f"{uid}__restore"):
                self.airflow.wait_until_known(dag)
            submit(job, configure(pipeline, {}))
            for dag in (uid, f"{uid}__restore", "sluice__watchdog"):
                self.airflow.unpause(dag)
            wait_for(lambda: self.completed(uid) > 0, within_s=900)
        return self.jobs[uid]

    def completed(self, uid: str) -> int:
        newest = self.jobs[uid].state().latest_completed
        return 0 if newest is None else newest.checkpoint_id

    def feed(self, uid: str, line: str = '{"word": "fine"}') -> None:
        """A file more for the job to read."""
        folder = self.folder / "in" / uid
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{time.time_ns()}.json").write_text(f"{line}\n")

    def sluice(self, *arguments: str) -> str:
        """What the command line prints, its errors too."""
        program = Path(sys.executable).with_name("sluice")
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, **self.env, "COLUMNS": "400"},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        return f"{done.stdout}{done.stderr}"

    def component(self, name: str) -> list[int]:
        """The processes of one component of Airflow."""
        mark = f"{COMPONENT_VARIABLE}={name}".encode()
        home = f"AIRFLOW_HOME={self.running.root_dir}".encode()
        return [
            info.pid
            for info in processes.all_processes()
            if processes.carries(info.pid, mark)
            and home in Path(f"/proc/{info.pid}/environ").read_bytes()
        ]

    def first_screen(self, uid: str) -> str:
        """What the overview of the pipeline asks for, and so shows."""
        said: list[str] = []
        routes = ("", "/drivers", "/notice", "/next")
        with ThreadPoolExecutor(len(routes)) as pool:  # As a page does.
            answers = [*pool.map(self.asking.get, (f"/pipelines/{uid}{one}" for one in routes))]
        for route, asked in zip(routes, answers, strict=True):
            answer = asked.json()
            if asked.is_error:
                said.append(str(answer["detail"]))
            elif route == "":
                health = answer["health"]
                step = health["next_step"] or {"says": "", "command": ""}
                said += [answer["status"], health["says"], f"NEXT: {step['says']}", step["command"]]
            elif route == "/drivers":
                said += answer["problems"]
            elif route == "/notice":
                said.append(answer["notice"])
            else:
                said.append(answer["says"])
        return " | ".join(filter(None, said))


def wait_for(is_true: Callable[[], bool], *, within_s: float, what: object = "") -> float:
    """The seconds that it took."""
    began = time.monotonic()
    while not is_true():
        assert time.monotonic() < began + within_s, what
        time.sleep(0.2)
    return time.monotonic() - began


@pytest.fixture(scope="module", name="ground")
def _ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    folder = tmp_path_factory.mktemp("on-call")
    with ExitStack() as stack:
        database = stack.enter_context(running_postgres(folder / "postgres"))
        database.run("CREATE SCHEMA on_call")
        env = {
            PIPELINES_VARIABLE: str(folder / "pipelines"),
            "SLUICE_CACHE_DIR": str(folder / "cache"),
            "DATABASE": database.dsn,
        }
        stack.enter_context(small_disk(folder / "small"))
        declare(folder)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in env.items():
            patch.setenv(name, value)
        options = StackOptions(
            dags_folder=REPOSITORY / "dags",
            plugins_folder=REPOSITORY / "plugins",
            spark_memory="1g",
            airflow_slots=8,
        )
        running = stack.enter_context(own_stack(folder / "stack", options, env))
        airflow = stack.enter_context(AirflowApi(running.airflow_url))
        yield Ground(
            running=running,
            airflow=airflow,
            folder=folder,
            database=database,
            env={**running.client_env, **env},
            asking=stack.enter_context(asking(running)),
        )


def asking(running: Stack) -> httpx.Client:
    """As the pages ask: they wait four seconds for the store."""
    token = httpx.get(f"{running.airflow_url}/auth/token", trust_env=False).json()["access_token"]
    return httpx.Client(
        base_url=f"{running.airflow_url}/sluice/api/v1",
        headers={"Authorization": f"Bearer {token}", "Prefer": "wait=4"},
        timeout=120,
        trust_env=False,
    )


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    folder.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder))
    subprocess.run(mount, capture_output=True, check=False)
    try:
        yield
    finally:
        if folder.is_mount():
            subprocess.run(("umount", "-l", str(folder)), check=True)


def declare(folder: Path) -> None:
    """A module for each pipeline, in a package of their own."""
    small = f"FilesTable(location='file://{folder}/small/counts', upsert_key=('word',))"
    guarded = "PostgresTable(env('DATABASE'), 'on_call.counts', upsert_key=('word',), create=True)"
    steady = "Nexmark(events=10**9, columns=('bid_auction',))"
    modules = {
        "steady": (steady, "bid_auction", "FilesTable(upsert_key=('bid_auction',))"),
        "full": (None, "word", small),
        "guarded": (None, "word", guarded),
    }
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "__init__.py").touch()
    for uid, (stream, key, sink) in modules.items():
        source = stream or JSON_FILES.format(folder=str(folder / "in" / uid))
        text = HEAD + COUNTED.format(uid=uid, source=source, key=key, sink=sink)
        (folder / "pipelines" / f"{uid}.py").write_text(text)


@contextmanager
def frozen(ground: Ground, component: str) -> Iterator[None]:
    pids = ground.component(component)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def paused(ground: Ground) -> Iterator[None]:
    ground.airflow.pause("steady")
    try:
        yield
    finally:
        ground.airflow.unpause("steady")


@contextmanager
def killed_worker(ground: Ground) -> Iterator[None]:
    """Nothing is to be done: the job restarts by itself."""
    ground.airflow.trigger("steady", conf={"fault": "kill-worker stage=count"})
    yield


@contextmanager
def full_disk(ground: Ground) -> Iterator[None]:
    if not (ground.folder / "small").is_mount():
        pytest.skip("only root may mount the disk that gets full")
    rest = ground.folder / "small" / "rest"
    with rest.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"0" * 4_096):
            pass
    ground.feed("full")
    yield
    rest.unlink()


@contextmanager
def wrong_password(ground: Ground) -> Iterator[None]:
    with closing(ground.database.connect()) as session, session.cursor() as cursor:
        cursor.execute("ALTER ROLE airflow PASSWORD 'another'")
        ground.feed("guarded")
        try:
            yield
        finally:
            cursor.execute("ALTER ROLE airflow PASSWORD %s", [ground.database.password])


@dataclass(frozen=True, kw_only=True)
class Fault:
    """``strike`` does it, and behind its yield what the first screen names as the next step."""

    uid: str
    strike: Callable[[Ground], AbstractContextManager[None]]
    says: tuple[str, ...]


FAULTS = {
    "disk full": Fault(uid="full", strike=full_disk, says=("No space left",)),
    "wrong password": Fault(uid="guarded", strike=wrong_password, says=("password auth",)),
    "worker killed": Fault(
        uid="steady", strike=killed_worker, says=("worker was killed", "restart strategy does it")
    ),
    "scheduler frozen": Fault(
        uid="steady",
        strike=partial(frozen, component="scheduler"),
        says=("see that 'airflow scheduler' runs",),
    ),
    "triggerer frozen": Fault(
        uid="steady",
        strike=partial(frozen, component="triggerer"),
        says=("see that 'airflow triggerer' runs",),
    ),
    "DAG paused": Fault(uid="steady", strike=paused, says=("'steady' is paused", "unpause it")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_screen_says_it_and_its_next_step_is_the_way_out(
    ground: Ground, name: str
) -> None:
    fault = FAULTS[name]
    ground.job(fault.uid)
    began = time.monotonic()
    seen: dict[str, float] = {}

    def is_said() -> bool:
        screen = ground.first_screen(fault.uid)
        if screen not in seen:
            seen[screen] = time.monotonic() - began
            log.info("%s, %.1f s: %s", name, seen[screen], screen)
        return all(words in screen for words in fault.says)

    with fault.strike(ground):
        began = time.monotonic()
        took_s = wait_for(is_said, within_s=STRUCK_WITHIN_S, what=seen)
        log.info("%s: said after %.1f s", name, took_s)
        log.info("%s: %s", name, ground.sluice("checkpoints", "list", fault.uid, "--limit", "3"))
    known = ground.completed(fault.uid)
    ground.feed(fault.uid)
    cured_s = wait_for(lambda: ground.completed(fault.uid) > known, within_s=CURED_WITHIN_S)
    log.info("%s: cured after %.1f s", name, cured_s)
