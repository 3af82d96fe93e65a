"""Commands that change a job: its checkpoints and savepoints, its end, its restore, its timing.

``checkpoint``, ``savepoint`` and ``stop`` are requests: ``sluice run`` or Airflow, whichever drives
the job, takes one up with its next checkpoint.  The command waits for the end, and says so when
nothing takes the request up.  All other commands act at once.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table

from sluice.cli.options import (
    AsJson,
    command_of,
    moment,
    print_files,
    print_json,
    print_line,
    print_table,
    this_person,
)
from sluice.coordinator import requests
from sluice.coordinator.backfill import plan_backfill
from sluice.coordinator.failure import abort_checkpoint, pending_checkpoint
from sluice.coordinator.repair import plan_repair, repair
from sluice.coordinator.requests import NewTimes, UserRequest, request_checkpoint
from sluice.coordinator.restore import (
    RestoreRequest,
    plan,
    resolve,
    restore,
    stop,
)
from sluice.coordinator.savepoints import copy_savepoint, dispose, require_outside
from sluice.coordinator.submission import adopt
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.decider import CheckpointRequest
from sluice.core.ids import NO_GENERATION
from sluice.core.restoring import RestoreApproval, RestoreOptions, Stop
from sluice.core.tables import TableAhead
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job, never_submitted_message
from sluice.surface.acts import (
    ABORT,
    BACKFILL,
    CANCEL,
    CHECKPOINT,
    DISPOSE,
    PAUSE,
    RESTORE,
    RESUME_CHECKPOINTING,
    RETIME,
    SAVEPOINT,
    STAY_SUSPENDED,
    STOP,
    Given,
    new_times,
    restore_request,
)
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
from sluice.surface.snapshots import NOT_COMPARED, FileDetails, file_details, plan_lines

POLL_S = 0.5
HINT_AFTER_S = 15.0  # Longer than most checkpoints, for which the request may have to wait.


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


def _checkpoint(job: Job, given: Given, as_json: bool) -> None:
    request = UserRequest(
        by=this_person(),
        is_full=given["checkpoint_type"] == "FULL",
        is_forced=given["forced"],
        waits=given["wait_for"],
    )
    _ask(job, request, waits=not given["no_wait"], as_json=as_json)


def _backfill(job: Job, given: Given, as_json: bool) -> None:
    if not given["input"]:
        raise ConfigurationError("--input is missing; name folders as --input dt=2026-03-01..02")
    planned = plan_backfill(job, given["input"])
    if given["dry_run"]:
        if as_json:
            print_json(planned)
            return
        for one in planned.sources:
            print_line(
                f"{one.source}: {one.rows_taken_back} rows of {one.files_taken_back} files would "
                f"be taken back, {one.rows} rows of {one.files} files read"
            )
        print_line(f"these stages get them: {', '.join(planned.stages)}")
        return
    request = UserRequest(by=this_person(), again=given["input"], waits=given["wait_for"])
    _ask(job, request, waits=not given["no_wait"], as_json=as_json)


def _savepoint(job: Job, given: Given, as_json: bool) -> None:
    target = given["target"]
    if target is not None:
        require_outside(job, target)
        if given["no_wait"]:
            raise ConfigurationError(
                "--copy-to copies the savepoint once it is taken, and --no-wait does not wait for "
                "that; leave one out"
            )
    request = _savepoint_request(given, CheckpointType.SAVEPOINT, given["name"])
    _ask(job, request, waits=not given["no_wait"], as_json=as_json, target=target)


def _stop(job: Job, given: Given, as_json: bool) -> None:
    kind = (
        CheckpointType.SAVEPOINT_TERMINATE if given["drain"] else CheckpointType.SAVEPOINT_SUSPEND
    )
    name = given["name"] or f"stop-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    _ask(job, _savepoint_request(given, kind, name), waits=not given["no_wait"], as_json=as_json)


def _savepoint_request(given: Given, kind: CheckpointType, name: str) -> UserRequest:
    return UserRequest(
        by=this_person(),
        type=kind,
        name=name,
        is_canonical=given["format"] == "canonical",
        is_forced=given["forced"],
        waits=given["wait_for"],
    )


def _ask(
    job: Job, request: UserRequest, *, waits: bool, as_json: bool, target: str | None = None
) -> None:
    queued = request_checkpoint(job, request)
    progress = _await_end(job, queued) if waits else request_progress(job, queued.request_id)
    copy = None
    if target is not None and request.name and progress.status is RequestStatus.COMPLETED:
        copy = copy_savepoint(job, request.name, target)
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
        if copy is not None:
            print_line(f"it is copied to {copy}")


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
    """The process that should take the request up, and the fix if that does not run."""
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


def _cancel(job: Job, given: Given, as_json: bool) -> None:  # noqa: ARG001
    pipeline = job.pipeline.uid
    before = job.state()
    if before.generation == NO_GENERATION:
        raise ConfigurationError(never_submitted_message(job))
    after = stop(job, JobStatus.CANCELED)
    if after.status is not JobStatus.CANCELED:
        raise ConfigurationError(
            f"job {pipeline!r} is {after.status.value}; it cannot be cancelled"
        )
    retained = [done.checkpoint_id for done in after.completed]
    if as_json:
        aborted = [pending.checkpoint_id for pending in before.pending]
        status = after.status.value
        print_json(
            {"pipeline": pipeline, "status": status, "aborted": aborted, "retained": retained}
        )
        return
    named = ", ".join(map(str, retained)) or "none"
    print_line(f"{pipeline} is {after.status.value}; retained checkpoints: {named}")


def adopt_command(job: Job) -> None:
    """Go on with a job in a copy of its root; nothing of it may run in the original any more."""
    after = adopt(job)
    print_line(
        f"{job.pipeline.uid} is {after.status.value} in {job.store.root}, "
        f"generation {after.generation}"
    )


def _abort(job: Job, given: Given, as_json: bool) -> None:
    pipeline = job.pipeline.uid
    checkpoint_id = pending_checkpoint(job, given["checkpoint"])
    before = job.state().pending
    after = abort_checkpoint(job, checkpoint_id, by=this_person(given["because"] or ""))
    ids = [pending.checkpoint_id for pending in before]
    aborted = [pending_id for pending_id in ids if not after.pending_checkpoint(pending_id)]
    status = after.status.value
    if as_json:
        print_json({"pipeline": pipeline, "status": status, "aborted": aborted})
        return
    print_line(f"checkpoint {checkpoint_id} is aborted; {pipeline} is {status} and goes on")
    for child in aborted:
        if child != checkpoint_id:
            print_line(f"checkpoint {child}, which continued it, is aborted too")


def repair_command(
    job: Job,
    yes: Annotated[
        bool, typer.Option("--yes", help="Repair it; without, only say what would be lost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Go on from the newest journal entry that can be read, past damaged ones behind it.

    The effects of the damaged entries are undone: a running job restarts, and records of pending
    checkpoints are read again.  Nothing is deleted.  It is safe beside hosts that run the job.
    """
    pipeline, planned = job.pipeline.uid, plan_repair(job)
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


