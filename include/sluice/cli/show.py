"""Commands that only show: pipelines, checkpoints, snapshots, the journal, lag and metrics."""

from __future__ import annotations

import ipaddress
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    OtherPipeline,
    Root,
    declared_uids,
    location,
    moment,
    print_files,
    print_json,
    print_line,
    print_table,
    watermark,
)
from sluice.connectors.json_rows import encode_lines
from sluice.coordinator.garbage import find_orphans
from sluice.coordinator.savepoints import savepoint_names
from sluice.core.failures import FAILURE_REASONS, UNKNOWN_CHECKPOINT_ID
from sluice.core.units import duration, period, size
from sluice.declaration.pipeline import side_outputs
from sluice.declaration.project import load_pipeline, load_pipelines
from sluice.errors import ConfigurationError
from sluice.figures.overview import Details, Overview, StatsSummary
from sluice.figures.rates import NodeRates, Rates, SourceLag
from sluice.figures.record import (
    CheckpointStats,
    CheckpointStatus,
    Figure,
    Scope,
    Unit,
    figures_of,
)
from sluice.job.job import Job, open_job
from sluice.job.places import open_side_table
from sluice.job.snapshots import parsed_checkpoint_id, retained_checkpoint
from sluice.surface.checkpoints import (
    CheckpointRecord,
    JobLag,
    details,
    history,
    job_lag,
    newest_of,
    overview,
)
from sluice.surface.exceptions import exception_history
from sluice.surface.health import health
from sluice.surface.journal import journal_records
from sluice.surface.monitoring import metrics_of_each, metrics_text, registry_of
from sluice.surface.snapshots import (
    CheckpointDetails,
    Segments,
    Snapshot,
    StageDetails,
    checkpoint_details,
    snapshots,
)
from sluice.surface.what_changed import what_changed

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

DEFAULT_LIMIT = 100
DEFAULT_LAST = 20
LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535
_STYLES = {"COMPLETED": "green", "FAILED": "red", "IN_PROGRESS": "yellow"}
_HEADERS = ("id", "type", "status", "records", "duration", "size")
_PADDING = 2
_LEAST = 12  # The least width of a reason, however narrow the screen is.
_YES_OR_NO = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "?"}
_SHORT_LIFE = 6  # Letters of a life that are shown.
_PERCENTILES = ("min", "avg", "p50", "p90", "p95", "p99", "p999", "max")


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
    print_table(table)


