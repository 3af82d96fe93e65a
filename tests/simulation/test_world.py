"""Tests of the simulation itself: it is repeatable, it shrinks, and it reaches all cases."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from sluice.store.object_store import ObjectStore
from tests.contract import test_object_store
from tests.contract.conftest import environment_with_sluice
from tests.simulation.acts import ACTS
from tests.simulation.bucket import Bucket, LossyStore
from tests.simulation.mutations import MUTATIONS
from tests.simulation.play import Run, simulate, simulated
from tests.simulation.script import FATES, Fate, Turn, keep, marks
from tests.simulation.shrink import Shrinker, report

CONTRACT = [
    test
    for name, test in inspect.getmembers(test_object_store, inspect.isfunction)
    if name.startswith("test_") and [*inspect.signature(test).parameters] == ["store"]
]
NEEDS_MORE = ("threads", "was_written_is_read", "more_keys")  # Threads, or a place to open again.
HISTORIES = """
from tests.simulation.play import simulate, simulated
with simulated():
    for seed in range(5):
        print(*simulate(seed).history, sep="\\n")
"""


class Blind:
    """A witness that checks nothing."""

    def wrote(self, key: str, body: bytes, before: bytes | None) -> None: ...
    def deletes(self, key: str) -> None: ...
    def note(self, text: str) -> None: ...

    def befalls(self, *, is_write: bool) -> Fate | None:
        return None


@pytest.fixture
def seams() -> Iterator[None]:
    with simulated():
        yield


@pytest.mark.parametrize(
    "test", [t for t in CONTRACT if not any(n in t.__name__ for n in NEEDS_MORE)]
)
def test_a_bucket_without_faults_keeps_the_contract(test: Callable[[ObjectStore], None]) -> None:
    blind = Blind()

    test(LossyStore(Bucket(blind, lambda: 1_700_000_000_000), blind, "memory://blind", "below"))


def test_a_seed_plays_the_same_in_every_process(seams: None) -> None:
    elsewhere = subprocess.run(
        [sys.executable, "-c", HISTORIES],
        capture_output=True,
        text=True,
        check=True,
        env=environment_with_sluice(),
    )

    here = [str(line) for seed in range(5) for line in simulate(seed).history]
    assert elsewhere.stdout.splitlines() == here


def test_a_script_played_again_is_the_same_history(seams: None) -> None:
    drawn = simulate(3)

    assert simulate(3, keep(drawn.script, {*marks(drawn.script)})).history == drawn.history


def test_leaving_out_one_thing_leaves_every_other() -> None:
    inner = Turn(2, "commits", 1, {1: Fate.DIES_AFTER})
    script = [Turn(1, "triggers", 0, {4: inner, 7: Fate.ANSWER_LOST}), Turn(3, "works", 5)]

    assert marks(script) == ["1", "2", "2@1", "1@7", "3"]
    assert keep(script, {*marks(script)}) == script
    assert marks(keep(script, {"1", "2", "1@7", "3"})) == ["1", "2", "1@7", "3"]
    assert marks(keep(script, {"1", "2@1", "3"})) == ["1", "3"]
    assert marks(keep(script, {"2", "2@1", "3"})) == ["3"]


def test_a_failure_is_shrunk_to_what_it_takes() -> None:
    """A restore that forgets the commit: a checkpoint, its end, and the restore; little more."""
    name = "restore_without_the_commit"
    with simulated(MUTATIONS[name].plant):
        found = first_failure()
        shrunk = Shrinker(found).shrink()
        again = simulate(found.seed, keep(found.script, {*marks(shrunk.script)}))
    text = report(found, shrunk, f" --mutation {name}")

    assert shrunk.failure == again.failure
    assert len(marks(shrunk.script)) < len(marks(found.script)) * 2 / 3
    assert len(marks(shrunk.script)) <= 24
    assert f"seed {found.seed} fails: invariant 5" in text
    assert f"--seed {found.seed} --mutation {name} --keep {marks(shrunk.script)[0]}," in text


def test_the_simulation_gets_everywhere(seams: None) -> None:
    """It would prove little if nothing ever completed, aborted, crashed or was fenced."""
    lines = [line for seed in range(100) for line in simulate(seed).history]

    assert {line.name for line in lines} > {*ACTS}
    text = "\n".join(map(str, lines))
    for fate in {*FATES}:
        assert fate.value in text
    for outcome in (
        *("dies", "StoreUnavailable", "FencedError", "NotYetAcknowledged", "RestoreError"),
        *("SAVEPOINT_SUSPEND", "SAVEPOINT_TERMINATE", "CHECKPOINT_DECLINED", "CHECKPOINT_EXPIRED"),
        *("restored the job", "committed checkpoint", "Choice -> s", ": attempt 2"),
        *("the bucket restarts", "arrives: create auctions/j-", "parallelism 3"),
        *("and 1 behind it up to step", "and 2 behind it up to step"),
    ):
        assert outcome in text, outcome


def first_failure() -> Run:
    return next(run for run in map(simulate, range(600)) if run.failure is not None)
