"""The collector of garbage stays away from work on large trees, and comes back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sluice.job.job import uncollected


@uncollected
def collects(*, fails: bool = False) -> bool:
    if fails:
        raise ValueError("no tree")
    return gc.isenabled()


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_off_while_the_work_goes_on_and_on_again_whatever_comes_of_it() -> None:
    assert not collects()
    assert gc.isenabled()

    with pytest.raises(ValueError, match="no tree"):
        collects(fails=True)
    assert gc.isenabled()


def test_who_had_switched_it_off_finds_it_off() -> None:
    gc.disable()

    assert not collects()
    assert not gc.isenabled()
