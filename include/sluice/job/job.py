"""One pipeline's job in one root: the handle that every act of the coordinator takes.

Opening it reads nothing and writes nothing.  Its first look asks which journal is the job's, and
that is remembered: a handle never goes over to another one.  Two handles on one job, in whatever
processes, are equals: the journal decides between them.

A ``_metadata`` may have been copied here, or written, by another program.  A restore reads the
files that it names, and they are deleted when it is subsumed, so one that names a file of another
owner is refused before either.
"""

from __future__ import annotations

import gc
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import ParamSpec, TypeVar

from sluice.core.completed import (
    CheckpointMetadata,
    moved_to_root,
    without_in_flight,
    without_state,
)
from sluice.core.configuration import JobConfiguration
from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.plan import CheckpointPlan, SnapshotOrigin
from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, ProtocolViolation, RestoreError
from sluice.job.clock import JobClock, check_machine_clock
from sluice.protocol.keys import JournalPaths, PipelinePaths, is_key
from sluice.protocol.records import checksum, decode_metadata, decode_plan
from sluice.store.checkpoints import AnswerStore
from sluice.store.journal import Journal, jittered_pause
from sluice.store.object_store import ObjectStore, machine_clock_ms
from sluice.store.open import StoreLocation, behind_layers, open_store
from sluice.store.savepoints import SavepointStore

P = ParamSpec("P")
R = TypeVar("R")


def new_life() -> str:
    """A token for a job from its submission on, which no other job ever has."""
    return uuid.uuid4().hex[:16]


