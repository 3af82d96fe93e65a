"""The wait of a job's next periodic checkpoint, asked without any write.

    Waiting --the interval is over, and a source has records--> Due
    Waiting --a tick has come, and a source has records-------> Due

``trigger`` decides, whatever was found here.  While nothing happens it costs one small request for
the journal, and what the sources need to tell whether there is more; before the interval is over
they are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sluice.coordinator.planning import work_without_records
from sluice.core.configuration import JobStatus
from sluice.core.decider import CheckpointRequest
from sluice.core.ids import CheckpointId
from sluice.core.requests import Admission, adopted, examine, rest_of_interval_ms
from sluice.core.state import CoordinatorState
from sluice.core.units import period
from sluice.declaration.places import Barrier, Source, SourcePosition
from sluice.errors import FencedError
from sluice.job.job import Job
from sluice.job.lineage import lineage_of_tip, load_position
from sluice.job.places import open_source
from sluice.store.journal import Head

# That a root was emptied shows only in a listing of the whole journal.
POLLS_PER_JOURNAL_LISTING = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """The checkpoint may be triggered now; ``next_id`` is the lowest id that it may have."""

    message: str
    next_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """``message`` is for people; ``rest_ms`` is the time before which it cannot become due."""

    message: str
    rest_ms: int | None = None


DueOrWaiting: TypeAlias = Due | Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkAfterBarrier:
    """The work of the next epoch, as of the journal's entry ``seq``."""

    seq: int
    owes: str  # Why there is work without new records; empty if there is none.
    sources: Mapping[str, tuple[Source, SourcePosition]]


class NextCheckpoint:
    """*interval_ms* is the shortest distance of two checkpoints.  A checkpoint is due *lead_ms*
    earlier, as it takes that long until a trigger acts on it.

    With *latest_tick_ms* the clock decides, too: a checkpoint is due once for each tick that this
    function returns, unless there is nothing to do when the sources are first asked after the tick.
    """

    def __init__(
        self,
        job: Job,
        *,
        interval_ms: int,
        lead_ms: int = 0,
        latest_tick_ms: Callable[[], int] | None = None,
    ) -> None:
        self._job = job
        self._latest_tick_ms = latest_tick_ms
        self._passed_ms = 0  # The tick at which there was nothing to do.
        self._interval_ms = interval_ms
        self._lead_ms = lead_ms
        self._head: Head | None = None
        self._work: _WorkAfterBarrier | None = None
        self._polls = 0

    def poll(self) -> DueOrWaiting:
        """Raises any SluiceError that ``trigger`` would raise: the store, a source, a parent."""
        try:
            head = self._newest()
        except FencedError:  # The root was emptied, and another journal may have begun there.
            self._job, self._head, self._work = self._job.anew(), None, None
            head = self._newest()
        state, now_ms = head.state, self._job.now_ms()
        if state.status is JobStatus.CREATED:
            return Due(message="the job was never submitted", next_id=state.next_checkpoint_id)
        if adopted(state, now_ms, cause="") is not None:
            return Due(message="a person asked for one", next_id=state.next_checkpoint_id)
        tick_ms = 0 if self._latest_tick_ms is None else self._latest_tick_ms()
        last_ms = self._job.time.on_machine(state.last_triggered_at_ms or 0)  # As the tick is.
        if tick_ms and max(last_ms, self._passed_ms) >= tick_ms:
            return Waiting(message="waiting for the next tick of the clock")
        request = CheckpointRequest(request_id="next", is_periodic=True, requested_at_ms=now_ms)
        examined = examine(state, request, now_ms)
        if examined.admission is not Admission.RUNS:
            return Waiting(message=examined.message, rest_ms=examined.retry_in_ms)
        rest_ms = rest_before_event_ms(state, self._interval_ms, now_ms) - self._lead_ms
        if rest_ms > 0:
            return Waiting(message=f"the interval lasts {period(rest_ms)} more", rest_ms=rest_ms)
        found = self._ask_sources(head)
        if isinstance(found, Waiting):
            self._passed_ms = tick_ms
        return found

    def _newest(self) -> Head:
        self._polls += 1
        must_list = self._polls % POLLS_PER_JOURNAL_LISTING == 0
        if self._head is None or must_list or not self._job.journal.is_newest(self._head.seq):
            self._head = self._job.journal.load()
        return self._head

    def _ask_sources(self, head: Head) -> DueOrWaiting:
        if self._work is None or self._work.seq != head.seq:
            self._work = _work_after_barrier(self._job, head)
        next_id = head.state.next_checkpoint_id
        if self._work.owes:
            return Due(message=self._work.owes, next_id=next_id)
        barriers = {uid: self._next(uid, *at) for uid, at in self._work.sources.items()}
        news = [uid for uid, barrier in barriers.items() if barrier.records]
        if news:
            return Due(message=f"new records in {', '.join(news)}", next_id=next_id)
        if all(barrier.exhausted for barrier in barriers.values()):
            return Due(message=f"{', '.join(barriers)} ended", next_id=next_id)
        return Waiting(message=f"waiting for records in {', '.join(barriers)}")

    def _next(self, uid: str, source: Source, position: SourcePosition) -> Barrier:
        is_induced = self._job.pipeline.sources[uid].is_induced
        until: Mapping[str, int] | None = {} if is_induced else None
        return source.plan(position, max_records=1, parallelism=1, until=until)


def rest_before_event_ms(state: CoordinatorState, interval_ms: int, now_ms: int) -> int:
    """The rest of the interval in force; 0 if a person asked for a checkpoint."""
    if adopted(state, now_ms, cause="") is not None:
        return 0
    changed_ms = state.timing.interval_ms
    in_force_ms = interval_ms if changed_ms is None else changed_ms
    return rest_of_interval_ms(state, in_force_ms, now_ms)


def _work_after_barrier(job: Job, head: Head) -> _WorkAfterBarrier:
    state = head.state
    lineage = lineage_of_tip(job, state)
    return _WorkAfterBarrier(
        seq=head.seq,
        owes=work_without_records(job, state, lineage),
        sources={
            node.uid: (
                open_source(job, node.uid, state.configuration.params),
                load_position(job, lineage.source(node.uid)).whole,
            )
            for node in job.pipeline.stream_sources()
        },
    )
