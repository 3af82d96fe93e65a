"""The functions of a pipeline reach Spark's workers, which have none of its modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sluice.declaration.project import PipelinesPackage, load_pipeline
from sluice.spark.tasks import pickle_functions_by_value

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
