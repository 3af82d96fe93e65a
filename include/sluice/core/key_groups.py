"""Hash -> key group -> subtask, and the hash range a subtask owns (KeyGroupRangeAssignment).

Key groups are contiguous ranges of the signed 64-bit hash of the key, so a subtask owns one hash
range, state sorted by hash is sorted by key group, and rescaling is slicing.  Only the upper 32
bits of the hash decide, which keeps the arithmetic exact in Spark's signed longs, too.  Operator
state has no key: ``dealt_out`` shares its lists out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.core.handles import MAX_HASH, MIN_HASH
from sluice.errors import ConfigurationError, require

DEFAULT_LOWER_BOUND_MAX_PARALLELISM = 128
UPPER_BOUND_MAX_PARALLELISM = 32768  # Flink's 2^15: the key group fits a short.


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """Key groups ``first`` to ``last``, both inclusive."""

    first: int
    last: int


def default_max_parallelism(parallelism: int) -> int:
    """Next power of two of 1.5 times *parallelism*, within 128 and 32768 (Flink's default)."""
    wanted = 1 << (parallelism + parallelism // 2 - 1).bit_length()
    return min(max(wanted, DEFAULT_LOWER_BOUND_MAX_PARALLELISM), UPPER_BOUND_MAX_PARALLELISM)


def check_parallelism(stage: str, parallelism: int, max_parallelism: int) -> None:
    """Raises ConfigurationError unless 1 <= parallelism <= max_parallelism <= 32768."""
    if not 1 <= max_parallelism <= UPPER_BOUND_MAX_PARALLELISM:
        raise ConfigurationError(
            f"stage {stage!r} has max_parallelism {max_parallelism}; "
            f"choose 1 to {UPPER_BOUND_MAX_PARALLELISM}"
        )
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"stage {stage!r} has parallelism {parallelism}, which is not within 1 and its "
            f"max_parallelism {max_parallelism}; max_parallelism is fixed for the life of the job"
        )


def key_group_range(max_parallelism: int, parallelism: int, index: int) -> KeyGroupRange:
    """The key groups of subtask *index* (computeKeyGroupRangeForOperatorIndex)."""
    require(
        0 <= index < parallelism <= max_parallelism,
        "a subtask is one of at most max_parallelism",
    )
    first = -(-index * max_parallelism // parallelism)
    last = ((index + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(first, last)


def hash_range(max_parallelism: int, groups: KeyGroupRange) -> tuple[int, int]:
    """The first and last signed hash whose key group lies in *groups*."""
    first = MIN_HASH + (-(-(groups.first << 32) // max_parallelism) << 32)
    after = MIN_HASH + (-(-((groups.last + 1) << 32) // max_parallelism) << 32)
    return first, min(after - 1, MAX_HASH)


def dealt_out(elements: Mapping[str, int], parallelism: int) -> dict[str, list[tuple[int, int]]]:
    """The parts of each list, by its number of *elements*, for each of *parallelism* subtasks: from
    which element to before which.

    Flink's RoundRobinOperatorStateRepartitioner (getListState): the elements of a list, in the
    order of the subtasks that had them, are cut into consecutive parts of equal size, of which the
    first have one more.  The next list, by name, begins at the subtask behind those, so that none
    gets all the odd elements.
    """
    require(parallelism > 0, "there is a subtask")
    found: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for name in sorted(elements):
        share, odd = divmod(elements[name], parallelism)
        parts = [(0, 0)] * parallelism
        at = 0
        for turn in range(parallelism):
            end = at + share + (turn < odd)
            parts[(start + turn) % parallelism] = (at, end)
            at = end
        found[name] = parts
        start = (start + odd) % parallelism
    return found
