"""Commands that change a job: its checkpoints and savepoints, its end, its restore, its timing.

``checkpoint``, ``savepoint`` and ``stop`` are requests: ``sluice run`` or Airflow, whichever drives
the job, takes one up with its next checkpoint.  The command waits for the end, and says so when
nothing takes the request up.  All other commands act at once.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    NoChecksums,
    OtherPipeline,
    Params,
    PipelineName,
    Root,
    declared_job,
    parameters,
    print_files,
    print_json,
    print_line,
    print_table,
    this_person,
)
from sluice.coordinator import requests
from sluice.coordinator.failure import abort_checkpoint, pending_checkpoint
from sluice.coordinator.repair import plan_repair, repair
from sluice.coordinator.requests import LEAST_WAIT, NewTimes, UserRequest, request_checkpoint
from sluice.coordinator.restore import ResolvedRestore, RestoreRequest, plan, resolve, stop
from sluice.coordinator.restore import restore as restore_job
from sluice.coordinator.savepoints import dispose as dispose_savepoint
from sluice.coordinator.submission import adopt
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus
from sluice.core.decider import CheckpointRequest
from sluice.core.ids import NO_GENERATION, CheckpointId
from sluice.core.restoring import RestoreOptions, Stop
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableAhead
from sluice.core.transitions import Consent
from sluice.declaration.durations import duration_of
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job, never_submitted_message
from sluice.job.snapshots import LATEST, parsed_checkpoint_id
from sluice.surface.journal import (
    RequestProgress,
    RequestStatus,
    last_host,
    repair_lines,
    repair_record,
    request_progress,
)
from sluice.surface.options import (
    CheckpointConfig,
    OptionChange,
    awaited_changes,
    checkpoint_config,
    options_after,
    value_with_unit,
)
from sluice.surface.snapshots import FileDetails, file_details
from sluice.surface.units import moment, size

POLL_S = 0.5
HINT_AFTER_S = 15.0  # Longer than most checkpoints, for which the request may have to wait.
NOT_COMPARED = "not compared with their checksums"

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
Checkpoint: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="ID", help="A retained checkpoint, or 'latest'.  [default: the latest]"),
]
Savepoint: TypeAlias = Annotated[str | None, typer.Option(help="A savepoint, by name.")]
FromRoot: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URI", help="Another root, which has the checkpoint.")
]
FromPath: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PATH",
        help="A snapshot by its path: its folder or the _metadata in it, as a URI, an absolute "
        "path, or a path in the root.",
    ),
]
ClaimModeOption: TypeAlias = Annotated[
    ClaimMode,
    typer.Option(
        case_sensitive=False,
        help="NO_CLAIM leaves the savepoint to you; CLAIM gives it to the job, which deletes it "
        "when no checkpoint reads it any more.",
    ),
]
Begin: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--begin",
        metavar="STAGE[.COLUMN]",
        help="Its state begins anew, as the declaration means something else by now. Repeatable.",
    ),
]
Keep: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        metavar="STAGE",
        help=(
            "Its state stays what it was of the rows so far, though rows from now on are read "
            "otherwise; of a source: its positions, as its place was moved. Repeatable."
        ),
    ),
]
AllowNonRestoredState: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-non-restored-state", help="Drop the state of stages that are gone."),
]
IgnoreInFlightOf: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="ID", help="Drop the data in flight of this checkpoint: its rows are lost."
    ),
]
RollBackTables: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--roll-back-tables",
        help="Put the sinks' tables back to what the checkpoint pinned, too, now.",
    ),
]
AcceptTables: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--accept-tables",
        help="Take the sinks' tables as they are, where they lack rows or show those of another "
        "life of a job.",
    ),
]
TakeOver: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--take-over",
        metavar="SINK",
        help="Take this sink's table over from another job, whose rows stay; once for each sink.",
    ),
]
Parallelism: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="[STAGE=]N", help="Subtasks of each stage from now on, or of one."),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be restored, and change nothing.")
]


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """``aborted`` were pending; ``retained`` can still be restored."""

    pipeline: str
    status: str
    aborted: list[int]
    retained: list[int]


class AbortResult(msgspec.Struct, frozen=True, kw_only=True):
    """``aborted`` are the checkpoint and those that continued it."""

    pipeline: str
    status: str
    aborted: list[int]


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``--dry-run --json``.  ``checkpoint`` None: the job would start from empty."""

    pipeline: str
    can_restore: bool
    problems: tuple[str, ...]
    checkpoint: int | None = None
    origin: str | None = None
    replays_commit: bool = False
    checksums_compared: bool = False
    ignores_in_flight: bool = False
    dropped_stages: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    total_bytes: int = 0
    files: tuple[FileDetails, ...] = ()
    tables_ahead: tuple[TableAhead, ...] = ()
    warnings: tuple[str, ...] = ()
    changed_options: tuple[OptionChange, ...] = ()


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: str
    checkpoint: int | None
    origin: str | None
    generation: int
    status: str
    tables_ahead: tuple[TableAhead, ...] = ()
    warnings: tuple[str, ...] = ()
    changed_options: tuple[OptionChange, ...] = ()


