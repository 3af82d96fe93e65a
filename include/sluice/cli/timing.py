"""``sluice pause``, ``resume`` and ``checkpoints config``: when a running job takes checkpoints."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
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
from sluice.cli.who import this_person
from sluice.coordinator import timing
from sluice.coordinator.timing import NewTimes
from sluice.job.job import Job
from sluice.views.configuration import CheckpointConfig, checkpoint_config
from sluice.views.options import awaited_changes, told
from sluice.views.units import moment


def pause(
    pipeline: PipelineName,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take no periodic checkpoint of PIPELINE from now on; what is pending completes.

    As records are read in epochs, the job reads nothing until 'sluice resume'.  'sluice checkpoint'
    and 'sluice savepoint' still take one.
    """
    job = declared_job(pipeline, root, endpoint_url)
    timing.pause(job, by=this_person())
    _say(job, f"checkpointing of {pipeline} is paused", as_json=as_json)


def resume(
    pipeline: PipelineName,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take periodic checkpoints of PIPELINE again."""
    job = declared_job(pipeline, root, endpoint_url)
    timing.resume(job, by=this_person())
    _say(job, f"checkpointing of {pipeline} is resumed", as_json=as_json)


def config(
    pipeline: PipelineName,
    interval: Annotated[
        str | None, typer.Option(metavar="PERIOD", help="The least time between two triggers.")
    ] = None,
    min_pause: Annotated[
        str | None, typer.Option(metavar="PERIOD", help="The least time behind a completed one.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="PERIOD", help="How long a checkpoint may take.")
    ] = None,
    tolerable: Annotated[
        int | None, typer.Option(metavar="N", help="Failures in a row that the job survives.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Take back what was changed, but not a pause.")
    ] = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show how PIPELINE takes its checkpoints: declared, in force, default; or change it.

    A change holds from the next checkpoint on, through restores, until --reset or a new submission.
    """
    job = declared_job(pipeline, root, endpoint_url)
    times = NewTimes(
        interval=_period("--interval", interval),
        min_pause=_period("--min-pause", min_pause),
        timeout=_period("--timeout", timeout),
        tolerable_failed_checkpoints=tolerable,
        resets=reset,
    )
    if times != NewTimes():
        timing.retime(job, times, by=this_person())
    shown = checkpoint_config(job)
    if as_json:
        print_json(shown)
    else:
        _print(job, shown)


def _period(option: str, given: str | None) -> timedelta | None:
    if given is None:
        return None
    return timedelta(0) if given == "0" else timedelta(milliseconds=period_ms(option, given))


def _say(job: Job, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(checkpoint_config(job))
    else:
        print_line(sentence)


def _print(job: Job, shown: CheckpointConfig) -> None:
    state = job.state()
    paused = ", paused" if shown.paused else ""
    print_line(f"{job.pipeline.uid} is {state.status.value}{paused}")
    if shown.changed_at is not None:
        at = moment(shown.changed_at)[:-4]
        print_line(f"changed last by {shown.changed_by}, at {at} (UTC)")
    table = Table("option", "declared", "in force", "default", box=None, padding=(0, 1, 0, 0))
    for one in shown.settings:
        cells = [told(one.name, value) for value in (one.declared, one.in_force, one.default)]
        style = "yellow" if one.declared != one.in_force else None
        table.add_row(one.name.removesuffix("_ms"), *map(escape, cells), style=style)
    Console().print(table)
    for change in awaited_changes(job.pipeline, state):
        print_line(change.awaited)
    for one in shown.settings:
        if one.changed and one.declared != one.in_force:
            declared, in_force = told(one.name, one.declared), told(one.name, one.in_force)
            print_line(f"{one.name}: declared {declared}, in force {in_force} until --reset")
