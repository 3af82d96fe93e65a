"""The checkpoints that have ended, a line each, in objects that are written once.

Each statistics object has the lines of those that ended shortly before it, at most ``TAIL`` of
them, and names the object that has the older ones, up to the bound.  So the whole history is in
the newest object and one other; see docs/adr/0017-statistics-lag-and-spans.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from sluice.statistics.checkpoints import (
    CheckpointStats,
    CheckpointStatus,
    SourceStats,
    StageStats,
    SubtaskException,
)
from sluice.statistics.flow import EpochFlow

TAIL = 100  # An object every hundredth has all lines; the others have this many at most.


class History(msgspec.Struct, frozen=True, kw_only=True):
    """``checkpoints`` is in the order of their ids; those before them are in the object of
    checkpoint ``older``.  ``completed`` and ``failed`` count everything that has ended since the
    job's first checkpoint.
    """

    checkpoints: tuple[CheckpointStats, ...] = ()
    older: int | None = None
    completed: int = 0
    failed: int = 0


class CheckpointStatistics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of a checkpoint when it has ended.

    ``parent`` is the checkpoint that its epoch continues; ``flow`` what the last completed epochs
    were, up to this checkpoint.
    """

    checkpoint: CheckpointStats
    history: History
    parent: int | None = None
    sources: tuple[SourceStats, ...] = ()
    stages: tuple[StageStats, ...] = ()
    flow: tuple[EpochFlow, ...] = ()
    exceptions: tuple[SubtaskException, ...] = ()


def needs_older(previous: History) -> bool:
    """Whether ``extended`` merges what *previous* has with the lines of the object it names."""
    return previous.older is not None and len(previous.checkpoints) >= TAIL


def extended(
    previous: History,
    ended: Sequence[CheckpointStats],
    *,
    previous_id: int | None,
    older: Sequence[CheckpointStats] = (),
    bound: int,
) -> History:
    """*previous*, kept under *previous_id*, with the lines of what has *ended* since.

    What *previous* has counted is not counted again; a line of it that was published or measured
    since says so.  *older* are the lines of the object that it names, where ``needs_older`` asks
    for them.  Without *previous_id* everything stays in one piece.
    """
    lines = {one.id: one for one in previous.checkpoints}
    counted = _counted_up_to(previous)
    new = {one.id: one for one in ended if one.id not in lines and one.id > counted}
    merged = {one.id: _merged(lines[one.id], one) for one in ended if one.id in lines}
    news = new | {n: one for n, one in merged.items() if one != lines[n]}
    history = msgspec.structs.replace(
        previous,
        completed=previous.completed + _count(new.values(), CheckpointStatus.COMPLETED),
        failed=previous.failed + _count(new.values(), CheckpointStatus.FAILED),
    )
    if needs_older(previous):
        return _with(history, {one.id: one for one in older} | lines | news, None, bound)
    if previous.older is None and len(lines) >= TAIL and previous_id is not None:
        return _with(history, news, previous_id, bound)
    return _with(history, lines | news, previous.older, bound)


def whole_history(
    newest: History,
    older: Sequence[CheckpointStats],
    ended: Sequence[CheckpointStats],
    *,
    bound: int,
) -> History:
    """The lines of the newest object, of the *older* one that it names, and of what has *ended*
    that it does not have yet.
    """
    latest = extended(newest, ended, previous_id=None, bound=bound)
    lines = {one.id: one for one in (*older, *newest.checkpoints, *latest.checkpoints)}
    return _with(latest, lines, None, bound)


def is_due_for_pruning(before: History, after: History) -> bool:
    """Once in ``TAIL`` checkpoints."""
    return _total(before) // TAIL != _total(after) // TAIL


def kept_objects(bound: int) -> int:
    """How many of the newest objects are kept: what they refer to is among them."""
    return max(bound, TAIL) + TAIL


def _counted_up_to(history: History) -> int:
    """The greatest id of which it cannot be seen any more whether the history counted it."""
    if history.older is not None:
        return history.older
    is_whole = len(history.checkpoints) == _total(history)
    return 0 if is_whole else history.checkpoints[0].id


def _with(
    history: History, lines: dict[int, CheckpointStats], older: int | None, bound: int
) -> History:
    newest = sorted(lines)[-bound:]
    return msgspec.structs.replace(
        history, checkpoints=tuple(lines[n] for n in newest), older=older
    )


def _merged(line: CheckpointStats, other: CheckpointStats) -> CheckpointStats:
    """What was measured counts more than what only the journal knew."""
    best = other if line.num_subtasks is None else line
    committed = other.committed if line.committed is None else line.committed or other.committed
    return msgspec.structs.replace(best, committed=committed)


def _total(history: History) -> int:
    return history.completed + history.failed


def _count(lines: Iterable[CheckpointStats], status: CheckpointStatus) -> int:
    return sum(1 for one in lines if one.status is status)
