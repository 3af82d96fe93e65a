"""The end of ``sluice run``: its checkpoints, its tables, and what is written of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TypeAlias

import msgspec
from rich.console import Console

from sluice.cli.printing import print_json
from sluice.cli.result import final_table, write_result
from sluice.cli.show import checkpoint_table
from sluice.core.properties import JobStatus
from sluice.declaration.side_outputs import side_outputs
from sluice.job.job import Job
from sluice.job.places import has_result_table, open_side_table
from sluice.views.history import CheckpointRecord, history

Wanted: TypeAlias = tuple[str | None, Path | None]  # A sink's uid, and the file for its table.


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--json``.  ``seconds`` is the whole run's; ``side_outputs`` counts rows."""

    pipeline: str
    status: str
    root: str
    seconds: float
    checkpoints: list[CheckpointRecord]
    result_rows: int | None
    output: str | None
    side_outputs: dict[str, int]


def summarize(
    job: Job,
    console: Console,
    status: JobStatus,
    first_id: int,
    started: float,
    wanted: Wanted,
    *,
    as_json: bool,
) -> None:
    """Write the *wanted* table to its file, and print what the run did since *first_id*.

    *started* is of ``time.monotonic``; the checkpoints and side outputs are read from the bucket.
    """
    params = job.state().configuration.params
    sink, output = wanted
    is_read = sink is not None and has_result_table(job, params, sink)
    result = final_table(job, params, sink) if is_read and sink is not None else None
    if output is not None and result is not None:
        write_result(result, output)
    sides = {uid: open_side_table(job, uid).row_count() for uid in side_outputs(job.pipeline)}
    records = [record for record in history(job) if record.id >= first_id]
    summary = RunSummary(
        pipeline=job.pipeline.uid,
        status=status.value,
        root=job.store.root,
        seconds=round(time.monotonic() - started, 3),
        checkpoints=records,
        result_rows=None if result is None else result.num_rows,
        output=None if output is None else str(output),
        side_outputs={uid: rows for uid, rows in sides.items() if rows},
    )
    if as_json:
        print_json(summary)
        return
    console.print(checkpoint_table(records, console.width))
    written = (
        f"published to {', '.join(job.pipeline.sinks)}"
        if result is None
        else f"{result.num_rows:,} rows in {sink}"
    )
    where = f", written to {output}" if output else ""
    console.print(f"{job.pipeline.uid} is {status.value}: {written}{where}", highlight=False)
    for uid, rows in summary.side_outputs.items():
        stage, _, name = uid.rpartition(".")
        console.print(
            f"[yellow]{rows:,} {name} rows[/yellow] in {stage}: see them with "
            f"'sluice side-output {job.pipeline.uid} {uid}'",
            highlight=False,
        )
