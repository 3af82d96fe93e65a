"""The choice of what to restore, and whether it can be: pure decisions over what the bucket has.

``choose`` names the snapshot; ``decide_restore`` approves or refuses it, once its ``_metadata``,
its files and its source positions have been observed.  (Flink's restoreLatestCheckpointedState,
restoreSavepoint and StateAssignmentOperation.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.configuration import ClaimMode
from sluice.core.event_time import MAX_WATERMARK
from sluice.core.handles import SegmentHandle, damaged_files
from sluice.core.ids import CheckpointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.state import CoordinatorState
from sluice.core.tables import (
    TableAhead,
    TableComparison,
    TableDecision,
    decide_tables,
    table_problems,
)
from sluice.core.transitions import (
    NO_CONSENT,
    Consent,
    Fingerprint,
    PartChange,
    compare,
    notes_of,
    problems_of,
    recomputed,
)
from sluice.errors import BEGIN_ANEW


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest completed checkpoint of this life of the job; from empty when there is none."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A retained checkpoint of the job; with an *origin* a savepoint, or a checkpoint or savepoint
    of another root.  ``checkpoint_id`` None: the job starts from empty state.
    """

    checkpoint_id: CheckpointId | None
    origin: SnapshotOrigin | None = None

    @classmethod
    def of(cls, origin: SnapshotOrigin) -> Choice:
        return cls(origin.checkpoint_id, origin)

    def __str__(self) -> str:
        if self.origin is not None:
            return str(self.origin)
        number = self.checkpoint_id
        return "the empty state" if number is None else f"checkpoint {number}"


RestoreTarget: TypeAlias = Latest | Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredStage:
    """A stage as the program declares it.  ``max_parallelism`` None: that of the snapshot holds.
    ``reads`` are the sources and stages before it.  A stage that ``goes_by_event_time`` has late
    rows.
    """

    uid: str
    parallelism: int
    max_parallelism: int | None = None
    reads: tuple[str, ...] = ()
    goes_by_event_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The chosen snapshot as it is in the bucket; ``metadata`` None: the job starts from empty.

    ``sizes`` has None for a file that is missing.  ``checksums`` are those of the bytes that are
    there, None where they were not read.  ``staged_damage`` describes staged rows that are still to
    be published and are not those that were staged; ``unreadable`` is why ``metadata`` cannot be
    read.  ``source_problems`` are the sources' objections to their positions.  ``left_behind``
    describes, by uid, what the snapshot holds of sources and sinks that are no longer declared, and
    ``undeclared_tables`` are the table versions that it pins for such sinks.  ``tables`` None: no
    sink was asked, for the job goes on from where it is.  ``fingerprints`` are the declared ones.
    """

    metadata: CheckpointMetadata | None = None
    sizes: Mapping[SegmentHandle, int | None] = field(
        default_factory=dict[SegmentHandle, int | None]
    )
    checksums: Mapping[SegmentHandle, str] | None = None
    staged_damage: Sequence[str] = ()
    unreadable: str = ""
    source_problems: Sequence[str] = ()
    left_behind: Mapping[str, str] = field(default_factory=dict[str, str])
    tables: Sequence[TableComparison] | None = None
    undeclared_tables: Mapping[str, int] = field(default_factory=dict[str, int])
    fingerprints: Mapping[str, Fingerprint] = field(default_factory=dict[str, Fingerprint])


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """The choices of the person who restores.

    ``roll_back_tables`` puts the sinks' tables back to what the snapshot pinned, too;
    ``accept_tables`` takes them as they are, where rows are missing or of another life; the tables
    of the sinks in ``take_over`` are taken over from another job, and nothing else is accepted.
    ``compare_checksums`` reads every file, for its bytes may not be those that were written.
    ``ignore_in_flight_of`` drops the in-flight data of that checkpoint, which loses rows.
    ``consent`` is to what becomes of state whose meaning has changed.
    """

    allow_non_restored_state: bool = False
    roll_back_tables: bool = False
    accept_tables: bool = False
    take_over: tuple[str, ...] = ()
    compare_checksums: bool = True
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    ignore_in_flight_of: CheckpointId | None = None
    consent: Consent = NO_CONSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreApproval:
    """The choice can be restored: what a dry run prints, and what a restore does.

    ``is_latest``: the job continues it anyway.  ``message`` says what is wrong with the checkpoints
    that are ``passed_over`` for it.  ``replays_commit``: its sinks have to publish first.
    ``dropped_stages`` are the uids whose state goes, sources and sinks among them.  ``tables``
    None: nothing changes for them.  ``is_compared``: the bytes of all files are those that were
    written.  ``changes`` say what becomes of state whose meaning has changed.  ``warnings`` are for
    a person who may want another snapshot.
    """

    choice: Choice
    options: RestoreOptions = RestoreOptions()
    is_latest: bool = False
    passed_over: tuple[CheckpointId, ...] = ()
    message: str = ""
    replays_commit: bool = False
    is_compared: bool = False
    ignores_in_flight: bool = False
    dropped_stages: tuple[str, ...] = ()
    files: tuple[SegmentHandle, ...] = ()
    processing_time_ms: int = 0  # The snapshot's.
    tables: TableDecision | None = None
    tables_ahead: tuple[TableAhead, ...] = ()
    consent: Consent = NO_CONSENT
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The choice cannot be restored; every problem is named.

    ``is_damaged``: the snapshot itself is not what was written, so no change elsewhere helps.  With
    a ``message`` that is final, and it says what to do: no restart will do better.
    """

    problems: tuple[str, ...]
    is_damaged: bool = False
    message: str = ""


