"""A world in which everything goes wrong, drawn from one seed and without a thread.

Actors (coordinators, subtasks, a restorer, a watchdog, a person) take turns.  Before any call to
the store another actor may take its whole turn, so that acts interleave at every call; the call or
only its answer may be lost; and the actor may die there, which is a ``Crash``.  What the store sees
is told to a ``Witness``, who knows what must never happen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any, Protocol, Self, TypeVar

from sluice.core.acks import Ack, Committable, Decline
from sluice.core.handles import SegmentHandle, StateHandle
from sluice.core.ids import NO_GENERATION, CheckpointId, SubtaskId
from sluice.core.messages import AttemptStarted
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import CheckpointPlan
from sluice.core.properties import CheckpointType, JobStatus
from sluice.core.reasons import CheckpointFailureReason as Reason
from sluice.core.restart import RestartStrategy, RestartType
from sluice.core.state import CoordinatorState
from sluice.errors import (
    ConfigurationError,
    FencedError,
    RestoreError,
    StageFailed,
    StoreUnavailable,
)
from sluice.runner.completion import commit, finalize
from sluice.runner.job import Job
from sluice.runner.recovery import (
    FromCheckpoint,
    FromSavepoint,
    Latest,
    RestoreTarget,
    fail_checkpoint,
    restore,
    stop,
)
from sluice.runner.submission import configure, submit
from sluice.runner.trigger import trigger
from sluice.runner.watch import watch
from sluice.storage.answers import AnswerStore
from sluice.storage.journal import Journal
from sluice.storage.memory import InMemoryStore
from sluice.storage.object_store import Created, CreateResult, Listed
from sluice.storage.open import StoreLocation
from sluice.storage.patience import PatientStore
from tests.builders import SINK, ManualClock, a_job, a_pipeline, records_of

T = TypeVar("T")
ROOT = "memory://simulated"
EXPECTED = (StoreUnavailable, FencedError, StageFailed, RestoreError, ConfigurationError)
REASONS = (Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE, Reason.FINALIZE_CHECKPOINT_FAILURE)
TYPES = (
    *[CheckpointType.CHECKPOINT] * 16,
    *[CheckpointType.SAVEPOINT] * 3,
    CheckpointType.SAVEPOINT_SUSPEND,
    CheckpointType.SAVEPOINT_TERMINATE,
)


class Crash(BaseException):
    """The actor is dead: no handler of its own runs, as after SIGKILL."""


class Witness(Protocol):
    head: CoordinatorState

    def wrote(self, key: str, body: bytes, before: bytes | None) -> None: ...
    def deletes(self, key: str) -> None: ...


class FlakyStore(InMemoryStore):
    """Loses requests and answers, kills its callers, and lets others go first."""

    def __init__(self, world: World, prefix: str = "", **given: Any) -> None:
        super().__init__("simulated", prefix, **given)
        self.world = world

    def get(self, key: str) -> bytes | None:
        self.world.call()
        return super().get(key)

    def put(self, key: str, body: bytes) -> None:
        self.world.call()
        before = InMemoryStore.get(self, key)
        super().put(key, body)
        self.world.witness.wrote(self._prefix + key, body, before)
        self.world.answer()

    def create(self, key: str, body: bytes) -> CreateResult:
        self.world.call()
        result = super().create(key, body)
        if isinstance(result, Created):
            self.world.witness.wrote(self._prefix + key, body, None)
        self.world.answer()
        return result

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        self.world.call()
        with self._objects.lock:
            found = {
                key.removeprefix(self._prefix): len(body)
                for key, (body, _) in self._objects.written.items()
                if key.startswith(self._prefix + prefix)
            }
        return (
            Listed(key=key, size_bytes=found[key], modified_ms=0, version="")
            for key in sorted(found)
            if key > start_after
        )

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.world.call()
            self.world.witness.deletes(self._prefix + key)
            super().delete([key])
            self.world.answer()


class RepeatingStore(PatientStore):
    """Patience without pauses."""

    def _retry(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except StoreUnavailable:
            return call()


class InlinePool:
    """A ThreadPoolExecutor of no threads, so that a seed decides everything."""

    def __init__(self, _: int) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[..., T], *items: Iterable[Any]) -> Iterable[T]:
        return [function(*item) for item in zip(*items, strict=True)]


@dataclass
class Subtask:
    """One execution of one subtask; ``step`` says how far it has come."""

    plan: CheckpointPlan
    subtask: SubtaskId
    attempt: int
    token: str
    inherited: tuple[StateHandle, ...]
    ack: Ack
    step: int = 0


class World:
    def __init__(self, seed: int, witness: Witness) -> None:
        self.random = Random(seed)
        self.witness = witness
        self.clock = ManualClock()
        self.has_faults = True
        self.doing: list[str] = []  # Who waits for whom, outermost first.
        self.history: list[str] = []
        self.running: list[Subtask] = []
        self.deployed: set[tuple[int, str, int]] = set()
        self.savepoints = 0
        self.store = FlakyStore(self)
        pipeline = a_pipeline(
            max_records_per_epoch=5,
            num_retained=self.random.choice([1, 2, 3]),
            tolerable_failed_checkpoints=self.random.choice([0, 1]),
            timeout=timedelta(minutes=1),
            restart_strategy=RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=1_000),
        )
        job = a_job(pipeline, root=ROOT, clock=self.clock)
        store = RepeatingStore(self.store)
        self.job: Job = replace(
            job,
            store=store,
            journal=Journal(store, job.paths),
            answers=AnswerStore(store, job.paths),
        )

    def open_store(self, location: StoreLocation) -> FlakyStore:
        prefix = location.root.removeprefix(ROOT).strip("/")
        return FlakyStore(self, prefix, objects=self.store._objects)

    @property
    def depth(self) -> int:
        return len(self.doing)

    def call(self) -> None:
        """A request is under way: others may come first, it may be lost, its sender may die."""
        if not (self.has_faults and self.depth):
            return
        if self.depth < 3 and self.random.random() < 0.03:
            self.act(again=self.doing[-1])
        self._strike("request")

    def answer(self) -> None:
        if self.has_faults and self.depth:
            self._strike("answer")

    def _strike(self, what: str) -> None:
        fate = self.random.random()
        if fate < 0.008:
            raise Crash
        if fate < 0.025:
            raise StoreUnavailable(f"{what} lost")

    def play(self, turns: int) -> None:
        for _ in range(turns):
            self.act()

    def act(self, again: str | None = None) -> None:
        """One actor's turn, whatever becomes of it; *again*: two are often at the same thing."""
        weights = self._weights()
        name = self.random.choices([*weights], [*weights.values()])[0]
        if again is not None and self.random.random() < 0.4:
            name = again
        if name != "works" or self.running:
            self.attempt(name, getattr(self, name))

    def _weights(self) -> dict[str, float]:
        """Mostly what leads on; rarely what is out of place, which has to be harmless, too."""
        head = self.witness.head
        latest = head.latest_completed
        is_pending, is_published = bool(head.pending), latest is None or latest.is_committed
        return ACTS | {
            "submits": 6 if head.generation == NO_GENERATION else 0.3,
            "triggers": 1 if is_pending or head.status is not JobStatus.RUNNING else 25,
            "finalizes": 9 if is_pending else 0.5,
            "commits": 0.5 if is_published else 15,
            "deploys": 8 if is_pending else 0.2,
            "retries": 0.7 if is_pending else 0.1,
            "declines": 0.3 if is_pending else 0.0,
            "works": 45 if self.running else 0.0,
            "restores": 1 if head.status is JobStatus.RUNNING else 8,
        }

    def attempt(self, name: str, act: Callable[[], object]) -> None:
        place = len(self.history)
        self.history.append("")
        self.doing.append(name)
        margin = "  " * self.depth
        try:
            outcome = str(act() or "")
        except Crash:
            outcome = "dies"
        except EXPECTED as error:
            outcome = f"{type(error).__name__}: {error}"
        except Exception as error:
            self.history[place] = f"{margin}{name}: {type(error).__name__}: {error}"
            raise
        finally:
            self.doing.pop()
        self.history[place] = f"{margin}{name}: {outcome[:150]}"

    # A coordinator.

    def submits(self) -> str:
        submit(self.job, configure(self.job.pipeline, {}))
        return "done"

    def triggers(self) -> str:
        type_, name = self.random.choice(TYPES), None
        if type_.is_savepoint:
            self.savepoints += 1
            name = f"s{self.savepoints}"
        outcome = trigger(self.job, type=type_, savepoint_name=name, is_periodic=False)
        plan = getattr(outcome, "plan", None)
        return f"{type_.value} {plan.checkpoint_id}" if plan else str(outcome)

    def finalizes(self) -> str:
        return f"{finalize(self.job, self._some_id()).checkpoint_id}"

    def commits(self) -> str:
        checkpoint_id = self._some_id()
        commit(self.job, checkpoint_id)
        return f"{checkpoint_id}"

    def fails(self) -> str:
        checkpoint_id, reason = self._some_id(), self.random.choice(REASONS)
        is_task_failure = reason is Reason.TASK_FAILURE
        fail_checkpoint(self.job, checkpoint_id, reason, "x", is_task_failure=is_task_failure)
        return f"{checkpoint_id} {reason.value}"

    def retries(self) -> str:
        """A stage runs again, as a retried Airflow task would."""
        pending = self._pending()
        stage = self.random.choice([*self.job.pipeline.stages])

        def decide(state: Any) -> AttemptStarted:
            current = state.pending_checkpoint(pending.checkpoint_id) or pending
            return AttemptStarted(
                generation=state.generation,
                checkpoint_id=pending.checkpoint_id,
                stage=stage,
                attempt=current.attempt_of(stage) + 1,
            )

        return f"{stage} of {pending.checkpoint_id}: {self.job.journal.append(decide).verdict}"

    # A restorer, a person, a watchdog, time.

    def restores(self) -> str:
        state = self.job.state()
        target: RestoreTarget = self.random.choice(
            [
                Latest(),
                FromCheckpoint(CheckpointId(max(1, state.next_checkpoint_id - 2))),
                FromSavepoint(f"s{self.random.randint(0, self.savepoints)}"),
            ]
        )
        only = self.random.choice([None, state.generation])
        restored = restore(self.job, target, only_generation=only)
        return f"{target} -> {restored.checkpoint_id} {restored.savepoint}"

    def stops(self) -> str:
        status = self.random.choice([JobStatus.SUSPENDED, JobStatus.CANCELED])
        return stop(self.job, status).status.value

    def watches(self) -> str:
        return "; ".join(watch(self.job, commit_grace_ms=self.random.choice([0, 60_000])).actions)

    def waits(self) -> str:
        jump = self.random.choice([1, 500, 2_000, 61_000])
        self.clock.advance(jump)
        return f"{jump} ms"

    # Subtasks.

    def deploys(self) -> str:
        """Start what is pending and not yet started; now and then a stray of another attempt."""
        pending, started = self._pending(), 0
        plan = self.job.plan(pending.checkpoint_id)
        if plan is None:
            return "no plan"
        for task in plan.tasks:
            attempt = pending.attempt_of(task.uid)
            if self.random.random() < 0.1:
                attempt += self.random.choice([-1, 1, 2])
            name = (plan.checkpoint_id, task.uid, attempt)
            if name not in self.deployed:
                self.deployed.add(name)
                for subtask in task.subtasks:
                    self.running.append(self.subtask(plan, subtask, attempt))
                    started += 1
        return f"{started} subtasks of {pending.checkpoint_id}"

    def works(self) -> str:
        """One step of one subtask, which may run again, or die and perhaps be run again."""
        one = self.random.choice(self.running)
        self.running.remove(one)  # It takes one step at a time.
        again = replace(one, step=0, token=f"t{self.random.randrange(10**6)}", ack=blank(one))
        try:
            is_done = self.advance(one)
        except (Crash, *EXPECTED):
            if self.random.random() < 0.8:
                self.running.append(again)
            raise
        if not is_done:
            self.running.append(one)
        elif self.random.random() < 0.1:
            self.running.append(again)
        return f"{one.plan.checkpoint_id} {one.subtask}.{one.attempt} step {one.step}"

    def declines(self) -> str:
        pending = self._pending()
        subtask = self.random.choice(pending.not_yet_acknowledged)
        attempt = self.random.choice([1, pending.attempt_of(subtask.stage)])
        self.job.answers.write_decline(
            Decline(
                checkpoint_id=pending.checkpoint_id, subtask=subtask, attempt=attempt, message="no"
            )
        )
        return f"{pending.checkpoint_id} {subtask}.{attempt}"

    def subtask(self, plan: CheckpointPlan, subtask: SubtaskId, attempt: int) -> Subtask:
        parent = self.job.parent_metadata(plan)
        stage = parent.stage(subtask.stage) if parent is not None else None
        inherited = stage.subtasks[subtask.index].state if stage is not None else ()
        token = f"t{self.random.randrange(10**6)}"
        ack = Ack(checkpoint_id=plan.checkpoint_id, subtask=subtask, attempt=attempt)
        return Subtask(plan, subtask, attempt, token, inherited, ack)

    def advance(self, one: Subtask) -> bool:
        """State, then output, then the ack; each step is durable before the next."""
        one.step += 1
        if one.step == 1:
            one.ack = replace(one.ack, state=self._state(one), watermark_ms=0)
        elif one.step == 2:
            is_sink = bool(self.job.pipeline.sinks_of(one.subtask.stage))
            one.ack = replace(
                one.ack,
                output=(self._segment(self._stream(one), {"by": one.token}),),
                committables=(self._staged(one),) if is_sink else (),
            )
        else:
            self.job.answers.write_ack(one.ack)
        return one.step >= 3

    def _state(self, one: Subtask) -> tuple[StateHandle, ...]:
        """What it inherits and what is new; or both in one file, as after a compaction."""
        kept, records = one.inherited, self._records(one)
        if self.random.random() < 0.3:
            for handle in kept:
                body = handle.segment.inline or self.job.store.get(handle.segment.key)
                if body is None:
                    raise StageFailed(f"{handle.segment.key} is missing")
                records = [*json.loads(body)["records"], *records]
            kept = ()
        content = {"records": records}
        key = self.job.paths.shared_segment(
            one.subtask.stage, one.plan.checkpoint_id, f"{one.subtask.index:05d}-{digest(content)}"
        )
        is_inline = self.random.random() < 0.2
        segment = inline(content) if is_inline else self._segment(key, content)
        return (*kept, StateHandle(segment=segment))

    def _records(self, one: Subtask) -> list[int]:
        parallelism = one.plan.task(one.subtask.stage).parallelism
        return [n for n in records_of(one.plan) if n % parallelism == one.subtask.index]

    def _stream(self, one: Subtask) -> str:
        name = f"{one.subtask.index:05d}-{one.attempt}-{one.token}"
        return self.job.paths.stream_segment(one.subtask.stage, one.plan.checkpoint_id, name)

    def _segment(self, key: str, content: dict[str, Any]) -> SegmentHandle:
        body = json.dumps(content).encode()
        self.job.store.put(key, body)
        return SegmentHandle(
            key=key, size_bytes=len(body), rows=1, checksum=hashlib.blake2b(body).hexdigest()
        )

    def _staged(self, one: Subtask) -> Committable:
        """As FilesTable.stage would, but for the format of the file."""
        file = (
            f"data/{one.plan.checkpoint_id:020d}-{one.subtask.index:05d}"
            f"-{one.attempt}-{one.token}.parquet"
        )
        body = json.dumps(self._records(one)).encode()
        self.open_store(StoreLocation(root=f"{ROOT}/{self.job.paths.table(SINK)}")).put(file, body)
        return Committable(sink=SINK, file=file, rows=len(body), size_bytes=len(body))

    def _pending(self) -> PendingCheckpoint:
        pending = self.job.state().pending
        if not pending:
            raise FencedError("nothing is pending")
        return self.random.choice(pending)

    def _some_id(self) -> CheckpointId:
        """Most often the newest; now and then one whose actor was asleep."""
        newest = self.job.state().next_checkpoint_id - 1
        return CheckpointId(max(1, newest - self.random.choice([0, 0, 0, 0, 1, 2])))


ACTS = {"fails": 0.4, "stops": 0.1, "watches": 2, "waits": 2}  # See also ``_weights``.


def blank(one: Subtask) -> Ack:
    return Ack(checkpoint_id=one.plan.checkpoint_id, subtask=one.subtask, attempt=one.attempt)


def inline(content: dict[str, Any]) -> SegmentHandle:
    body = json.dumps(content).encode()
    return SegmentHandle(
        key="",
        size_bytes=len(body),
        rows=1,
        checksum=hashlib.blake2b(body).hexdigest(),
        inline=body,
    )


def digest(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()
