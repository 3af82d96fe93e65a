"""The quick form of the benchmark: every row, smaller, within its time, and it says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.forms import QUICK_S, form_of
from bench.measuring import measure
from bench.workloads import WORKLOADS

REPOSITORY = Path(__file__).resolve().parents[2]
QUICK = form_of(quick=True, scale=0.001, repetitions=None)


def test_the_quick_form_runs_every_row_and_says_what_it_is(tmp_path: Path) -> None:
    output = tmp_path / "latest.json"
    command = [sys.executable, "-m", "bench.run", "--output", str(output)]
    command += ["--cache", str(tmp_path / "cache")]
    chosen = {"QUICK": "1", "WORKLOAD": "", "ENGINES": "duckdb,polars", "SCALE": "0.001"}

    result = subprocess.run(
        command,
        check=False,
        cwd=REPOSITORY,
        env=os.environ | chosen,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(output.read_text())
    assert {row["workload"] for row in document["rows"]} == set(WORKLOADS)
    assert (document["form"], document["scale"], document["repetitions"]) == ("quick", 0.001, 1)
    assert document["differs"] == QUICK.differs()
    assert document["took_s"] < QUICK_S
    assert result.stdout.startswith(f"quick form: {QUICK.differs()}")
    assert "QUICK, 0.001 of the size" in result.stdout
    measured = [row for row in document["rows"] if row["samples"]]
    assert all(row["agrees"] for row in measured if row["workload"].startswith("keyed_"))
    keyed = next(row for row in measured if row["workload"] == "small_delta")
    assert len(keyed["samples"][0]["epochs"]) == 1 + 1 + 2  # The seed, the warm-up, two measured.


def test_the_quick_form_names_what_it_had_no_time_for(tmp_path: Path) -> None:
    answers = iter([False, True])

    rows = measure(
        QUICK.of(WORKLOADS["keyed_5m_1m"]),
        ["duckdb", "polars"],
        QUICK,
        tmp_path,
        is_over=lambda: next(answers),
    )

    assert [len(row.samples) for row in rows] == [1, 0]
    assert rows[1].refused == "keyed_5m_1m was left out: the quick form's time was up"


def test_where_time_may_run_out_comparisons_come_first() -> None:
    names = ["small_delta_50m", "keyed_5m_1m", "delta_10k", "restore_1m"]

    assert QUICK.in_order(names) == ["keyed_5m_1m", "restore_1m", "small_delta_50m", "delta_10k"]
    assert form_of(quick=False, scale=None, repetitions=None).in_order(names) == names


def test_the_full_form_differs_in_nothing() -> None:
    full = form_of(quick=False, scale=None, repetitions=None)

    assert full.differs() == ""
    assert full.limit_s is None
    assert all(full.of(workload) == workload for workload in WORKLOADS.values())
    smaller = form_of(quick=False, scale=0.01, repetitions=1)
    assert smaller.differs().startswith("0.01 of the events")
    assert "Repetitions: 1" in smaller.differs()
