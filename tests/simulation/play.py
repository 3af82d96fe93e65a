"""Play one seed, or a script that was kept of it; say whether and how it fails."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import sluice.store.open
from sluice.connectors.files_table.columns import TableSchemas
from sluice.job.job import Job, new_life, new_token
from sluice.protocol import records
from sluice.protocol.keys import JOURNAL_PREFIX, check_key
from sluice.store.journal import new_journal
from sluice.store.object_store import ObjectStore, verify_conditional_writes

# They register their acts.  A seed draws by their order: what is new goes last.
# isort: off
from tests.simulation import (  # noqa: F401
    deploying,
    compacting,
    coordinators,
    damage,
    people,
    timing,
    submitted,
)

# isort: on
from tests.simulation.broken import Broken
from tests.simulation.bucket import InlinePool, LossyStore
from tests.simulation.dataflow import COLUMNS
from tests.simulation.invariants import Invariants
from tests.simulation.liveness import settle
from tests.simulation.noted import PLAYING
from tests.simulation.script import Turn
from tests.simulation.world import Line, World

Plant: TypeAlias = Callable[[pytest.MonkeyPatch], None]
DECODERS = ("decode_entry", "decode_plan", "decode_ack", "decode_decline", "decode_metadata",
    "decode_answer",
)  # fmt: skip
OURS, PLANTING = ("sluice.", "tests.simulation."), "tests.simulation.mutations"
MEMORY = 2_000  # Decoded objects; more than one seed has.


@dataclass(frozen=True, slots=True)
class Failure:
    """``kind`` is equal for what is probably the same bug."""

    kind: tuple[object, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Run:
    seed: int
    script: Sequence[Turn]
    history: Sequence[Line]
    failure: Failure | None


def simulate(seed: int, script: Sequence[Turn] | None = None) -> Run:
    """Play one world from its beginning to its end, within ``simulated``."""
    _lives[0] = _tokens[0] = _journals[0] = 0
    invariants = Invariants()
    world = World(seed, invariants, script)
    _current[0] = PLAYING[0] = world
    failure = None
    try:
        world.play()
        settle(world)
        invariants.at_the_end()
        if world.settings.is_noted:
            world.readers.at_the_end()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is why the seed fails
        failure = _failure(world.failure or error)
    return Run(seed, world.director.script, world.history, failure)


@contextmanager
def simulated(plant: Plant | None = None) -> Iterator[None]:
    """The seams: stores, threads and time are the world's; equal bytes are decoded once.

    *plant* makes the product wrong, see ``mutations``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sluice.store.open, "open_store", _open_store)
        patch.setattr(Job, "store_at", _store_at)
        replace_everywhere(patch, ThreadPoolExecutor, InlinePool)
        replace_everywhere(patch, new_life, a_new_life)
        replace_everywhere(patch, new_token, a_new_token)
        replace_everywhere(patch, new_journal, a_new_journal)
        replace_everywhere(patch, verify_conditional_writes, _probe)
        for pure in (*(getattr(records, name) for name in DECODERS), check_key):
            replace_everywhere(patch, pure, lru_cache(MEMORY)(pure))
        # What is staged here is no Parquet.
        patch.setattr(TableSchemas, "_footer", lambda *_: COLUMNS)
        if plant is not None:
            plant(patch)
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def replace_everywhere(patch: pytest.MonkeyPatch, real: Any, fake: Any) -> None:
    """Replace *real* by *fake* in all of our modules, except in the one that plants faults."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(OURS) and name != PLANTING:
            for attribute, value in [*vars(module).items()]:
                if value is real:
                    patch.setattr(module, attribute, fake)


_current: dict[int, World] = {}  # The one that plays, at 0.
_lives: dict[int, int] = {0: 0}  # How many have begun, at 0.
_tokens: dict[int, int] = {0: 0}  # Of savepoints, as many as were drawn.


_journals: dict[int, int] = {0: 0}  # How many tokens were drawn, at 0.


def a_new_journal() -> str:
    _journals[0] += 1
    return f"{JOURNAL_PREFIX}{_journals[0]}"


def a_new_life() -> str:
    _lives[0] += 1
    return f"life-{_lives[0]}"


def a_new_token() -> str:
    _tokens[0] += 1
    return f"t{_tokens[0]}"


def _probe(*_: object) -> None:
    """A race needs threads, and this bucket keeps its promise."""
    _current[0].witness.clocks.is_probed = True


def _store_at(job: Job, root: str) -> ObjectStore:
    return _open_store(job.location.elsewhere(root)) if root else job.store


def _open_store(location: sluice.store.open.StoreLocation) -> LossyStore:
    return _current[0].open_store(location)


def _failure(error: Exception) -> Failure:
    if isinstance(error, Broken):
        return Failure((error.number, error.what), str(error))
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].name}"
    return Failure((type(error).__name__, place), f"{type(error).__name__} in {place}: {error}")
