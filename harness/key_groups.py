"""The key group of a hash, and its subtask: Flink's KeyGroupRangeAssignment, one key at a time.

The product goes by ranges of hashes (``sluice.core.key_groups``); this is what they are held to.
"""

from __future__ import annotations

from sluice.core.handles import MIN_HASH


def key_group_of(key_hash: int, max_parallelism: int) -> int:
    """The key group of a signed 64-bit hash."""
    return (((key_hash - MIN_HASH) >> 32) * max_parallelism) >> 32


def subtask_of(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """The subtask that owns *key_group* (computeOperatorIndexForKeyGroup)."""
    return key_group * parallelism // max_parallelism