def _dispose(job: Job, given: Given, as_json: bool) -> None:
    name = given["name"]
    was_there = dispose(job, name)
    if as_json:
        print_json({"savepoint": name, "disposed": was_there})
    elif was_there:
        print_line(f"savepoint {name} is deleted")
    else:
        print_line(f"there is no savepoint {name} in {job.store.root}; nothing was deleted")


def _restore(job: Job, given: Given, as_json: bool) -> None:
    state = job.state()
    resolved = resolve(job, state, restore_request(given))
    changed = options_after(state, resolved.configuration)
    if given["dry_run"]:
        _print_plan(job, plan(job, state, resolved), changed, as_json=as_json)
        return
    restored = restore(job, resolved.target, resolved.options, configuration=resolved.configuration)
    after = restored.state
    if given["then"] == STAY_SUSPENDED:
        after = stop(job, JobStatus.SUSPENDED)
    if as_json:
        print_json(
            {
                "pipeline": job.pipeline.uid,
                "checkpoint": restored.checkpoint_id,
                "origin": None if restored.origin is None else str(restored.origin),
                "generation": after.generation,
                "status": after.status.value,
                "tables_ahead": restored.tables_ahead,
                "warnings": restored.warnings,
                "changed_options": changed,
            }
        )
        return
    if not given["compare_checksums"]:
        print_line(f"its files are {NOT_COMPARED}")
    uid, status = job.pipeline.uid, after.status.value
    print_line(f"{uid} is {status} from {restored.named}, generation {after.generation}")
    for change in changed:
        print_line(change.made)
    for ahead in restored.tables_ahead:
        print_line(ahead.sentence(rolls_back=False))
    for warning in restored.warnings:
        print_line(f"warning: {warning}")


