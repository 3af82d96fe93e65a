"""``sluice restore``: what the form of the restore DAG does, on the command line."""

from __future__ import annotations

from collections.abc import Mapping
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
    never_submitted,
    parameters,
)
from sluice.cli.printing import print_files, print_json, print_line
from sluice.core.configuration import JobConfiguration
from sluice.core.ids import NO_GENERATION, CheckpointId
from sluice.core.properties import ClaimMode, JobStatus
from sluice.core.restoring import (
    FromCheckpoint,
    FromOrigin,
    Latest,
    Restore,
    RestoreOptions,
    RestoreTarget,
    Stop,
)
from sluice.core.state import CoordinatorState
from sluice.core.table_standings import TableAhead
from sluice.errors import ConfigurationError, RestoreError
from sluice.runner.details import FileDetails, file_details
from sluice.runner.job import Job
from sluice.runner.recovery import restore as restore_job
from sluice.runner.restore_plan import plan_restore
from sluice.runner.restore_targets import foreign_target, savepoint_target
from sluice.runner.retained import LATEST, numbered, why_not_retained
from sluice.runner.submission import configure, parse_parallelism, reconfigure
from sluice.units import size

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


class RestorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--dry-run --json`` prints.  ``checkpoint`` None: the job would start from empty."""

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


class RestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: str
    checkpoint: int | None
    origin: str | None
    generation: int
    status: str
    tables_ahead: tuple[TableAhead, ...] = ()


def restore(
    context: typer.Context,
    pipeline: PipelineName,
    checkpoint: Checkpoint = None,
    savepoint: Savepoint = None,
    from_root: FromRoot = None,
    from_pipeline: FromPipeline = None,
    claim_mode: ClaimModeOption = ClaimMode.NO_CLAIM,
    allow_non_restored_state: AllowNonRestoredState = False,
    ignore_in_flight_of: IgnoreInFlightOf = None,
    roll_back_tables: RollBackTables = False,
    accept_tables: AcceptTables = False,
    no_checksums: NoChecksums = False,
    parallelism: Annotated[
        list[str] | None,
        typer.Option(metavar="[STAGE=]N", help="Subtasks of each stage from now on, or of one."),
    ] = None,
    param: Params = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be restored, and change nothing.")
    ] = False,
    root: Root = None,
    endpoint_url: EndpointUrl = None,
    as_json: AsJson = False,
) -> None:
    """Continue PIPELINE from its latest checkpoint, or from the one that is named.

    Everything it needs is verified first.  Whoever runs the job now is fenced.
    """
    job = declared_job(pipeline, root, endpoint_url)
    state = job.state()
    target = _target(job, checkpoint, savepoint, from_root, from_pipeline)
    is_own = isinstance(target, Latest | FromCheckpoint)
    if is_own and state.status is JobStatus.FINISHED and not state.completed:
        raise ConfigurationError(why_not_retained(job, state, checkpoint or LATEST))
    options = RestoreOptions(
        allow_non_restored_state=allow_non_restored_state,
        claim_mode=claim_mode,
        ignore_in_flight_of=_as_id(ignore_in_flight_of),
        roll_back_tables=roll_back_tables,
        accept_tables=accept_tables,
        compare_checksums=not no_checksums,
    )
    given = parameters(param or [], context.args)
    configuration = _configuration(job, state, target, given, parallelism or [])
    if dry_run:
        decision = plan_restore(job, target, options, configuration=configuration)
        _print_plan(job, decision, as_json=as_json, rolls_back=roll_back_tables)
        return
    restored = restore_job(job, target, options, configuration=configuration)
    result = RestoreResult(
        pipeline=pipeline,
        checkpoint=restored.checkpoint_id,
        origin=None if restored.origin is None else str(restored.origin),
        generation=restored.state.generation,
        status=restored.state.status.value,
        tables_ahead=restored.tables_ahead,
    )
    if as_json:
        print_json(result)
        return
    if no_checksums:
        print_line(f"its files are {NOT_COMPARED}")
    what = _named(restored.checkpoint_id, result.origin)
    print_line(f"{pipeline} is {result.status} from {what}, generation {result.generation}")
    for ahead in result.tables_ahead:
        print_line(ahead.told(rolls_back=False))


def _target(
    job: Job,
    checkpoint: str | None,
    savepoint: str | None,
    from_root: str | None,
    from_pipeline: str | None,
) -> RestoreTarget:
    """What the options name.  The job's own root, named once more, is not another one.

    Raises:
        ConfigurationError: the options contradict one another.
        RestoreError: there is no such savepoint, or nothing to restore in the other root.
    """
    if checkpoint is not None and savepoint is not None:
        raise ConfigurationError("--checkpoint and --savepoint exclude one another; give one")
    if from_pipeline is not None and from_root is None:
        raise ConfigurationError("--from-pipeline needs --from-root, the root where that one is")
    is_latest = checkpoint is None or checkpoint == LATEST
    chosen = None if is_latest or checkpoint is None else numbered(checkpoint)
    is_own = from_root is None or (
        job.store_at(from_root).root == job.store.root and from_pipeline in (None, job.pipeline.uid)
    )
    if from_root is not None and not is_own:
        return foreign_target(
            job, from_root, pipeline=from_pipeline, checkpoint_id=chosen, savepoint=savepoint
        )
    if savepoint is not None:
        return savepoint_target(job, savepoint)
    return Latest() if chosen is None else FromCheckpoint(chosen)


def _configuration(
    job: Job,
    state: CoordinatorState,
    target: RestoreTarget,
    given: Mapping[str, str],
    parallelism: list[str],
) -> JobConfiguration | None:
    """None keeps the job's; one that was never submitted here gets its first."""
    of_all, of_stages = parse_parallelism(parallelism)
    if state.generation == NO_GENERATION:
        if not isinstance(target, FromOrigin):
            raise ConfigurationError(never_submitted(job))
        return configure(job.pipeline, given, parallelism=of_all, stage_parallelism=of_stages)
    if not given and not parallelism:
        return None
    return reconfigure(
        job.pipeline, state.configuration, given, parallelism=of_all, stage_parallelism=of_stages
    )


def _print_plan(job: Job, decision: Restore | Stop, *, as_json: bool, rolls_back: bool) -> None:
    """Raises RestoreError, or with *as_json* ends with exit code 1, when it cannot be restored."""
    plan = _plan(job, decision)
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
    for ahead in plan.tables_ahead:
        print_line(ahead.told(rolls_back=rolls_back))


def _plan(job: Job, decision: Restore | Stop) -> RestorePlan:
    uid = job.pipeline.uid
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
    )


def _named(checkpoint_id: int | None, origin: str | None) -> str:
    if origin is not None:
        return origin
    return "the empty state" if checkpoint_id is None else f"checkpoint {checkpoint_id}"


def _as_id(checkpoint_id: int | None) -> CheckpointId | None:
    return None if checkpoint_id is None else CheckpointId(checkpoint_id)
