"""The names of the Spark applications that stages are submitted as, and which of them are awaited.

    sluice-{pipeline}-{checkpoint}-{stage}-{attempt}-{life}

The last part is a digest of the job's life, which no other job ever has, and of the place of its
root, which a copy of the root does not share.  So roots can share a cluster, and what runs for the
original is not the copy's to end.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from sluice.core.state import CoordinatorState
from sluice.job.job import Job

LIFE_DIGITS = 8
MAX_POD_NAME = 63  # Of a DNS label, which a driver pod's name becomes: its host name.

_NAME = re.compile(
    r"sluice-(?P<pipeline>\w+)-(?P<checkpoint>\d+)-(?P<stage>\w+)-(?P<attempt>\d+)-(?P<life>\w+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationName:
    """One execution attempt of a stage in a checkpoint; ``str()`` is the application's name."""

    pipeline: str
    checkpoint_id: int
    stage: str
    attempt: int
    life: str

    def __str__(self) -> str:
        parts = (self.pipeline, self.checkpoint_id, self.stage, self.attempt, self.life)
        return "-".join(("sluice", *map(str, parts)))

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The parts of an application's name; None for one of other software."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        return cls(
            pipeline=found["pipeline"],
            checkpoint_id=int(found["checkpoint"]),
            stage=found["stage"],
            attempt=int(found["attempt"]),
            life=found["life"],
        )

    @property
    def pod(self) -> str:
        """The driver pod's name on Kubernetes, which refuses a second pod of that name."""
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:LIFE_DIGITS]
        end = f"-{digest}-driver"
        words = str(self).removesuffix(f"-{self.life}").replace("_", "-")
        return words[: MAX_POD_NAME - len(end)].rstrip("-") + end

    def is_awaited(self, job: Job, state: CoordinatorState) -> bool:
        """Whether the attempt may still acknowledge, or merges state behind its acks."""
        if self.life != short_life(job, state.life):
            return False
        pending = state.pending_checkpoint(self.checkpoint_id)
        if pending is None:
            return state.completed_checkpoint(self.checkpoint_id) is not None
        is_current = self.attempt == pending.attempt_of(self.stage)
        return is_current and self.stage not in pending.overtaken


def short_life(job: Job, life: str) -> str:
    """The digits that no other life has, nor the same life in a copy of the job's root."""
    return hashlib.sha256(f"{job.location.name} {life}".encode()).hexdigest()[:LIFE_DIGITS]


def short_lives(job: Job, state: CoordinatorState) -> frozenset[str]:
    """The short forms of the lives of the job here, and of earlier ones with the same journal."""
    lives = (state.life, *state.earlier_lives)
    return frozenset(short_life(job, life) for life in lives if life)


def is_to_be_ended(application: str, job: Job, state: CoordinatorState) -> bool:
    """Whether an application of that name ran for this job, here, and no attempt awaits it."""
    name = ApplicationName.parse(application)
    if name is None or name.pipeline != job.pipeline.uid:
        return False
    return name.life in short_lives(job, state) and not name.is_awaited(job, state)
