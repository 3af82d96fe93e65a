"""A coordinator that loses every race for the journal waits, and fails with an error at last."""

from __future__ import annotations

import pytest

from harness.jobs import a_job
from sluice.errors import StoreUnavailable
from sluice.store.journal import FIRST_S, LONGEST_S, MAX_RACES, Journal, jittered_pause
from sluice.store.memory import InMemoryStore
from sluice.store.object_store import CreateResult
from tests.contract.journals import PATHS, Through, append, next_number
from tests.patching import replace_in


class Busy(Through):
    """A store where another coordinator appends right before us, a number of times."""

    def __init__(self, races: int) -> None:
        super().__init__(InMemoryStore())
        self.races = races

    def create(self, key: str, body: bytes) -> CreateResult:
        if self.races:
            self.races -= 1
            append(Journal(self.store, PATHS))
        return super().create(key, body)


def test_a_pause_comes_after_each_race_that_was_lost() -> None:
    paused: list[int] = []
    journal = Journal(Busy(5), PATHS, pause=paused.append)

    taken = journal.append(next_number).state.generation

    assert (taken, paused) == (6, [1, 2, 3, 4, 5])


def test_who_loses_all_of_them_says_who_is_to_blame() -> None:
    paused: list[int] = []
    journal = Journal(Busy(MAX_RACES), PATHS, pause=paused.append)

    with pytest.raises(StoreUnavailable, match="won by others 100 times in a row; too many coord"):
        journal.append(next_number)

    assert paused == list(range(1, MAX_RACES)), "and does not wait for nothing"


def test_pauses_differ_and_are_bounded_by_twice_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    replace_in(monkeypatch, "sluice.store.journal", "time", sleep=slept.append)

    for races in (1, 3, 60):
        for _ in range(200):
            jittered_pause(races)

    bounds = (2 * FIRST_S, 8 * FIRST_S, LONGEST_S)
    for number, bound in enumerate(bounds):
        mine = slept[number * 200 : (number + 1) * 200]
        assert all(0 <= seconds <= bound for seconds in mine)
        assert len(set(mine)) > 150
        assert max(mine) > bound / 2


def test_a_job_waits_so_unless_it_is_told_otherwise() -> None:
    assert a_job().journal.pause is jittered_pause
