"""The news of a checkpoint to the world outside: sources hold its records, listeners learn its end.

A hold is taken before the checkpoint is pending and released after its files are gone: the source
keeps the records that the checkpoint or savepoint would read on from.  A hold that a crash leaves
behind delays only the place outside in tidying up; the garbage collector finds it by its name.

    sluice-{pipeline}-{source}-{journal}-{checkpoint}
    sluice-{pipeline}-{source}-{journal}-savepoint-{name}-{token}

The place may be that of several jobs, also of one name in two roots, and it outlives a root that is
emptied.  So a hold has the token of the journal that took it, and only that releases it; but for a
savepoint's, whose token is drawn once: whoever deletes the savepoint releases what is held for it.

Hooks, sources, sinks and keyed functions are notified of each checkpoint's end.  Best effort, as
with Flink's CheckpointListener: what a listener raises, or the opening of its source, is logged,
whatever it is, as nothing depends on it.  Only a ``hold`` has to succeed.  A completion is notified
before *committed* is journaled, so again if the coordinator dies in between; an abort is notified
once.

A user's hook or listener is called in a thread of its own, and for a bounded time, as Python cannot
end a function that hangs.  One that does is left behind, and the caller goes on with an error.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import TypeAlias, TypeVar

from sluice.core.ids import NO_GENERATION, CheckpointId, SavepointId
from sluice.core.plan import SourceCut
from sluice.core.state import CoordinatorState
from sluice.declaration.checkpointing import MasterHook, NotificationHook
from sluice.declaration.keyed_functions import CheckpointedFunction
from sluice.declaration.operations import ProcessKeyed
from sluice.declaration.places import CheckpointListener, Sink, Source, SourceDefaults
from sluice.job.job import Job, is_at_home
from sluice.job.lineage import position_of
from sluice.job.places import Sources, open_source

log = logging.getLogger(__name__)

LISTENER_TIMEOUT = timedelta(minutes=1)  # It is a hint: the commit behind it does not wait longer.

Listener: TypeAlias = CheckpointListener | CheckpointedFunction | MasterHook
T = TypeVar("T")


def hold_of(savepoint: SavepointId) -> str:
    """The name of a hold for the savepoint: it is that of one incarnation."""
    return f"savepoint-{savepoint.name}-{savepoint.token}"


def hold(job: Job, state: CoordinatorState, cuts: Iterable[SourceCut], what: str) -> None:
    """Keep what is read after the *cuts* for *what*: a checkpoint's id, or ``hold_of`` a savepoint.

    Raises:
        ConfigurationError, StoreUnavailable: as the source does.
    """
    for cut in cuts:
        if cut.table is None and cut.uid in job.pipeline.sources:
            source = open_source(job, cut.uid, state.configuration.params)
            if _overrides(source, "hold"):
                source.hold(_prefix(job, cut.uid) + what, position_of(job, cut))


def _overrides(source: Source, act: str) -> bool:
    """Whether the source has a method of its own: else its position need not be read."""
    return getattr(type(source), act) is not getattr(SourceDefaults, act)


def _prefix(job: Job, uid: str) -> str:
    """The beginning of the names of the job's holds; no part has a hyphen: no other begins so."""
    return f"{_of_any_journal(job, uid)}{job.paths.owner}-"


def _of_any_journal(job: Job, uid: str) -> str:
    return f"sluice-{job.pipeline.uid}-{uid}-"


def release(job: Job, state: CoordinatorState, what: str, sources: Sources | None = None) -> None:
    """Release what sources hold for *what*; one that cannot be reached does not stop the others.

    *sources* are those that the caller has opened.
    """
    for uid, source in _sources(job, state, sources):
        _release(uid, source, _prefix(job, uid) + what)


def release_savepoint(job: Job, state: CoordinatorState, savepoint: SavepointId) -> None:
    """Release what any journal holds for a *savepoint* that is deleted: it may outlive one."""
    end = f"-{hold_of(savepoint)}"
    for uid, source, name in [*_held(job, state)]:
        if name.endswith(end):
            _release(uid, source, name)


def _release(uid: str, source: Source, name: str) -> None:
    try:
        source.release(name)
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        log.warning("hold not released source=%s name=%s: %s", uid, name, error)


def _sources(
    job: Job, state: CoordinatorState, opened: Sources | None = None
) -> Iterator[tuple[str, Source]]:
    if state.generation == NO_GENERATION:
        return
    sources = opened or Sources(job, state.configuration.params)
    yield from _opened(sources, [node.uid for node in job.pipeline.stream_sources()])


def _opened(sources: Sources, uids: Iterable[str]) -> Iterator[tuple[str, Source]]:
    """The sources that can be opened; the others are logged, and not notified."""
    for uid in uids:
        try:
            source = sources[uid]
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            log.warning("source cannot be opened, and is not notified source=%s: %s", uid, error)
        else:
            yield uid, source


def release_orphans(job: Job, savepoints: Callable[[], Iterable[SavepointId]]) -> None:
    """Release this journal's holds of checkpoints and savepoints that are gone.

    The holds are listed before the journal and the savepoints are read.  So a hold that is taken
    meanwhile is not among them, and what an earlier one is for is known by then.

    In a copy of the root nothing is released, as the original has the same journal.  Holds of
    another journal may belong to another root, so they are only logged.
    """
    found = [*_held(job, job.state())]
    if not found:
        return
    state = job.state()
    if not is_at_home(job, state):
        return
    known = _with_holds(state) | {hold_of(savepoint) for savepoint in savepoints()}
    for uid, source, name in found:
        what = name.removeprefix(_prefix(job, uid))
        if what == name:
            log.info("hold of another job, or of an earlier one, stays name=%s", name)
            continue
        is_begun = not what.isdecimal() or int(what) < state.next_checkpoint_id
        if what in known or not is_begun:
            continue
        log.info("orphaned hold released source=%s of=%s", uid, what)
        _release(uid, source, name)


