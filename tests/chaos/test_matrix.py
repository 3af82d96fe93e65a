"""The failure matrix: each kind of failure at each point of a checkpoint's and a restore's life.

Nothing but Airflow drives the jobs; nobody helps them.  Each row is played on one Airflow by six
jobs at once.  ``make chaos`` plays every row and prints the table; here it is a sample.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import polars as pl
import pytest

from sluice.connectors.nexmark import NexmarkSource
from tests.chaos.kinds import KINDS, SAMPLE, Field
from tests.chaos.play import Cell, play
from tests.chaos.under_fire import EVENTS, POINTS, uid_of

WANTED = os.environ.get("SLUICE_CHAOS", "")
ROWS = tuple(KINDS) if WANTED == "all" else tuple(WANTED.split()) or SAMPLE
REPORT = os.environ.get("SLUICE_CHAOS_REPORT", "")


@pytest.fixture(scope="module", name="expected")
def _expected() -> list[dict[str, object]]:
    """The same ranking by one query over all events in memory."""
    source = NexmarkSource(EVENTS)
    (piece,) = source.plan((), max_records=None, parallelism=1).slices
    frames = [pl.from_arrow(batch) for batch in source.read(piece)]
    events = pl.concat([frame for frame in frames if isinstance(frame, pl.DataFrame)])
    statistics = (
        events.with_columns(auction=pl.coalesce("auction_id", "bid_auction"))
        .filter(pl.col("auction").is_not_null())
        .group_by("auction")
        .agg(
            category=pl.col("category").max(),
            bids=pl.col("price").count(),
            highest_bid=pl.col("price").max(),
        )
        .filter(pl.col("category").is_not_null(), pl.col("bids") > 0)
    )
    return (
        statistics.sort("category", "bids", "auction", descending=[False, True, False])
        .with_columns(rank=pl.int_range(1, pl.len() + 1, dtype=pl.Int32).over("category"))
        .filter(pl.col("rank") <= 3)
        .select("category", "rank", "auction", "bids", "highest_bid")
        .to_dicts()
    )


@pytest.mark.parametrize("name", ROWS)
def test_whatever_breaks_wherever_the_jobs_heal_by_themselves(
    field: Field, expected: list[dict[str, object]], name: str
) -> None:
    cells = play(field, KINDS[name], expected)

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


def _report(name: str, cells: dict[str, Cell]) -> None:
    """A row of the table in docs/failures.md."""
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
    return f"{when}, {how}, {cell.restarts} restarts"
