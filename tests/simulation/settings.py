"""The settings of a world, drawn once per seed before its first turn."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from random import Random

from harness.jobs import a_job, a_pipeline
from sluice.core.configuration import CheckpointingMode, DamagedCheckpoint, Retention
from sluice.core.restart import RestartStrategy, RestartType
from sluice.job.job import Job
from tests.simulation.dataflow import UIDS
from tests.simulation.noted import NOTED, NotedSpec

ROOT = "memory://simulated"
TURNS = (40, 80, 120, 160)  # What comes in between and the settling make it some twenty more.
STAGES = (1, 2, 2, 2, 3)
SKEWS_MS = (0, 0, -1_000, 5_000, -120_000, 180_000)
DAMAGED = 0.15
CHAINED = 0.4
DISTURBED = 0.5
DISPOSING = 0.25
OVERSLEPT = 0.12
LONGER = 80  # Turns of a world in which names are taken anew.
BOUNDED = 45  # Records of a source that ends.
SAVEPOINTS = (0.25, 0.25, 0.25, 0.8)
RETENTIONS = (*[Retention.RETAIN_ON_CANCELLATION] * 3, *Retention)
RESTARTS = (
    *[RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=1_000)] * 4,
    RestartStrategy(type=RestartType.FIXED_DELAY, delay_ms=1_000, attempts=2),
    RestartStrategy(type=RestartType.EXPONENTIAL_DELAY),
)


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The fields of ``Checkpointing`` that differ between worlds."""

    num_retained: int
    tolerable_failed_checkpoints: int
    externalized_checkpoint_retention: Retention
    restart_strategy: RestartStrategy
    max_concurrent_checkpoints: int
    unaligned: bool
    aligned_checkpoint_timeout: timedelta
    min_pause: timedelta
    on_damaged_checkpoint: DamagedCheckpoint


@dataclass(frozen=True, slots=True)
class Settings:
    stages: tuple[str, ...]
    events: int  # 0: the source never ends.
    checkpoints: Checkpoints
    skews_ms: tuple[int, ...]  # One for each coordinator.
    turns: int
    savepoints: float  # How many of the checkpoints are one; they leave the store first.
    is_early: bool  # AT_LEAST_ONCE: rows are shown before their checkpoint is completed.
    is_noted: bool  # There is a table in a place outside, too.
    is_disturbed: bool  # Other people and another job change that table.
    is_damaged: bool  # Files of completed checkpoints are.
    is_chained: bool  # Attempts may run several stages as one Spark job.
    is_overslept: bool  # The root may be emptied while a coordinator sleeps in mid-turn.
    is_disposing: bool  # People dispose of savepoints, take their names anew, and ask twice.

    @classmethod
    def of(cls, seed: int) -> Settings:
        random = Random(f"world {seed}")
        is_noted = random.random() < 0.5
        is_unaligned = random.random() < 0.3
        is_concurrent = not is_unaligned and random.random() < 0.4
        is_disposing = Random(f"disposing {seed}").random() < DISPOSING
        return cls(
            stages=UIDS[: random.choice(STAGES)],
            events=random.choice([0, 0, 0, BOUNDED]),
            checkpoints=Checkpoints(
                num_retained=random.choice([1, 2, 3]),
                tolerable_failed_checkpoints=random.choice([0, 1]),
                externalized_checkpoint_retention=random.choice(RETENTIONS),
                restart_strategy=random.choice(RESTARTS),
                max_concurrent_checkpoints=random.choice([2, 3]) if is_concurrent else 1,
                unaligned=is_unaligned,
                aligned_checkpoint_timeout=timedelta(
                    seconds=random.choice([0, 1]) if is_unaligned else 0
                ),
                min_pause=timedelta(seconds=0 if is_concurrent else random.choice([0, 0, 1])),
                on_damaged_checkpoint=Random(f"damaged {seed}").choice([*DamagedCheckpoint]),
            ),
            skews_ms=tuple(random.choice(SKEWS_MS) for _ in range(random.choice([1, 2, 2, 3]))),
            turns=random.choice(TURNS) + LONGER * is_disposing,
            savepoints=random.choice(SAVEPOINTS),
            is_early=random.random() < 0.3 and not is_unaligned and not is_noted,
            is_noted=is_noted,
            is_disturbed=is_noted and Random(f"disturbed {seed}").random() < DISTURBED,
            is_damaged=random.random() < DAMAGED,
            is_chained=Random(f"chained {seed}").random() < CHAINED,
            is_overslept=Random(f"overslept {seed}").random() < OVERSLEPT,
            is_disposing=is_disposing,
        )

    def job(self) -> Job:
        """A handle to make others from: its store is not the world's."""
        mode = CheckpointingMode.AT_LEAST_ONCE if self.is_early else CheckpointingMode.EXACTLY_ONCE
        return _job(self.stages, self.events, self.checkpoints, mode, is_noted=self.is_noted)


@cache
def _job(
    stages: tuple[str, ...],
    events: int,
    checkpoints: Checkpoints,
    mode: CheckpointingMode,
    *,
    is_noted: bool,
) -> Job:
    pipeline = a_pipeline(
        stages=stages,
        beside={NOTED: NotedSpec()} if is_noted else {},
        events=events,
        max_records_per_epoch=5,
        timeout=timedelta(minutes=1),
        mode=mode,
        **asdict(checkpoints) | {"restart_strategy": checkpoints.restart_strategy},
    )
    return a_job(pipeline, root=ROOT)
