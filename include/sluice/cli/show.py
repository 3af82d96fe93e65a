"""Commands that only look: pipelines, checkpoints, side outputs."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json
from sluice.coordinator.savepoints import savepoint_names
from sluice.core.pages import FAILURE_REASONS
from sluice.declaration.discovery import load_pipelines
from sluice.declaration.side_outputs import side_outputs
from sluice.errors import ConfigurationError
from sluice.job.places import open_side_table
from sluice.statistics.checkpoints import CheckpointStatus
from sluice.views.history import CheckpointRecord, history
from sluice.views.units import duration, size

_STYLES = {"COMPLETED": "green", "FAILED": "red", "IN_PROGRESS": "yellow"}
_HEADERS = ("id", "type", "status", "records", "duration", "size")
_PADDING = 2
DEFAULT_LIMIT = 100
_LEAST = 12  # Of a reason, however narrow the screen is.


def pipelines(as_json: AsJson = False) -> None:
    """List the declared pipelines with their parameters."""
    declared = load_pipelines().values()
    if as_json:
        rows = [
            {
                "pipeline": p.uid,
                "description": p.description,
                "stages": list(p.stages),
                "params": {q.name: q.default for q in p.params},
            }
            for p in declared
        ]
        print_json(rows)
        return
    table = Table("pipeline", "stages", "parameters", "what it does")
    for p in declared:
        params = ", ".join(
            q.name if q.default is None else f"{q.name}={q.default}" for q in p.params
        )
        table.add_row(p.uid, " > ".join(p.stages), params, p.description)
    Console().print(table)


def checkpoints(
    pipeline: PipelineName,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="So many of the newest.")
    ] = DEFAULT_LIMIT,
    is_all: Annotated[
        bool, typer.Option("--all", help="All that are known, subsumed ones too.")
    ] = False,
    status: Annotated[
        list[CheckpointStatus] | None, typer.Option("--status", help="Only of this status.")
    ] = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """List a job's checkpoints: id, type, status, duration, size; and its savepoints by name."""
    job = declared_job(pipeline, root, endpoint_url)
    statuses = frozenset(status or CheckpointStatus)
    records = history(job, limit=None if is_all else limit, statuses=statuses)
    if as_json:
        print_json(records)
        return
    console = Console()
    state = job.state()
    paused = ", paused," if state.timing.is_paused else ""
    console.print(
        f"{pipeline} is {state.status.value}{paused} in {job.store.root}", highlight=False
    )
    console.print(checkpoint_table(records, console.width))
    if any(record.status == "FAILED" for record in records):
        typer.secho(f"what the reasons mean: {FAILURE_REASONS}", err=True)
    names = savepoint_names(job)
    if names:
        console.print(f"savepoints: {', '.join(names)}", highlight=False)


def side_output_rows(
    pipeline: PipelineName,
    side_output: Annotated[str, typer.Argument(help="STAGE.malformed or STAGE.late")],
    root: Root = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Print the rows of a side output as JSON lines: where each came from, and why it is there."""
    job = declared_job(pipeline, root, endpoint_url)
    known = side_outputs(job.pipeline)
    if side_output not in known:
        raise ConfigurationError(
            f"there is no side output {side_output!r}; {pipeline} has {', '.join(known)}"
        )
    for row in open_side_table(job, side_output).read().to_pylist():
        typer.echo(msgspec.json.encode(row).decode())


def checkpoint_table(records: list[CheckpointRecord], width: int) -> Table:
    """The checkpoints as people read them, a line each, no longer than *width*.

    A reason that does not fit is cut; ``checkpoints show ID`` has all of it.
    """
    lines = [_cells(record) for record in records]
    columns = [*zip(_HEADERS, *lines, strict=True)]
    rest = width - _PADDING - sum(max(map(len, column)) + _PADDING for column in columns)
    table = Table(*_HEADERS, box=None, padding=(0, _PADDING, 0, 0))
    for name in ("id", "records", "duration", "size"):
        next(c for c in table.columns if c.header == name).justify = "right"
    table.add_column("reason", no_wrap=True, overflow="ellipsis", max_width=max(rest, _LEAST))
    for record, cells in zip(records, lines, strict=True):
        style = _STYLES[record.status]
        shown = [f"[{style}]{cell}[/{style}]" if cell == record.status else cell for cell in cells]
        reason = ": ".join(part for part in (record.reason, record.message) if part)
        table.add_row(*shown, escape(reason))
    return table


def _cells(record: CheckpointRecord) -> list[str]:
    return [
        str(record.id),
        record.type,
        record.status,
        f"{record.records:,}",
        "" if record.duration_ms is None else duration(record.duration_ms / 1000),
        "" if record.checkpointed_bytes is None else size(record.checkpointed_bytes),
    ]
