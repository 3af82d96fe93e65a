"""``sluice state read``: what a stage remembers, as of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json, print_line
from sluice.cli.result import check_result_file, write_result
from sluice.views.keyed_state import open_state

SHOWN_ROWS = 20


def read(
    pipeline: PipelineName,
    checkpoint: Annotated[
        str, typer.Argument(help="A retained checkpoint's id, 'latest', or a savepoint's name.")
    ],
    stage: Annotated[str, typer.Argument(help="The uid of a stage with keyed state.")],
    table: Annotated[
        str | None, typer.Option("--table", help="Which table, if the stage keeps several.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Write all rows there: *.parquet, *.csv or *.json."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, help=f"Read at most so many rows. [default on screen: {SHOWN_ROWS}]"
        ),
    ] = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the keyed state that STAGE has in CHECKPOINT, or write it to a file."""
    check_result_file(output)
    job = declared_job(pipeline, root, endpoint_url)
    state = open_state(job, checkpoint, stage, table)
    if output is not None:
        rows = state.frame(limit)
        write_result(rows.to_arrow(), output)
        print_line(f"{rows.height:,} rows written to {output}")
        return
    rows = state.frame(limit or SHOWN_ROWS)
    if as_json:
        print_json(rows.to_dicts())
        return
    shown = Table(*rows.columns, title=f"{stage} in checkpoint {checkpoint}")
    for row in rows.iter_rows():
        shown.add_row(*("" if value is None else str(value) for value in row))
    Console().print(shown)
    total = sum(handle.segment.rows for handles in state.subtasks for handle in handles)
    print_line(f"{rows.height:,} rows shown; its segments hold {total:,}, older versions included")
