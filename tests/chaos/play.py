"""One row of the failure matrix: break the same thing at every point, and watch the jobs heal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.cli.run import final_table
from sluice.coordinator.restore import stop
from sluice.coordinator.submission import configure, submit
from sluice.core.completed import CompletedCheckpoint
from sluice.core.configuration import JobStatus
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState, FailedCheckpoint
from sluice.errors import StoreUnavailable
from sluice.job.job import Job, open_job
from sluice.surface.checkpoints import history
from tests.chaos.kinds import Field, Kind, Struck, dag_of, task_id_of
from tests.chaos.under_fire import EPOCHS, EVENTS, pipeline_at, uid_of

ENDS_WITHIN_S = 600.0
REACHED_WITHIN_S = 600.0
POLL_S = 1.0
HEALTHY = (JobStatus.RUNNING, JobStatus.FINISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What became of one job.  ``healed_s`` is from the strike until what it hit was over; None for
    a restore that never happened, since the job it would have restored was none the worse for it.
    """

    point: str
    healed_s: float | None
    restarts: int
    restores: int
    failed: tuple[str, ...]


@dataclass(slots=True)
class _Watched:
    """A job that is watched from its submission on."""

    point: str
    job: Job
    struck: Struck
    first_id: int
    generation: int
    hit: int | None = None
    healed_at: float | None = None
    is_over: bool = False
    is_resumed: bool = False

    def look(self) -> None:
        try:
            state = self.job.state()
        except StoreUnavailable:
            return
        if self.healed_at is None and self._is_healed(state):
            self.healed_at = time.monotonic()
        self.is_over = state.status.is_globally_terminal and all(
            done.is_committed for done in state.completed
        )

    def _is_healed(self, state: CoordinatorState) -> bool:
        """Whether the struck checkpoint has ended, completed or not, and the job goes on."""
        if state.status not in HEALTHY:
            return False
        if self.point == "restore":
            return state.generation > self.generation
        if self.hit is None:
            return False
        is_pending = state.pending_checkpoint(self.hit) is not None
        done = state.completed_checkpoint(self.hit)
        is_uncommitted = done is not None and not done.is_committed
        return not (is_pending or is_uncommitted)


def play(on: Field, kind: Kind, expected: Sequence[dict[str, object]]) -> list[Cell]:
    """Every cell of the row; asserts that each job ended, and that its output is *expected*."""
    watched = [_begin(on, kind, point) for point in kind.points]
    for one in watched:
        on.airflow.unpause(uid_of(one.point))
    others = [one for one in watched if one.point != "restore"]
    _until_come(on, kind, others)
    for one in watched:
        if one not in others:
            _begin_restore(on, kind, one)
            _until_come(on, kind, watched)
    struck_at = time.monotonic()
    if kind.strike is not None:
        kind.strike(on, [one.struck for one in watched])
    until(lambda: _all_over(on, watched), ENDS_WITHIN_S, "to end")
    for one in watched:
        on.airflow.pause(uid_of(one.point))
    return [_judge(one, struck_at, expected) for one in watched]