class TakeOverResult(msgspec.Struct, frozen=True, kw_only=True):
    """``warnings`` say what becomes of the table's rows, and of the job that wrote them."""

    pipeline: str
    sink: str
    taken_over: bool
    status: str
    generation: int
    warnings: tuple[str, ...]


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
    request = UserRequest(
        by=this_person(), is_full=full, is_forced=force, waits=_wait_period(wait_for)
    )
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
        waits=_wait_period(wait_for),
    )
    _ask(job, request, waits=not no_wait, as_json=as_json)


def stop_command(
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
        waits=_wait_period(wait_for),
    )
    _ask(job, request, waits=not no_wait, as_json=as_json)


def _wait_period(wait_for: str | None) -> timedelta | None:
    return None if wait_for is None else duration_of("--wait-for", wait_for, least=LEAST_WAIT)


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
        print_line(_completion_message(job, request, progress))


def _await_end(job: Job, queued: CheckpointRequest) -> RequestProgress:
    """Wait for its end; say once that nothing takes it up, and once which checkpoint it became."""
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
    """What should take the request up, and what a person can do if that does not run."""
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
    cause = ": ".join(part for part in (progress.reason, progress.message) if part)
    match progress.status:
        case RequestStatus.FAILED:
            return f"checkpoint {progress.checkpoint} was aborted, {cause}"
        case RequestStatus.REJECTED:
            return f"the request was dropped, {cause}; {_hint(job)}"
        case _:
            uid = job.pipeline.uid
            return f"the journal does not tell what became of it; see 'sluice journal {uid}'"


def _completion_message(job: Job, request: UserRequest, progress: RequestProgress) -> str:
    if request.name is None:
        return f"checkpoint {progress.checkpoint} completed"
    place = f"{job.store.root}/{job.names.savepoint(request.name)}"
    taken = f"savepoint {request.name!r} is checkpoint {progress.checkpoint}, in {place}"
    if not request.type.stops_the_job:
        return taken
    uid = job.pipeline.uid
    return f"{uid} is {job.state().status.value}; {taken}"


