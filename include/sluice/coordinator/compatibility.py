"""A declaration that changed under its job: what is missing, what is new, what needs consent.

A chain, which is its sources, stages and sinks by uid, changes only at a restore.  Then what is new
starts empty, and what is gone needs a person's consent if the checkpoint holds anything for it.
Without a restore every change is refused before anything is journaled: state would be dropped, or
a source be read from its beginning, without notice.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.configuration import JobStatus
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import changes_since, problems_behind_the_end
from sluice.core.state import CoordinatorState
from sluice.core.transitions import NO_CONSENT, compare, problems_of
from sluice.declaration.expressions import written
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import open_job
from sluice.job.lineage import CompletedParent, Lineage, PendingParent
from sluice.store.object_store import ObjectStore
from sluice.store.open import StoreLocation, open_store

log = logging.getLogger(__name__)

READERS = 16  # Threads that only wait for the store.
_ALIVE = (JobStatus.RUNNING, JobStatus.RESTARTING, JobStatus.FAILING, JobStatus.SUSPENDED)


def undeclared_uids(metadata: CheckpointMetadata, pipeline: Pipeline) -> dict[str, str]:
    """The state that the checkpoint has for uids that *pipeline* no longer declares, in words."""
    found = {
        cut.uid: f"source {cut.uid!r} has a position"
        for cut in metadata.sources
        if (cut.position or cut.layers) and cut.uid not in pipeline.sources
    }
    for stage in metadata.stages:
        what = _held_by(stage, pipeline)
        if what:
            found[stage.uid] = what
    return found | {
        uid: f"sink {uid!r} has a table"
        for uid in _sinks_of(metadata)
        if uid not in pipeline.sinks and metadata.tables[uid] == metadata.checkpoint_id
    }


def _held_by(stage: StageState, pipeline: Pipeline) -> str | None:
    declared = pipeline.stages.get(stage.uid)
    if stage.has_state and (declared is None or not declared.is_stateful):
        return f"stage {stage.uid!r} has state"
    read = () if declared is None else declared.producers
    if any(data.segments and data.producer not in read for data in stage.in_flight):
        return f"stage {stage.uid!r} has rows in flight"
    return None


def _sinks_of(metadata: CheckpointMetadata) -> list[str]:
    """Side outputs are named after their stages, ``parse.malformed``, and go with them."""
    return [uid for uid in metadata.tables if "." not in uid]


def change_of(pipeline: Pipeline, state: CoordinatorState, parent: Lineage) -> str | None:
    """The reason why *pipeline* cannot continue *parent*, with the fix; None if it can."""
    declared = fingerprints(pipeline, state.configuration.params)
    if isinstance(parent, PendingParent):
        planned = parent.plan.fingerprints
        changed = compare(planned, declared, planned.keys())
        problems = problems_of(changed, declared, NO_CONSENT, planned.keys())
        return _refusal(pipeline, {}, _differences(_planned(parent.plan), pipeline), problems)
    metadata = parent.metadata if isinstance(parent, CompletedParent) else None
    if metadata is None:
        return None  # No checkpoint has completed yet: there is nothing to lose.
    reads = {uid: stage.producers for uid, stage in pipeline.stages.items()}
    behind = problems_behind_the_end(metadata, reads)
    if behind:  # No restore would accept it either.
        return f"pipeline {pipeline.uid!r} changed under its job: {'; '.join(behind)}"
    held = undeclared_uids(metadata, pipeline)
    lost = {uid: what for uid, what in held.items() if uid not in state.dropped_stages}
    is_restored = (
        state.status is not JobStatus.RUNNING
        or state.origin is not None
        or metadata.generation != state.generation
    )
    differences = _Differences() if is_restored else _differences(_completed(metadata), pipeline)
    changes, consent = changes_since(metadata, declared), state.consent.within(declared)
    problems = [
        *_rescaled(metadata, pipeline),
        *_sent_otherwise(metadata, pipeline),
        *problems_of(changes, declared, consent, metadata.held),
    ]
    return _refusal(pipeline, lost, differences, problems)


def require_same_chain(pipeline: Pipeline, state: CoordinatorState, parent: Lineage) -> None:
    """Raises ConfigurationError when the next epoch would not continue what *parent* left."""
    change = change_of(pipeline, state, parent)
    if change is not None:
        raise ConfigurationError(change)


def require_planned(pipeline: Pipeline, plan: CheckpointPlan) -> None:
    """Raises ConfigurationError when a source or stage of a pending checkpoint is not declared."""
    planned = _planned(plan)
    gone = sorted((planned.stages - {*pipeline.stages}) | (planned.sources - {*pipeline.sources}))
    if gone:
        raise ConfigurationError(
            f"checkpoint {plan.checkpoint_id} of {pipeline.uid!r} was triggered with "
            f"{_quoted(gone)}, no longer declared; put it back, or let the checkpoint fail and "
            "restore the job"
        )


def require_sinks(
    pipeline: Pipeline, metadata: CheckpointMetadata, state: CoordinatorState
) -> None:
    """Raises ConfigurationError when rows are staged for a sink that is no longer declared: to call
    the checkpoint committed without them would lose them.
    """
    staged = {committable.sink for committable in metadata.committables}
    gone = sorted((staged & {*_sinks_of(metadata)}) - {*pipeline.sinks, *state.dropped_stages})
    if gone:
        raise ConfigurationError(
            f"checkpoint {metadata.checkpoint_id} of {pipeline.uid!r} has unpublished rows for "
            f"sink {_quoted(gone)}, no longer declared; declare it until they are published, "
            "or restore the job with allow non-restored state, which drops them"
        )


def _sent_otherwise(metadata: CheckpointMetadata, pipeline: Pipeline) -> Iterator[str]:
    """Problems of streams with rows in flight whose filters and projections have changed.

    Rows in flight passed the former ones: a reader would apply some steps twice, or skip some.
    """
    for stage in metadata.stages:
        for data in stage.in_flight:
            producer = pipeline.stages.get(data.producer)
            if producer is None or stage.uid not in pipeline.stages or not data.segments:
                continue
            from sluice.operators.changes import steps_of  # Few checkpoints have rows in flight.

            was, now = steps_of(data.schema), written(producer.steps)
            if was != now:
                yield (
                    f"rows in flight to stage {stage.uid!r} passed {was or 'no step'} behind "
                    f"{data.producer!r}, where the declaration now has {now or 'no step'}; restore "
                    "an aligned checkpoint, or drop the rows in flight"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """Uids by kind; ``sinks`` is None if they are not known."""

    sources: frozenset[str]
    stages: frozenset[str]
    sinks: frozenset[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Differences:
    """Uid -> kind."""

    gone: dict[str, str] = field(default_factory=dict[str, str])
    new: dict[str, str] = field(default_factory=dict[str, str])


def _completed(metadata: CheckpointMetadata) -> _Chain:
    return _Chain(
        sources=frozenset(cut.uid for cut in metadata.sources),
        stages=frozenset(stage.uid for stage in metadata.stages),
        sinks=frozenset(_sinks_of(metadata)),
    )


def _planned(plan: CheckpointPlan) -> _Chain:
    """A plan does not say which sinks there are."""
    return _Chain(
        sources=frozenset(cut.uid for cut in plan.sources),
        stages=frozenset((*(task.uid for task in plan.tasks), *plan.finished)),
        sinks=None,
    )


def _differences(before: _Chain, pipeline: Pipeline) -> _Differences:
    """A sink that is gone shows in ``undeclared_uids``: its table's version is kept for ever."""
    kinds = (
        ("source", before.sources, [*pipeline.sources]),
        ("stage", before.stages, [*pipeline.stages]),
        ("sink", before.sinks, [*pipeline.sinks]),
    )
    return _Differences(
        gone={
            uid: kind
            for kind, known, declared in kinds
            for uid in sorted(known or ())
            if uid not in declared and kind != "sink"
        },
        new={
            uid: kind
            for kind, known, declared in kinds
            for uid in declared
            if known is not None and uid not in known
        },
    )


