"""What a Python worker of Spark has from its daemon, and the functions that reach it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.declaration.project import PipelinesPackage, load_pipeline
from sluice.spark.tasks import pickle_functions_by_value
from tests.processes.conftest import run_python

# A worker reports what the daemon had, and what collections behind its tasks find.
CODE = """
import gc, json, os, pathlib, sys
from sluice.spark import worker_daemon

worker_daemon.import_before_the_fork()
worker_daemon.freeze_what_is_imported()
threads = [(task / "comm").read_text() for task in pathlib.Path("/proc/self/task").iterdir()]
forked = {"threads": threads, "modules": sorted(sys.modules), "left": len(gc.get_objects())}
if (worker := os.fork()) == 0:
    import polars
    import sluice.spark.stage, sluice.spark.deployment, sluice.exchange.subtask
    imported = len(gc.get_objects())
    gc.collect()
    first = len(gc.get_objects())

    class Garbage:
        found = 0
        def __init__(self): self.itself = self
        def __del__(self): Garbage.found += 1

    kept = [Garbage() for _ in range(3)]
    gc.collect()  # Would freeze them, too, if it did so whenever it is called.
    del kept
    gc.collect()
    print(json.dumps(forked | {"imported": imported, "first": first, "found": Garbage.found}))
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(worker, 0)[1] == 0
"""


@pytest.fixture(scope="module", name="worker")
def _worker() -> dict[str, Any]:
    done = run_python(CODE)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_worker_is_forked_with_all_that_it_needs_but_polars(worker: dict[str, Any]) -> None:
    needed = {"numpy", "pandas", "pyarrow.parquet", "pyspark.worker"}
    needed |= {"sluice.core.state", "sluice.declaration.nodes", "sluice.protocol.records"}

    assert needed <= set(worker["modules"])
    assert "polars" not in worker["modules"]
    assert not [name for name in worker["threads"] if name.startswith(("polars", "tokio"))]


def test_what_is_imported_is_not_searched_for_garbage_behind_each_task(
    worker: dict[str, Any],
) -> None:
    assert worker["left"] < 1_000
    assert worker["imported"] > 10_000  # Of what a worker imports itself.
    assert worker["first"] < 1_000


def test_a_task_s_garbage_is_found_as_ever(worker: dict[str, Any]) -> None:
    assert worker["found"] == 3


TIME = """
import os, runpy
from datetime import UTC, datetime
from pyspark.sql.types import TimestampType
from sluice.spark import worker_daemon

def run_daemon(*_args, **_options):
    at = TimestampType()
    print(at.fromInternal(0).isoformat(), at.toInternal(datetime(1970, 1, 1)), os.environ["TZ"])

runpy.run_module = run_daemon
worker_daemon.main()
"""


def test_a_function_sees_times_in_utc_whatever_the_zone_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")

    done = run_python(TIME)

    assert done.stdout.split() == ["1970-01-01T00:00:00", "0", "UTC"], done.stderr


PIPELINE = """
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from flows.helpers import doubled


def count(rows, state):
    return doubled(rows), state


def twice(number):
    return doubled(number)


def with_udf(rows):
    from pyspark.sql.functions import udf

    return rows.withColumn("n", udf(twice, "bigint")("auction"))


pipeline = Pipeline("demo")
events = pipeline.source("events", Nexmark(10)).transform("parse", with_udf)
counted = events.key_by("auction").process(
    "counted", count, state={"n": int}, result={"auction": int, "n": int}
)
counted.sink("results", FilesTable())
"""
HELPERS = """
def doubled(number):
    return 2 * number
"""


UNPICKLED = """
import sys
from pyspark.cloudpickle import loads
print(loads(sys.stdin.buffer.read())(*eval(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("stage", "arguments", "expected"),
    [("counted", (21, "state"), (42, "state")), ("parse", (21,), 42)],
)
def test_a_function_reaches_a_worker_that_has_no_pipelines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    arguments: tuple[object, ...],
    expected: object,
) -> None:
    """With what it calls in another module of the package; the UDFs of a transform, too."""
    from pyspark import cloudpickle

    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "helpers.py").write_text(HELPERS)
    (folder / "one.py").write_text(PIPELINE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("sluice.declaration.project._imported", {})
    pipeline = load_pipeline("demo", PipelinesPackage(name="flows", folder=folder))
    module = sys.modules["flows.one"]
    function = module.count if stage == "counted" else module.twice
    try:
        pickle_functions_by_value(pipeline.stages[stage])
        sent = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]  # has no annotations
    finally:
        cloudpickle.unregister_pickle_by_value(  # type: ignore[no-untyped-call]
            sys.modules["flows"]
        )
        for name in [name for name in sys.modules if name.partition(".")[0] == "flows"]:
            del sys.modules[name]

    ran = subprocess.run(
        [sys.executable, "-c", UNPICKLED, repr(arguments)],
        check=False,
        input=sent,
        cwd="/",
        capture_output=True,
        timeout=60,
    )

    assert (ran.stdout.decode(), ran.stderr.decode()) == (f"{expected}\n", "")
