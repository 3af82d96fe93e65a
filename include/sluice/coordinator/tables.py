"""The sinks' tables at a restore or a submission: every sink is asked how its table compares before
anything is decided, and afterwards the tables become what was decided.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from sluice.coordinator.record import record
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobConfiguration
from sluice.core.events import TablesRecovered, Verdict
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Choice
from sluice.core.state import CoordinatorState
from sluice.core.tables import TableComparison
from sluice.core.timeline import Recovery, TimelineComparison, Writer
from sluice.declaration.pipeline import side_outputs
from sluice.declaration.places import RollBack, Sink
from sluice.errors import FencedError
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.store.journal import Head

log = logging.getLogger(__name__)


def compare_tables_to_restore(
    job: Job,
    state: CoordinatorState,
    choice: Choice,
    metadata: CheckpointMetadata | None,
    configuration: JobConfiguration,
) -> tuple[TableComparison, ...]:
    """A comparison of each table with the versions that *choice* pinned.

    Ids mean something only to a table that the same sink of the journal wrote, of which the
    checkpoint is; to any other table an equal id is a coincidence.
    """
    lives = [state.life, *state.earlier_lives]
    if metadata is not None and metadata.life not in lives:
        lives = [metadata.life]
    pinned = _pinned(state, choice, metadata)
    found: list[TableComparison] = []
    for uid, sink in open_sinks(job, configuration.params).items():
        version, *before = pinned.get(uid) or [None]
        comparison, owed = sink.compare(state.life, version), None
        if not _has_ids_of(lives, uid, comparison, is_own=state.life in lives):
            owed, version = version if before else None, None
            comparison = sink.compare(state.life, None)
        elif before and (comparison.lacks or gave_way(lives, comparison)):
            owed, version = version, before[0]
            comparison = sink.compare(state.life, version)
        compared = _table_comparison(job, state, uid, sink, version, comparison)
        found.append(replace(compared, owed=None if owed is None else CheckpointId(owed)))
    return tuple(found)


def _has_ids_of(
    lives: Sequence[str], uid: str, comparison: TimelineComparison, *, is_own: bool
) -> bool:
    """Whether the table was written by the sink *uid* of one of *lives*.

    *is_own*: these are the job's own; then nobody's table has their ids, too.
    """
    other, where = comparison.other_life, comparison.other_sink
    if not other:
        return is_own
    if other in lives:
        return where.rpartition("/")[2] in ("", uid)
    return is_own and any(life in lives for life in comparison.past_lives)


def gave_way(lives: Iterable[str], comparison: TimelineComparison) -> bool:
    """Whether a sink of *lives* wrote the table, and another writer has it since: of the ids that
    the table shows, those that the sink had not published by then may be the other's.
    """
    past = comparison.past_lives
    return bool(comparison.other_life) and any(life in past for life in lives)


def undeclared_tables(
    job: Job, state: CoordinatorState, choice: Choice, metadata: CheckpointMetadata | None
) -> dict[str, int]:
    """The versions that *choice* pins for undeclared sinks, if it is of this journal."""
    if metadata is None or metadata.life not in (state.life, *state.earlier_lives):
        return {}
    declared = {*job.pipeline.sinks, *side_outputs(job.pipeline)}
    pinned = _pinned(state, choice, metadata).items()
    return {
        uid: versions[-1]
        for uid, versions in pinned
        if uid not in declared and versions[-1] is not None
    }


def compare_tables_to_submit(
    job: Job, state: CoordinatorState, configuration: JobConfiguration
) -> tuple[TableComparison, ...]:
    """A comparison of each table with a job that begins anew: whose rows it shows, if any.

    The job has no life yet, so the latest life of its own journal counts as another one, too.
    """
    return tuple(
        _table_comparison(job, state, uid, sink, None, sink.compare("", None))
        for uid, sink in open_sinks(job, configuration.params).items()
    )


def _pinned(
    state: CoordinatorState, choice: Choice, metadata: CheckpointMetadata | None
) -> dict[str, list[int | None]]:
    """By sink the versions that its table may show, the best first.

    A checkpoint whose commit is owed may have been published by a process that died before it
    journaled that; otherwise the table shows the version that the commit will continue.
    """
    if metadata is None:
        return {}
    is_base = state.is_base(choice.checkpoint_id, choice.origin)
    decided = state.tables if is_base else None
    own = None if choice.origin else state.completed_checkpoint(metadata.checkpoint_id)
    if own is None or own.is_committed:
        versions = metadata.tables if decided is None else decided
        return {uid: [version] for uid, version in versions.items()}
    before = metadata.previous_tables if decided is None else decided
    return {
        uid: [version, before.get(uid)] if version == own.checkpoint_id else [before.get(uid)]
        for uid, version in metadata.tables.items()
    }


def _table_comparison(
    job: Job,
    state: CoordinatorState,
    uid: str,
    sink: Sink,
    version: int | None,
    comparison: TimelineComparison,
) -> TableComparison:
    is_odd = comparison.lacks or comparison.other_life != ""
    every = sink.compare(state.life, None).ahead if is_odd and version is not None else ()
    shown = (every or comparison.ahead)[-1:] if is_odd else ()
    return TableComparison(
        sink=uid,
        version=version,
        comparison=comparison,
        shown=shown[0] if shown else None,
        is_empty=comparison.other_life != "" and sink.is_empty(),
        is_of_earlier_life=(
            comparison.other_life in (state.life, *state.earlier_lives)
            and not comparison.other_sink
        ),
        is_side_output=uid not in job.pipeline.sinks,
        can_roll_back=sink.rolls_back is not RollBack.NEVER,
        rolls_back_by_itself=sink.rolls_back is RollBack.BY_NEXT_COMMIT,
    )


def writer_of(state: CoordinatorState) -> Writer:
    """The life and generation in whose name a coordinator that loaded *state* writes to tables."""
    return Writer(
        life=state.life, generation=state.generation, recovered_by=state.tables_recovered_by
    )


def recover_tables(job: Job, head: Head) -> Head:
    """Carry out the recovery that tables are owed, if it is due; return the head after it.

    Raises:
        FencedError: a later restore was here, or another life owns a table.
        TableMismatch: a table changed since it was compared, and lacks what the job continues.
    """
    state, owed = head.state, head.state.table_recovery
    if owed is None or not state.must_recover_tables:
        return head
    versions = state.tables or {}
    base = None if owed.continues is None else job.base_metadata(state)
    pinned = {} if base is None else base.tables
    for uid, sink in open_sinks(job, state.configuration.params).items():
        recovery = Recovery(
            version=versions.get(uid),
            through=owed.through,
            continues=owed.continues if pinned.get(uid) == owed.continues else None,
            roll_back=owed.roll_back,
            accepts=owed.accepts,
            replaces=owed.replaces.get(uid, ()),
        )
        _recover(sink, writer_of(state), recovery)
    transition = record(job, lambda _: TablesRecovered(generation=state.generation))
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} meanwhile")
    log.info(
        "tables recovered generation=%d through=%d rolled_back=%s",
        state.generation, owed.through, owed.roll_back,
    )  # fmt: skip
    return job.journal.load()


def _recover(sink: Sink, writer: Writer, recovery: Recovery) -> None:
    """The owed commit may be under way: once it is done, the job continues its version."""
    owed = recovery.continues
    done = replace(recovery, version=owed, continues=None)
    is_done = _is_done(sink, writer, owed)
    try:
        sink.recover(writer, done if is_done else recovery)
    except FencedError:
        if is_done or not _is_done(sink, writer, owed):
            raise
        sink.recover(writer, done)


def _is_done(sink: Sink, writer: Writer, owed: int | None) -> bool:
    if owed is None or not sink.is_published(owed):
        return False
    return not gave_way([writer.life], sink.compare(writer.life, None))
