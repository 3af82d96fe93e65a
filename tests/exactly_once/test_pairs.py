"""Each record's effect exactly once, for every source and sink, whenever a process dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.exactly_once.places import APPENDED, SOURCES, UPSERTED, Places, Sink, Source
from tests.exactly_once.schedules import drawn, lines_of, play

SEEDS = int(os.environ.get("SLUICE_KILLS", "3"))
PAIRS = [(source, sink) for source in SOURCES for sink in (*APPENDED, *UPSERTED)]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(tmp_path_factory.mktemp("places"))


@pytest.mark.parametrize(
    ("source", "sink"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS]
)
def test_kills_at_seeded_lines(source: Source, sink: Sink, places: Places, tmp_path: Path) -> None:
    origin = source(places)
    name = f"{source.__name__}_{sink.__name__}"
    counts = lines_of(origin, sink(places, f"{name}_quiet"), tmp_path / "quiet")
    for seed in range(SEEDS):
        schedule = drawn(seed, counts)
        sys.stdout.write(f"{name} {schedule}\n")
        play(schedule, origin, sink(places, f"{name}_{seed}"), tmp_path / str(seed))
