"""``sluice run`` as a person runs it: a process, a result file, JSON on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl

from tests.spark.sshd_log import write_allowlist, write_log


def test_it_writes_the_result_and_a_summary(tmp_path: Path) -> None:
    expected = write_log(tmp_path / "auth.log", lines=300, seed=5)
    command = [sys.executable, "-c", "from sluice.cli.main import main; main()"]
    command += ["run", "ssh_threats", "--input", "auth.log", "--max-records-per-epoch", "100"]
    command += ["--allowlist", str(write_allowlist(tmp_path / "allow.txt"))]
    command += ["--output", "alerts.parquet", "--parallelism", "3", "--json"]

    result = subprocess.run(
        command,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "SLUICE_ROOT"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["status"] == "FINISHED"
    assert summary["result_rows"] == len(expected)
    assert [c["status"] for c in summary["checkpoints"]] == ["COMPLETED"] * 3
    assert summary["root"] == f"file://{tmp_path}/.sluice/jobs"
    assert sorted(pl.read_parquet(tmp_path / "alerts.parquet").iter_rows()) == expected
