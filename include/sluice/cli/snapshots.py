"""``sluice snapshots``: what a job can be restored from, and what stands against it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json, print_line
from sluice.views.snapshots import Snapshot, snapshots
from sluice.views.units import moment, size

_YES_OR_NO = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "?"}
_SHORT_LIFE = 6


def list_snapshots(
    pipeline: PipelineName,
    roots: Annotated[
        list[str] | None,
        typer.Option("--in", metavar="URI", help="Another root; may be given several times."),
    ] = None,
    from_pipeline: Annotated[
        str | None, typer.Option(metavar="UID", help="The pipeline there, if its uid is another.")
    ] = None,
    no_checks: Annotated[
        bool, typer.Option("--no-checks", help="Do not ask whether each can be restored.")
    ] = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """List what PIPELINE can be restored from: retained checkpoints and savepoints, newest first.

    Of each: its size, the generation that took it, the tables' versions that it pins, and whether
    it can be restored now.  'sluice restore --dry-run' also reads its files.
    """
    job = declared_job(pipeline, root, endpoint_url)
    found = snapshots(job, roots or (), pipeline=from_pipeline, checks=not no_checks)
    if as_json:
        print_json(found)
        return
    if not found:
        print_line(f"{pipeline} has no snapshot in {job.store.root}")
        return
    for place in dict.fromkeys(one.root for one in found):
        here = [one for one in found if one.root == place]
        print_line(f"{here[0].pipeline} in {place or job.store.root}")
        Console().print(_table(here))
    for one in found:
        _print_remarks(one)


def _table(found: list[Snapshot]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("id", justify="right")
    table.add_column("snapshot", overflow="fold")
    table.add_column("completed (UTC)", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("taken by", no_wrap=True)
    table.add_column("tables", overflow="ellipsis", no_wrap=True)
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


def _pinned(snapshot: Snapshot) -> str:
    """The sinks' versions; those of side outputs are in the JSON."""
    sinks = {uid: version for uid, version in snapshot.tables.items() if "." not in uid}
    return ", ".join(f"{uid} {version}" for uid, version in sinks.items())


def _taken_by(snapshot: Snapshot) -> str:
    """The generation, and the life if that is not the job's of today."""
    if snapshot.generation is None:
        return ""
    generation = f"gen. {snapshot.generation}"
    if snapshot.is_of_this_life or snapshot.life is None:
        return generation
    return f"{generation}, life {snapshot.life[:_SHORT_LIFE]}"


def _print_remarks(snapshot: Snapshot) -> None:
    for problem in snapshot.problems:
        print_line(f"{snapshot.name} cannot be restored: {problem}")
    for ahead in snapshot.tables_ahead:
        print_line(f"{snapshot.name}: {ahead.told(rolls_back=False)}")
