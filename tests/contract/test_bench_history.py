"""The history of results: what is recorded, of which commit, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from bench.forms import form_of
from bench.history import (
    CannotRecord,
    append_history,
    measured_commit,
    read_history,
    records_of,
    this_machine,
)
from bench.measuring import measure
from bench.workloads import WORKLOADS

REPOSITORY = Path(__file__).resolve().parents[2]
TODAY = date(2026, 11, 23)
QUICK = form_of(quick=True, scale=0.001, repetitions=None)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    """The tree as it is, in a repository of its own with one commit."""
    folder = tmp_path / "checkout"
    listed = git(REPOSITORY, "ls-files", "-co", "--exclude-standard", "bench", "harness", "include")
    for name in [*listed.splitlines(), "pyproject.toml", ".gitignore"]:
        if (REPOSITORY / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "All of it")
    return folder


def run_recorded(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.run", "--record", "--quick", "--scale", "0.001"]
    command += ["--workload", "keyed_5m_1m", "--engines", "duckdb,polars"]
    command += ["--cache", str(checkout.parent / "cache")]
    path = os.pathsep.join([str(checkout), str(checkout / "include")])
    return subprocess.run(
        command,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_run_appends_its_figures_and_the_commit_to_the_history(checkout: Path) -> None:
    history = checkout / "bench" / "history" / "results.jsonl"
    before = read_history(history)

    results = [run_recorded(checkout), run_recorded(checkout)]

    assert [result.returncode for result in results] == [0, 0], results
    records = read_history(history)
    assert records[: len(before)] == before
    added = records[len(before) :]
    assert [(one.row, one.engine) for one in added] == [
        ("keyed_5m_1m", "duckdb"),
        ("keyed_5m_1m", "polars"),
    ] * 2
    assert {one.commit for one in added} == {
        git(checkout, "rev-parse", "--short=12", "HEAD").strip()
    }
    assert {(one.form, one.scale, one.source) for one in added} == {("quick", 0.001, "measured")}
    assert (added[0].bytes_written or 0) > 0
    assert added[1].bytes_written is None
    assert str(checkout.parent) not in history.read_text()


def test_a_tree_that_differs_from_its_commit_is_not_recorded(checkout: Path) -> None:
    history = checkout / "bench" / "history" / "results.jsonl"
    before = history.read_text()
    (checkout / "include" / "sluice" / "faster.py").write_text("")

    result = run_recorded(checkout)

    assert result.returncode == 2
    assert "error: 1 files differ from the commit, among them include/sluice/faster.py" in (
        result.stderr
    )
    assert history.read_text() == before
    assert not (checkout.parent / "cache").exists()  # Refused before anything was measured.


def test_pages_results_and_the_history_may_differ_from_the_commit(checkout: Path) -> None:
    (checkout / "docs").mkdir()
    (checkout / "docs" / "page.md").write_text("figures")
    (checkout / "bench" / "results").mkdir(exist_ok=True)
    (checkout / "bench" / "results" / "latest.json").write_text("{}")
    (checkout / "bench" / "history" / "results.jsonl").write_text("")

    assert measured_commit(checkout) == git(checkout, "rev-parse", "--short=12", "HEAD").strip()


def test_a_folder_without_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotRecord, match=r"git status failed"):
        measured_commit(tmp_path)


def test_a_row_that_failed_or_did_not_agree_is_not_recorded(tmp_path: Path) -> None:
    workload = QUICK.of(WORKLOADS["keyed_5m_1m"])
    [duckdb, polars] = measure(workload, ["duckdb", "polars"], QUICK, tmp_path)

    records = records_of(
        [duckdb, replace(polars, agrees=False), replace(polars, error="died")], QUICK, "c0", TODAY
    )

    [record] = records
    assert (record.engine, record.commit, record.date) == ("duckdb", "c0", "2026-11-23")
    assert record.machine == this_machine()
    assert record.wall_median_s == pytest.approx(duckdb.samples[0].wall_s, abs=1e-4)
    append_history(records, tmp_path / "history.jsonl")
    assert read_history(tmp_path / "history.jsonl") == records


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"commit":"c0","path":"elsewhere"}\n')

    with pytest.raises(CannotRecord, match=r"history.jsonl, line 1: .*path"):
        read_history(path)


def test_figures_of_the_page_say_that_they_are() -> None:
    taken_over = [one for one in read_history() if one.source == "page"]

    assert len(taken_over) == 44
    assert {one.repetitions for one in taken_over} == {1}
    assert {one.bytes_written for one in taken_over} == {None}
    disturbed = {(one.row, one.engine) for one in taken_over if one.disturbed}
    assert disturbed == {("keyed_5m_1m", "flink_hashmap"), ("keyed_5m_1m", "flink_rocksdb")}
