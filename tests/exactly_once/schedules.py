"""When processes die: at every step of a commit, and at seeded lines."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.exactly_once.attempt import COMMIT, Attempt, Line
from tests.exactly_once.pairs import SinkPlace, SourcePlace, check, declared
from tests.exactly_once.processes import Frozen, counted, run

MAX_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Schedule:
    """Each process dies at its line, and the next goes on; or the only one freezes at its line,
    while another runs the job to its end, and is then let go on.
    """

    seed: int
    lines: tuple[Line, ...]
    freezes: bool

    def __str__(self) -> str:
        how = "freezes" if self.freezes else "dies"
        return f"seed {self.seed}: {how} at {', '.join(map(str, self.lines))}"


def drawn(name: str, seed: int, counts: Mapping[str, int]) -> Schedule:
    """Half of the deaths are within a commit.

    Every line that is ever run is as likely as any other, and so is each time that it is run.
    """
    rng = random.Random(f"{name} {seed}")
    freezes = rng.random() < 1 / 3
    within = rng.random() < 1 / 2
    places = sorted(place for place in counts if place.startswith(COMMIT) == within)
    lines = tuple(
        Line(place, rng.randint(1, counts[place]))
        for place in rng.choices(places, k=1 if freezes else rng.randint(1, MAX_DEATHS))
    )
    return Schedule(seed, lines, freezes)


def lines_of(source: SourcePlace, sink: SinkPlace, folder: Path) -> dict[str, int]:
    """The number of times that each line runs without failures; the output is checked, too."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = counted(
        Attempt(
            pipeline=declared(source, sink),
            root=f"file://{folder / 'root'}",
            counts=str(folder / "counts.json"),
        )
    )
    check(source, sink)
    return counts


def play(schedule: Schedule, source: SourcePlace, sink: SinkPlace, folder: Path) -> None:
    """On a fresh root and a fresh table of *sink*."""
    attempt = Attempt(pipeline=declared(source, sink), root=f"file://{folder / 'root'}")
    if schedule.freezes:
        (line,) = schedule.lines
        frozen = Frozen(replace(attempt, line=line, strike=signal.SIGSTOP))
        frozen.wait_until_it_stands()
        assert run(attempt) == 0
        check(source, sink)  # The job has ended, whatever the other one may still do.
        assert frozen.thaw() in (0, 1), schedule  # It is done, or was told that it is fenced.
    else:
        for line in schedule.lines:
            code = run(replace(attempt, line=line))
            assert code in (0, -signal.SIGKILL), schedule
        assert run(attempt) == 0, schedule
    check(source, sink)
