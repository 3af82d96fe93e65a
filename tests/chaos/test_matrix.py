"""The failure matrix: each kind of failure at each point of a checkpoint's and a restore's life.

Airflow alone drives the jobs.  Each row is played on one Airflow by six
jobs at once.  ``make chaos`` plays every row and prints the table; every test run plays a sample of
it, with the main job (``tests/e2e/test_sample.py``).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.best_auctions import best_auctions
from tests.chaos.kinds import KINDS, Field
from tests.chaos.play import Cell, play
from tests.chaos.runs_and_arrivals import (
    assert_arrivals_are_checkpoints,
    assert_runs_tell_what_they_did,
)
from tests.chaos.under_fire import EVENTS, POINTS

WANTED = os.environ.get("SLUICE_CHAOS", "")
ROWS = tuple(KINDS) if WANTED == "all" else tuple(WANTED.split())
REPORT = os.environ.get("SLUICE_CHAOS_REPORT", "")

pytestmark = pytest.mark.skipif(not WANTED, reason="make chaos plays it")


@pytest.mark.parametrize("name", ROWS)
def test_whatever_breaks_wherever_the_jobs_heal_by_themselves(field: Field, name: str) -> None:
    cells = play(field, KINDS[name], best_auctions(EVENTS))

    _report(name, {cell.point: cell for cell in cells})
    assert {cell.point for cell in cells} == set(KINDS[name].points)


def test_runs_tell_what_they_did(field: Field) -> None:
    assert_runs_tell_what_they_did(field, "await")


def test_files_that_arrive_are_an_event_and_the_event_is_a_checkpoint(field: Field) -> None:
    assert_arrivals_are_checkpoints(field)


def _report(name: str, cells: dict[str, Cell]) -> None:
    """A row of the table in docs/explanation/failures.md, with the seconds and the restarts."""
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
