"""Holds: sources keep the records that each checkpoint and savepoint would read on from.

A hold is taken before the checkpoint is pending and released after its files are gone.  One that a
crash leaves behind delays only what the place outside would tidy up; the garbage collector finds
it by its name.

Notifications: hooks, sources, sinks and keyed functions are told how each checkpoint ended.

Best effort, as Flink's CheckpointListener: what a listener raises is logged.  A completion is told
before *committed* is journaled, so a coordinator that dies in between has it told again; an abort
is told once.

Calls of a user's hook or listener, each for a bounded time.

The call is made in a thread of its own, for Python cannot end a function that hangs.  One that does
is left behind, and what asked for it goes on with an error: it must not hold up the job.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Generic, TypeAlias, TypeVar

from sluice.core.ids import NO_GENERATION, CheckpointId
from sluice.core.plan import SourceCut
from sluice.core.state import CoordinatorState
from sluice.declaration.checkpointing import NotificationHook
from sluice.declaration.keyed_functions import CheckpointedFunction
from sluice.declaration.operations import ProcessKeyed
from sluice.declaration.places import CheckpointListener, Sink, Source, SourceDefaults
from sluice.errors import SluiceError
from sluice.job.job import Job
from sluice.job.places import Sources, open_source
from sluice.job.positions import position_of

log = logging.getLogger(__name__)

SAVEPOINT = "savepoint-"


def hold(job: Job, state: CoordinatorState, cuts: Iterable[SourceCut], what: str) -> None:
    """Keep what is read after the *cuts* for *what*: a checkpoint's id, or ``savepoint-{name}``.

    Raises:
        ConfigurationError, StoreUnavailable: what the source says.
    """
    for cut in cuts:
        if cut.table is None and cut.uid in job.pipeline.sources:
            source = open_source(job, cut.uid, state.configuration.params)
            if _answers(source, "hold"):
                source.hold(_prefix(job, cut.uid) + what, position_of(job, cut))


def release(job: Job, state: CoordinatorState, what: str, sources: Sources | None = None) -> None:
    """Release what sources hold for *what*; one that cannot be reached does not stop the others.

    *sources* are those that the caller has opened.
    """
    for uid, source in _sources(job, state, sources):
        try:
            source.release(_prefix(job, uid) + what)
        except SluiceError as error:
            log.warning("hold not released source=%s of=%s: %s", uid, what, error)


def release_orphans(job: Job, savepoints: Callable[[], Iterable[str]]) -> None:
    """Release the holds of checkpoints and savepoints that are gone.

    What is held is listed before the journal and the savepoints are: what is taken meanwhile is not
    among it, and what was taken before is known by then.
    """
    found = [*_held(job, job.state())]
    if not found:
        return
    state = job.state()
    known = _known(state) | {SAVEPOINT + name for name in savepoints()}
    for uid, source, name in found:
        what = name.removeprefix(_prefix(job, uid))
        is_begun = not what.isdecimal() or int(what) < state.next_checkpoint_id
        if what in known or not is_begun:
            continue
        log.info("orphaned hold released source=%s of=%s", uid, what)
        try:
            source.release(name)
        except SluiceError as error:
            log.warning("orphaned hold not released source=%s: %s", uid, error)


def _held(job: Job, state: CoordinatorState) -> Iterator[tuple[str, Source, str]]:
    for uid, source in _sources(job, state):
        try:
            yield from ((uid, source, name) for name in source.held(_prefix(job, uid)))
        except SluiceError as error:
            log.warning("holds cannot be listed source=%s: %s", uid, error)


def _known(state: CoordinatorState) -> set[str]:
    """For what something is held; for a savepoint before it is complete."""
    pending = [(one.checkpoint_id, one.savepoint_name) for one in state.pending]
    done = [(c.checkpoint_id, c.savepoint_name) for c in (*state.completed, *state.discarding)]
    named = {name for _, name in (*pending, *done) if name is not None}
    ids = {str(checkpoint_id) for checkpoint_id, _ in (*pending, *done)}
    return ids | {SAVEPOINT + name for name in named}


def notify_complete(
    job: Job, state: CoordinatorState, cuts: Iterable[SourceCut], sources: Sources
) -> None:
    """Tell the sources that a checkpoint with these *cuts* is published, for monitoring."""
    by_uid = {cut.uid: cut for cut in cuts}
    for uid, source in _sources(job, state, sources):
        if not _answers(source, "notify_complete"):
            continue
        try:
            position = position_of(job, by_uid[uid]) if uid in by_uid else ()
            source.notify_complete(f"sluice-{job.pipeline.uid}-{uid}", position)
        except SluiceError as error:
            log.warning("source was not told of the checkpoint source=%s: %s", uid, error)


def _answers(source: Source, act: str) -> bool:
    """Whether the source does more than nothing there: else its position need not be read."""
    return getattr(type(source), act) is not getattr(SourceDefaults, act)


def _prefix(job: Job, uid: str) -> str:
    """What its holds' names begin with; uids have no hyphen, so no prefix begins another."""
    return f"sluice-{job.pipeline.uid}-{uid}-"