def _rescaled(metadata: CheckpointMetadata, pipeline: Pipeline) -> list[str]:
    declared = pipeline.max_parallelism
    return [
        f"stage {stage.uid!r} declares max parallelism {declared}, but its state has "
        f"{stage.max_parallelism}, which is fixed for life"
        for stage in metadata.stages
        if declared not in (None, stage.max_parallelism) and stage.uid in pipeline.stages
    ]


def _refusal(
    pipeline: Pipeline, lost: Mapping[str, str], differences: _Differences, problems: list[str]
) -> str | None:
    gone = {uid: kind for uid, kind in differences.gone.items() if uid not in lost}
    changes = [
        *(f"{what} but is not in the pipeline any more" for what in lost.values()),
        *(f"{kind} {uid!r} is gone" for uid, kind in gone.items()),
        *(f"{kind} {uid!r} is new" for uid, kind in differences.new.items()),
        *problems,
    ]
    if not changes:
        return None
    missing = {uid: what.partition(" ")[0] for uid, what in lost.items()} | gone
    guess = _guess_renaming(missing, differences.new)
    if not (missing or differences.new):
        fix = "Put it back"
    elif lost:
        fix = (
            f"{guess or 'Declare it again'}, or restore the job, from its latest checkpoint or a "
            f"savepoint, with allow non-restored state: that drops what {_quoted(lost)} has"
        )
    else:
        fix = (
            f"{guess or 'A chain changes only at a restore: undo the change'}, or restore the job, "
            "from its latest checkpoint or a savepoint; what is new then starts empty"
        )
    return f"pipeline {pipeline.uid!r} changed under its job: {'; '.join(changes)}. {fix}"


