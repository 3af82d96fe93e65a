"""``sluice checkpoints stats``: how long, how large, and who was late."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json, print_line
from sluice.job.retained import numbered
from sluice.statistics.checkpoints import CheckpointStats, StageStats, SubtaskStatus
from sluice.statistics.overview import Details, Overview, StageSummary
from sluice.statistics.percentiles import StatsSummary
from sluice.views.statistics import details, overview
from sluice.views.units import duration, moment, size, watermark

_PERCENTILES = ("min", "avg", "p50", "p90", "p95", "p99", "p999", "max")
_SIZES = ("checkpointed_size", "state_size", "persisted_data")
_DURATIONS = ("end_to_end_duration", "finalization_duration")
MAX_LATE = 10  # Subtasks of a stage that are named; --json has them all.


def stats(
    pipeline: PipelineName,
    checkpoint: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="One checkpoint, retained or not.", min=1)
    ] = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show counts, percentiles and failures of a job's checkpoints; or of checkpoint ID all that
    was measured, stage by stage.
    """
    job = declared_job(pipeline, root, endpoint_url)
    if checkpoint is None:
        shown = overview(job)
        print_json(shown) if as_json else _print_overview(shown)
    else:
        told = details(job, numbered(str(checkpoint)))
        print_json(told) if as_json else _print_details(told)


def _print_overview(shown: Overview) -> None:
    counts, latest = shown.counts, shown.latest
    print_line(
        f"{counts.total:,} checkpoints: {counts.completed:,} completed, {counts.failed:,} failed, "
        f"{counts.in_progress:,} in progress; {counts.restored:,} restores"
    )
    table = Table("of the completed", *_PERCENTILES)
    for name in (*_DURATIONS, *_SIZES, "records"):
        row: StatsSummary | None = getattr(shown.summary, name)
        if row is not None:
            table.add_row(name, *(_figure(name, getattr(row, column)) for column in _PERCENTILES))
    Console().print(table)
    for what, one in (("completed", latest.completed), ("savepoint", latest.savepoint)):
        if one is not None:
            print_line(f"latest {what}: {one.id}, triggered {moment(one.trigger_timestamp)} (UTC)")
    if latest.restored is not None:
        at = moment(latest.restored.restore_timestamp)
        print_line(f"latest restored: {latest.restored.external_path}, {at} (UTC)")
    if latest.failed is not None:
        print_line(f"latest failed: {latest.failed.id}, {_why(latest.failed)}")
    for reason, number in shown.failures.items():
        print_line(f"{number:,} failed with {reason}")


def _print_details(told: Details) -> None:
    line = told.checkpoint
    print_line(
        f"checkpoint {line.id}: {line.checkpoint_type}, {line.status}"
        f"{', discarded' if told.discarded else ''}, triggered {moment(line.trigger_timestamp)} "
        f"(UTC)"
    )
    if line.failure_reason is not None:
        print_line(_why(line))
    for one in told.exceptions:
        print_line(f"{one.stage}/{one.index}, attempt {one.attempt}: {one.message}")
    table = Table(
        "stage", "acks", "latest ack after", "start delay", "alignment", "sync", "async", "written",
        "state", "rows in", "rows out", "late", "requests", "watermark",
    )  # fmt: skip
    for stage in told.stages:
        table.add_row(*map(escape, _cells(stage, told.summaries[stage.id])))
    Console().print(table)
    for stage in told.stages:
        missing = [s.index for s in stage.subtasks if s.status is SubtaskStatus.PENDING_OR_FAILED]
        if missing:
            named = ", ".join(str(index) for index in missing[:MAX_LATE])
            more = f" and {len(missing) - MAX_LATE} more" if len(missing) > MAX_LATE else ""
            print_line(f"{stage.id} lacks the acks of subtasks {named}{more}")


def _cells(stage: StageStats, of: StageSummary) -> list[str]:
    """Of a figure that subtasks have each, the largest: the slowest one holds up the rest."""

    def most(summary: StatsSummary | None) -> str:
        return "" if summary is None else _figure("duration", summary.max)

    return [
        stage.id,
        f"{stage.num_acknowledged_subtasks}/{stage.num_subtasks}",
        _figure("duration", stage.end_to_end_duration),
        most(of.start_delay),
        _figure("duration", stage.alignment.duration),
        most(of.sync),
        most(of.async_),
        _figure("size", stage.checkpointed_size),
        _figure("size", stage.state_size),
        _figure("rows", stage.rows_in),
        _figure("rows", stage.rows_out),
        _figure("rows", stage.late_rows),
        "" if stage.requests is None else _figure("requests", stage.requests.total),
        "" if stage.watermark is None else watermark(stage.watermark),
    ]


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if "duration" in name:
        return duration(value / 1000)
    return size(round(value)) if name in _SIZES or name == "size" else f"{round(value):,}"


def _why(line: CheckpointStats) -> str:
    return ": ".join(part for part in (line.failure_reason, line.failure_message) if part)
