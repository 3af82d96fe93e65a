"""How lists of operator state are dealt out to another number of subtasks (getListState).

Flink's RoundRobinOperatorStateRepartitioner: the elements of a list, in the order of the subtasks
that had them, are cut into consecutive parts of equal size, the first of which have one more; the
next list begins at the subtask behind those, so that none gets all the odd ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.core.invariants import require


def dealt_out(elements: Mapping[str, int], parallelism: int) -> dict[str, list[tuple[int, int]]]:
    """Per list, by its number of *elements*, the part of each of *parallelism* subtasks: from which
    element to before which.  The lists come in the order of their names.
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
