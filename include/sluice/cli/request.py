"""``sluice checkpoint``, ``savepoint`` and ``stop``: asked for here, done by what drives the job.

``sluice run`` or Airflow takes the request up with its next checkpoint.  The command waits for the
end, and says so when nothing takes it up.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeAlias

import typer

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
from sluice.coordinator.user_requests import UserRequest, request_checkpoint
from sluice.core.decider import CheckpointRequest
from sluice.core.properties import CheckpointType
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.views.requests import RequestProgress, RequestStatus, last_host, request_progress
from sluice.views.units import moment

POLL_S = 0.5
HINT_AFTER_S = 15.0  # Longer than most checkpoints that are before it, shorter than a coffee.


NoWait: TypeAlias = Annotated[
    bool, typer.Option("--no-wait", help="Return once the request is queued.")
]
WaitFor: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--wait-for",
        metavar="PERIOD",
        help="Drop the request if nothing takes it up for 90s, 10m, 2h.  "
        "[default: the checkpoint timeout]",
    ),
]


Force: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Do not wait for a pending checkpoint, above the limit of concurrent ones.  "
        "Unaligned ones may not overlap, and wait all the same.",
    ),
]


def checkpoint(
    pipeline: PipelineName,
    full: Annotated[
        bool,
        typer.Option("--full", help="Write all state anew: it shares no file with those before."),
    ] = False,
    force: Force = False,
    no_wait: NoWait = False,
    wait_for: WaitFor = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Have a checkpoint of PIPELINE taken now, also without new input or during the minimum pause.

    The process that drives the job takes it: 'sluice run', or Airflow.
    """
    job = declared_job(pipeline, root, endpoint_url)
    request = UserRequest(by=this_person(), is_full=full, is_forced=force, waits=_period(wait_for))
    _ask(job, request, waits=not no_wait, as_json=as_json)


def savepoint(
    pipeline: PipelineName,
    name: Annotated[str, typer.Argument(help="The savepoint's name, which is never overwritten.")],
    canonical: Annotated[
        bool, typer.Option("--canonical", help="Merge each subtask's state to one sorted run.")
    ] = False,
    force: Force = False,
    no_wait: NoWait = False,
    wait_for: WaitFor = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Have savepoint NAME of PIPELINE taken; the job goes on."""
    job = declared_job(pipeline, root, endpoint_url)
    request = UserRequest(
        by=this_person(),
        type=CheckpointType.SAVEPOINT,
        name=name,
        is_canonical=canonical,
        is_forced=force,
        waits=_period(wait_for),
    )
    _ask(job, request, waits=not no_wait, as_json=as_json)


def stop(
    pipeline: PipelineName,
    drain: Annotated[
        bool,
        typer.Option("--drain", help="All windows fire, and the job is FINISHED, not SUSPENDED."),
    ] = False,
    savepoint: Annotated[
        str | None, typer.Option(help="Its savepoint's name.  [default: stop-DATE-TIME]")
    ] = None,
    force: Force = False,
    no_wait: NoWait = False,
    wait_for: WaitFor = None,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Stop PIPELINE with a savepoint: what is before it is published, nothing is read behind it.

    'sluice cancel' ends a job at once, without one.
    """
    job = declared_job(pipeline, root, endpoint_url)
    request = UserRequest(
        by=this_person(),
        type=CheckpointType.SAVEPOINT_TERMINATE if drain else CheckpointType.SAVEPOINT_SUSPEND,
        name=savepoint or f"stop-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        is_forced=force,
        waits=_period(wait_for),
    )
    _ask(job, request, waits=not no_wait, as_json=as_json)


def _period(wait_for: str | None) -> timedelta | None:
    return None if wait_for is None else timedelta(milliseconds=period_ms("--wait-for", wait_for))


def _ask(job: Job, request: UserRequest, *, waits: bool, as_json: bool) -> None:
    queued = request_checkpoint(job, request)
    progress = _await_end(job, queued) if waits else request_progress(job, queued.request_id)
    if as_json:
        print_json(progress)
    if progress.status in (RequestStatus.WAITING, RequestStatus.IN_PROGRESS):
        if not as_json:
            print_line(f"request {queued.request_id} is queued; it waits until {_end_of(queued)}")
            print_line(_hint(job))
    elif progress.status is not RequestStatus.COMPLETED:
        raise ConfigurationError(_why(job, progress))
    elif not as_json:
        print_line(_told(job, request, progress))


def _await_end(job: Job, queued: CheckpointRequest) -> RequestProgress:
    """Look until it has ended; say once that nothing takes it up, and which one it became."""
    begin, is_hinted = time.monotonic(), False
    checkpoint: int | None = None
    while True:
        progress = request_progress(job, queued.request_id, checkpoint=checkpoint)
        if progress.has_ended:
            return progress
        is_late = time.monotonic() - begin >= HINT_AFTER_S
        if progress.status is RequestStatus.WAITING and is_late and not is_hinted:
            is_hinted = True
            typer.echo(f"it waits until {_end_of(queued)}; {_hint(job)}", err=True)
        if checkpoint is None and progress.checkpoint is not None:
            checkpoint = progress.checkpoint
            typer.echo(f"checkpoint {checkpoint} is pending", err=True)
        time.sleep(POLL_S)


def _end_of(queued: CheckpointRequest) -> str:
    return f"{moment(queued.expires_at_ms or 0)[:-4]} (UTC)"


def _hint(job: Job) -> str:
    """What is to take the request up, and what a person can do if that is not there."""
    uid, host = job.pipeline.uid, last_host(job.state())
    if host is None:
        return f"what drives the job takes it up: 'sluice run {uid}', or the DAG {uid!r}"
    since = f"checkpoint {host.checkpoint}, at {moment(host.triggered_at_ms)[:-4]} (UTC)"
    if host.cause.startswith("airflow:"):
        return (
            f"Airflow drove {since}: its watchdog starts a run for the request within a minute, if "
            "Airflow runs and 'sluice__watchdog' is not paused"
        )
    return (
        f"'{host.cause}' drove {since}: if that process has ended, 'sluice run {uid}' takes the "
        "request up"
    )


def _why(job: Job, progress: RequestProgress) -> str:
    said = ": ".join(part for part in (progress.reason, progress.message) if part)
    match progress.status:
        case RequestStatus.FAILED:
            return f"checkpoint {progress.checkpoint} was aborted, {said}"
        case RequestStatus.REJECTED:
            return f"the request was dropped, {said}; {_hint(job)}"
        case _:
            uid = job.pipeline.uid
            return f"the journal does not tell what became of it; see 'sluice journal {uid}'"


def _told(job: Job, request: UserRequest, progress: RequestProgress) -> str:
    if request.name is None:
        return f"checkpoint {progress.checkpoint} completed"
    place = f"{job.store.root}/{job.paths.savepoint(request.name)}"
    taken = f"savepoint {request.name!r} is checkpoint {progress.checkpoint}, in {place}"
    if not request.type.stops_the_job:
        return taken
    uid = job.pipeline.uid
    return f"{uid} is {job.state().status.value}; {taken}"
