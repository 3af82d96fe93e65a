"""How all tests run: without what a shell adds, and spread over workers so that none waits long.

A subprocess of a test imports what is installed, not what a variable of the shell leads to.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from harness import spark_archive
from sluice.declaration import project
from sluice.spark import jvm
from tests.examples import OF_A_PROPERTY, PLAYS_SLOW, drawn

# Nothing that is imported and collected is garbage; to look for some is half of what that costs.
gc.disable()

for name in ("PYTHONPATH", "SLUICE_PIPELINES", "POLARS_MAX_THREADS"):
    os.environ.pop(name, None)

os.environ[spark_archive.VARIABLE] = spark_archive.java_options()
os.environ[jvm.SWITCH] = "off"  # The tests have their own.

# A busy machine is no failure.
settings.register_profile("sluice", deadline=None, max_examples=drawn(OF_A_PROPERTY))
settings.load_profile("sluice")

# What Sluice and its tests read.
OURS = ("SLUICE_", "AWS_", "AIRFLOW_", "POLARS_", "PYTHON", "PATH", "HOME")
# One worker plays all of these folders, for what they share is expensive, or alone on a machine.
STACKS = ("chaos", "e2e")
IN_AIRFLOW = ("airflow", "browser")  # A migrated database, Airflow's app.
TOGETHER = dict.fromkeys(STACKS, "stacks") | dict.fromkeys(IN_AIRFLOW, "airflow")
LONG = ("docs", "package", "simulation", "exactly_once", "fuzz", "spark", "testing")
FIRST = (*STACKS, *IN_AIRFLOW, *LONG)


@pytest.fixture(autouse=True)
def _forget_pipelines() -> Iterator[None]:
    """A package of pipelines that one test loads is not the one that another test runs."""
    before = dict(project._imported)  # noqa: SLF001 - A process of its own has no use for a way back.
    path = _path()
    yield
    project._imported.clear()  # noqa: SLF001
    project._imported.update(before)  # noqa: SLF001
    if _path() != path:
        sys.path[:] = path


@pytest.fixture
def without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stages run in this process, with a cache of their own."""
    from harness.no_spark import stages_without_spark

    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "cache"))
    with stages_without_spark():
        yield


def _surroundings() -> dict[str, object]:
    mine = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
    return mine | {"folder": Path.cwd(), "sleep": time.sleep, "sys.path": _path()}


def _path() -> list[str]:
    """Without what a SparkContext adds for itself."""
    return [folder for folder in sys.path if "/userFiles-" not in folder]


_at_first: dict[str, object] = {}  # Once all tests are collected: conftest.py files may set some.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no worker is left alone with one of them."""
    _at_first.update(_surroundings())

    def rank(item: pytest.Item) -> int:
        folder = item.nodeid.split("/", 2)[1]
        return FIRST.index(folder) if folder in FIRST else len(FIRST)

    items.sort(key=rank)
    for item in [] if PLAYS_SLOW else items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="make slow plays it"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # Libraries tell of what is not collected when the process ends.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """A file of tests leaves its process to the next one, whichever that is, as it found it."""
    yield
    if nextitem is None or nextitem.path != item.path:
        before, found = dict(_at_first), _surroundings()
        _at_first.clear()
        _at_first.update(found)  # The next file is not to blame.
        assert found == before, f"{item.path.name} left another process behind than it found"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler.loadfile import LoadFileScheduling

    class Together(LoadFileScheduling):  # type: ignore[misc] # It ships no annotations.
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.removeprefix("tests/").partition("/")[0]
            return TOGETHER.get(folder) or super()._split_scope(nodeid)

    return Together(config, log)
