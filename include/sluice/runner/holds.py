"""What the sources keep for the job: a hold for each checkpoint and savepoint that reads on there.

A hold is taken before the checkpoint is pending and released after its files are gone.  One that a
crash leaves behind delays only what the place outside would tidy up; the garbage collector finds
it by its name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from sluice.connectors.source import Source
from sluice.core.ids import NO_GENERATION
from sluice.core.plan import SourceCut
from sluice.core.state import CoordinatorState
from sluice.errors import SluiceError
from sluice.runner.job import Job

log = logging.getLogger(__name__)

SAVEPOINT = "savepoint-"


def hold(job: Job, state: CoordinatorState, cuts: Iterable[SourceCut], what: str) -> None:
    """Keep what is read after the *cuts* for *what*: a checkpoint's id, or ``savepoint-{name}``.

    Raises:
        ConfigurationError, StoreUnavailable: what the source says.
    """
    for cut in cuts:
        if cut.table is None and cut.uid in job.pipeline.sources:
            source = job.source(cut.uid, state.configuration.params)
            source.hold(_prefix(job, cut.uid) + what, cut.position)


def release(job: Job, state: CoordinatorState, what: str) -> None:
    """Let go what is held for *what*.  Whoever cannot be reached holds nothing up."""
    for uid, source in _sources(job, state):
        try:
            source.release(_prefix(job, uid) + what)
        except SluiceError as error:
            log.warning("hold not released source=%s of=%s: %s", uid, what, error)


def release_orphans(job: Job, state: CoordinatorState, savepoints: Iterable[str]) -> None:
    """Let go what is held for checkpoints that are gone, and for none of these *savepoints*."""
    ids = [pending.checkpoint_id for pending in state.pending]
    ids += [done.checkpoint_id for done in (*state.completed, *state.discarding)]
    known = {*map(str, ids), *(SAVEPOINT + name for name in savepoints)}
    for uid, source in _sources(job, state):
        prefix = _prefix(job, uid)
        try:
            for name in source.held(prefix):
                what = name.removeprefix(prefix)
                is_begun = not what.isdecimal() or int(what) < state.next_checkpoint_id
                if what not in known and is_begun:
                    log.info("orphaned hold released source=%s of=%s", uid, what)
                    source.release(name)
        except SluiceError as error:
            log.warning("orphaned holds not released source=%s: %s", uid, error)


def notify_complete(job: Job, state: CoordinatorState, cuts: Iterable[SourceCut]) -> None:
    """Tell the sources that a checkpoint with these *cuts* is published: for who watches them."""
    positions = {cut.uid: cut.position for cut in cuts}
    for uid, source in _sources(job, state):
        try:
            source.notify_complete(f"sluice-{job.pipeline.uid}-{uid}", positions.get(uid, ()))
        except SluiceError as error:
            log.warning("source was not told of the checkpoint source=%s: %s", uid, error)


def _prefix(job: Job, uid: str) -> str:
    """What its holds' names begin with; uids have no hyphen, so no prefix begins another."""
    return f"sluice-{job.pipeline.uid}-{uid}-"


def _sources(job: Job, state: CoordinatorState) -> Iterator[tuple[str, Source]]:
    if state.generation == NO_GENERATION:
        return
    for node in job.pipeline.stream_sources():
        yield node.uid, job.source(node.uid, state.configuration.params)