def _guess_renaming(missing: Mapping[str, str], new: Mapping[str, str]) -> str:
    """A guess which *missing* uid has become which new one of the same kind."""
    for uid, kind in missing.items():
        others = [repr(other) for other, of in new.items() if of == kind]
        if others:
            return f"Was {uid!r} renamed to {' or '.join(others)}? Give it its old uid back"
    return ""


def _quoted(uids: Iterable[str]) -> str:
    return ", ".join(repr(uid) for uid in uids)


def find_changes(
    pipelines: Iterable[Pipeline], location: StoreLocation, *, timeout_s: float
) -> dict[str, str]:
    """The answer of ``change_of``, by uid, for each pipeline that changed under its job.

    The jobs are those in *location*, compared many at once; a pipeline costs a LIST and two GETs.
    A job that cannot be read in time is logged, and counts as unchanged.
    """
    location = replace(location, patience_s=0)  # The caller gives up sooner.
    store = open_store(location)
    waiting: queue.SimpleQueue[Pipeline] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
    for pipeline in pipelines:
        waiting.put(pipeline)
    count = waiting.qsize()
    for _ in range(min(READERS, count)):  # Daemons: a store that hangs must not hold up the exit.
        args = (waiting, answers, location, store)
        threading.Thread(target=_read_all, args=args, daemon=True).start()
    deadline = time.monotonic() + timeout_s
    changes: dict[str, str] = {}
    for answered in range(count):
        try:
            uid, change = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            log.warning("jobs not compared, the store is slow jobs=%d", count - answered)
            break
        if change is not None:
            changes[uid] = change
    return dict(sorted(changes.items()))


def _read_all(
    waiting: queue.SimpleQueue[Pipeline],
    answers: queue.SimpleQueue[tuple[str, str | None]],
    location: StoreLocation,
    store: ObjectStore,
) -> None:
    while True:
        try:
            pipeline = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            change = _change_under_job(pipeline, location, store)
        except Exception:  # Its own tasks report a job that cannot be read.
            log.warning("job not compared pipeline=%s", pipeline.uid, exc_info=True)
            change = None
        answers.put((pipeline.uid, change))


def _change_under_job(
    pipeline: Pipeline, location: StoreLocation, store: ObjectStore
) -> str | None:
    job = open_job(pipeline, location, store=store)
    state = job.state()
    if state.status not in _ALIVE or state.base is None:
        return None
    return change_of(pipeline, state, CompletedParent(job.base_metadata(state), state.tables))
