"""What runs tell, and what tells Airflow to run: asserted of a stack that has played a row."""

from __future__ import annotations

import os
from pathlib import Path

from sluice.job.job import open_job
from sluice.job.places import open_result_table
from tests.chaos.kinds import Field
from tests.chaos.play import ENDS_WITHIN_S, until
from tests.chaos.under_fire import FOLDER_VARIABLE, on_files, uid_of


def assert_runs_tell_what_they_did(on: Field, point: str) -> None:
    """Every run of a job that was played has a note, and a green one was an event with its id."""
    uid = uid_of(point)
    runs = [run for run in on.airflow.runs(uid) if run.is_finished]
    events = on.airflow.asset_events(uid)

    notes = {run.dag_run_id: run.note or "" for run in runs}
    told = {(event.uri, event.source_run_id): event.extra["checkpoint_id"] for event in events}
    completed = {run: note.split()[1] for run, note in notes.items() if "completed" in note}
    assert all(notes.values()), notes
    assert completed, notes
    for run, checkpoint_id in completed.items():
        for uri in (f"sluice://{uid}/checkpoints", f"sluice://{uid}/tables/ranking"):
            assert told[uri, run] == int(checkpoint_id)


def assert_arrivals_are_checkpoints(on: Field) -> None:
    job = open_job(on_files(), on.location)
    folder = Path(os.environ[FOLDER_VARIABLE])
    on.airflow.wait_until_known("on_files")
    on.airflow.unpause("on_files")

    def counted(lines: int) -> bool:
        state = job.state()
        done = [c for c in state.completed if c.is_committed]
        return bool(done) and sum(open_result_table(job, {}).read()["n"].to_pylist()) == lines

    (folder / "one.txt").write_text("a\nb\na\n")
    until(lambda: counted(3), ENDS_WITHIN_S, "to the first file's checkpoint")
    (folder / "two.txt").write_text("a\n")
    until(lambda: counted(4), ENDS_WITHIN_S, "to the second file's checkpoint")
    on.airflow.pause("on_files")

    kinds = {run.run_type for run in on.airflow.runs("on_files")}
    assert kinds == {"asset_triggered"}
