"""``sluice checkpoints show``: one retained checkpoint, stage by stage and file by file."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_files, print_json, print_line
from sluice.job.retained import retained_checkpoint
from sluice.views.checkpoint_details import (
    CheckpointDetails,
    Segments,
    StageDetails,
    checkpoint_details,
)
from sluice.views.units import moment, size, watermark


def show(
    pipeline: PipelineName,
    checkpoint: Annotated[str, typer.Argument(metavar="ID", help="A retained one, or 'latest'.")],
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what a restore of checkpoint ID would find: state, data in flight, watermarks, files."""
    job = declared_job(pipeline, root, endpoint_url)
    details = checkpoint_details(job, retained_checkpoint(job, checkpoint))
    if as_json:
        print_json(details)
        return
    console = Console()
    print_line(_headline(details))
    console.print(_stages(details))
    console.print(_sources(details))
    total = sum(file.size_bytes for file in details.files)
    print_line(f"{len(details.files):,} files, {size(total)}")
    print_files(details.files)


def _headline(details: CheckpointDetails) -> str:
    savepoint = f" {details.savepoint}" if details.savepoint else ""
    parent = details.origin or (f"checkpoint {details.parent}" if details.parent else "nothing")
    tables = ", ".join(
        f"{uid} as of {details.published.get(uid, version)}"
        for uid, version in details.tables.items()
    )
    return (
        f"checkpoint {details.id}: {details.type}{savepoint} of generation {details.generation}, "
        f"{'committed' if details.committed else 'not committed yet'}\n"
        f"triggered {moment(details.triggered_at_ms)}, "
        f"completed {moment(details.completed_at_ms)} (UTC)\n"
        f"continues {parent}; {details.records:,} records; "
        f"{size(details.checkpointed_bytes)} written, {size(details.full_bytes)} in all\n"
        f"tables: {tables or 'none'}"
    )


def _stages(details: CheckpointDetails) -> Table:
    table = Table("stage", "parallelism", "state", "in flight", "watermark", "", title="stages")
    for stage in details.stages:
        table.add_row(
            stage.uid,
            f"{stage.parallelism} of {stage.max_parallelism}",
            _segments(stage.state),
            _segments(stage.in_flight),
            watermark(stage.watermark_ms),
            _remark(stage),
        )
    return table


def _segments(segments: Segments) -> str:
    if not segments.files and not segments.inline:
        return "none"
    inline = f" + {segments.inline} inline" if segments.inline else ""
    return f"{segments.files} files{inline}, {segments.rows:,} rows, {size(segments.size_bytes)}"


def _remark(stage: StageDetails) -> str:
    remarks = {"overtaken": stage.is_overtaken, "finished": stage.is_finished}
    return ", ".join(remark for remark, holds in remarks.items() if holds)


def _sources(details: CheckpointDetails) -> Table:
    table = Table("source", "partition", "next offset", "records before it", title="sources")
    for source in details.sources:
        for part in source.partitions:
            table.add_row(source.uid, part.partition, f"{part.offset:,}", f"{part.records:,}")
        if not source.partitions:
            table.add_row(source.uid, "pinned whole", "", "")
    return table
