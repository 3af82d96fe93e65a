"""Holds: sources keep the records that each checkpoint and savepoint would read on from.

A hold is taken before the checkpoint is pending and released after its files are gone.  One that a
crash leaves behind delays only what the place outside would tidy up; the garbage collector finds
it by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from sluice.connectors.contracts.source import Source, SourceDefaults
from sluice.core.ids import NO_GENERATION
from sluice.core.plan import SourceCut
from sluice.core.state import CoordinatorState
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
