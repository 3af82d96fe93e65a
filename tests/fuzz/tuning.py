"""Sizes that are small for once, so that few rows are as many: results must not depend on them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@contextmanager
def tuned(names: Sequence[str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            (TUNINGS | DRAWN_APART | DRAWN_LAST)[name](patch)
        yield


def small_chunks(patch: Any) -> None:
    """Rows are folded five at a time."""
    patch.setattr("sluice.exchange.reading.CHUNK_ROWS", 5)
    patch.setattr("sluice.exchange.blocks.CHUNK_ROWS", 5)


def small_files(patch: Any) -> None:
    """Output goes into files of four rows, or of a few bytes."""
    patch.setattr("sluice.state.segments.ROWS_PER_FILE", 4)
    patch.setattr("sluice.state.segments.WIDE_ROWS_PER_FILE", 4)
    patch.setattr("sluice.state.segments.BYTES_PER_FILE", 300)


def pre_aggregates(patch: Any) -> None:
    """Rows are grouped before they are sent, however seldom keys come."""
    patch.setattr("sluice.spark.deployment.PRE_AGGREGATED_ROWS_PER_GROUP", 0.0)
    patch.setattr("sluice.spark.deployment.GROUPED_ROWS_PER_GROUP", 0.0)


def prunes(patch: Any) -> None:
    """What can be among the best is looked for first, however few rows there are."""
    patch.setattr("sluice.operators.ranking._FEW_ROWS", 0)
    patch.setattr("sluice.operators.ranking._WORTH_PRUNING", 0)


def blocks_in_files(patch: Any) -> None:
    """Rows are sent by reference, however few; as on one machine, where the session is."""
    patch.setattr("sluice.exchange.blocks.CARRIED_BYTES", 0)
    patch.setenv("SPARK_LOCAL_DIRS", _local_folder().name)


def streams(patch: Any) -> None:
    """Rows are grouped by Polars' streaming engine, as many are."""
    patch.setattr("sluice.operators.kernels._STREAMED_ROWS", 0)


def compacts(patch: Any) -> None:
    """Runs of state are files, none is merged at once, and two are enough for a compaction."""
    patch.setattr("sluice.exchange.subtask.SMALL_RUN_ROWS", 0)
    patch.setattr("sluice.state.merging.FAN_IN", 2)


@cache
def _local_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="sluice-fuzz-local-")


TUNINGS: dict[str, Callable[[Any], None]] = {
    "small_chunks": small_chunks,
    "small_files": small_files,
    "pre_aggregates": pre_aggregates,
    "prunes": prunes,
}
COMPACTS = "compacts"
DRAWN_LAST: dict[str, Callable[[Any], None]] = {COMPACTS: compacts}
DRAWN_APART: dict[str, Callable[[Any], None]] = {
    "blocks_in_files": blocks_in_files,
    "streams": streams,
}