def choose(
    state: CoordinatorState, target: RestoreTarget, options: RestoreOptions
) -> Choice | Stop:
    is_claimed = options.claim_mode is ClaimMode.CLAIM
    if isinstance(target, Latest):
        if is_claimed and state.origin is None:
            return _stop("only a savepoint is claimed: the latest checkpoint is the job's")
        if state.base is None and state.last_completed_at_ms is not None:
            # Its checkpoints went with its end; it must not silently begin anew.
            return _stop(
                f"the job is {state.status.value}, and its checkpoints were deleted when it "
                f"ended ({state.configuration.retention.value}); {BEGIN_ANEW}, or restore "
                "a savepoint"
            )
        return Choice(state.base, state.origin)
    number, origin = target.checkpoint_id, target.origin
    if origin is not None and origin.root and is_claimed:
        return _stop(
            f"{origin} lies in another root and cannot be claimed; restore it with NO_CLAIM, which "
            "copies what it needs with the first checkpoint"
        )
    if origin is None and is_claimed:
        return _stop(f"only a savepoint is claimed: checkpoint {number} is the job's")
    if origin is None and state.completed_checkpoint(number or 0) is None:
        retained = ", ".join(str(c.checkpoint_id) for c in state.completed) or "none"
        return _stop(f"checkpoint {number} is not retained; retained are: {retained}")
    return target


def _stop(problem: str) -> Stop:
    return Stop(problems=(problem,))


def decide_restore(
    state: CoordinatorState,
    choice: Choice,
    observed: Observed,
    stages: Sequence[DeclaredStage],
    options: RestoreOptions,
) -> RestoreApproval | Stop:
    """Restore *choice*, or stop and say why."""
    if observed.unreadable:
        return Stop(problems=(observed.unreadable,), is_damaged=True)
    metadata, tables = observed.metadata, observed.tables or ()
    rolls_back, accepts = options.roll_back_tables, options.accept_tables
    damage = (*damaged_files(observed.sizes, observed.checksums), *observed.staged_damage)
    problems, dropped = _snapshot_problems(state, choice, observed, stages, options, damage)
    consent = _consent_of(state, choice, options, observed.fingerprints)
    changes = changes_since(metadata, observed.fingerprints)
    held = frozenset[str]() if metadata is None else metadata.held
    problems += problems_of(changes, observed.fingerprints, consent, held)
    if metadata is not None:
        problems += _taken_back_in_flight(metadata, observed.fingerprints, consent)
    problems += table_problems(
        tables, roll_back=rolls_back, accepts=accepts, take_over=options.take_over
    )
    if problems:
        return Stop(problems=tuple(problems), is_damaged=bool(damage))
    own = None if choice.origin else state.completed_checkpoint(choice.checkpoint_id or 0)
    replays_commit = own is not None and not own.is_committed
    return RestoreApproval(
        choice=choice,
        replays_commit=replays_commit,
        is_compared=observed.checksums is not None,
        ignores_in_flight=(
            metadata is not None and options.ignore_in_flight_of == metadata.checkpoint_id
        ),
        dropped_stages=dropped,
        files=metadata.files if metadata is not None else (),
        processing_time_ms=metadata.processing_time_ms if metadata is not None else 0,
        tables=None
        if observed.tables is None
        else decide_tables(
            tables,
            undeclared=observed.undeclared_tables,
            continues=choice.checkpoint_id if replays_commit else None,
            roll_back=rolls_back,
            accepts=accepts,
            take_over=options.take_over,
        ),
        tables_ahead=tuple(
            table.ahead
            for table in tables
            if table.ahead is not None and not (table.is_side_output or table.is_of_others)
        ),
        warnings=(
            *(() if metadata is None else late_behind_a_drain(metadata, stages)),
            *filter(None, (table.taking_over(roll_back=rolls_back) for table in tables)),
        ),
        consent=consent,
        changes=notes_of(changes, consent),
    )