def new_token() -> str:
    """A token for a plan, a driver or a savepoint, which no other one ever has."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    pipeline: Pipeline
    location: StoreLocation
    store: ObjectStore
    journal: Journal
    clock: Callable[[], int] = field(default=machine_clock_ms)  # This machine's, ms since 1970.
    time: JobClock = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", JobClock(self.clock, self.journal, self.store))

    @property
    def names(self) -> PipelinePaths:
        """The keys that are addressed by name; no request."""
        return self.journal.names

    @property
    def paths(self) -> JournalPaths:
        """All keys, with those of the job's journal; see ``Journal.paths``."""
        return self.journal.paths

    @property
    def answers(self) -> AnswerStore:
        return AnswerStore(self.store, self.paths)

    def anew(self) -> Job:
        """Another handle on the job, for whoever outlives a root that was emptied."""
        return replace(self, journal=self.journal.anew())

    def now_ms(self) -> int:
        """The time by which coordinators stamp and decide, ms since 1970; see ``job/clock.py``."""
        return self.time.now_ms()

    def state(self) -> CoordinatorState:
        return self.journal.load().state

    def plan(self, checkpoint_id: CheckpointId) -> CheckpointPlan | None:
        """The plan of a checkpoint; None when it was aborted and discarded."""
        key = self.paths.plan(checkpoint_id)
        raw = self.store.get(key)
        return None if raw is None else decode_plan(raw, key)

    def metadata(self, checkpoint_id: CheckpointId) -> CheckpointMetadata:
        """Raises RestoreError when a completed checkpoint's ``_metadata`` is gone."""
        key = self.paths.metadata(checkpoint_id)
        raw = self.store.get(key)
        if raw is None:
            raise RestoreError(
                f"{self.store.root}/{key} does not exist; list what can be restored with "
                f"'sluice checkpoints list {self.pipeline.uid}'"
            )
        return self._decoded(raw, key, self.names, self.paths)

    @property
    def savepoints(self) -> SavepointStore:
        return SavepointStore(self.store, self.names)

    def savepoint_metadata(self, name: str) -> CheckpointMetadata:
        """The metadata of the savepoint that the name means.  Raises as ``savepoint_origin``."""
        return self.origin_metadata(self.savepoint_origin(name))

    def savepoint_origin(
        self, name: str, *, root: str = "", pipeline: str = "", token: str | None = None
    ) -> SnapshotOrigin:
        """The savepoint that the name means now, here or in another *root*.

        Raises:
            RestoreError: there is none, or its incarnation is not the one with the *token*.
        """
        store, paths = self.store_at(root), PipelinePaths(pipeline or self.pipeline.uid)
        found = SavepointStore(store, paths).newest(name)
        if found is None or not found.is_complete:
            raise RestoreError(
                f"there is no savepoint {name!r} of job {paths.pipeline!r} in {store.root}; list "
                f"what can be restored with 'sluice snapshots {self.pipeline.uid}"
                f"{f' --in {root}' if root else ''}'"
            )
        if token not in (None, found.token):
            raise RestoreError(
                f"savepoint {name!r} in {store.root} is another one now: it was disposed of, and "
                f"taken anew as checkpoint {found.checkpoint_id}; name it without {token!r} to "
                "restore that one"
            )
        return SnapshotOrigin(
            checkpoint_id=found.checkpoint_id,
            savepoint=name,
            token=found.token,
            digest=found.digest,
            root=root,
            pipeline=pipeline,
        )

    def base_metadata(self, state: CoordinatorState) -> CheckpointMetadata | None:
        """The ``_metadata`` that the next epoch continues; None when the job starts from empty."""
        ignores, begun = state.ignores_in_flight, state.consent.begun
        found = self.snapshot_metadata(state.base, state.origin, ignores_in_flight=ignores)
        return None if found is None else without_state(found, begun)

    def parent_metadata(
        self, child: CheckpointPlan | CheckpointMetadata
    ) -> CheckpointMetadata | None:
        """The metadata of *child*'s parent, or of where the job began, once it is completed."""
        if isinstance(child, CheckpointMetadata):
            return self.snapshot_metadata(child.parent, child.origin)
        ignores = child.ignores_in_flight
        found = self.snapshot_metadata(child.parent, child.origin, ignores_in_flight=ignores)
        return None if found is None else without_state(found, child.begun)

    def snapshot_metadata(
        self,
        checkpoint_id: CheckpointId | None,
        origin: SnapshotOrigin | None,
        *,
        ignores_in_flight: bool = False,
    ) -> CheckpointMetadata | None:
        """The metadata of *origin*, else of the job's own checkpoint; None where there is no id."""
        if checkpoint_id is None:
            return None
        metadata = self.metadata(checkpoint_id) if origin is None else self.origin_metadata(origin)
        return without_in_flight(metadata) if ignores_in_flight else metadata

    def origin_metadata(self, origin: SnapshotOrigin) -> CheckpointMetadata:
        """The ``_metadata`` of a savepoint, or of a checkpoint of another root: of the one that was
        chosen, and of no other one that has its name or its number by now.

        Raises:
            RestoreError: it is gone, or another one is there.
        """
        names = PipelinePaths(origin.pipeline or self.pipeline.uid)
        owner = origin.incarnation or names.of_journal(origin.token)
        key = (
            owner.metadata(origin.checkpoint_id)
            if isinstance(owner, JournalPaths)
            else names.savepoint_metadata(owner)
        )
        store = self.store_at(origin.root)
        raw = store.get(key)
        if raw is None:
            raise RestoreError(
                f"{store.root}/{key} does not exist: {origin}, as it was chosen, was disposed of, "
                f"or deleted; restore another one of 'sluice snapshots {self.pipeline.uid}'"
            )
        found = self._decoded(raw, key, names, owner)
        if checksum(raw) != origin.digest:
            raise RestoreError(
                f"{store.root}/{key} is not the one of {origin} that was chosen, but another one "
                "in its place; restore it by its name or number anew"
            )
        return moved_to_root(found, origin.root) if origin.root else found

    def checkpoint_origin(
        self, checkpoint_id: CheckpointId, root: str, there: JournalPaths
    ) -> SnapshotOrigin:
        """A completed checkpoint of another root, whose journal is the one of *there*.

        Raises:
            RestoreError: its ``_metadata`` is gone.
        """
        store, key = self.store_at(root), there.metadata(checkpoint_id)
        raw = store.get(key)
        if raw is None:
            raise RestoreError(f"{store.root}/{key} does not exist; restore another checkpoint")
        return SnapshotOrigin(
            checkpoint_id=checkpoint_id,
            token=there.token,
            digest=checksum(raw),
            root=root,
            pipeline=there.pipeline,
        )

    def parallelism_of(self, stage: str, configuration: JobConfiguration) -> int:
        """The parallelism that the job was given for the stage, else the declared one."""
        given = configuration.stage_parallelism.get(stage)
        return given or self.pipeline.parallelism_of(stage, configuration.parallelism)

    def store_at(self, root: str) -> ObjectStore:
        """The store of another root, or the job's own for an empty one."""
        return open_store(self.location.elsewhere(root)) if root else self.store

    def _decoded(
        self, raw: bytes, key: str, names: PipelinePaths, owner: SavepointId | JournalPaths
    ) -> CheckpointMetadata:
        metadata = decode_metadata(raw, key)
        if metadata.pipeline != names.pipeline:
            raise ProtocolViolation(f"{key} belongs to pipeline {metadata.pipeline!r}")
        check_files(metadata, key, names, owner)
        return metadata


