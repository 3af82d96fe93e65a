"""``sluice run`` as a person runs it: a process, a result file, JSON on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl

from tests.spark.sshd_log import write_allowlist, write_log

OURS = Path(__file__).parents[2] / "include" / "pipelines"


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """``sluice run`` in *folder*, in a person's shell: no root, and no path into this checkout."""
    ours = ("SLUICE_ROOT", "SLUICE_PIPELINES", "PYTHONPATH")
    return subprocess.run(
        [sys.executable, "-c", "from sluice.cli.main import main; main()", "run", *arguments],
        check=False,
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in ours} | more,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_it_writes_the_result_and_a_summary(tmp_path: Path) -> None:
    expected = write_log(tmp_path / "auth.log", lines=300, seed=5)
    write_allowlist(tmp_path / "allow.txt")

    result = run(
        tmp_path,
        *("ssh_threats", "--input", "auth.log", "--allowlist", "allow.txt"),
        *("--max-records-per-epoch", "100", "--parallelism", "3"),
        *("--output", "alerts.parquet", "--json"),
        SLUICE_PIPELINES=str(OURS),
    )

    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["status"] == "FINISHED"
    assert summary["result_rows"] == len(expected)
    assert [c["status"] for c in summary["checkpoints"]] == ["COMPLETED"] * 3
    assert summary["root"] == f"file://{tmp_path}/.sluice/jobs"
    assert sorted(pl.read_parquet(tmp_path / "alerts.parquet").iter_rows()) == expected


FAILING = """
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Files


def shouted(rows):
    from pyspark.sql.functions import udf

    return rows.withColumn("city", udf(lambda text: text.upper(), "string")("city"))


pipeline = Pipeline("clicks")
files = Files("clicks.csv", format="csv", schema="name string, city string")
clicks = pipeline.source("clicks", files)
clicks.transform("shouted", shouted).sink("out", FilesTable())
"""


def test_a_run_that_fails_for_ever_stops_with_one_sentence_and_a_log(tmp_path: Path) -> None:
    package = tmp_path / "pipelines"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "clicks.py").write_text(FAILING)
    (tmp_path / "clicks.csv").write_text("ann,Rome\nbob,\n")

    result = run(tmp_path, "clicks", "--parallelism", "1")

    (log,) = (tmp_path / ".sluice" / "logs").iterdir()
    cause = "AttributeError: 'NoneType' object has no attribute 'upper'"
    failed = "stage 'shouted' failed over records 1 to 2 of clicks.csv"
    refusal = (
        "job 'clicks' failed twice for the same reason and is SUSPENDED; mend it and run it again, "
        f"and it goes on from the beginning: {failed} (trace: .sluice/logs/{log.name})"
    )
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        f"checkpoint 1 failed: {failed}: pipelines/clicks.py line 10: {cause}",
        f"checkpoint 2 failed: {failed}: pipelines/clicks.py line 10: {cause}",
        f"error: {refusal}: pipelines/clicks.py line 10: {cause}",
    ]
    assert "org.apache.spark" in log.read_text()
