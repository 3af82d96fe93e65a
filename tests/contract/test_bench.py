"""The benchmark runs, on a small checkpoint; its figures are not checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.s3
def test_the_benchmark_says_what_a_finalize_costs() -> None:
    command = [sys.executable, "-m", "bench.finalize", "--rounds", "1", "--subtasks", "4"]

    result = subprocess.run(
        command,
        check=False,
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert result.returncode == 0, result.stderr
    table = [line.split("|")[1:3] for line in result.stdout.splitlines() if "subtasks, " in line]
    assert [(name.strip(), int(requests)) for name, requests in table] == [
        ("4 subtasks, memory", 9),
        ("4 subtasks, memory, acks read one by one", 15),
        ("4 subtasks, S3 server", 9),
        ("4 subtasks, S3 server, acks read one by one", 15),
    ]
