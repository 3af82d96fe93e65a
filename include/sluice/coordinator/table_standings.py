"""Every sink is asked how its table stands, before a restore or a submission decides anything."""

from __future__ import annotations

from dataclasses import replace

from sluice.connectors.contracts.sink import RollBack, Sink
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobConfiguration
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice
from sluice.core.state import CoordinatorState
from sluice.core.table_standings import TableStanding
from sluice.core.timeline import Standing
from sluice.declaration.side_outputs import side_outputs
from sluice.job.job import Job
from sluice.job.places import open_sinks


def standings_to_restore(
    job: Job,
    state: CoordinatorState,
    choice: Choice,
    metadata: CheckpointMetadata | None,
    configuration: JobConfiguration,
) -> tuple[TableStanding, ...]:
    """The standings of the tables against the versions that *choice* pinned.

    The ids of another journal mean something to a table alone that the life wrote last which took
    the checkpoint; to any other an equal id is a coincidence.
    """
    lives = (state.life, *state.earlier_lives)
    is_foreign = metadata is not None and metadata.life not in lives
    pinned = _pinned(state, choice, metadata)
    found: list[TableStanding] = []
    for uid, sink in open_sinks(job, configuration.params).items():
        version, *before = pinned.get(uid) or [None]
        standing, owed = sink.standing(state.life, version), None
        if metadata is not None and is_foreign and standing.other_life != metadata.life:
            version, standing = None, sink.standing(state.life, None)
        elif before and standing.lacks:
            owed, version = version, before[0]
            standing = sink.standing(state.life, version)
        seen = _seen(job, state, uid, sink, version, standing)
        found.append(replace(seen, owed=None if owed is None else CheckpointId(owed)))
    return tuple(found)


def undeclared_tables(
    job: Job, state: CoordinatorState, choice: Choice, metadata: CheckpointMetadata | None
) -> dict[str, int]:
    """The versions that *choice* pins of undeclared sinks, if it is of this journal."""
    if metadata is None or metadata.life not in (state.life, *state.earlier_lives):
        return {}
    declared = {*job.pipeline.sinks, *side_outputs(job.pipeline)}
    pinned = _pinned(state, choice, metadata).items()
    return {
        uid: versions[-1]
        for uid, versions in pinned
        if uid not in declared and versions[-1] is not None
    }


def standings_to_submit(
    job: Job, state: CoordinatorState, configuration: JobConfiguration
) -> tuple[TableStanding, ...]:
    """The standings of the tables against a job that begins anew: whose rows they show, if any.

    It has no life yet, so the one that the journal has had until now is another one, too.
    """
    return tuple(
        _seen(job, state, uid, sink, None, sink.standing("", None))
        for uid, sink in open_sinks(job, configuration.params).items()
    )


def _pinned(
    state: CoordinatorState, choice: Choice, metadata: CheckpointMetadata | None
) -> dict[str, list[int | None]]:
    """Per sink what its table should show, the best first.

    A checkpoint whose commit is owed may have been published by a process that died before it
    journaled so; else the table shows what the commit will continue.
    """
    if metadata is None:
        return {}
    is_base = state.continues(choice.checkpoint_id, choice.origin)
    decided = state.tables if is_base else None
    own = None if choice.origin else state.completed_checkpoint(metadata.checkpoint_id)
    if own is None or own.is_committed:
        after = metadata.tables if decided is None else decided
        return {uid: [version] for uid, version in after.items()}
    before = metadata.previous_tables if decided is None else decided
    return {
        uid: [version, before.get(uid)] if version == own.checkpoint_id else [before.get(uid)]
        for uid, version in metadata.tables.items()
    }


def _seen(
    job: Job,
    state: CoordinatorState,
    uid: str,
    sink: Sink,
    version: int | None,
    standing: Standing,
) -> TableStanding:
    is_odd = standing.lacks or standing.other_life != ""
    every = sink.standing(state.life, None).ahead if is_odd and version is not None else ()
    shown = (every or standing.ahead)[-1:] if is_odd else ()
    return TableStanding(
        sink=uid,
        version=version,
        standing=standing,
        shown=shown[0] if shown else None,
        is_empty=standing.other_life != "" and sink.is_empty(),
        is_of_earlier_life=standing.other_life in (state.life, *state.earlier_lives),
        is_side_output=uid not in job.pipeline.sinks,
        can_roll_back=sink.rolls_back is not RollBack.NEVER,
        rolls_back_by_itself=sink.rolls_back is RollBack.BY_NEXT_COMMIT,
    )
