"""``sluice journal``: the coordinator's log, as people read it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json
from sluice.views.journal import journal_records
from sluice.views.units import moment

DEFAULT_LAST = 20


def journal(
    pipeline: PipelineName,
    last: Annotated[int, typer.Option(min=1, help="How many entries.")] = DEFAULT_LAST,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the newest entries of a job's journal, oldest first."""
    job = declared_job(pipeline, root, endpoint_url)
    records = journal_records(job, last)
    if as_json:
        print_json(records)
        return
    table = Table(
        *("seq", "event", "generation", "status", "checkpoint", "at (UTC)"),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for record in records:
        table.add_row(
            str(record.seq),
            record.event,
            str(record.generation),
            record.status,
            "" if record.checkpoint is None else str(record.checkpoint),
            "" if record.at_ms is None else moment(record.at_ms)[5:],  # Without the year.
        )
    Console().print(table)
