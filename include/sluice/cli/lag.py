"""``sluice lag``: how far the sources of a job are behind, and how fast rows flow."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json, print_line
from sluice.statistics.flow import NodeRates, Rates
from sluice.statistics.lag import SourceLag
from sluice.views.lag import JobLag, job_lag
from sluice.views.units import moment, period, size, watermark


def lag(
    pipeline: PipelineName,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show how far each source is behind as of the newest trigger, and rows per second."""
    found = job_lag(declared_job(pipeline, root, endpoint_url))
    print_json(found) if as_json else _print(found)


def _print(found: JobLag) -> None:
    if not found.sources:
        print_line("nothing is known of the sources: there is no checkpoint, pending or retained")
        return
    if found.checkpoint is None or found.age_ms is None:
        print_line("no checkpoint has completed yet")
    else:
        age = period(found.age_ms)
        print_line(f"checkpoint {found.checkpoint} is the last one that completed, {age} ago")
    table = Table("source", "pending", "as of (UTC)", "watermark", "behind the trigger")
    for source in found.sources:
        table.add_row(
            source.id,
            pending(source),
            moment(source.as_of),
            "" if source.watermark is None else watermark(source.watermark),
            "" if source.watermark_lag is None else period(source.watermark_lag),
        )
    Console().print(table)
    if found.rates is not None:
        _print_rates(found.rates)


def _print_rates(rates: Rates) -> None:
    table = Table("node", "rows in/s", "rows out/s", "bytes out/s")
    for uid, node in rates.nodes.items():
        table.add_row(uid, *_cells(node))
    Console().print(table)
    print_line(f"over {rates.checkpoints} completed checkpoints, {period(rates.window)}")


def pending(source: SourceLag) -> str:
    """What is pending in words: ``12 records``, ``at least 3 files, 4.0 MB``, ``unknown``."""
    least = "at least " if source.pending_is_least else ""
    if source.pending_records is not None:
        return f"{least}{source.pending_records:,} records"
    if source.pending_bytes is not None:
        return f"{least}{size(source.pending_bytes)} in {source.pending_splits:,} files"
    return "unknown"


def _cells(node: NodeRates) -> list[str]:
    bytes_out = node.bytes_out_per_second
    return [
        "" if node.rows_in_per_second is None else f"{node.rows_in_per_second:,.1f}",
        "" if node.rows_out_per_second is None else f"{node.rows_out_per_second:,.1f}",
        "" if bytes_out is None else f"{size(round(bytes_out))}/s",
    ]
