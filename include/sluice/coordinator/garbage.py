"""Garbage collection: files that crashed or fenced writers left are found, and deleted.

The journal is loaded first, the objects are listed after it, and an object is garbage only if

- its name has the id of a checkpoint that was over by then: below the next id, and not pending;
- nothing that can still be restored or committed names it;
- it is older than the grace period, on the clock of the store that lists it.

Ids decide, not clocks.  A checkpoint that is over writes nothing that counts, its id is never used
again, and a later one inherits only from what was retained or pending at that load; so garbage
stays garbage, whatever happens between the load and the delete, and however long that takes.  The
grace period only keeps us out of the way of writers that do not know yet that they were fenced.

Of other journals than the job's everything is garbage: whoever slept while the root was emptied
wrote it below its old token.  The pointer is read after they were listed, and a token is noted in
it before the first key that has it; so what is listed and not named is never going to be.

What a sink has staged is known by the journal, too.  Below the root what another journal staged is
garbage, as above; in a table that others may write it is only reported.

Of a savepoint's name the files of every incarnation are garbage that the name's pointer, read after
they were listed, does not mean: a token is reserved before its first file, and never twice.  One
that the job itself began is, too, if the journal, loaded after the pointer was listed, does not
take it any more.

Fails closed: what cannot be read may name anything, so nothing is deleted.  Savepoints are their
owners': one that another program left incomplete is reported.  Of a table the newest versions stay,
by number, and those that a checkpoint or savepoint shows.  Statistics of checkpoints that ended are
no garbage: of them the newest stay, by number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, takewhile
from typing import assert_never

from sluice.coordinator.notifications import release_orphans
from sluice.coordinator.record import (
    InUse,
    discard_claimed,
    load_files_in_use,
)
from sluice.coordinator.savepoints import complete_savepoints
from sluice.coordinator.staged import early_publishes
from sluice.core.ids import NO_GENERATION, SavepointId
from sluice.core.savepoints import SavepointPointer
from sluice.core.state import CoordinatorState
from sluice.declaration.places import Sink, Staged, Unpublished, VersionedSink
from sluice.figures.record import kept_objects
from sluice.job.job import Job
from sluice.job.lineage import named_meanwhile
from sluice.job.places import open_sinks
from sluice.store.checkpoints import StatisticsStore
from sluice.store.object_store import Listed
from sluice.store.open import discard_temporaries, temporaries

log = logging.getLogger(__name__)

DEFAULT_GRACE_MS = 3_600_000  # Six times the default checkpoint timeout.
TEMPORARY_GRACE_MS = 86_400_000  # A write takes seconds; one that is a day old is not continued.
PROBE_GRACE_MS = 600_000  # A probe has no id; its writer waits for an answer less long than this.
DELETE_BATCH = 1_000  # What S3 takes at once; a failure repeats one batch, not all.


class Reason(Enum):
    """The reason why an object is garbage; the value is for people."""

    STATE = "state segments that no retained checkpoint names"
    COMPACTION = "merged state that no checkpoint names, and none can take over"
    STREAM = "stream segments that no retained checkpoint names"
    CHECKPOINT = "files of checkpoints that are neither pending nor retained"
    STAGED = "staged output that will never be committed"
    SAVEPOINT = "files of savepoints that were disposed of, or never completed"
    PROBE = "probes that a start left behind"
    JOURNAL = "journal entries that the newest one does not continue"
    EARLIER = "files of journals that this root had before it was emptied"
    TEMPORARY = "files that processes which were killed had begun to write"


LEAST_GRACE_MS = {Reason.PROBE: PROBE_GRACE_MS, Reason.TEMPORARY: TEMPORARY_GRACE_MS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """``key`` is relative to the job's root, or to the place of *sink*."""

    key: str
    size_bytes: int
    reason: Reason
    sink: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncompleteSavepoint:
    """A savepoint whose name is taken and which is not whole: its writer died, or is at work."""

    name: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """``files`` are to be deleted; ``too_young`` are orphans within the grace period.

    Two kinds of files stay.  ``of_others`` were staged, in a place that several jobs share, by
    another job or an earlier life of this one; their checkpoint ids are not this job's.
    ``unknown`` have names that sluice does not write.  The tables of the sinks ``expiring`` have
    more versions than are to be retained.
    """

    files: tuple[Orphan, ...] = ()
    too_young: tuple[Orphan, ...] = ()
    incomplete_savepoints: tuple[IncompleteSavepoint, ...] = ()
    of_others: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    expiring: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(orphan.size_bytes for orphan in self.files)