def _consent_of(
    state: CoordinatorState,
    choice: Choice,
    options: RestoreOptions,
    declared: Mapping[str, Fingerprint],
) -> Consent:
    """The consent that a person gives now, or gave when the job was restored from this snapshot
    before: a failure before the next checkpoint does not take that back, and another declaration
    does.
    """
    is_base = (choice.checkpoint_id, choice.origin) == (state.base, state.origin)
    before = state.consent.within(declared) if is_base else NO_CONSENT
    return options.consent.beside(before).given_for(declared)


def changes_since(
    metadata: CheckpointMetadata | None, declared: Mapping[str, Fingerprint]
) -> tuple[PartChange, ...]:
    """The *declared* meanings that are not those of the state in the checkpoint."""
    if metadata is None:
        return ()
    anew = recomputed_since(metadata, declared)
    return compare(metadata.fingerprints, declared, metadata.held, anew)


def recomputed_since(
    metadata: CheckpointMetadata, declared: Mapping[str, Fingerprint]
) -> frozenset[str]:
    """The stages that the epoch behind the checkpoint computes anew."""
    in_flight = {stage.uid for stage in metadata.stages if stage.in_flight_segments}
    return recomputed(metadata.fingerprints, declared, metadata.held, in_flight)


def _taken_back_in_flight(
    metadata: CheckpointMetadata, declared: Mapping[str, Fingerprint], consent: Consent
) -> Iterator[str]:
    for stage in metadata.stages:
        takes_back = stage.uid in declared and declared[stage.uid].updates_from
        if takes_back and stage.uid in consent.begun and stage.in_flight_segments:
            yield (
                f"stage {stage.uid!r} cannot begin anew, as updates are in flight to it that may "
                "take back rows that it would not have; restore an aligned checkpoint"
            )


def _snapshot_problems(
    state: CoordinatorState,
    choice: Choice,
    observed: Observed,
    stages: Sequence[DeclaredStage],
    options: RestoreOptions,
    damage: Sequence[str],
) -> tuple[list[str], tuple[str, ...]]:
    """The problems of the snapshot itself, and the uids whose state is dropped."""
    metadata = observed.metadata
    problems = _in_flight_problems(choice, options)
    if metadata is None:
        return problems, ()
    declared = {stage.uid: stage for stage in stages}
    orphans = {
        s.uid: f"stage {s.uid!r} has state"
        for s in metadata.stages
        if s.has_state and s.uid not in declared
    } | dict(observed.left_behind)
    is_base = (choice.checkpoint_id, choice.origin) == (state.base, state.origin)
    # A failure before the next checkpoint does not take a person's consent back.
    consented = state.dropped_stages if is_base else ()
    problems += [
        *(
            f"{what} but is not in the pipeline any more (allow non-restored state to drop it)"
            for uid, what in orphans.items()
            if not options.allow_non_restored_state and uid not in consented
        ),
        *(
            problem
            for stage in metadata.stages
            if stage.uid in declared
            for problem in _parallelism_problems(stage, declared[stage.uid])
        ),
        *problems_behind_the_end(metadata, {stage.uid: stage.reads for stage in stages}),
        *damage,
        *observed.source_problems,
    ]  # fmt: skip
    return problems, tuple(orphans)


