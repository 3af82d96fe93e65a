"""One event into the journal, and what its transition asks for is carried out: what an aborted or
subsumed checkpoint left is deleted.

Every command may be repeated, and may be lost: what a lost one leaves behind is listed in the
state, or is garbage that its key gives away.

The commit that subsumes a checkpoint and the garbage collector both ask here, before they delete,
which files the job can still restore, take over or commit.  Fails closed: an object that cannot be
read may name anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from sluice.coordinator.history import keep_failed
from sluice.coordinator.notifications import (
    notify_checkpoint_aborted,
    release,
    release_savepoint,
)
from sluice.coordinator.staged import abort_staged
from sluice.core.completed import CheckpointMetadata, CompletedCheckpoint
from sluice.core.events import (
    DiscardCompleted,
    DiscardPending,
    Event,
    RootAdopted,
    SavepointsReleased,
    SnapshotsDiscarded,
    Transition,
)
from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.pending import FIRST_ATTEMPT
from sluice.core.state import CoordinatorState
from sluice.errors import ProtocolViolation, RestoreError, StoreUnavailable, require
from sluice.job.job import Job, files_named, require_at_home, uncollected
from sluice.job.lineage import useful_compactions
from sluice.job.places import Sources, open_sinks
from sluice.protocol.records import decode_metadata
from sluice.store.journal import Head
from sluice.store.object_store import Listed, in_parallel

log = logging.getLogger(__name__)

PARALLEL_READS = 16  # Below the client's connection pool.
MAX_JOURNAL_LOADS = 10  # A load is repeated when the job has moved on meanwhile.


def record(
    job: Job, decide: Callable[[CoordinatorState], Event], head: Head | None = None
) -> Transition:
    """Append the event that *decide* makes of the state, and carry out the transition's commands.

    One call, so that neither is done without the other; see ``Journal.append`` for *head*.

    Raises:
        ConfigurationError: the root is a copy of the job's.
    """

    def decided(state: CoordinatorState) -> Event:
        event = decide(state)
        if not isinstance(event, RootAdopted):
            require_at_home(job, state)
        return event

    transition = job.journal.append(decided, head=head)
    carry_out(job, transition)
    return transition


def carry_out(job: Job, transition: Transition) -> None:
    """Do what the journaled *transition* asks for."""
    for command in transition.commands:
        match command:
            case DiscardPending():
                discard_pending(job, transition.state, command)
            case DiscardCompleted():
                pass  # Done all at once, below: each depends on which files the others use.
            case _:
                assert_never(command)
    if any(isinstance(command, DiscardCompleted) for command in transition.commands):
        clean_up(job, transition.state)


def discard_pending(
    job: Job,
    state: CoordinatorState,
    aborted: DiscardPending,
) -> None:
    """Delete everything that the *aborted* checkpoint wrote; its plan, the sign of it, goes last.

    Segments lie below the journal's token, staged files are named by the checkpoint's, and those of
    the savepoint that it was to be by its own, so nothing of another one is touched, however long
    the caller has slept.
    """
    checkpoint_id = aborted.checkpoint_id
    if aborted.savepoint is not None:
        delete_savepoint(job, aborted.savepoint)
    prefixes = [job.paths.streams(stage, checkpoint_id) for stage in job.pipeline.stages]
    prefixes += [
        job.paths.shared_segments(uid, checkpoint_id)
        for uid in (*job.pipeline.stages, *job.pipeline.sources)
    ]
    doomed = [listed.key for prefix in prefixes for listed in job.store.list(prefix)]
    sinks = open_sinks(job, state.configuration.params)
    abort_staged(job, aborted, sinks)
    sources = Sources(job, state.configuration.params)
    release(job, state, str(checkpoint_id), sources)
    folder = [*job.store.list(job.paths.checkpoint(checkpoint_id))]
    keep_failed(job, state, checkpoint_id, folder)
    own = [listed.key for listed in folder]
    plan = job.paths.plan(checkpoint_id)
    job.store.delete([*doomed, *(key for key in own if key != plan)])
    job.store.delete([plan])
    notify_checkpoint_aborted(job, checkpoint_id, sources, sinks)
    log.info(
        "checkpoint discarded checkpoint_id=%d files=%d", checkpoint_id, len(doomed) + len(own)
    )


def clean_up(job: Job, state: CoordinatorState) -> None:
    """Delete what the state lists to be deleted, and journal that it is gone."""
    gone = discard_subsumed(job, state)
    transition = record(
        job, lambda current: SnapshotsDiscarded(generation=current.generation, checkpoints=gone)
    )
    require(not transition.commands, "what is gone asks for nothing")
    if transition.state.claimed_savepoints:
        discard_claimed(job)


@uncollected
def discard_subsumed(
    job: Job,
    state: CoordinatorState,
    *,
    known: CheckpointMetadata | None = None,
    sources: Sources | None = None,
) -> tuple[CheckpointId, ...]:
    """Delete the files of the checkpoints that left the store, except for those still in use.

    A *known* checkpoint is not read again, and *sources* are not opened again.  Fails closed: if a
    ``_metadata`` cannot be read nothing is deleted, and the garbage collector finds what is left
    behind.  It does not hold up the job.
    """
    if not state.discarding:
        return ()
    try:
        retained = [
            known
            if known is not None and known.checkpoint_id == c.checkpoint_id
            else job.metadata(c.checkpoint_id)
            for c in state.completed
        ]
        if state.origin is not None:
            retained.append(job.origin_metadata(state.origin))
        for checkpoint in state.discarding:
            discard_completed(job, checkpoint, retained)
            release(job, state, str(checkpoint.checkpoint_id), sources)
    except (RestoreError, ProtocolViolation) as error:
        log.error("nothing was discarded, as a retained checkpoint cannot be read: %s", error)  # noqa: TRY400
    return tuple(checkpoint.checkpoint_id for checkpoint in state.discarding)


def discard_claimed(job: Job) -> tuple[SavepointId, ...]:
    """Delete the claimed savepoints that the job does not read any more, and return them.

    Their release is journaled first: from then on no restore can go back to them.  That they are
    gone is journaled last: until then the next coordinator continues.  Fails closed, and does not
    hold up the job.
    """
    state = job.state()
    if not state.claimed_savepoints:
        return ()
    try:
        retained = [job.metadata(checkpoint.checkpoint_id) for checkpoint in state.completed]
    except (RestoreError, ProtocolViolation) as error:
        log.error("no savepoint was discarded, as a retained checkpoint is unreadable: %s", error)  # noqa: TRY400
        return ()
    read = savepoints_in_use(job, state.claimed_savepoints, retained)
    if state.origin is not None and state.origin.own_savepoint is not None:
        read |= {state.origin.own_savepoint}
    unread = tuple(one for one in state.claimed_savepoints if one not in read)
    transition = record(
        job,  # It is fenced if the job was restored since.
        lambda _: SavepointsReleased(generation=state.generation, savepoints=unread),
    )
    gone = transition.state.releasing_savepoints
    for savepoint in gone:
        delete_savepoint(job, savepoint)
        release_savepoint(job, state, savepoint)
        log.info("claimed savepoint discarded name=%s", savepoint.name)
    if gone:
        record(
            job, lambda current: SnapshotsDiscarded(generation=current.generation, savepoints=gone)
        )
    return gone


def delete_savepoint(job: Job, savepoint: SavepointId) -> None:
    """Free its name, if that means this incarnation, and delete the incarnation's files.

    The name first: a crash leaves files that no name means, never a savepoint that lacks some.
    """
    job.savepoints.remove(savepoint)
    folder = job.names.incarnation(savepoint)
    job.store.delete([listed.key for listed in job.store.list(folder)])


def discard_completed(
    job: Job, checkpoint: CompletedCheckpoint, retained: Sequence[CheckpointMetadata]
) -> None:
    try:
        gone = job.metadata(checkpoint.checkpoint_id)
    except RestoreError:
        return  # Discarded before, with all of its files.
    inherited = {handle.key for handle in gone.files if handle.root}
    named = [  # Only files that the job wrote: not those it inherited of a savepoint or a root.
        key
        for key in dict.fromkeys(handle.key for handle in files_named(gone))
        if key not in inherited and job.paths.checkpoint_of(key) is not None
    ]
    used = files_in_use(job, retained, doomed=named)
    files = [key for key in named if key not in used]
    metadata_key = job.paths.metadata(gone.checkpoint_id)
    job.store.delete([*files, *(key for key in _own_keys(job, gone) if key != metadata_key)])
    job.store.delete([metadata_key])
    log.info("checkpoint subsumed checkpoint_id=%d files=%d", gone.checkpoint_id, len(files))


def _own_keys(job: Job, gone: CheckpointMetadata) -> list[str]:
    """The objects in a completed checkpoint's folder: by a GET of its plan, where each stage ran
    once; a LIST costs twelve times as much.  Who failed and was repeated beside the stages has left
    a word there, which the garbage collector finds.
    """
    checkpoint_id = gone.checkpoint_id
    is_first = all(attempt == FIRST_ATTEMPT for attempt in gone.attempts.values())
    plan = job.plan(checkpoint_id) if is_first else None
    if plan is None:
        return [listed.key for listed in job.store.list(job.paths.checkpoint(checkpoint_id))]
    answers = [
        job.paths.answer(checkpoint_id, stage, FIRST_ATTEMPT, plan.token) for stage in gone.attempts
    ]
    return [*answers, job.paths.plan(checkpoint_id)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """``keys`` are files that something names, ``staged`` those of sinks that may yet be committed,
    ``folders`` the checkpoints whose own folder stays; ``tables`` are the versions by sink that
    they show or continue, or that the job does.
    """

    head: Head
    keys: frozenset[str]
    staged: frozenset[str]
    folders: frozenset[CheckpointId]
    savepoint_files: tuple[Listed, ...]
    tables: tuple[Mapping[str, int], ...]

    def versions(self, sink: str) -> list[int]:
        """The versions of *sink*'s table that something may go back to."""
        return [versions[sink] for versions in self.tables if sink in versions]

    def is_over(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint has ended, either way.  One that was not begun has not."""
        state = self.head.state
        is_begun = checkpoint_id < state.next_checkpoint_id
        return is_begun and state.pending_checkpoint(checkpoint_id) is None

    def is_settled(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint is over, and all before it are.

        In one that is pending a stage may run again, write the files that its earlier attempt had
        written, and so have again the state that was merged behind a later checkpoint.
        """
        pending = (checkpoint.checkpoint_id for checkpoint in self.head.state.pending)
        return self.is_over(checkpoint_id) and all(checkpoint_id < other for other in pending)


def load_files_in_use(job: Job) -> InUse:
    """Load the journal, then read everything that it says is retained.

    Raises:
        ProtocolViolation: an object is missing or unreadable; the message names it.
    """
    for _ in range(MAX_JOURNAL_LOADS):
        head = job.journal.load()
        try:
            return _in_use(job, head)
        except (RestoreError, ProtocolViolation) as error:
            if job.journal.load().seq == head.seq:  # Else it may have been subsumed meanwhile.
                raise ProtocolViolation(
                    f"no garbage was collected, for what is in use cannot be known: {error}"
                ) from error
    raise StoreUnavailable(
        f"job {job.pipeline.uid!r} moved on during each of {MAX_JOURNAL_LOADS} looks"
    )


def files_in_use(
    job: Job, kept: Iterable[CheckpointMetadata], *, doomed: Collection[str] | None = None
) -> frozenset[str]:
    """The files that the *kept* snapshots name, and the merged state that may still be taken over.

    With *doomed* files, only those of them; if none of these is merged state, the records of
    compactions are not read.

    Raises:
        ProtocolViolation: a compaction's record cannot be read.
    """
    # Their keys in any root: another one may be the job's own, spelled in another way.
    named = {handle.key for metadata in kept for handle in files_named(metadata)}
    folder = job.paths.all_compactions()
    if doomed is None or any(key.startswith(folder) for key in doomed):
        named |= useful_compactions(job, named)
    return frozenset(named if doomed is None else named.intersection(doomed))


def savepoints_in_use(
    job: Job, claimed: Sequence[SavepointId], retained: Sequence[CheckpointMetadata]
) -> frozenset[SavepointId]:
    """The *claimed* savepoints that hold a file of a *retained* checkpoint.

    A savepoint shares no file, so it stays whole for as long as one of its files is used.
    """
    files = (handle for metadata in retained for handle in metadata.files)
    owners = {job.names.savepoint_of(handle.key) for handle in files}
    return frozenset(savepoint for savepoint in claimed if savepoint in owners)


def _in_use(job: Job, head: Head) -> InUse:
    """A checkpoint that is being discarded counts: its files are deleted by that, not from here."""
    state, paths = head.state, job.paths
    retained = in_parallel(job.metadata, (c.checkpoint_id for c in state.completed), PARALLEL_READS)
    leaving = [paths.metadata(c.checkpoint_id) for c in state.discarding]  # They may be gone.
    savepoint_files = tuple(job.store.list(paths.savepoints()))
    savepoints = [file.key for file in savepoint_files if _is_savepoint_metadata(job, file.key)]

    def read(key: str) -> CheckpointMetadata | None:
        raw = job.store.get(key)
        return None if raw is None else decode_metadata(raw, key)

    found = [*retained, *in_parallel(read, (*leaving, *savepoints), PARALLEL_READS)]
    folders = {c.checkpoint_id for c in (*state.completed, *state.discarding)}
    if state.origin is not None:
        found.append(job.origin_metadata(state.origin))
        folders.add(state.origin.checkpoint_id)  # Its root may be the job's own, as above.
    known = [metadata for metadata in found if metadata is not None]
    return InUse(
        head=head,
        keys=files_in_use(job, known),
        staged=frozenset(c.file for metadata in known for c in metadata.committables),
        folders=frozenset(folders),
        savepoint_files=savepoint_files,
        tables=(
            state.tables or {},
            *(shown for one in known for shown in (one.tables, one.previous_tables)),
        ),
    )


def _is_savepoint_metadata(job: Job, key: str) -> bool:
    """Whether *key* is any incarnation's: until its files go, it may be restored from elsewhere."""
    savepoint = job.names.savepoint_of(key)
    return savepoint is not None and key == job.names.savepoint_metadata(savepoint)