def find_orphans(job: Job, *, grace_ms: int = DEFAULT_GRACE_MS) -> Orphans:
    """Find what ``collect_garbage`` would delete, and delete nothing.

    Raises:
        ProtocolViolation: what is in use cannot be known; the message names the object.
    """
    savepoints = _savepoints(job)
    used = load_files_in_use(job)
    return _find(job, used, savepoints, _sinks(job, used.head.state), grace_ms)


def collect_garbage(
    job: Job, *, grace_ms: int = DEFAULT_GRACE_MS, dry_run: bool = False
) -> Orphans:
    """Delete what ``find_orphans`` finds, and return it.  Two collectors at once do no harm.

    Raises:
        ProtocolViolation: as ``find_orphans``; then nothing was deleted.
    """
    if dry_run:
        return find_orphans(job, grace_ms=grace_ms)
    savepoints = _savepoints(job)
    used = load_files_in_use(job)
    sinks = _sinks(job, used.head.state)
    orphans = _find(job, used, savepoints, sinks, grace_ms)
    whole = {  # Completed since they were listed.
        savepoint
        for savepoint, pointer in _given_up(used, savepoints)
        if not job.savepoints.remove(savepoint, only=pointer)
    }
    merged = [orphan.key for orphan in orphans.files if orphan.reason is Reason.COMPACTION]
    named = named_meanwhile(job, merged)  # It may have been recorded since the load.
    files = tuple(
        orphan
        for orphan in orphans.files
        if orphan.key not in named
        and not (orphan.sink is None and job.names.savepoint_of(orphan.key) in whole)
    )
    temporary = [orphan.key for orphan in files if orphan.reason is Reason.TEMPORARY]
    discard_temporaries(job.location, temporary)
    ours = (orphan for orphan in files if orphan.sink is None)
    own = [orphan.key for orphan in ours if orphan.reason is not Reason.TEMPORARY]
    _delete(sorted(own, key=lambda key: _turn(job, key)), job.store.delete)
    for uid, sink in sinks.items():
        _delete([orphan.key for orphan in files if orphan.sink == uid], sink.discard)
    versions = job.pipeline.checkpointing.num_retained_versions
    for uid in orphans.expiring:
        sink = sinks[uid]
        if isinstance(sink, VersionedSink):
            sink.expire(versions, used.versions(uid), grace_ms=grace_ms)
    discard_claimed(job)  # What a crash in the middle of it left.
    release_orphans(job, lambda: complete_savepoints(job))
    kept = kept_objects(job.pipeline.checkpointing.history_size)
    StatisticsStore(job.store, job.paths).prune(kept)
    collected = replace(orphans, files=files)
    if files:
        log.info(
            "garbage collected pipeline=%s files=%d bytes=%d",
            job.pipeline.uid, len(files), collected.total_bytes,
        )  # fmt: skip
    return collected


def _sinks(job: Job, state: CoordinatorState) -> dict[str, Sink]:
    """The sinks as the job is configured; a job that was never submitted has none."""
    if state.generation == NO_GENERATION:
        return {}
    return open_sinks(job, state.configuration.params)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aged:
    """Garbage, as soon as it is old enough."""

    orphan: Orphan
    age_ms: int
    grace_ms: int

    @property
    def is_due(self) -> bool:
        return self.age_ms >= self.grace_ms


@dataclass(frozen=True, slots=True)
class _Savepoints:
    """The files of savepoints in one listing, and the pointers that were read after it."""

    files: tuple[Listed, ...]
    pointers: Mapping[str, SavepointPointer]


def _savepoints(job: Job) -> _Savepoints:
    files = tuple(job.store.list(job.names.savepoints()))
    return _Savepoints(files, job.savepoints.all(found.key for found in files))


def _given_up(
    used: InUse, savepoints: _Savepoints
) -> Iterator[tuple[SavepointId, SavepointPointer]]:
    """The savepoints that the job began to write, and whose checkpoint has ended."""
    state = used.head.state
    for name, pointer in savepoints.pointers.items():
        savepoint = SavepointId(name, pointer.token)
        is_own = pointer.life != "" and pointer.life in (state.life, *state.earlier_lives)
        is_begun = is_own and not (pointer.is_gone or pointer.is_complete)
        if is_begun and state.is_free(savepoint):
            yield savepoint, pointer


