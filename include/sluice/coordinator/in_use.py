"""The files that a job can still restore, take over or commit.

The commit that subsumes a checkpoint and the garbage collector both ask here before they delete.
Fails closed: an object that cannot be read may name anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sluice.core.completed import CheckpointMetadata
from sluice.core.ids import CheckpointId
from sluice.epoch.compactions import useful_compactions
from sluice.errors import ProtocolViolation, RestoreError, StoreUnavailable
from sluice.job.job import Job
from sluice.protocol.records import decode_metadata
from sluice.storage.journal import Head
from sluice.storage.object_store import Listed
from sluice.storage.parallel import in_parallel

PARALLEL_READS = 16  # Below the client's connection pool.
MAX_LOOKS = 10  # Each look but the last found that the job had moved on meanwhile.


@dataclass(frozen=True, slots=True, kw_only=True)
class InUse:
    """``keys`` are files that something names, ``staged`` those of sinks that may yet be committed,
    ``folders`` the checkpoints whose own folder stays.
    """

    head: Head
    keys: frozenset[str]
    staged: frozenset[str]
    folders: frozenset[CheckpointId]
    savepoint_files: tuple[Listed, ...]

    def is_over(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint has ended, for good or ill.  One that was not begun has not."""
        state = self.head.state
        is_begun = checkpoint_id < state.next_checkpoint_id
        return is_begun and state.pending_checkpoint(checkpoint_id) is None

    def is_settled(self, checkpoint_id: int) -> bool:
        """Whether it is over, and all before it.  A stage that runs again in one that is not may
        write under names that were there before, and so have again what was merged behind a later.
        """
        pending = (one.checkpoint_id for one in self.head.state.pending)
        return self.is_over(checkpoint_id) and all(checkpoint_id < one for one in pending)


def look_up(job: Job) -> InUse:
    """Load the journal, then read everything that it says is retained.

    Raises:
        ProtocolViolation: an object is missing or unreadable; the message names it.
    """
    for _ in range(MAX_LOOKS):
        head = job.journal.load()
        try:
            return _in_use(job, head)
        except (RestoreError, ProtocolViolation) as error:
            if job.journal.load().seq == head.seq:  # Else it may have been subsumed meanwhile.
                raise ProtocolViolation(
                    f"no garbage was collected, for what is in use cannot be known: {error}"
                ) from error
    raise StoreUnavailable(f"job {job.pipeline.uid!r} moved on during each of {MAX_LOOKS} looks")


def files_in_use(
    job: Job, kept: Iterable[CheckpointMetadata], *, doomed: Collection[str] | None = None
) -> frozenset[str]:
    """The files that the *kept* snapshots name, and the merged state that may still be taken over.

    With *doomed* files, only those of them are asked for; when none of them is merged state, the
    records of compactions are not read.

    Raises:
        ProtocolViolation: a compaction's record cannot be read.
    """
    named = {key for metadata in kept for key in files_named(metadata)}
    folder = job.paths.all_compactions()
    if doomed is None or any(key.startswith(folder) for key in doomed):
        named |= useful_compactions(job, named)
    return frozenset(named if doomed is None else named.intersection(doomed))


def savepoints_in_use(
    job: Job, claimed: Sequence[str], retained: Sequence[CheckpointMetadata]
) -> frozenset[str]:
    """Those of the *claimed* savepoints that hold a file of a *retained* checkpoint.

    A savepoint shares no file, so it stays whole for as long as one of its files is used.
    """
    owners = {job.paths.savepoint_of(one.key) for metadata in retained for one in metadata.files}
    return frozenset(name for name in claimed if name in owners)


def files_named(metadata: CheckpointMetadata) -> Iterator[str]:
    """The keys that *metadata* names, of any root: another one may be ours, spelled otherwise."""
    yield from (handle.key for handle in metadata.files)
    for stage in metadata.stages:
        for subtask in stage.subtasks:
            yield from (handle.key for handle in subtask.output if handle.key)


def _in_use(job: Job, head: Head) -> InUse:
    """A checkpoint that is being discarded counts: its files are deleted by that, not from here."""
    state, paths = head.state, job.paths
    retained = in_parallel(job.metadata, (c.checkpoint_id for c in state.completed), PARALLEL_READS)
    leaving = [paths.metadata(c.checkpoint_id) for c in state.discarding]  # It may be gone.
    savepoint_files = tuple(job.store.list(paths.savepoints()))
    savepoints = [one.key for one in savepoint_files if is_savepoint_metadata(job, one.key)]
    others = in_parallel(lambda key: _read(job, key), (*leaving, *savepoints), PARALLEL_READS)
    found = [*retained, *others]
    folders = {c.checkpoint_id for c in (*state.completed, *state.discarding)}
    if state.origin is not None:
        found.append(job.origin_metadata(state.origin))
        folders.add(state.origin.checkpoint_id)  # Its root may be ours, spelled in another way.
    known = [metadata for metadata in found if metadata is not None]
    return InUse(
        head=head,
        keys=files_in_use(job, known),
        staged=frozenset(c.file for metadata in known for c in metadata.committables),
        folders=frozenset(folders),
        savepoint_files=savepoint_files,
    )


def is_savepoint_metadata(job: Job, key: str) -> bool:
    name = job.paths.savepoint_of(key)
    return name is not None and key == job.paths.savepoint_metadata(name)


def _read(job: Job, key: str) -> CheckpointMetadata | None:
    raw = job.store.get(key)
    return None if raw is None else decode_metadata(raw, key)
