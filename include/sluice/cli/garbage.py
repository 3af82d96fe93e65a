"""``sluice orphans`` and ``sluice gc``: what nothing names any more, reported or deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    PipelineName,
    Root,
    declared_job,
    period_ms,
)
from sluice.cli.printing import print_json, print_line
from sluice.coordinator.garbage import collect_garbage, find_orphans
from sluice.coordinator.orphans import Orphan, Orphans, Reason
from sluice.job.job import Job
from sluice.views.units import size

DEFAULT_GRACE = "1h"  # The collector's own default, as a person writes it.

Grace: TypeAlias = Annotated[
    str,
    typer.Option(
        "--grace", help="Leave what is younger, by the store's clock: 90s, 30m, 1h, 2d, or 0s."
    ),
]


class ReasonRecord(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    description: str
    files: int
    size_bytes: int


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``key`` is relative to the root, or to the place of ``sink``."""

    key: str
    sink: str | None
    size_bytes: int
    reason: str


class SavepointRecord(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    files: int
    size_bytes: int


class GarbageReport(msgspec.Struct, frozen=True, kw_only=True):
    """``deleted`` tells whether ``files`` are gone; ``orphans`` leaves them out."""

    pipeline: str
    root: str
    deleted: bool
    total_files: int
    total_bytes: int
    reasons: list[ReasonRecord]
    too_young: list[ReasonRecord]
    incomplete_savepoints: list[SavepointRecord]
    unknown: list[str]
    files: list[FileRecord] | msgspec.UnsetType = msgspec.UNSET


def orphans(
    pipeline: PipelineName,
    grace: Grace = DEFAULT_GRACE,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Report what 'sluice gc' would delete, by kind, and incomplete savepoints; delete nothing."""
    job = declared_job(pipeline, root, endpoint_url)
    found = find_orphans(job, grace_ms=period_ms("--grace", grace))
    if as_json:
        print_json(_report(job, found, deleted=False))
        return
    _print(found, "would be deleted by 'sluice gc'")


def gc(
    pipeline: PipelineName,
    grace: Grace = DEFAULT_GRACE,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List every file; delete nothing.")
    ] = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete what no retained checkpoint, savepoint, pending checkpoint or table needs."""
    job = declared_job(pipeline, root, endpoint_url)
    found = collect_garbage(job, grace_ms=period_ms("--grace", grace), dry_run=dry_run)
    if as_json:
        report = _report(job, found, deleted=not dry_run)
        files = [
            FileRecord(
                key=one.key, sink=one.sink, size_bytes=one.size_bytes, reason=one.reason.name
            )
            for one in found.files
        ]
        print_json(msgspec.structs.replace(report, files=files))
        return
    for one in found.files if dry_run else ():
        place = f"{one.key} of sink {one.sink}" if one.sink else one.key
        typer.echo(f"{place} ({size(one.size_bytes)})")
    _print(found, "would be deleted" if dry_run else "deleted")


def _report(job: Job, found: Orphans, *, deleted: bool) -> GarbageReport:
    return GarbageReport(
        pipeline=job.pipeline.uid,
        root=job.store.root,
        deleted=deleted,
        total_files=len(found.files),
        total_bytes=found.total_bytes,
        reasons=_by_reason(found.files),
        too_young=_by_reason(found.too_young),
        incomplete_savepoints=[
            SavepointRecord(name=one.name, files=one.files, size_bytes=one.size_bytes)
            for one in found.incomplete_savepoints
        ],
        unknown=list(found.unknown),
    )


def _by_reason(files: Sequence[Orphan]) -> list[ReasonRecord]:
    sizes = {reason: [one.size_bytes for one in files if one.reason is reason] for reason in Reason}
    return [
        ReasonRecord(
            reason=reason.name, description=reason.value, files=len(found), size_bytes=sum(found)
        )
        for reason, found in sizes.items()
        if found
    ]


def _print(found: Orphans, what_happens: str) -> None:
    if found.files:
        table = Table("what", "files", "size")
        for record in _by_reason(found.files):
            table.add_row(record.description, f"{record.files:,}", size(record.size_bytes))
        Console().print(table)
    lines = [f"{len(found.files):,} files, {size(found.total_bytes)}: {what_happens}"]
    if found.too_young:
        lines.append(f"{len(found.too_young):,} more are within the grace period")
    lines += [
        f"savepoint {one.name} is incomplete ({one.files:,} files, {size(one.size_bytes)}): its "
        "export crashed; it is yours to delete"
        for one in found.incomplete_savepoints
    ]
    lines += [f"{key} has no name that sluice writes; it stays" for key in found.unknown]
    for line in lines:
        print_line(line)
