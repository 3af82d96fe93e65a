"""A store that is away: its requests are repeated, and for a bounded time."""

from __future__ import annotations

import pytest

from sluice.errors import StoreUnavailable
from sluice.store.memory import InMemoryStore
from sluice.store.open import PatientStore
from tests.patching import replace_in


class AwayStore(InMemoryStore):
    """Answers nothing for the first *failures* requests."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures
        self.requests = 0

    def get(self, key: str) -> bytes | None:
        self.requests += 1
        if self.requests <= self.failures:
            raise StoreUnavailable(f"request {self.requests} is lost")
        return super().get(key)


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    replace_in(monkeypatch, "tenacity.nap", "time", sleep=found.append)
    return found


@pytest.mark.parametrize(("failures", "paused"), [(0, 0), (1, 0), (2, 1), (5, 4)])
def test_the_first_repetition_is_at_once_and_the_others_after_a_pause(
    failures: int, paused: int, pauses: list[float]
) -> None:
    store = AwayStore(failures)
    store.put("journal/1", b"it")

    assert PatientStore(store).get("journal/1") == b"it"
    assert (store.requests, len(pauses)) == (failures + 1, paused)


def test_a_store_that_stays_away_is_given_up_with_its_last_words() -> None:
    store = AwayStore(9)

    with pytest.raises(StoreUnavailable, match="request 2 is lost"):
        PatientStore(store, patience_s=0).get("journal/1")
