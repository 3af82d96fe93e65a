"""Sizes that are small for once, so that few rows are as many: results must not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def tuned(names: Sequence[str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            TUNINGS[name](patch)
        yield


def small_chunks(patch: Any) -> None:
    """Rows are folded five at a time."""
    patch.setattr("sluice.subtask.chunks.CHUNK_ROWS", 5)
    patch.setattr("sluice.subtask.exchange_blocks.CHUNK_ROWS", 5)


def small_files(patch: Any) -> None:
    """Output goes into files of four rows, or of a few bytes."""
    patch.setattr("sluice.subtask.row_file_writer.ROWS_PER_FILE", 4)
    patch.setattr("sluice.subtask.row_file_writer.WIDE_ROWS_PER_FILE", 4)
    patch.setattr("sluice.subtask.row_file_writer.BYTES_PER_FILE", 300)


def pre_aggregates(patch: Any) -> None:
    """Rows are grouped before they are sent, however seldom keys come."""
    patch.setattr("sluice.spark.keying.PRE_AGGREGATED_ROWS_PER_GROUP", 0.0)
    patch.setattr("sluice.spark.keying.GROUPED_ROWS_PER_GROUP", 0.0)


def prunes(patch: Any) -> None:
    """What can be among the best is looked for first, however few rows there are."""
    patch.setattr("sluice.subtask.operators.ranking._WORTH_PRUNING", 0)


TUNINGS: dict[str, Callable[[Any], None]] = {
    "small_chunks": small_chunks,
    "small_files": small_files,
    "pre_aggregates": pre_aggregates,
    "prunes": prunes,
}
