"""The compaction policy: how many runs to merge, as a function of their sizes."""

from __future__ import annotations

from collections.abc import Sequence

# Newest runs are merged while the run before them is less than twice their size: then each settled
# run is at least twice the next, so there are about log2(rows) of them.
GROWTH = 2

# Fewer are left alone: merging runs again and again rewrites rows that the next merge rewrites
# anyway.  Simulated with 100,000 changed rows an epoch, spread over a state of 1, 5 and 50 million
# rows: a row is rewritten 1.4, 2.7 and 4.6 times for each time it is written, there are 4.0, 5.0
# and 6.5 runs on average, never more than 7, 9 and 12, and every seventh epoch has a merge.  With
# 4 of them, 2.2, 3.2 and 5.5 times, 2.5, 3.8 and 4.8 runs, and a merge in every third epoch; of
# epochs measured in turn, those cost a fifth more.
FAN_IN = 8

# The hard bound on runs per subtask; met only when sizes fall in an odd pattern, or a state of 5
# billion rows grows from deltas of 100,000.  A run costs a lookup of 100,000 keys 5 to 15 ms.
MAX_RUNS = 16


def runs_to_merge(row_counts: Sequence[int]) -> int:
    """How many of the newest runs to merge into one; *row_counts* go from oldest to newest.

    One means none.  Followed after every epoch, it keeps at most ``MAX_RUNS`` runs.
    """
    total = len(row_counts)
    count = min(1, total)
    size = sum(row_counts[-count:])
    while count < total and row_counts[-count - 1] < GROWTH * size:
        size += row_counts[-count - 1]
        count += 1
    if total > MAX_RUNS:
        return max(count, FAN_IN, total - MAX_RUNS + 1)
    return count if count >= FAN_IN else min(1, total)
