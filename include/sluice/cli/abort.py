"""``sluice checkpoints abort``: ends one pending checkpoint; the job goes on."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from sluice.cli.options import AsJson, EndpointUrl, PipelineName, Root, declared_job
from sluice.cli.printing import print_json, print_line
from sluice.cli.who import this_person
from sluice.coordinator.user_abort import abort_checkpoint, pending_checkpoint


class AbortResult(msgspec.Struct, frozen=True, kw_only=True):
    """``aborted`` are the checkpoint and those that continued it."""

    pipeline: str
    status: str
    aborted: list[int]


def abort(
    pipeline: PipelineName,
    checkpoint: Annotated[str, typer.Argument(metavar="ID", help="A pending one, or 'latest'.")],
    because: Annotated[
        str, typer.Option("--because", help="Why; the history shows it.", show_default=False)
    ] = "",
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Abort the pending checkpoint ID: what it wrote is deleted, and its records are read again.

    The job goes on: it does not fail over, and nothing counts as a failure.
    """
    job = declared_job(pipeline, root, endpoint_url)
    checkpoint_id = pending_checkpoint(job, checkpoint)
    before = job.state().pending
    after = abort_checkpoint(job, checkpoint_id, by=this_person(because))
    gone = [one.checkpoint_id for one in before if not after.pending_checkpoint(one.checkpoint_id)]
    result = AbortResult(pipeline=pipeline, status=after.status.value, aborted=[*map(int, gone)])
    if as_json:
        print_json(result)
        return
    print_line(f"checkpoint {checkpoint_id} is aborted; {pipeline} is {result.status} and goes on")
    for child in result.aborted:
        if child != checkpoint_id:
            print_line(f"checkpoint {child}, which continued it, is aborted too")
