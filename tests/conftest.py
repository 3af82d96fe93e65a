"""How all tests run: without what a shell adds, and spread over workers so that none waits long.

A subprocess of a test imports what is installed, not what a variable of the shell leads to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from sluice.declaration import project

for name in ("PYTHONPATH", "SLUICE_PIPELINES"):
    os.environ.pop(name, None)

settings.register_profile("sluice", deadline=None)  # A busy machine is no failure.
settings.load_profile("sluice")

HERE = Path(__file__).parent
STACKS = ("chaos", "e2e")  # Each test starts a whole system: one worker plays them, one by one.
FIRST = (*STACKS, "docs", "package", "simulation", "exactly_once", "fuzz", "spark", "testing")


@pytest.fixture(autouse=True)
def _forget_pipelines() -> Iterator[None]:
    """A package of pipelines that one test loads is not the one that another test runs."""
    before = dict(project._imported)  # noqa: SLF001 - A process of its own has no use for a way back.
    yield
    project._imported.clear()  # noqa: SLF001
    project._imported.update(before)  # noqa: SLF001


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no worker is left alone with one of them."""

    def rank(item: pytest.Item) -> int:
        folder = item.path.relative_to(HERE).parts[0]
        return FIRST.index(folder) if folder in FIRST else len(FIRST)

    items.sort(key=rank)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler.loadfile import LoadFileScheduling

    class OneStackAtATime(LoadFileScheduling):  # type: ignore[misc] # It ships no annotations.
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.removeprefix("tests/").partition("/")[0]
            return "stacks" if folder in STACKS else super()._split_scope(nodeid)

    return OneStackAtATime(config, log)
