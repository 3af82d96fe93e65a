"""``sluice restore``: what the form of the restore DAG does, on the command line."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
import typer

from sluice.cli.options import (
    AsJson,
    EndpointUrl,
    NoChecksums,
    Params,
    PipelineName,
    Root,
    declared_job,
    parameters,
)
from sluice.cli.printing import print_files, print_json, print_line
from sluice.coordinator.recovery import restore as restore_job
from sluice.coordinator.restore_request import Resolved, RestoreRequest, plan, resolve
from sluice.core.ids import CheckpointId
from sluice.core.properties import ClaimMode
from sluice.core.restoring import RestoreOptions, Stop
from sluice.core.state import CoordinatorState
from sluice.core.table_standings import TableAhead
from sluice.errors import RestoreError
from sluice.job.job import Job
from sluice.job.retained import LATEST, numbered
from sluice.views.checkpoint_details import FileDetails, file_details
from sluice.views.options import OptionChange, options_after
from sluice.views.units import size

NOT_COMPARED = "not compared with their checksums"

Checkpoint: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="ID", help="A retained checkpoint, or 'latest'.  [default: the latest]"),
]
Savepoint: TypeAlias = Annotated[str | None, typer.Option(help="A savepoint, by name.")]
FromRoot: TypeAlias = Annotated[
    str | None, typer.Option(metavar="URI", help="Another root, which has the checkpoint.")
]
FromPipeline: TypeAlias = Annotated[
    str | None, typer.Option(metavar="UID", help="The pipeline there, if its uid is another.")
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


Parallelism: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="[STAGE=]N", help="Subtasks of each stage from now on, or of one."),
]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be restored, and change nothing.")
]


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
    total_bytes: int = 0
    files: tuple[FileDetails, ...] = ()
    tables_ahead: tuple[TableAhead, ...] = ()
    changed_options: tuple[OptionChange, ...] = ()


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: str
    checkpoint: int | None
    origin: str | None
    generation: int
    status: str
    tables_ahead: tuple[TableAhead, ...] = ()
    changed_options: tuple[OptionChange, ...] = ()


def restore(
    context: typer.Context,
    pipeline: PipelineName,
    checkpoint: Checkpoint = None,
    savepoint: Savepoint = None,
    from_root: FromRoot = None,
    from_pipeline: FromPipeline = None,
    from_path: FromPath = None,
    claim_mode: ClaimModeOption = ClaimMode.NO_CLAIM,
    allow_non_restored_state: AllowNonRestoredState = False,
    ignore_in_flight_of: IgnoreInFlightOf = None,
    roll_back_tables: RollBackTables = False,
    accept_tables: AcceptTables = False,
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
        checkpoint=None if checkpoint in (None, LATEST) else numbered(checkpoint),
        savepoint=savepoint,
        root=from_root,
        pipeline=from_pipeline,
        pointer=from_path,
        parallelism=tuple(parallelism or ()),
        params=parameters(param or [], context.args),
        options=RestoreOptions(
            allow_non_restored_state=allow_non_restored_state,
            claim_mode=claim_mode,
            ignore_in_flight_of=_as_id(ignore_in_flight_of),
            roll_back_tables=roll_back_tables,
            accept_tables=accept_tables,
            compare_checksums=not no_checksums,
        ),
    )
    resolved = resolve(job, state := job.state(), request)
    if dry_run:
        planned = _plan(job, state, resolved)
        _print_plan(planned, as_json=as_json, rolls_back=roll_back_tables)
        return
    restored = _restored(job, state, resolved)
    _print_result(restored, as_json=as_json, is_compared=not no_checksums)


def _restored(job: Job, state: CoordinatorState, resolved: Resolved) -> RestoreResult:
    restored = restore_job(
        job, resolved.target, resolved.options, configuration=resolved.configuration
    )
    return RestoreResult(
        pipeline=job.pipeline.uid,
        checkpoint=restored.checkpoint_id,
        origin=None if restored.origin is None else str(restored.origin),
        generation=restored.state.generation,
        status=restored.state.status.value,
        tables_ahead=restored.tables_ahead,
        changed_options=options_after(state, resolved.configuration),
    )


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
        print_line(ahead.told(rolls_back=False))


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
        first = "one problem" if count == 1 else f"{count} problems"
        raise RestoreError(f"the job cannot be restored for the {first} above")
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
    for change in plan.changed_options:
        print_line(change.made)
    for ahead in plan.tables_ahead:
        print_line(ahead.told(rolls_back=rolls_back))


def _plan(job: Job, state: CoordinatorState, resolved: Resolved) -> RestorePlan:
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
        total_bytes=sum(file.size_bytes for file in files),
        files=files,
        tables_ahead=decision.tables_ahead,
        changed_options=options_after(state, resolved.configuration),
    )


def _named(checkpoint_id: int | None, origin: str | None) -> str:
    if origin is not None:
        return origin
    return "the empty state" if checkpoint_id is None else f"checkpoint {checkpoint_id}"


def _as_id(checkpoint_id: int | None) -> CheckpointId | None:
    return None if checkpoint_id is None else CheckpointId(checkpoint_id)