def _dead(job: Job, used: InUse, savepoints: _Savepoints) -> list[Listed]:
    """The files of incarnations that no name means, and no name ever will."""
    given_up = {savepoint for savepoint, _ in _given_up(used, savepoints)}

    def is_dead(found: Listed) -> bool:
        savepoint = job.names.savepoint_of(found.key)
        if savepoint is None or savepoint in used.head.state.releasing_savepoints:
            return False  # A pointer; or its release deletes it.
        pointer = savepoints.pointers.get(savepoint.name)
        if pointer is None:
            return False  # Copied here by hand, without its pointer.
        means_it = pointer.token == savepoint.token and not pointer.is_gone
        return not means_it or savepoint in given_up

    return [found for found in savepoints.files if is_dead(found)]


def _find(
    job: Job,
    used: InUse,
    savepoints: _Savepoints,
    sinks: Mapping[str, Sink],
    grace_ms: int,
) -> Orphans:
    paths = job.paths
    folders = {
        Reason.STATE: paths.all_shared(),
        Reason.COMPACTION: paths.all_compactions(),
        Reason.STREAM: paths.all_streams(),
        Reason.CHECKPOINT: paths.checkpoints(),
        Reason.PROBE: job.names.probes(),
        Reason.JOURNAL: paths.journal(),
    }
    listed = {reason: [*job.store.list(folder)] for reason, folder in folders.items()}
    listed[Reason.TEMPORARY] = [*temporaries(job.location, job.names.pipeline)]
    listed[Reason.SAVEPOINT] = _dead(job, used, savepoints)
    listed[Reason.EARLIER] = of_earlier_journals(job) if used.head.seq else []
    objects = chain(used.savepoint_files, *listed.values())
    now_ms = max((found.modified_ms for found in objects), default=0)
    aged = [
        _Aged(
            orphan=Orphan(key=found.key, size_bytes=found.size_bytes, reason=reason),
            age_ms=now_ms - found.modified_ms,
            grace_ms=max(grace_ms, LEAST_GRACE_MS.get(reason, 0)),
        )
        for reason, objects in listed.items()
        for found in _garbage(job, used, reason, objects)
    ]
    of_others, expiring = list[str](), list[str]()
    for uid, sink in sinks.items():
        unpublished = sink.unpublished()
        aged += _staged(job, used, uid, sink, unpublished, now_ms, grace_ms)
        of_others += _of_others(job, used, unpublished)
        if unpublished.versions > job.pipeline.checkpointing.num_retained_versions:
            expiring.append(uid)
    of_checkpoints = (Reason.STATE, Reason.COMPACTION, Reason.STREAM, Reason.CHECKPOINT)
    keys = (found.key for reason in of_checkpoints for found in listed[reason])
    unknown = [key for key in keys if paths.checkpoint_of(key) is None]
    entries = (found.key for found in listed[Reason.JOURNAL])
    unknown += [key for key in entries if not paths.is_journal_entry(key)]
    return Orphans(
        files=tuple(garbage.orphan for garbage in aged if garbage.is_due),
        too_young=tuple(garbage.orphan for garbage in aged if not garbage.is_due),
        incomplete_savepoints=_incomplete_savepoints(job, used, savepoints, now_ms - grace_ms),
        of_others=tuple(of_others),
        unknown=tuple(unknown),
        expiring=tuple(expiring),
    )


def of_earlier_journals(job: Job) -> list[Listed]:
    """The files below the tokens of earlier journals of a job that has begun; costs two LISTs.

    Raises:
        FencedError: *this* job's journal is an earlier one, because the root was emptied.
    """
    before, own = job.names.journals(), job.paths
    found = [*takewhile(lambda one: one.key < own.folder, job.store.list(before))]
    found += job.store.list(before, start_after=own.behind())
    if found:
        job.journal.require_current()
    return found


def _garbage(job: Job, used: InUse, reason: Reason, listed: Sequence[Listed]) -> Sequence[Listed]:
    match reason:
        case Reason.STATE | Reason.COMPACTION | Reason.STREAM | Reason.CHECKPOINT:
            return [found for found in listed if not _is_needed(job, used, reason, found.key)]
        case Reason.PROBE | Reason.TEMPORARY | Reason.SAVEPOINT | Reason.EARLIER:
            return listed
        case Reason.JOURNAL:
            return _strays(job, used, listed)
        case Reason.STAGED:
            raise AssertionError("the sinks list what they staged")
        case _:
            assert_never(reason)


def _is_needed(job: Job, used: InUse, reason: Reason, key: str) -> bool:
    """A retained checkpoint needs its whole folder, and of its other files those that it names."""
    checkpoint_id = job.paths.checkpoint_of(key)
    is_over = used.is_settled if reason is Reason.COMPACTION else used.is_over
    if checkpoint_id is None or not is_over(checkpoint_id):
        return True
    return checkpoint_id in used.folders if reason is Reason.CHECKPOINT else key in used.keys


