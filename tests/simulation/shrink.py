"""Shrinks a failing seed to the shortest history that fails in the same way.

First the shortest prefix, then delta debugging: turns, the turns between their calls, and the fates
of their requests are left out, in halves, in quarters, one by one, as long as it still fails.
Leaving out one changes no other (``script``), so what remains is what it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.play import Run, simulate
from tests.simulation.script import keep, marks

MAX_RUNS = 3_000  # At some milliseconds each; what is left by then is short enough.


class Shrinker:
    def __init__(self, run: Run) -> None:
        assert run.failure is not None
        self._first = run
        self._kind = run.failure.kind
        self._runs = 0
        self.best = run
        self.kept = marks(run.script)

    def shrink(self) -> Run:
        """Call it within ``simulated``."""
        self._shorten()
        is_shorter = True
        while is_shorter and self._runs < MAX_RUNS:
            is_shorter = False
            size = len(self.kept) // 2
            while size >= 1:
                is_shorter |= self._leave_out(size)
                size //= 2
        return self.best

    def _shorten(self) -> None:
        """The shortest prefix, as a bisection finds it; it is not always the very shortest."""
        low, high = 0, len(self.kept)
        while low < high:
            middle = (low + high) // 2
            if self._still_fails(self.kept[:middle]):
                high = middle
            else:
                low = middle + 1
            high = min(high, len(self.kept))

    def _leave_out(self, size: int) -> bool:
        """Try without every *size* marks in a row, from the end; say whether some could go."""
        is_shorter = False
        end = len(self.kept)
        while end > 0 and self._runs < MAX_RUNS:
            start = max(0, end - size)
            if self._still_fails([*self.kept[:start], *self.kept[end:]]):
                is_shorter = True
                end = min(start, len(self.kept))
            else:
                end -= max(1, size // 2)
        return is_shorter

    def _still_fails(self, kept: Sequence[str]) -> bool:
        if len(kept) >= len(self.kept):
            return False
        self._runs += 1
        script = keep(self._first.script, {*kept})
        run = simulate(self._first.seed, script)
        if run.failure is None or run.failure.kind != self._kind:
            return False
        self.best, self.kept = run, marks(run.script)
        return True


def report(found: Run, shrunk: Run, options: str = "") -> str:
    """The report for a person: seed, reason, shortest history, and the command that replays it."""
    assert shrunk.failure is not None
    kept = marks(shrunk.script)
    lines = [
        f"seed {shrunk.seed} fails: {shrunk.failure.message}",
        f"the shortest history has {len(kept)} of {len(marks(found.script))} turns and fates:",
        *map(str, shrunk.history),
        f"again: python -m tests.simulation --seed {shrunk.seed}{options} --keep {','.join(kept)}",
    ]
    return "\n".join(lines)