def _sources(
    job: Job, state: CoordinatorState, opened: Sources | None = None
) -> Iterator[tuple[str, Source]]:
    if state.generation == NO_GENERATION:
        return
    sources = opened or Sources(job, state.configuration.params)
    for node in job.pipeline.stream_sources():
        yield node.uid, sources[node.uid]


Listener: TypeAlias = CheckpointListener | CheckpointedFunction

LISTENER_TIMEOUT = timedelta(minutes=1)  # It is a hint: the commit behind it does not wait longer.


def notify_checkpoint_complete(
    job: Job, checkpoint_id: CheckpointId, sources: Sources, sinks: Mapping[str, Sink]
) -> None:
    """The checkpoint is published at each of *sinks*, which are all that the job has."""
    for uid, hook in job.pipeline.hooks.items():
        _call_listener(uid, hook.notify_checkpoint_complete, checkpoint_id, hook.timeout)
    for uid, listener in _listeners(job, sources, sinks):
        _call_listener(uid, listener.notify_checkpoint_complete, checkpoint_id)


def notify_checkpoint_aborted(
    job: Job, checkpoint_id: CheckpointId, sources: Sources, sinks: Mapping[str, Sink]
) -> None:
    """The checkpoint was aborted, and everything that it wrote is deleted."""
    for uid, hook in job.pipeline.hooks.items():
        _call_listener(uid, hook.notify_checkpoint_aborted, checkpoint_id, hook.timeout)
    for uid, listener in _listeners(job, sources, sinks):
        _call_listener(uid, listener.notify_checkpoint_aborted, checkpoint_id)


def _listeners(
    job: Job, sources: Sources, sinks: Mapping[str, Sink]
) -> Iterator[tuple[str, Listener]]:
    for uid in job.pipeline.sources:
        source = sources[uid]
        if isinstance(source, CheckpointListener):
            yield uid, source
    for uid, stage in job.pipeline.stages.items():
        if isinstance(stage.operation, ProcessKeyed) and _listens(stage.operation.function):
            yield uid, stage.operation.function
    for uid, sink in sinks.items():
        if isinstance(sink, CheckpointListener):
            yield uid, sink


def _listens(function: CheckpointedFunction) -> bool:
    """Whether it does more than nothing when it is told: else no thread is started for it."""
    own, none = type(function), CheckpointedFunction
    return (
        own.notify_checkpoint_complete is not none.notify_checkpoint_complete
        or own.notify_checkpoint_aborted is not none.notify_checkpoint_aborted
    )


def _call_listener(
    uid: str,
    notify: NotificationHook | Callable[[int], None] | None,
    checkpoint_id: CheckpointId,
    limit: timedelta = LISTENER_TIMEOUT,
) -> None:
    if notify is None:
        return
    try:
        call_hook(partial(notify, checkpoint_id), limit)
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        log.warning("not told of its end checkpoint_id=%d uid=%s: %s", checkpoint_id, uid, error)


T = TypeVar("T")


def call_hook(act: Callable[[], T], limit: timedelta) -> T:
    """Call *act*, and return what it returns.

    Raises:
        TimeoutError: it did not return within *limit*; it may still be at work.
        Exception: what it raised.
    """
    call = _Call(act)
    # A daemon, so that a hook that hangs does not keep the process.
    thread = threading.Thread(target=call.run, name="hook", daemon=True)
    thread.start()
    thread.join(limit.total_seconds())
    if thread.is_alive():
        raise TimeoutError(f"it did not return within {limit.total_seconds():g} s")
    return call.result()


class _Call(Generic[T]):
    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._context = contextvars.copy_context()
        self._returned: list[T] = []
        self._raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._returned.append(self._context.run(self._act))
        except BaseException as error:  # noqa: BLE001 - it is raised where the hook was called
            self._raised = error

    def result(self) -> T:
        if self._raised is not None:
            raise self._raised
        return self._returned[0]