def _begin(on: Field, kind: Kind, point: str) -> _Watched:
    """Submit the job anew, and queue the run that will be hit."""
    uid = uid_of(point)
    pipeline = pipeline_at(point)
    job = open_job(pipeline, on.location)
    for dag in (uid, f"{uid}__restore", "sluice__watchdog"):
        on.airflow.wait_until_known(dag)
    on.airflow.pause(uid)
    for dag in (f"{uid}__restore", "sluice__watchdog"):
        on.airflow.unpause(dag)
    for run in on.airflow.runs(uid):
        if not run.is_finished:
            on.airflow.mark_run(uid, run.dag_run_id, "failed")
    if not job.state().status.is_globally_terminal:
        stop(job, JobStatus.CANCELED)
    state = submit(job, configure(pipeline, {}, max_records_per_epoch=EVENTS // EPOCHS))
    first_id = state.next_checkpoint_id
    struck = Struck(point, dag_of(point), f"{kind.name}-{first_id}")
    if point != "restore":
        _strike_run(on, kind, struck)
    return _Watched(
        point=point, job=job, struck=struck, first_id=first_id, generation=state.generation
    )


def _begin_restore(on: Field, kind: Kind, one: _Watched) -> None:
    """From a checkpoint; the job stands still meanwhile."""

    def has_completed_one() -> bool:
        latest = one.job.state().latest_completed
        return latest is not None and latest.checkpoint_id >= one.first_id

    until(has_completed_one, REACHED_WITHIN_S, "to a checkpoint")
    on.airflow.pause(one.job.pipeline.uid)
    _strike_run(on, kind, one.struck)


def _strike_run(on: Field, kind: Kind, struck: Struck) -> None:
    on.airflow.trigger(
        struck.dag_id, conf={"fault": kind.fault(struck.point)}, run_id=struck.run_id
    )


def _was_begun(_: Field, one: _Watched) -> bool:
    """Whether the hit run has a checkpoint; that of a restore has none."""
    if one.hit is None:
        cause = f"airflow:{one.struck.dag_id}/{one.struck.run_id}"
        state = one.job.state()
        known: list[PendingCheckpoint | CompletedCheckpoint | FailedCheckpoint] = [
            *state.pending,
            *state.completed,
            *state.failed,
        ]
        one.hit = next((c.checkpoint_id for c in known if c.cause == cause), None)
    return one.hit is not None or one.point == "restore"


def _stands(on: Field, one: _Watched) -> bool:
    """Whether the task at the point has begun, and so hangs, or will within a second."""
    task_id = task_id_of(one.point)
    tasks = on.airflow.task_instances(one.struck.dag_id, one.struck.run_id)
    runs = any(task.task_id == task_id and task.state == "running" for task in tasks)
    return runs and _was_begun(on, one)


def _all_over(on: Field, watched: Sequence[_Watched]) -> bool:
    for one in watched:
        one.look()
        if one.point == "restore" and not one.is_resumed:
            run = on.airflow.dag_run(one.struck.dag_id, one.struck.run_id)
            one.is_resumed = run is None or run.is_finished
            if one.is_resumed:
                on.airflow.unpause(one.job.pipeline.uid)
    return all(one.is_over for one in watched)


def _judge(one: _Watched, struck_at: float, expected: Sequence[dict[str, object]]) -> Cell:
    state = one.job.state()
    records = [record for record in history(one.job) if record.id >= one.first_id]
    assert state.status is JobStatus.FINISHED, (one.point, state.status, records)
    rows = final_table(one.job, state.configuration.params).to_pylist()
    ranking = sorted(rows, key=lambda row: (row["category"], row["rank"]))
    assert ranking == list(expected), (one.point, records)
    ids = [record.id for record in records]
    assert len(set(ids)) == len(ids), (one.point, "an id was used twice", ids)
    read = sum(record.records for record in records if record.status == "COMPLETED")
    assert read == EVENTS, (one.point, records)
    return Cell(
        point=one.point,
        healed_s=None if one.healed_at is None else round(one.healed_at - struck_at, 1),
        restarts=state.num_restarts,
        restores=state.num_restored,
        failed=tuple(record.reason or "" for record in records if record.status == "FAILED"),
    )


def _until_come(on: Field, kind: Kind, watched: Sequence[_Watched]) -> None:
    """Wait until each job stands at its point, or for what strikes by itself, is on its way."""
    has_come = _stands if kind.strike is not None else _was_begun
    deadline = time.monotonic() + REACHED_WITHIN_S
    while away := [one.point for one in watched if not has_come(on, one)]:
        assert time.monotonic() < deadline, f"not at the point in {REACHED_WITHIN_S:.0f} s: {away}"
        time.sleep(POLL_S)


def until(is_true: Callable[[], bool], within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, f"not everybody came {what} within {within_s:.0f} s"
        time.sleep(POLL_S)
