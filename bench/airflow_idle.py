"""``make bench-idle``: what pipelines cost in which nothing happens, and how soon a run comes.

One Airflow (SQLite unless SLUICE_AIRFLOW_DATABASE says otherwise), Spark and S3 of its own.  For
each number in PIPELINES the declarations are written, their DAGs switched on, and the CPU time of
the stack's process tree is taken over WINDOW_S seconds; the runs that Airflow made meanwhile are
counted.  Last, a file arrives in one pipeline, ARRIVALS times.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.cpu import adopt_orphans, tree_cpu_s
from harness.airflow_api import AirflowApi, DagRun
from sluice.devstack import stack
from sluice.devstack.stack import AirflowDatabase, Stack, StackOptions

REPOSITORY = Path(__file__).resolve().parents[1]
NUMBERS = tuple(int(one) for one in (os.environ.get("PIPELINES") or "0,1,20,100").split(","))
WINDOW_S = float(os.environ.get("WINDOW_S") or 120)  # Two runs of the watchdog.
ARRIVALS = int(os.environ.get("REPETITIONS") or 5)
INTERVAL_S = 10
SETTLE_S = 30.0  # After the last first run: parses, and what they woke.
STEP_S = 0.2

_DECLARED = """
from datetime import timedelta

from sluice import Checkpointing, Pipeline
from sluice import aggregates as agg
from sluice.sinks import FilesTable
from sluice.sources import Files


def idle(number):
    uid = f"idle_{{number:03}}"
    pipeline = Pipeline(uid, checkpointing=Checkpointing(interval=timedelta(seconds={interval_s})))
    lines = pipeline.source("lines", Files(f"{folder}/{{uid}}", bounded=False, ordered=True))
    counts = lines.key_by("line").aggregate("counts", n=agg.count())
    counts.sink("counted", FilesTable(upsert_key=("line",)))
    return pipeline


globals().update({{f"idle_{{number:03}}": idle(number) for number in range({pipelines})}})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Of one number of idle pipelines; CPU seconds are those of a minute."""

    pipelines: int
    cpu_s: dict[str, float]
    runs: int
    load: float

    @property
    def total_s(self) -> float:
        return sum(self.cpu_s.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Seconds from a file's appearance to the run's start, and to its end."""

    started_s: float
    ended_s: float


def main() -> None:
    adopt_orphans()
    database = AirflowDatabase(os.environ.get("SLUICE_AIRFLOW_DATABASE") or "sqlite")
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        root = Path(folder)
        package = root / "idle_pipelines"
        _declare(package, root, pipelines=0)
        options = StackOptions(
            dags_folder=REPOSITORY / "dags",
            plugins_folder=REPOSITORY / "plugins",
            airflow_database=database,
        )
        extra = {"SLUICE_PIPELINES": str(package)}
        try:
            running = stack.start_stack(root, options=options, extra_env=extra)
            with AirflowApi(running.airflow_url) as airflow:
                found = [_idle(running, airflow, package, root, number) for number in NUMBERS]
                arrivals = [_arrival(airflow, root, turn) for turn in range(ARRIVALS)]
        finally:
            stack.stop_stack(root)
    _show(found, arrivals, database)


def _declare(package: Path, root: Path, *, pipelines: int) -> None:
    for number in range(pipelines):
        (root / "input" / _uid(number)).mkdir(parents=True, exist_ok=True)
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    text = _DECLARED.format(interval_s=INTERVAL_S, folder=root / "input", pipelines=pipelines)
    (package / "declared.py").write_text(text)


def _uid(number: int) -> str:
    return f"idle_{number:03}"


def _idle(running: Stack, airflow: AirflowApi, package: Path, root: Path, pipelines: int) -> Idle:
    _declare(package, root, pipelines=pipelines)
    names = [_uid(number) for number in range(pipelines)]
    airflow.wait_until_known("sluice__watchdog", timeout_s=300)
    for name in names:
        airflow.wait_until_known(name, timeout_s=600)
        airflow.unpause(name)
    for name in names:
        _wait_for(airflow, name, after=0)
    time.sleep(SETTLE_S)
    runs_before, before = _runs(airflow, names), _cpu(running)
    began = time.monotonic()
    time.sleep(WINDOW_S)
    minutes = (time.monotonic() - began) / 60
    after, load = _cpu(running), os.getloadavg()[1]
    found = Idle(
        pipelines=pipelines,
        cpu_s={name: (after[name] - before.get(name, 0.0)) / minutes for name in after},
        runs=_runs(airflow, names) - runs_before,
        load=load,
    )
    Console().print(found)
    return found


def _runs(airflow: AirflowApi, names: Sequence[str]) -> int:
    return sum(len(airflow.runs(name)) for name in names)


def _wait_for(airflow: AirflowApi, name: str, *, after: int) -> DagRun:
    """The run that follows the first *after* ones, once it has ended."""
    deadline = time.monotonic() + 1_200
    while True:
        runs = airflow.runs(name)
        if len(runs) > after and runs[0].is_finished:
            return runs[0]
        assert time.monotonic() < deadline, f"no run of {name} ended: {runs}"
        time.sleep(STEP_S)


def _cpu(running: Stack) -> dict[str, float]:
    """CPU seconds so far, by service; those of Airflow by component."""
    found: dict[str, float] = {}
    for record in running.records:
        parts = _components(record.pid) if record.name == "airflow" else {record.pid: record.name}
        for pid, name in parts.items():
            found[name] = found.get(name, 0.0) + tree_cpu_s(pid)
    return found


def _components(supervisor: int) -> dict[int, str]:
    """The processes that supervisord keeps: ``airflow scheduler`` and so on."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    return {int(pid): _name(int(pid)) for pid in children}


def _name(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    known = ("scheduler", "api-server", "api_server", "triggerer", "dag-processor")
    return next((one.replace("_", "-") for one in known if one in words), "other")


def _arrival(airflow: AirflowApi, root: Path, turn: int) -> Arrival:
    """A file appears in the first pipeline, in the middle of an idle interval."""
    name = _uid(0)
    before = len(airflow.runs(name))
    time.sleep(INTERVAL_S * 1.5)
    arrived = datetime.now(UTC)
    (root / "input" / name / f"{turn:03}.txt").write_text("one\ntwo\n")
    done = _wait_for(airflow, name, after=before)
    assert done.state == "success", done
    assert done.start_date is not None
    assert done.end_date is not None
    return Arrival(
        started_s=(done.start_date - arrived).total_seconds(),
        ended_s=(done.end_date - arrived).total_seconds(),
    )


def _show(found: Sequence[Idle], arrivals: Sequence[Arrival], database: AirflowDatabase) -> None:
    parts = sorted({name for one in found for name in one.cpu_s})
    columns = ("idle pipelines", "all", "each", *parts, "runs", "load")
    table = Table(*columns, title=f"CPU seconds a minute, on {database.value}")
    for one in found:
        each = (one.total_s - found[0].total_s) / one.pipelines if one.pipelines else 0.0
        cells = [one.total_s, each, *(one.cpu_s.get(name, 0.0) for name in parts)]
        figures = [f"{cell:.2f}" for cell in cells]
        table.add_row(str(one.pipelines), *figures, str(one.runs), f"{one.load:.1f}")
    console = Console(width=160)
    console.print(table)
    for what, values in (
        ("started", [one.started_s for one in arrivals]),
        ("ended", [one.ended_s for one in arrivals]),
    ):
        least, median = min(values), statistics.median(values)
        console.print(f"run {what} after the record: {least:.1f} s at least, {median:.1f} s median")


if __name__ == "__main__":
    main()