def cancel(
    pipeline: PipelineName,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """End the job: what is pending is aborted; what is retained is kept or goes, as configured."""
    job = declared_job(pipeline, root, endpoint_url)
    before = job.state()
    if before.generation == NO_GENERATION:
        raise ConfigurationError(never_submitted_message(job))
    after = stop(job, JobStatus.CANCELED)
    if after.status is not JobStatus.CANCELED:
        raise ConfigurationError(
            f"job {pipeline!r} is {after.status.value}; it cannot be cancelled"
        )
    result = CancelResult(
        pipeline=pipeline,
        status=after.status.value,
        aborted=[pending.checkpoint_id for pending in before.pending],
        retained=[done.checkpoint_id for done in after.completed],
    )
    if as_json:
        print_json(result)
        return
    retained = ", ".join(map(str, result.retained)) or "none"
    print_line(f"{pipeline} is {result.status}; retained checkpoints: {retained}")


def adopt_command(
    pipeline: PipelineName, root: Root = None, endpoint_url: EndpointUrl = None
) -> None:
    """Go on with a job in a copy of its root; nothing of it may run in the original any more."""
    job = declared_job(pipeline, root, endpoint_url)
    after = adopt(job)
    print_line(
        f"{pipeline} is {after.status.value} in {job.store.root}, generation {after.generation}"
    )


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
    ids = [pending.checkpoint_id for pending in before]
    result = AbortResult(
        pipeline=pipeline,
        status=after.status.value,
        aborted=[pending_id for pending_id in ids if not after.pending_checkpoint(pending_id)],
    )
    if as_json:
        print_json(result)
        return
    print_line(f"checkpoint {checkpoint_id} is aborted; {pipeline} is {result.status} and goes on")
    for child in result.aborted:
        if child != checkpoint_id:
            print_line(f"checkpoint {child}, which continued it, is aborted too")


def repair_command(
    pipeline: PipelineName,
    yes: Annotated[
        bool, typer.Option("--yes", help="Repair it; without, only say what would be lost.")
    ] = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Go on from the newest journal entry that can be read, past damaged ones behind it.

    What the damaged entries said is undone: a running job restarts, and what was pending is read
    again.  Nothing is deleted.  Other hosts may run: whoever appends first wins.
    """
    job = declared_job(pipeline, root, endpoint_url)
    planned = plan_repair(job)
    after = repair(job, planned, by=this_person()) if planned is not None and yes else None
    if planned is not None and yes and after is None:
        raise ConfigurationError(
            f"the journal of {pipeline!r} has changed since it was read, by another repair or a "
            f"host that knew the damaged entry; see 'sluice journal repair {pipeline}' again"
        )
    if as_json:
        print_json(repair_record(job, planned, is_repaired=after is not None))
        return
    for line in repair_lines(job, planned, is_repaired=after is not None):
        print_line(line)


def dispose_command(
    pipeline: PipelineName,
    name: Annotated[str, typer.Argument(help="The savepoint's name.")],
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete savepoint NAME of PIPELINE, and nothing else; refused while the job needs it.

    One that is not there, or not any more, is no error.  Jobs of other roots that were restored
    from it, and have completed no checkpoint since, are not asked.
    """
    job = declared_job(pipeline, root, endpoint_url)
    was_there = dispose_savepoint(job, name)
    if as_json:
        print_json({"savepoint": name, "disposed": was_there})
    elif was_there:
        print_line(f"savepoint {name} is deleted")
    else:
        print_line(f"there is no savepoint {name} in {job.store.root}; nothing was deleted")


def restore_command(
    context: typer.Context,
    pipeline: PipelineName,
    checkpoint: Checkpoint = None,
    savepoint: Savepoint = None,
    from_root: FromRoot = None,
    from_pipeline: OtherPipeline = None,
    from_path: FromPath = None,
    claim_mode: ClaimModeOption = ClaimMode.NO_CLAIM,
    allow_non_restored_state: AllowNonRestoredState = False,
    begin: Begin = None,
    keep: Keep = None,
    ignore_in_flight_of: IgnoreInFlightOf = None,
    roll_back_tables: RollBackTables = False,
    accept_tables: AcceptTables = False,
    take_over: TakeOver = None,
    no_checksums: NoChecksums = False,
    parallelism: Parallelism = None,
    param: Params = None,
    dry_run: DryRun = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Continue PIPELINE from its latest checkpoint, or from the one that is named.

    Everything it needs is verified first.  Older coordinators of the job are fenced.
    """
    job = declared_job(pipeline, root, endpoint_url)
    request = RestoreRequest(
        checkpoint=None if checkpoint in (None, LATEST) else parsed_checkpoint_id(checkpoint),
        savepoint=savepoint,
        root=from_root,
        pipeline=from_pipeline,
        pointer=from_path,
        parallelism=tuple(parallelism or ()),
        params=parameters(param or [], context.args),
        options=RestoreOptions(
            allow_non_restored_state=allow_non_restored_state,
            claim_mode=claim_mode,
            ignore_in_flight_of=(
                None if ignore_in_flight_of is None else CheckpointId(ignore_in_flight_of)
            ),
            roll_back_tables=roll_back_tables,
            accept_tables=accept_tables,
            take_over=tuple(take_over or ()),
            compare_checksums=not no_checksums,
            consent=Consent(begun=tuple(begin or ()), kept=tuple(keep or ())),
        ),
    )
    state = job.state()
    resolved = resolve(job, state, request)
    if dry_run:
        planned = _plan(job, state, resolved)
        _print_plan(planned, as_json=as_json, rolls_back=roll_back_tables)
        return
    restored = restore_job(
        job, resolved.target, resolved.options, configuration=resolved.configuration
    )
    result = RestoreResult(
        pipeline=job.pipeline.uid,
        checkpoint=restored.checkpoint_id,
        origin=None if restored.origin is None else str(restored.origin),
        generation=restored.state.generation,
        status=restored.state.status.value,
        tables_ahead=restored.tables_ahead,
        warnings=restored.warnings,
        changed_options=options_after(state, resolved.configuration),
    )
    _print_result(result, as_json=as_json, is_compared=not no_checksums)


def _plan(job: Job, state: CoordinatorState, resolved: ResolvedRestore) -> RestorePlan:
    uid, decision = job.pipeline.uid, plan(job, state, resolved).decision
    if isinstance(decision, Stop):
        return RestorePlan(pipeline=uid, can_restore=False, problems=decision.problems)
    origin = decision.choice.origin
    files = tuple(file_details(job, decision.files))
    return RestorePlan(
        pipeline=uid,
        can_restore=True,
        problems=(),
        checkpoint=decision.choice.checkpoint_id,
        origin=None if origin is None else str(origin),
        replays_commit=decision.replays_commit,
        checksums_compared=decision.is_compared,
        ignores_in_flight=decision.ignores_in_flight,
        dropped_stages=decision.dropped_stages,
        changes=decision.changes,
        total_bytes=sum(file.size_bytes for file in files),
        files=files,
        tables_ahead=decision.tables_ahead,
        warnings=decision.warnings,
        changed_options=options_after(state, resolved.configuration),
    )


def _print_plan(plan: RestorePlan, *, as_json: bool, rolls_back: bool) -> None:
    """Raises RestoreError, or with *as_json* ends with exit code 1, when it cannot be restored."""
    if as_json:
        print_json(plan)
        if plan.problems:
            raise typer.Exit(1)
        return
    for problem in plan.problems:
        print_line(problem)
    if plan.problems:
        count = len(plan.problems)
        problems = "one problem" if count == 1 else f"{count} problems"
        raise RestoreError(f"the job cannot be restored for the {problems} above")
    print_files(plan.files)
    compared = "as they were written" if plan.checksums_compared else NOT_COMPARED
    print_line(
        f"would restore {_named(plan.checkpoint, plan.origin)}: {len(plan.files):,} files, "
        f"{size(plan.total_bytes)}, all of them there, {compared}"
    )
    if plan.replays_commit:
        print_line("its sinks publish what they staged first")
    if plan.ignores_in_flight:
        print_line("its data in flight is dropped, and those rows are lost")
    if plan.dropped_stages:
        print_line(f"the state of {', '.join(plan.dropped_stages)} is dropped")
    for line in plan.changes:
        print_line(line)
    for change in plan.changed_options:
        print_line(change.made)
    for ahead in plan.tables_ahead:
        print_line(ahead.sentence(rolls_back=rolls_back))
    for warning in plan.warnings:
        print_line(f"warning: {warning}")


def _print_result(result: RestoreResult, *, as_json: bool, is_compared: bool) -> None:
    if as_json:
        print_json(result)
        return
    if not is_compared:
        print_line(f"its files are {NOT_COMPARED}")
    what = _named(result.checkpoint, result.origin)
    print_line(f"{result.pipeline} is {result.status} from {what}, generation {result.generation}")
    for change in result.changed_options:
        print_line(change.made)
    for ahead in result.tables_ahead:
        print_line(ahead.sentence(rolls_back=False))
    for warning in result.warnings:
        print_line(f"warning: {warning}")


def _named(checkpoint_id: int | None, origin: str | None) -> str:
    if origin is not None:
        return origin
    return "the empty state" if checkpoint_id is None else f"checkpoint {checkpoint_id}"


def take_over_command(
    pipeline: PipelineName,
    sink: Annotated[str, typer.Argument(help="The uid of the sink whose table it is.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Take it over; without, only say what would become of it.")
    ] = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take the table of SINK over from another job, or from PIPELINE in another root, for good.

    Its rows stay, and PIPELINE goes on behind them.  The other job is refused from its next commit
    on, until it takes the table back.  PIPELINE is restored from what it continues, as a suspended
    one stays.
    """
    job = declared_job(pipeline, root, endpoint_url)
    state = job.state()
    if not state.life:
        raise ConfigurationError(
            f"job {pipeline!r} was never submitted in {job.store.root}; start it with 'sluice run "
            f"{pipeline} --take-over {sink}', which takes the table over, or name another --root"
        )
    options = RestoreOptions(take_over=(sink,))
    resolved = resolve(job, state, RestoreRequest(options=options))
    decision = plan(job, state, resolved).decision
    if isinstance(decision, Stop):
        raise RestoreError(f"table {sink!r} cannot be taken over: {'; '.join(decision.problems)}")
    if yes:
        restore_job(job, resolved.target, resolved.options, configuration=resolved.configuration)
        if state.status is JobStatus.SUSPENDED:
            stop(job, JobStatus.SUSPENDED)
    after = job.state()
    result = TakeOverResult(
        pipeline=pipeline,
        sink=sink,
        taken_over=yes,
        status=after.status.value,
        generation=after.generation,
        warnings=decision.warnings,
    )
    if as_json:
        print_json(result)
        return
    for warning in decision.warnings:
        print_line(warning)
    if not yes:
        print_line(f"nothing is changed yet: 'sluice tables take-over {pipeline} {sink} --yes'")
        return
    base = "the empty state" if after.base is None else f"checkpoint {after.base}"
    print_line(
        f"{pipeline} has the table, and is {result.status} from {base}, "
        f"generation {result.generation}"
    )


def pause_command(
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
    requests.pause(job, by=this_person())
    _print_outcome(job, f"checkpointing of {pipeline} is paused", as_json=as_json)


def resume_command(
    pipeline: PipelineName,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take periodic checkpoints of PIPELINE again."""
    job = declared_job(pipeline, root, endpoint_url)
    requests.resume(job, by=this_person())
    _print_outcome(job, f"checkpointing of {pipeline} is resumed", as_json=as_json)


def _print_outcome(job: Job, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(checkpoint_config(job))
    else:
        print_line(sentence)


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
        requests.retime(job, times, by=this_person())
    shown = checkpoint_config(job)
    if as_json:
        print_json(shown)
    else:
        _print_config(job, shown)


def _period(option: str, text: str | None) -> timedelta | None:
    if text is None:
        return None
    return timedelta(0) if text == "0" else duration_of(option, text)


def _print_config(job: Job, shown: CheckpointConfig) -> None:
    state = job.state()
    paused = ", paused" if shown.paused else ""
    print_line(f"{job.pipeline.uid} is {state.status.value}{paused}")
    if shown.changed_at is not None:
        at = moment(shown.changed_at)[:-4]
        print_line(f"changed last by {shown.changed_by}, at {at} (UTC)")
    table = Table("option", "declared", "in force", "default", box=None, padding=(0, 1, 0, 0))
    for setting in shown.settings:
        values = (setting.declared, setting.in_force, setting.default)
        cells = [escape(value_with_unit(setting.name, value)) for value in values]
        style = "yellow" if setting.declared != setting.in_force else None
        table.add_row(setting.name.removesuffix("_ms"), *cells, style=style)
    print_table(table)
    for change in awaited_changes(job.pipeline, state):
        print_line(change.awaited)
    for setting in shown.settings:
        if setting.changed and setting.declared != setting.in_force:
            declared = value_with_unit(setting.name, setting.declared)
            in_force = value_with_unit(setting.name, setting.in_force)
            print_line(f"{setting.name}: declared {declared}, in force {in_force} until --reset")
