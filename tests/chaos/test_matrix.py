"""The failure matrix: each kind of failure at each point of a checkpoint's and a restore's life.

Airflow alone drives the jobs.  Each row is played on one Airflow by six
jobs at once.  ``make chaos`` plays every row and prints the table; here it is a sample.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sluice.job.job import open_job
from sluice.job.places import open_result_table
from tests.best_auctions import best_auctions
from tests.chaos.kinds import KINDS, SAMPLE, Field
from tests.chaos.play import Cell, play, until
from tests.chaos.under_fire import EVENTS, FOLDER_VARIABLE, POINTS, on_files, uid_of

WANTED = os.environ.get("SLUICE_CHAOS", "")
ROWS = tuple(KINDS) if WANTED == "all" else tuple(WANTED.split()) or SAMPLE
REPORT = os.environ.get("SLUICE_CHAOS_REPORT", "")


@pytest.mark.parametrize("name", ROWS)
def test_whatever_breaks_wherever_the_jobs_heal_by_themselves(field: Field, name: str) -> None:
    cells = play(field, KINDS[name], best_auctions(EVENTS))

    _report(name, {cell.point: cell for cell in cells})
    assert {cell.point for cell in cells} == set(KINDS[name].points)


def test_runs_tell_what_they_did(field: Field) -> None:
    """Of the jobs above: every run has a note, and a green one was an event with its id."""
    runs = [run for run in field.airflow.runs(uid_of("finalize")) if run.is_finished]
    events = field.airflow.asset_events(uid_of("finalize"))

    notes = {run.dag_run_id: run.note or "" for run in runs}
    told = {(event.uri, event.source_run_id): event.extra["checkpoint_id"] for event in events}
    completed = {run: note.split()[1] for run, note in notes.items() if "completed" in note}
    assert all(notes.values()), notes
    assert completed, notes
    for run, checkpoint_id in completed.items():
        for uri in ("sluice://at_finalize/checkpoints", "sluice://at_finalize/tables/ranking"):
            assert told[uri, run] == int(checkpoint_id)


def test_files_that_arrive_are_an_event_and_the_event_is_a_checkpoint(field: Field) -> None:
    job = open_job(on_files(), field.location)
    folder = Path(os.environ[FOLDER_VARIABLE])
    field.airflow.wait_until_known("on_files")
    field.airflow.unpause("on_files")

    def counted(lines: int) -> bool:
        state = job.state()
        done = [c for c in state.completed if c.is_committed]
        return bool(done) and sum(open_result_table(job, {}).read()["n"].to_pylist()) == lines

    (folder / "one.txt").write_text("a\nb\na\n")
    until(lambda: counted(3), 120, "to the first file's checkpoint")
    (folder / "two.txt").write_text("a\n")
    until(lambda: counted(4), 120, "to the second file's checkpoint")
    field.airflow.pause("on_files")

    kinds = {run.run_type for run in field.airflow.runs("on_files")}
    assert kinds == {"asset_triggered"}


def _report(name: str, cells: dict[str, Cell]) -> None:
    """A row of the table in docs/explanation/failures.md."""
    columns = [_shown(cells.get(point)) for point in POINTS]
    line = f"| {name} | {' | '.join(columns)} |"
    sys.stdout.write(line + "\n")
    if REPORT:
        with Path(REPORT).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    how = ", ".join(cell.failed) if cell.failed else "completed"
    when = "went on" if cell.healed_s is None else f"{cell.healed_s:.0f} s"
    times = {0: "", 1: ", 1 restart"}.get(cell.restarts, f", {cell.restarts} restarts")
    return f"{when}, {how}{times}"