def _print_plan(
    job: Job,
    decision: RestoreApproval | Stop,
    changed: tuple[OptionChange, ...],
    *,
    as_json: bool,
) -> None:
    """Raises RestoreError, or with *as_json* ends with exit code 1, when it cannot be restored."""
    if isinstance(decision, Stop):
        problems = decision.problems
        if as_json:
            print_json(RestorePlan(pipeline=job.pipeline.uid, can_restore=False, problems=problems))
            raise typer.Exit(1)
        for problem in problems:
            print_line(problem)
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise RestoreError(f"the job cannot be restored for the {count} above")
    files = tuple(file_details(job, decision.files))
    if as_json:
        origin = decision.choice.origin
        planned = RestorePlan(
            pipeline=job.pipeline.uid,
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
            changed_options=changed,
        )
        print_json(planned)
        return
    print_files(files)
    for line in plan_lines(decision, changed):
        print_line(line)


def take_over_command(
    job: Job,
    sink: Annotated[str, typer.Argument(help="The uid of the sink whose table it is.")],
    yes: Annotated[
        bool, typer.Option("--yes", help="Take it over; without, only say what would become of it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take the table of SINK over from another job, or from PIPELINE in another root, for good.

    Its rows stay, and PIPELINE goes on behind them.  The other job is refused from its next commit
    on, until it takes the table back.  PIPELINE is restored from what it continues, as a suspended
    one stays.
    """
    pipeline, state = job.pipeline.uid, job.state()
    if not state.life:
        raise ConfigurationError(
            f"job {pipeline!r} was never submitted in {job.store.root}; start it with 'sluice run "
            f"{pipeline} --take-over {sink}', which takes the table over, or name another --root"
        )
    options = RestoreOptions(take_over=(sink,))
    resolved = resolve(job, state, RestoreRequest(options=options))
    decision = plan(job, state, resolved)
    if isinstance(decision, Stop):
        raise RestoreError(f"table {sink!r} cannot be taken over: {'; '.join(decision.problems)}")
    if yes:
        restore(job, resolved.target, resolved.options, configuration=resolved.configuration)
        if state.status is JobStatus.SUSPENDED:
            stop(job, JobStatus.SUSPENDED)
    after = job.state()
    if as_json:
        print_json(
            {
                "pipeline": pipeline,
                "sink": sink,
                "taken_over": yes,
                "status": after.status.value,
                "generation": after.generation,
                "warnings": decision.warnings,
            }
        )
        return
    for warning in decision.warnings:
        print_line(warning)
    if not yes:
        print_line(f"nothing is changed yet: 'sluice tables take-over {pipeline} {sink} --yes'")
        return
    base = "the empty state" if after.base is None else f"checkpoint {after.base}"
    print_line(
        f"{pipeline} has the table, and is {after.status.value} from {base}, "
        f"generation {after.generation}"
    )


def _pause(job: Job, given: Given, as_json: bool) -> None:  # noqa: ARG001
    requests.pause(job, by=this_person())
    _print_outcome(job, f"checkpointing of {job.pipeline.uid} is paused", as_json=as_json)


def _resume(job: Job, given: Given, as_json: bool) -> None:  # noqa: ARG001
    requests.resume(job, by=this_person())
    _print_outcome(job, f"checkpointing of {job.pipeline.uid} is resumed", as_json=as_json)


def _print_outcome(job: Job, sentence: str, *, as_json: bool) -> None:
    if as_json:
        print_json(checkpoint_config(job))
    else:
        print_line(sentence)


def _config(job: Job, given: Given, as_json: bool) -> None:
    times = new_times(given)
    if times != NewTimes():
        requests.retime(job, times, by=this_person())
    shown = checkpoint_config(job)
    if as_json:
        print_json(shown)
    else:
        _print_config(job, shown)


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


# The commands that are rendered from acts, by the names of these.
COMMANDS = {
    act.name: command_of(act, carry_out)
    for act, carry_out in (
        (CHECKPOINT, _checkpoint),
        (BACKFILL, _backfill),
        (SAVEPOINT, _savepoint),
        (STOP, _stop),
        (RESTORE, _restore),
        (CANCEL, _cancel),
        (ABORT, _abort),
        (DISPOSE, _dispose),
        (PAUSE, _pause),
        (RESUME_CHECKPOINTING, _resume),
        (RETIME, _config),
    )
}
