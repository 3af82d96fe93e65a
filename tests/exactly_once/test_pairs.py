"""Each record's effect exactly once, for every source and sink, whenever a process dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, product
from pathlib import Path

import pytest

from tests.exactly_once.origins import CHANGING, ORIGINS, Origin
from tests.exactly_once.places import Places
from tests.exactly_once.processes import drawn, lines_of, play
from tests.exactly_once.targets import TARGETS, UPSERTING, Target

SEEDS = int(os.environ.get("SLUICE_KILLS", "0"))  # Of each pair; 0 is a sample of them.
FIRST_SEED = int(os.environ.get("SLUICE_KILLS_FROM", "0"))
ALL = [*product(ORIGINS, TARGETS), *product(CHANGING, UPSERTING)]
SAMPLE = [*zip(cycle(ORIGINS), TARGETS, strict=False), *zip(CHANGING, UPSERTING[-2:], strict=True)]
PAIRS = ALL if SEEDS else SAMPLE


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with ExitStack() as until_the_end:
        yield Places(tmp_path_factory.mktemp("places"), until_the_end)


@pytest.mark.parametrize(
    ("origin", "target"), PAIRS, ids=[f"{a.__name__}-{b.__name__}" for a, b in PAIRS]
)
def test_kills_at_seeded_lines(
    origin: Origin, target: Target, places: Places, tmp_path: Path
) -> None:
    source = origin(places)
    name = f"{origin.__name__}_{target.__name__}"
    quiet = target(places, f"{name}_quiet", source.group)
    counts = lines_of(source, quiet, tmp_path / "quiet")
    for seed in range(FIRST_SEED, FIRST_SEED + (SEEDS or 1)):
        schedule = drawn(name, seed, counts)
        sys.stdout.write(f"{name} {schedule}\n")
        sink = target(places, f"{name}_{seed}", source.group)
        play(schedule, source, sink, tmp_path / str(seed))