def _strays(job: Job, used: InUse, listed: Sequence[Listed]) -> Sequence[Listed]:
    """Journal entries below a gap, left by a late writer or an unfinished truncation."""
    entries = {found.key for found in listed}
    gap = used.head.seq
    while gap and job.paths.journal_entry(gap) in entries:
        gap -= 1
    below = job.paths.journal_entry(gap) if gap < used.head.seq else ""
    return [f for f in listed if f.key < below and job.paths.is_journal_entry(f.key)]


def _staged(
    job: Job,
    used: InUse,
    uid: str,
    sink: Sink,
    found: Unpublished,
    now_ms: int,
    grace_ms: int,
) -> Iterator[_Aged]:
    """The orphans among the files that *sink* has staged, with their ages.

    Ages are by the clock of the job's store if the sink lies below its root, else by the place's.

    Raises:
        FencedError: the root was emptied, and *found* belongs to the journal that followed.
    """
    if not found.is_shared and any(not _is_own(job, file) for file in found.staged):
        job.journal.require_current()
    is_below = found.root.startswith(f"{job.store.root}/")
    now_ms = max(now_ms, found.newest_ms) if is_below else found.newest_ms
    noted = early_publishes(job) if found.staged else frozenset()
    shown_early = {of for of, sink_uid in noted if sink_uid == uid}
    for file in found.staged:
        of = file.checkpoint_id
        is_own = _is_own(job, file)
        is_shown = is_own and of in shown_early and not sink.is_published(of)
        is_over = used.is_over(of) if is_own else not found.is_shared
        if is_over and not is_shown and file.file not in used.staged:
            yield _Aged(
                orphan=Orphan(
                    key=file.file, size_bytes=file.size_bytes, reason=Reason.STAGED, sink=uid
                ),
                age_ms=now_ms - file.modified_ms,
                grace_ms=grace_ms,
            )


def _is_own(job: Job, file: Staged) -> bool:
    """Whether the checkpoint id in its name is one of this job's.

    A merged file has no token, and is published or garbage by its version.
    """
    return not file.checkpoint_token or job.paths.is_of_journal(file.checkpoint_token)


def _of_others(job: Job, used: InUse, found: Unpublished) -> list[str]:
    """The files that checkpoints of others have staged where they may stage, too: they stay."""
    return [
        f"{found.root}/{file.file}"
        for file in found.staged
        if found.is_shared and not _is_own(job, file) and file.file not in used.staged
    ]


def _incomplete_savepoints(
    job: Job, used: InUse, savepoints: _Savepoints, written_before_ms: int
) -> tuple[IncompleteSavepoint, ...]:
    """Savepoints that no process is going to complete or delete."""
    given_up = {savepoint for savepoint, _ in _given_up(used, savepoints)}
    found: dict[SavepointId, list[Listed]] = {
        SavepointId(name, pointer.token): []
        for name, pointer in savepoints.pointers.items()
        if not pointer.is_gone
    }
    for listed in savepoints.files:
        savepoint = job.names.savepoint_of(listed.key)
        if savepoint is not None and savepoint.name not in savepoints.pointers:
            found.setdefault(savepoint, [])
        if savepoint in found:
            found[savepoint].append(listed)
    whole = {
        savepoint
        for savepoint, files in found.items()
        if (pointer := savepoints.pointers.get(savepoint.name)) is not None
        and pointer.is_complete
        and any(file.key == job.names.savepoint_metadata(savepoint) for file in files)
    }
    return tuple(
        IncompleteSavepoint(
            name=savepoint.name, files=len(files), size_bytes=sum(file.size_bytes for file in files)
        )
        for savepoint, files in found.items()
        if savepoint not in (*whole, *given_up)
        and used.head.state.is_free(savepoint)
        and max((file.modified_ms for file in files), default=0) <= written_before_ms
    )


def _turn(job: Job, key: str) -> int:
    """The turn in which an object is deleted: ``_metadata`` and records of merged state first.

    So nothing looks whole whose files are gone.  A checkpoint's plan is deleted last.
    """
    checkpoint_id = job.paths.checkpoint_of(key)
    if checkpoint_id is None:
        return 1
    turns = {job.paths.metadata(checkpoint_id): 0, job.paths.plan(checkpoint_id): 2}
    return turns.get(key, 0 if job.paths.is_compaction(key) else 1)


def _delete(keys: Sequence[str], delete: Callable[[Sequence[str]], None]) -> None:
    for start in range(0, len(keys), DELETE_BATCH):
        delete(keys[start : start + DELETE_BATCH])