def checkpoints(
    job: Job,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="So many of the newest.")
    ] = DEFAULT_LIMIT,
    is_all: Annotated[
        bool, typer.Option("--all", help="All that are known, subsumed ones too.")
    ] = False,
    status: Annotated[
        list[CheckpointStatus] | None, typer.Option("--status", help="Only of this status.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List a job's checkpoints: id, type, status, duration, size; and its savepoints by name."""
    statuses = frozenset(status or CheckpointStatus)
    records = history(job, limit=None if is_all else limit, statuses=statuses)
    if as_json:
        print_json(records)
        return
    console = Console()
    state = job.state()
    paused = ", paused," if state.timing.is_paused else ""
    console.print(
        f"{job.pipeline.uid} is {state.status.value}{paused} in {job.store.root}", highlight=False
    )
    found = health(job, state, newest_of(state))
    if found.next_step is not None:
        step = found.next_step
        console.print(f"{found.says} {step.says}", highlight=False, markup=False)
        if step.command:
            console.print(f"  {step.command}", highlight=False, markup=False)
    console.print(checkpoint_table(records, console.width, marks_discarded=True))
    if any(record.status == "FAILED" for record in records):
        typer.secho(f"what the reasons mean: {FAILURE_REASONS}", err=True)
    names = savepoint_names(job)
    if names:
        console.print(f"savepoints: {', '.join(names)}", highlight=False)


def checkpoint_table(
    records: list[CheckpointRecord], width: int, *, marks_discarded: bool = False
) -> Table:
    """The checkpoints as people read them, a line each, no longer than *width*.

    A reason that does not fit is cut; ``checkpoints show ID`` has all of it.  With
    *marks_discarded* COMPLETED are only those that are there still.
    """
    if not marks_discarded:
        records = [msgspec.structs.replace(record, discarded=False) for record in records]
    lines = [_checkpoint_cells(record) for record in records]
    columns = [*zip(_HEADERS, *lines, strict=True)]
    rest = width - _PADDING - sum(max(map(len, column)) + _PADDING for column in columns)
    table = Table(*_HEADERS, box=None, padding=(0, _PADDING, 0, 0))
    for name in ("id", "records", "duration", "size"):
        next(c for c in table.columns if c.header == name).justify = "right"
    table.add_column("reason", no_wrap=True, overflow="ellipsis", max_width=max(rest, _LEAST))
    for record, cells in zip(records, lines, strict=True):
        style = "dim" if record.discarded else _STYLES[record.status]
        told = cells[_HEADERS.index("status")]
        shown = [f"[{style}]{cell}[/{style}]" if cell == told else cell for cell in cells]
        reason = ": ".join(part for part in (record.reason, record.message) if part)
        table.add_row(*shown, escape(reason))
    return table


def _checkpoint_cells(record: CheckpointRecord) -> list[str]:
    return [
        "-" if record.id == UNKNOWN_CHECKPOINT_ID else str(record.id),
        record.type,
        "discarded" if record.discarded else record.status,
        f"{record.records:,}",
        "" if record.duration_ms is None else duration(record.duration_ms / 1000),
        "" if record.checkpointed_bytes is None else size(record.checkpointed_bytes),
    ]


def show(
    job: Job,
    checkpoint: Annotated[str, typer.Argument(metavar="ID", help="A retained one, or 'latest'.")],
    as_json: AsJson = False,
) -> None:
    """Show what a restore of checkpoint ID would find: state, data in flight, watermarks, files."""
    details = checkpoint_details(job, retained_checkpoint(job, checkpoint))
    if as_json:
        print_json(details)
        return
    print_line(_headline(details))
    print_table(_stages(details))
    print_table(_sources(details))
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


def stats(
    job: Job,
    checkpoint: Annotated[
        int | None, typer.Argument(metavar="[ID]", help="One checkpoint, retained or not.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show counts, percentiles and failures of a job's checkpoints; or of checkpoint ID all that
    was measured, stage by stage.
    """
    if checkpoint is None:
        shown = overview(job)
        print_json(shown) if as_json else _print_overview(shown)
    else:
        found = details(job, parsed_checkpoint_id(str(checkpoint)))
        print_json(found) if as_json else _print_details(found)


def exceptions(
    job: Job,
    has_stacks: Annotated[
        bool, typer.Option("--stacks", help="With the stack of each, your own frames first.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List what the last 50 failed checkpoints failed with, by root cause, the newest first."""
    found = exception_history(job)
    if as_json:
        print_json(found)
        return
    if not found.groups:
        uid = job.pipeline.uid
        print_line(f"no checkpoint of {uid} has failed, as far as its history goes back")
    for group in found.groups:
        where = "" if group.subtask is None else f"/{group.subtask}"
        task = (
            f"{group.stage or group.task}{where}, attempt {group.attempt}: " if group.task else ""
        )
        first, last = moment(group.first_timestamp), moment(group.last_timestamp)
        times = f"{group.count} times, {first} to" if group.count > 1 else "once,"
        print_line(f"{task}{group.root_cause}")
        newest = group.checkpoints[0]
        print_line(f"  {times} {last} (UTC); {group.reason or 'ran again'}, checkpoint {newest}")
        if has_stacks and group.stack:
            print_line(textwrap.indent(group.stack, "    "))


def changes(
    job: Job,
    last: Annotated[int, typer.Option(min=1, help="How many.")] = DEFAULT_LAST,
    as_json: AsJson = False,
) -> None:
    """List what changed: failures, restores, deploys, rescales, savepoints, acts of people."""
    found = what_changed(job)
    if as_json:
        print_json(found)
        return
    for one in found.changes[:last][::-1]:
        by = f", by {one.by}" if one.by else ""
        print_line(f"{moment(one.timestamp)}  {one.kind.value:<9}  {one.says}{by}")


def _print_overview(shown: Overview) -> None:
    counts, latest = shown.counts, shown.latest
    print_line(
        f"{counts.total:,} checkpoints: {counts.completed:,} completed, {counts.failed:,} failed, "
        f"{counts.in_progress:,} in progress; {counts.restored:,} restores"
    )
    table = Table("of the completed", *_PERCENTILES)
    for figure in figures_of(Scope.CHECKPOINT):
        row: StatsSummary | None = getattr(shown.summary, figure.name, None)
        if row is not None:
            table.add_row(
                figure.name, *(_shown(figure, getattr(row, part)) for part in _PERCENTILES)
            )
    print_table(table)
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


def _print_details(found: Details) -> None:
    line = found.checkpoint
    print_line(
        f"checkpoint {line.id}: {line.checkpoint_type}, {line.status}"
        f"{', discarded' if found.discarded else ''}, triggered {moment(line.trigger_timestamp)} "
        f"(UTC)"
    )
    if line.failure_reason is not None:
        print_line(_why(line))
    for one in found.exceptions:
        where = "" if one.index is None else f"/{one.index}"
        print_line(f"{one.stage or one.task}{where}, attempt {one.attempt}: {one.message}")
    listed = [one for one in figures_of(Scope.STAGE) if one.is_listed]
    table = Table("stage", "acks", *(one.title.lower() for one in listed))
    for stage in found.stages:
        acks = f"{stage.num_acknowledged_subtasks}/{stage.num_subtasks}"
        figures = (_shown(one, one.of(stage)) for one in listed)
        table.add_row(*map(escape, (stage.id, acks, *figures)))
    print_table(table)
    for stage in found.stages:
        for producer, late in (stage.late or {}).items():
            print_line(
                f"{stage.id}: {late.rows:,} late rows of {producer}, the farthest "
                f"{duration(late.most_ms / 1000)} behind the watermark"
            )
        if stage.num_acknowledged_subtasks < stage.num_subtasks:
            print_line(
                f"{stage.id} has not acknowledged; its {stage.num_subtasks} subtasks do so "
                "at once, when its Spark job has succeeded"
            )


def _shown(figure: Figure, value: float | None) -> str:
    if value is None:
        return ""
    match figure.unit:
        case Unit.MILLISECONDS:
            return duration(value / 1000)
        case Unit.BYTES:
            return size(round(value))
        case Unit.MOMENT:
            return watermark(round(value))
        case _:
            return f"{round(value):,}"


def _why(line: CheckpointStats) -> str:
    return ": ".join(part for part in (line.failure_reason, line.failure_message) if part)


def show_snapshots(
    job: Job,
    roots: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="URI", help="Another root; may be given several times."),
    ] = None,
    from_pipeline: OtherPipeline = None,
    no_checks: Annotated[
        bool, typer.Option("--no-checks", help="Do not ask whether each can be restored.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List what PIPELINE can be restored from: retained checkpoints and savepoints, newest first.

    Of each: its size, the generation that took it, the tables' versions that it pins, and whether
    it can be restored now.  'sluice restore --dry-run' also reads its files.
    """
    found = snapshots(job, roots or (), pipeline=from_pipeline, checks=not no_checks)
    if as_json:
        print_json(found)
        return
    if not found:
        print_line(f"{job.pipeline.uid} has no snapshot in {job.store.root}")
        return
    for place in dict.fromkeys(one.root for one in found):
        here = [one for one in found if one.root == place]
        print_line(f"{here[0].pipeline} in {place or job.store.root}")
        print_table(_snapshot_table(here))
    for one in found:
        _print_remarks(one)


def _snapshot_table(found: list[Snapshot]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("id", justify="right")
    table.add_column("snapshot")
    table.add_column("completed (UTC)", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("taken by", no_wrap=True)
    table.add_column("tables")
    table.add_column("restore", no_wrap=True)
    for one in found:
        table.add_row(
            "" if one.id is None else str(one.id),
            escape(one.savepoint or one.kind.value),
            "" if one.completed_at_ms is None else moment(one.completed_at_ms)[:-4],
            "" if one.full_bytes is None else size(one.full_bytes),
            _taken_by(one),
            escape(_pinned(one)),
            _YES_OR_NO[one.can_restore],
        )
    return table


def _taken_by(snapshot: Snapshot) -> str:
    """The generation, and the life unless it is the job's current one."""
    if snapshot.generation is None:
        return ""
    generation = f"gen. {snapshot.generation}"
    if snapshot.is_of_this_life or snapshot.life is None:
        return generation
    return f"{generation}, life {snapshot.life[:_SHORT_LIFE]}"


def _pinned(snapshot: Snapshot) -> str:
    """The versions of the sinks' tables; those of side outputs are in the JSON."""
    sinks = {uid: version for uid, version in snapshot.tables.items() if "." not in uid}
    return ", ".join(f"{uid} {version}" for uid, version in sinks.items())


def _print_remarks(snapshot: Snapshot) -> None:
    for problem in snapshot.problems:
        print_line(f"{snapshot.name} cannot be restored: {problem}")
    for ahead in snapshot.tables_ahead:
        print_line(f"{snapshot.name}: {ahead.sentence(rolls_back=False)}")


def side_output_rows(
    job: Job,
    side_output: Annotated[str, typer.Argument(help="STAGE.malformed or STAGE.late")],
) -> None:
    """Print the rows of a side output as JSON lines: where each came from, and why it is there."""
    known = side_outputs(job.pipeline)
    if side_output not in known:
        raise ConfigurationError(
            f"there is no side output {side_output!r}; {job.pipeline.uid} has {', '.join(known)}"
        )
    typer.echo(encode_lines(open_side_table(job, side_output).read()).decode(), nl=False)


def journal(
    job: Job,
    last: Annotated[int, typer.Option(min=1, help="How many entries.")] = DEFAULT_LAST,
    as_json: AsJson = False,
) -> None:
    """Print the newest entries of a job's journal, oldest first."""
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
    print_table(table)


def lag(
    job: Job,
    as_json: AsJson = False,
) -> None:
    """Show how far each source is behind as of the newest trigger, and rows per second."""
    found = job_lag(job)
    print_json(found) if as_json else _print_lag(found)


def _print_lag(found: JobLag) -> None:
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
    print_table(table)
    if found.rates is not None:
        _print_rates(found.rates)


def pending(source: SourceLag) -> str:
    """The pending records in words: ``12 records``, ``at least 3 files, 4.0 MB``, ``unknown``."""
    least = "at least " if source.pending_is_least else ""
    if source.pending_records is not None:
        return f"{least}{source.pending_records:,} records"
    if source.pending_bytes is not None:
        return f"{least}{size(source.pending_bytes)} in {source.pending_splits:,} files"
    return "unknown"


def _print_rates(rates: Rates) -> None:
    table = Table("node", "rows in/s", "rows out/s", "bytes out/s")
    for uid, node in rates.nodes.items():
        table.add_row(uid, *_rate_cells(node))
    print_table(table)
    print_line(f"over {rates.checkpoints} completed checkpoints, {period(rates.window)}")


def _rate_cells(node: NodeRates) -> list[str]:
    bytes_out = node.bytes_out_per_second
    return [
        "" if node.rows_in_per_second is None else f"{node.rows_in_per_second:,.1f}",
        "" if node.rows_out_per_second is None else f"{node.rows_out_per_second:,.1f}",
        "" if bytes_out is None else f"{size(round(bytes_out))}/s",
    ]


def metrics_command(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PIPELINE]...",
            help="Uids of declared pipelines; all of them without one.",
            autocompletion=declared_uids,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve the metrics to scrapers, instead of printing them once. Anyone who "
            f"reaches the port can read them. [default host: {LOOPBACK}]",
        ),
    ] = None,
    orphans: Annotated[
        bool,
        typer.Option(
            "--orphans", help="Look for orphans, too: a LIST of everything that the job has stored."
        ),
    ] = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Print the metrics of jobs in Prometheus' text format, or serve them."""
    jobs = _jobs(pipelines or [], root, endpoint_url)
    count = count_orphans if orphans else None
    if listen is None:
        typer.echo(metrics_text(jobs, count), nl=False)
        return
    host, port = address(listen)
    _serve(host, port, registry_of(lambda: metrics_of_each(jobs, count)))


def address(listen: str) -> tuple[str, int]:
    """The host and port of ``[HOST:]PORT``.

    Raises:
        ConfigurationError: it is not of this form, or stands for every network of the machine.
    """
    host, _, port = listen.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= MAX_PORT:
        raise ConfigurationError(f"--listen {listen!r} has no port; write --listen {LOOPBACK}:9464")
    host = host.strip("[]") or LOOPBACK
    if _is_unspecified(host):
        raise ConfigurationError(
            f"--listen {listen!r} would serve the metrics on every network of this machine, "
            f"without a password; name one address, as {LOOPBACK}:{port}"
        )
    return host, int(port)


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # A host's name.
        return False


def _jobs(uids: Sequence[str], root: str | None, endpoint_url: str | None) -> list[Job]:
    """The jobs of the pipelines; a failed request is not repeated before the next scrape."""
    declared = [load_pipeline(uid) for uid in uids] or [*load_pipelines().values()]
    place = replace(location(root, endpoint_url), patience_s=0)
    return [open_job(pipeline, place) for pipeline in declared]


def count_orphans(job: Job) -> tuple[int, int]:
    """The number of files that nothing names, beyond the grace period, and their bytes."""
    found = find_orphans(job)
    return len(found.files), found.total_bytes


def _serve(host: str, port: int, registry: CollectorRegistry) -> None:
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(
            f"--listen {host}:{port} cannot be had: {error.strerror or error}; name a free port"
        ) from error
    print_line(f"metrics at http://{host}:{server.server_port}/metrics; Ctrl-C ends it")
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()
