"""One plan, played to its end or to what is wrong."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ConfigurationError
from sluice.store import memory
from tests.fuzz.consents import DifferenceError
from tests.fuzz.plans import Plan
from tests.fuzz.session import spark_in_process
from tests.fuzz.tuning import tuned
from tests.fuzz.world import World


@dataclass(frozen=True, slots=True)
class Failure:
    """``kind`` is what stays the same while a plan shrinks."""

    kind: str
    message: str


@contextmanager
def playing() -> Iterator[None]:
    """Within the block plans can be played, in this thread."""
    with spark_in_process():
        yield


def play(plan: Plan) -> Failure | None:
    """None if every sink held what it must, at every commit."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-fuzz-", dir=_place()))
    cache = os.environ.get("SLUICE_CACHE_DIR")
    os.environ["SLUICE_CACHE_DIR"] = str(folder / "cache")
    try:
        with tuned(plan.tuning):
            return failure_of(lambda: World(plan, folder / "in").play())
    finally:
        memory._named.clear()  # noqa: SLF001 - one process plays thousands
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.pop("SLUICE_CACHE_DIR")
        if cache is not None:
            os.environ["SLUICE_CACHE_DIR"] = cache


def failure_of(played: Callable[[], None]) -> Failure | None:
    try:
        played()
    except DifferenceError as error:
        return Failure("difference", str(error))
    except ConfigurationError as error:
        return Failure("refused", f"ConfigurationError: {error}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the plan should not raise it
        return Failure(_kind(error), f"{type(error).__name__}: {error}")
    return None


def _kind(error: Exception) -> str:
    """Its type and its message without the names and numbers in it."""
    words = re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "", str(error))
    return f"{type(error).__name__} {words[:60]}"


def _place() -> str | None:
    """Memory, where there is a folder of it: files are small, and many."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