def _held(job: Job, state: CoordinatorState) -> Iterator[tuple[str, Source, str]]:
    """The holds of all jobs of this name, whichever journal took them."""
    for uid, source in _sources(job, state):
        try:
            names = [*source.held(_of_any_journal(job, uid))]
        except Exception as error:  # noqa: BLE001 - as above
            names = []
            log.warning("holds cannot be listed source=%s: %s", uid, error)
        yield from ((uid, source, name) for name in names)


def _with_holds(state: CoordinatorState) -> set[str]:
    """The checkpoints that holds are for, and savepoints which may not be complete yet."""
    held_for = [(p.checkpoint_id, p.savepoint) for p in state.pending]
    held_for += [(c.checkpoint_id, c.savepoint) for c in (*state.completed, *state.discarding)]
    ids = {str(checkpoint_id) for checkpoint_id, _ in held_for}
    return ids | {hold_of(savepoint) for _, savepoint in held_for if savepoint is not None}


def notify_complete(
    job: Job, state: CoordinatorState, cuts: Iterable[SourceCut], sources: Sources
) -> None:
    """Let the sources report, for monitoring, that a checkpoint with these *cuts* is published.

    Each has the time that a listener has.
    """
    by_uid = {cut.uid: cut for cut in cuts}
    for uid, source in _sources(job, state, sources):
        if not _overrides(source, "notify_complete"):
            continue
        try:
            position = position_of(job, by_uid[uid]) if uid in by_uid else ()
            reader = f"sluice-{job.pipeline.uid}-{uid}"
            call_hook(partial(source.notify_complete, reader, position), LISTENER_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - a user's code may raise anything
            log.warning("source was not notified of the checkpoint source=%s: %s", uid, error)


def notify_checkpoint_complete(
    job: Job, checkpoint_id: CheckpointId, sources: Sources, sinks: Mapping[str, Sink]
) -> None:
    """The checkpoint is published at each of *sinks*, which are all that the job has."""
    for uid, listener in _listeners(job, sources, sinks):
        _call_listener(uid, listener, listener.notify_checkpoint_complete, checkpoint_id)


def notify_checkpoint_aborted(
    job: Job, checkpoint_id: CheckpointId, sources: Sources, sinks: Mapping[str, Sink]
) -> None:
    """The checkpoint was aborted, and everything that it wrote is deleted."""
    for uid, listener in _listeners(job, sources, sinks):
        _call_listener(uid, listener, listener.notify_checkpoint_aborted, checkpoint_id)


def notify_checkpoint_subsumed(
    job: Job, checkpoint_id: CheckpointId, sources: Sources, sinks: Mapping[str, Sink]
) -> None:
    """A newer checkpoint took its place, and its files are deleted."""
    for uid, listener in _listeners(job, sources, sinks):
        _call_listener(uid, listener, listener.notify_checkpoint_subsumed, checkpoint_id)


def _listeners(
    job: Job, sources: Sources, sinks: Mapping[str, Sink]
) -> Iterator[tuple[str, Listener]]:
    yield from job.pipeline.hooks.items()
    for uid, source in _opened(sources, job.pipeline.sources):
        if isinstance(source, CheckpointListener):
            yield uid, source
    for uid, stage in job.pipeline.stages.items():
        if isinstance(stage.operation, ProcessKeyed) and _listens(stage.operation.function):
            yield uid, stage.operation.function
    for uid, sink in sinks.items():
        if isinstance(sink, CheckpointListener):
            yield uid, sink


def _listens(function: CheckpointedFunction) -> bool:
    """Whether it overrides a notification: else no thread is started for it."""
    own, none = type(function), CheckpointedFunction
    return (
        own.notify_checkpoint_complete is not none.notify_checkpoint_complete
        or own.notify_checkpoint_aborted is not none.notify_checkpoint_aborted
        or own.notify_checkpoint_subsumed is not none.notify_checkpoint_subsumed
    )


def _call_listener(
    uid: str,
    listener: Listener,
    notify: NotificationHook | Callable[[int], None] | None,
    checkpoint_id: CheckpointId,
) -> None:
    if notify is None:
        return
    limit = listener.timeout if isinstance(listener, MasterHook) else LISTENER_TIMEOUT
    try:
        call_hook(partial(notify, checkpoint_id), limit)
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        log.warning(
            "not notified of the end of checkpoint_id=%d uid=%s: %s", checkpoint_id, uid, error
        )


def call_hook(act: Callable[[], T], limit: timedelta) -> T:
    """Call *act*, and return what it returns.

    Raises:
        TimeoutError: it did not return within *limit*; it may still be at work.
        Exception: what it raised.
    """
    context, outcome = contextvars.copy_context(), Future[T]()

    def run() -> None:
        try:
            outcome.set_result(context.run(act))
        except BaseException as error:  # noqa: BLE001 - it is raised where the hook was called
            outcome.set_exception(error)

    # A daemon, so that a hook that hangs does not keep the process.
    thread = threading.Thread(target=run, name="hook", daemon=True)
    thread.start()
    thread.join(limit.total_seconds())
    if thread.is_alive():
        raise TimeoutError(f"it did not return within {limit.total_seconds():g} s")
    return outcome.result()
