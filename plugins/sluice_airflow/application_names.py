"""The name of a stage's Spark application, by which it is found at its cluster.

    sluice-{pipeline}-{checkpoint}-{stage}-{attempt}-{life}

The life is the job's, which no other job ever has, so that two roots can share a cluster.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from sluice.core.state import CoordinatorState

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
        """The name that *text* is; None for an application of other software."""
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

    @property
    def tag(self) -> str:
        return tag_of(self.life)

    def is_awaited(self, state: CoordinatorState) -> bool:
        """Whether the attempt may still acknowledge, or merges state behind its acks."""
        if self.life != short_life(state.life):
            return False
        pending = state.pending_checkpoint(self.checkpoint_id)
        if pending is None:
            return state.completed_checkpoint(self.checkpoint_id) is not None
        is_current = self.attempt == pending.attempt_of(self.stage)
        return is_current and self.stage not in pending.overtaken


def short_life(life: str) -> str:
    return life[:LIFE_DIGITS]


def tag_of(short: str) -> str:
    """What all applications of a job's life are marked with, where a cluster has tags."""
    return f"sluice-{short}"