def open_job(
    pipeline: Pipeline,
    location: StoreLocation,
    *,
    clock: Callable[[], int] = machine_clock_ms,
    store: ObjectStore | None = None,
    pause: Callable[[int], None] = jittered_pause,
) -> Job:
    """*store* is by default opened at *location*; *pause* is called between two lost races for the
    journal.
    """
    store = store or open_store(location)
    names = PipelinePaths(pipeline.uid)
    return Job(
        pipeline=pipeline,
        location=location,
        store=store,
        journal=Journal(store, names, pause=pause, probes=True),
        clock=clock,
    )


def verify_root(job: Job) -> None:
    """Refuse a store that ignores conditions, and for a new job, whose clock is drawn from it, a
    machine whose clock is far off.

    Whoever begins a journal asks as well; here it is asked before a Spark is started or called, and
    first without patience: somebody waits, and a wrong address does not get better.

    Raises:
        ConfigurationError: it does, or it is.
        StoreUnavailable: there is none.
    """
    behind_layers(job.store).get(job.names.begun())
    job.journal.verify_store()
    if job.journal.load().clock_offset_ms is None:
        check_machine_clock(job.store)


def is_at_home(job: Job, state: CoordinatorState) -> bool:
    """Whether the root is where the journal says it is, and no copy of that."""
    return state.place in ("", job.location.name)


def require_at_home(job: Job, state: CoordinatorState) -> None:
    """Raises ConfigurationError in a copy of the job's root, which may be read, and no more.

    The original may still run.  Both would publish to the same tables, as the same life of the job.
    """
    if not is_at_home(job, state):
        uid = job.pipeline.uid
        raise ConfigurationError(
            f"{job.store.root} is a copy: the journal of job {uid!r} in it is that of "
            f"{state.place}; restore a checkpoint of it into a root of its own, or, if nothing of "
            f"the job runs at {state.place} any more, run 'sluice adopt {uid}'"
        )


def never_submitted_message(job: Job) -> str:
    """The fix for a job of which its root holds nothing."""
    uid = job.pipeline.uid
    return (
        f"job {uid!r} was never submitted in {job.store.root}; start it with 'sluice run {uid}', "
        "or name another --root"
    )


def uncollected(work: Callable[P, R]) -> Callable[P, R]:
    """*work* without Python's garbage collector, for work that builds trees of handles: they hold
    no cycle, so that reference counts alone free them.

    The collector would walk through all of them each time they have grown by a quarter: at 10,000
    subtasks that is a quarter of the work.
    """

    @wraps(work)
    def done(*args: P.args, **kwargs: P.kwargs) -> R:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return work(*args, **kwargs)
        finally:
            if was_enabled:
                gc.enable()

    return done


def check_files(
    metadata: CheckpointMetadata,
    key: str,
    names: PipelinePaths,
    owner: SavepointId | JournalPaths,
) -> None:
    """Check the files that *metadata* names.

    A checkpoint names files of its journal, of savepoints of its job, and of other roots, which are
    never deleted; a savepoint names files of its own folder only.

    Raises:
        ProtocolViolation: the ``_metadata`` at *key* names another one.
    """
    for handle in files_named(metadata):
        savepoint = names.savepoint_of(handle.key)
        if isinstance(owner, SavepointId):
            is_own = not handle.root and savepoint == owner
        elif handle.root:
            is_own = True
        else:
            is_own = savepoint is not None or owner.checkpoint_of(handle.key) is not None
        if not (is_own and is_key(handle.key)):
            place = f"{handle.root}/{handle.key}" if handle.root else handle.key
            whose = (
                f"savepoint {owner.name!r}"
                if isinstance(owner, SavepointId)
                else f"job {names.pipeline!r}"
            )
            raise ProtocolViolation(
                f"{key} names {place!r}, which is no file of {whose}; it was not written by "
                "sluice: restore another one"
            )


def files_named(metadata: CheckpointMetadata) -> Iterator[SegmentHandle]:
    """The files of state and of streams that *metadata* names, in whatever root they lie."""
    yield from metadata.files
    for stage in metadata.stages:
        for subtask in stage.subtasks:
            yield from (handle for handle in subtask.output if handle.key)
