"""A world in which everything goes wrong, drawn from one seed and without a thread.

One to three coordinators, each with its own handle on the job and its own clock, subtasks, a person
and a watchdog take turns.  Before any call to the bucket another actor may take its whole turn, so
that acts interleave at every call.  The bucket loses requests and answers, applies some of them
later, restarts, and actors die at it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from harness.jobs import ManualClock
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import JobStatus
from sluice.core.coordinator import step
from sluice.core.events import JobStopped, Transition
from sluice.core.pending import PendingCheckpoint
from sluice.core.plan import SnapshotOrigin
from sluice.core.restoring import RestoreOptions, RestoreTarget
from sluice.core.state import CoordinatorState
from sluice.core.timeline import Writer
from sluice.errors import (
    ConfigurationError,
    FencedError,
    NotYetAcknowledged,
    ProtocolViolation,
    RestoreError,
    StageFailed,
    StoreUnavailable,
    TableMismatch,
)
from sluice.job.job import Job
from sluice.protocol.keys import PipelinePaths
from sluice.store.open import StoreLocation
from tests.simulation.acts import ACTS
from tests.simulation.bucket import Bucket, Crash, LossyStore, UnderWay
from tests.simulation.machines import Coordinator, SkewedClock, Tried, a_coordinator
from tests.simulation.noted import Place
from tests.simulation.readers import Readers, Seen
from tests.simulation.script import Director, Drawn, Fate, Replayed, Turn
from tests.simulation.settings import ROOT, Settings

if TYPE_CHECKING:
    from tests.simulation.invariants import Invariants
    from tests.simulation.spark_jobs import SparkJob
    from tests.simulation.submitted import Submitted

T = TypeVar("T")
EXPECTED = (
    *(StoreUnavailable, FencedError, StageFailed, NotYetAcknowledged),
    *(RestoreError, ConfigurationError, TableMismatch),
)
JOURNALS = PipelinePaths("auctions").journals()
BEGINNING_MS = 1_700_000_000_000


@dataclass(slots=True)
class Frame:
    """A turn under way: how often it called the bucket, and what it tried to create there."""

    turn: Turn
    random: Random
    began_ms: int
    calls: int = 0
    emptied: int = 0  # How often the root had been, when it began.
    takes_over: bool = False  # Its person says that the place is the job's from now on.
    tried: Tried = field(default_factory=list)


class Asked(NamedTuple):
    """A request for a restore, as a task repeats it."""

    cause: str
    target: RestoreTarget
    options: RestoreOptions


class Line(NamedTuple):
    """A line of the history: the outcome of a turn, or of one of its requests."""

    turn: int
    depth: int
    actor: int
    name: str
    outcome: str

    def __str__(self) -> str:
        margin = "  " * (self.depth + self.name.startswith("@"))
        return f"{self.turn:>4}{margin}  c{self.actor} {self.name}: {self.outcome}"[:220]


class World:
    """Plays turns.  ``history`` has a line for each, and one for each fate."""

    def __init__(
        self, seed: int, witness: Invariants, script: Sequence[Turn] | None = None
    ) -> None:
        self.seed = seed
        self.settings = settings = Settings.of(seed)
        self.stages = settings.stages
        self.witness = witness
        witness.world = self
        self.time = ManualClock(BEGINNING_MS)
        self.bucket = Bucket(witness, self.time)
        self.has_faults = True
        self.frame: Frame | None = None
        self.depth = 0
        self.emptied = 0  # How often the root was.
        self.has_consented = False  # A person once, to take the place over: it may arrive late.
        self.failure: Exception | None = None
        self.history: list[Line] = []
        self.running: list[SparkJob] = []
        self.applications: list[Submitted] = []
        self.aborts: list[tuple[Job, Transition]] = []  # Journaled in a root that was emptied.
        self.copied: CoordinatorState | None = None  # The journal of a copy of the root.
        self.deployed: set[tuple[int, str, int]] = set()
        self.savepoints: list[str] = []
        self.asked: list[Asked] = []  # Restores, whose tasks may be tried again.
        self.visitors: list[tuple[SnapshotOrigin, CheckpointMetadata]] = []  # In another root.
        self.queued: list[dict[str, Any]] = []  # Requests whose owners come back.
        self.place = Place()
        self.at_the_place: list[UnderWay] = []  # Transactions whose sender gave up.
        self.sleeps_in_recover = False  # The next coordinator that recovers the place.
        self.readers = Readers(self)
        self.backups: list[tuple[Place, Seen]] = []
        self.elsewhere = (Place(), Seen())  # Another table, for which the sink may be declared.
        self.other: Writer | None = None  # Another job that writes the place,
        self.others_newest: int | None = None  # and the checkpoint that it continues.
        self.takeovers = 0
        self._stores: dict[str, LossyStore] = {}
        clocks = [SkewedClock(self.time, skew_ms) for skew_ms in settings.skews_ms]
        self.coordinators = [self._coordinator(clock) for clock in clocks]
        self.director: Director = (
            Drawn(seed, settings.turns, self._choose) if script is None else Replayed(script)
        )

    def play(self) -> None:
        for turn in self.director.turns():
            self.take(turn)
            if self.failure is not None:
                raise self.failure

    def take(self, turn: Turn) -> None:
        """Take one actor's turn, and catch its outcome."""
        place = len(self.history)
        self.history.append(Line(turn.number, self.depth, turn.actor, turn.name, "does not return"))
        frame, self.frame = (
            self.frame,
            Frame(
                turn,
                Random((self.seed << 20) + turn.number),
                self.time.now_ms,
                emptied=self.emptied,
            ),
        )
        self.depth += 1
        outcome = ""
        try:
            outcome = ACTS[turn.name].do(self)
        except Crash:
            outcome = "dies"
            self._is_born_again(turn.actor)
        except EXPECTED as error:
            outcome = f"{type(error).__name__}: {error}"
        except ProtocolViolation as error:
            outcome = f"{type(error).__name__}: {error}"
            if not (self.bucket.ever_damaged or self.is_orphaned):
                self.failure = self.failure or error
                raise
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
            self.failure = self.failure or error
            raise
        finally:
            self.history[place] = Line(turn.number, self.depth, turn.actor, turn.name, outcome)
            self.depth -= 1
            self.frame = frame

    def befalls(self, *, is_write: bool) -> Fate | None:
        """A request is about to be sent; others may come first."""
        frame = self.frame
        if frame is None or not self.has_faults:
            return None
        frame.calls += 1
        if self.bucket.down_for > 0:
            self.bucket.down_for -= 1
            raise StoreUnavailable("the bucket restarts")
        event = self.director.befalls(frame.turn, frame.calls, self.depth, is_write=is_write)
        if isinstance(event, Turn):
            self.take(event)
            return None
        return event

    def note(self, text: str) -> None:
        frame = self.frame
        assert frame is not None
        turn = frame.turn
        self.history.append(Line(turn.number, self.depth, turn.actor, f"@{frame.calls}", text))

    @contextmanager
    def in_peace(self, actor: int) -> Iterator[None]:
        """A block in which no request fails, and no other actor has a turn."""
        frame, had_faults = self.frame, self.has_faults
        settles = Turn(0, "settles", actor)
        self.frame = Frame(settles, Random(self.seed), self.time.now_ms, emptied=self.emptied)
        self.has_faults = False
        try:
            yield
        finally:
            self.frame, self.has_faults = frame, had_faults

    @property
    def is_orphaned(self) -> bool:
        """Whether the root was emptied since the turn under way began."""
        return self.frame is not None and self.frame.emptied != self.emptied

    @property
    def actor(self) -> int:
        """Whose turn it is; without a turn, the first's."""
        return self.frame.turn.actor if self.frame is not None else 0

    @property
    def me(self) -> Coordinator:
        return self.coordinators[self.actor % len(self.coordinators)]

    @property
    def turn_number(self) -> int:
        """That of the turn under way; 0 while the world settles."""
        return self.frame.turn.number if self.frame is not None else 0

    @property
    def job(self) -> Job:
        return self.me.job

    @property
    def random(self) -> Random:
        assert self.frame is not None
        return self.frame.random

    @property
    def head(self) -> CoordinatorState:
        """The truth, which actors read only to choose what to do next."""
        return self.witness.head

    @property
    def tried(self) -> Tried:
        assert self.frame is not None
        return self.frame.tried

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def pick(self, options: Sequence[T], label: Callable[[T], object] = str) -> T:
        """Pick an option, in a way that stays the same when other turns are left out."""
        salt = self.random.getrandbits(32)
        return min(options, key=lambda option: zlib.crc32(str(label(option)).encode(), salt))

    def pending(self) -> PendingCheckpoint:
        if not self.head.pending:
            raise FencedError("nothing is pending")
        return self.pick(self.head.pending, self.head.pending.index)

    def has_acks_of(self, pending: PendingCheckpoint, stage: str) -> bool:
        """Whether every subtask of the stage acknowledged in the attempt that counts."""
        have = self.witness.acknowledged.get(
            (pending.checkpoint_id, stage, pending.attempt_of(stage)), ()
        )
        return any(len(have) == task.parallelism for task in pending.tasks if task.uid == stage)

    def is_sealed(self, pending: PendingCheckpoint, depth: int) -> bool:
        """Whether the stage has nothing more to say in this checkpoint."""
        uid = self.stages[depth]
        runs = any(task.uid == uid for task in pending.tasks) and uid not in pending.overtaken
        return not runs or self.has_acks_of(pending, uid)

    def is_emptied(self) -> None:
        """A person stops coordinators and empties the root; the places outside remain, and so do
        drivers, of which nobody knows any more: they have read their plan, and will answer.  A
        coordinator in whose turn this is goes on with what it knows, and what coordinators had sent
        below their journal may arrive.  That it began is long ago: a signature is good for minutes.
        """
        self.emptied += 1
        self._is_about_to_abort()
        self.bucket.is_emptied(lambda label: JOURNALS in label)
        self.witness.begin_anew()
        self.readers.own.clear()
        self.backups.clear()
        for forgotten in (self.deployed, self.savepoints, self.queued, self.asked):
            forgotten.clear()
        for actor in range(len(self.coordinators)):
            self._is_born_again(actor)

    def _is_about_to_abort(self) -> None:
        """A coordinator, which knows its journal, has aborted what is pending there, and sleeps."""
        with self.in_peace(self.actor):
            job, _ = self.job, self.job.paths
        head = self.head
        stopped = JobStopped(
            at_ms=self.time.now_ms, generation=head.generation, status=JobStatus.SUSPENDED
        )
        transition = step(head, stopped)
        self.aborts = [(job, transition)] if head.pending else []

    def open_store(self, location: StoreLocation) -> LossyStore:
        """The replacement of ``sluice.store.open.open_store`` in this world."""
        found = self._stores.get(location.root)
        if found is None:
            prefix = location.root.removeprefix(ROOT).strip("/")
            found = self._stores[location.root] = LossyStore(self.bucket, self, ROOT, prefix)
        return found

    def _choose(self, random: Random, during: str | None) -> str:
        """Two are often at the same thing."""
        if during is not None and random.random() < 0.4:
            return during
        weights = [
            act.weight(self) if callable(act.weight) else act.weight for act in ACTS.values()
        ]
        return random.choices([*ACTS], weights)[0]

    def _coordinator(self, clock: SkewedClock) -> Coordinator:
        store = LossyStore(self.bucket, self, ROOT)
        return a_coordinator(
            self.settings.job(), clock, store, lambda: self.tried, self.witness.was_answered
        )

    def _is_born_again(self, actor: int) -> None:
        number = actor % len(self.coordinators)
        self.coordinators[number] = self._coordinator(self.coordinators[number].clock)