def _in_flight_problems(choice: Choice, options: RestoreOptions) -> list[str]:
    """The problems of dropping in-flight data, which only the restored checkpoint's can be."""
    ignored = options.ignore_in_flight_of
    if ignored is None or ignored == choice.checkpoint_id:
        return []
    return [f"the data in flight of checkpoint {ignored} cannot be ignored: {choice} is restored"]


def _parallelism_problems(saved: StageState, declared: DeclaredStage) -> list[str]:
    if declared.max_parallelism not in (None, saved.max_parallelism):
        problem = (
            f"stage {saved.uid!r} declares max parallelism {declared.max_parallelism}, but its "
            f"state has {saved.max_parallelism}, which is fixed for life"
        )
        return [problem]
    if declared.parallelism > saved.max_parallelism:
        problem = (
            f"stage {saved.uid!r} has parallelism {declared.parallelism}, which exceeds its max "
            f"parallelism {saved.max_parallelism}"
        )
        return [problem]
    return []


def problems_behind_the_end(
    metadata: CheckpointMetadata, producers: Mapping[str, Sequence[str]]
) -> list[str]:
    """The finished stages of the checkpoint that would read on, each with what it would read.

    *producers* are the sources and stages that each declared stage reads.  A stage that has
    finished saw the end of its input, and its event time is at MAX.  Where something before it
    still gives rows, because it is new or was not connected before, each of those rows would be
    late.  Flink's VertexFinishedStateChecker refuses such a job, and no option lets it pass.
    """
    return [
        f"stage {uid!r} has finished in checkpoint {metadata.checkpoint_id}, and "
        f"{'stage' if producer in producers else 'source'} {producer!r} before it "
        f"{'has not' if metadata.stage(producer) or metadata.source(producer) else 'is new'}: its "
        f"rows would come after the end of all input. Put nothing new before {uid!r}, or "
        f"give {uid!r} a new uid and allow non-restored state, so that it begins anew"
        for uid, read in producers.items()
        if _has_finished(metadata, uid, producers)
        for producer in dict.fromkeys(read)
        if not _gives_nothing(metadata, producer, producers)
    ]


def late_behind_a_drain(
    metadata: CheckpointMetadata, stages: Sequence[DeclaredStage]
) -> tuple[str, ...]:
    """The stages with late rows whose event time has ended, while their input has not: mostly as
    the job was drained.  Flink restores such a job, and says nothing.
    """
    producers = {stage.uid: stage.reads for stage in stages}
    because = ", as the job was drained" if metadata.drains else ""
    return tuple(
        f"stage {one.uid!r} saw the end of event time in checkpoint {metadata.checkpoint_id}"
        f"{because}: every row from now on is late, and goes to the side output "
        f"'{one.uid}.late'. To go on in time restore a checkpoint or savepoint from before that, "
        f"or give {one.uid!r} a new uid and allow non-restored state, so that it begins anew"
        for one in stages
        if one.goes_by_event_time
        and (saved := metadata.stage(one.uid)) is not None
        and saved.watermark_ms == MAX_WATERMARK
        and not _has_finished(metadata, one.uid, producers)
    )


def _has_finished(
    metadata: CheckpointMetadata, uid: str, producers: Mapping[str, Sequence[str]]
) -> bool:
    """Whether the next plan would skip the stage, had the pipeline before it not changed.

    A drained savepoint ends event time, too, but not its sources: Flink restores that.
    """
    stage = metadata.stage(uid)
    if stage is None:
        return False
    if stage.is_finished:
        return True
    if stage.watermark_ms != MAX_WATERMARK or stage.in_flight_segments:
        return False
    return all(_had_ended(metadata, producer, producers) for producer in producers[uid])


def _had_ended(
    metadata: CheckpointMetadata, producer: str, producers: Mapping[str, Sequence[str]]
) -> bool:
    """Whether *producer* had ended, or for one that is new everything before it that is not."""
    if producer not in producers:
        cut = metadata.source(producer)
        return cut is None or cut.exhausted
    if metadata.stage(producer) is not None:
        return _has_finished(metadata, producer, producers)
    return all(_had_ended(metadata, before, producers) for before in producers[producer])


def _gives_nothing(
    metadata: CheckpointMetadata, producer: str, producers: Mapping[str, Sequence[str]]
) -> bool:
    if producer in producers:
        return _has_finished(metadata, producer, producers)
    cut = metadata.source(producer)
    return cut is not None and cut.exhausted
