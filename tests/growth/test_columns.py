"""What a stage costs is linear in its columns, and what a subtask receives in its blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sluice import Pipeline
from sluice import aggregates as agg
from sluice.core.plan import TaskPlan
from sluice.exchange.blocks import BlockKind, BlockWriter, received
from sluice.job.analysis import analyse
from sluice.operators.operator import differs_from_previous
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.state.segments import HASH, row_sizes
from tests.operations import calls_of

FEW, MANY = 100, 1_000
MOST_TIMES = 12
NOISE_S = 0.05  # Of one measurement of some ms; the square of the columns took seconds.


def a_frame(columns: int) -> pl.DataFrame:
    texts = {f"c{number}": ["x", None, "xyz"] for number in range(columns)}
    return pl.DataFrame({HASH: [1, 1, 2], **texts})


def sizes_of_structs(columns: int) -> Callable[[], object]:
    frame = a_frame(columns)
    structs = frame.select(pl.struct(frame.columns).alias("one"))
    return lambda: row_sizes(structs)


def sizes(columns: int) -> Callable[[], object]:
    frame = a_frame(columns)
    return lambda: row_sizes(frame)


def runs(columns: int) -> Callable[[], object]:
    frame = a_frame(columns)
    return lambda: frame.select(differs_from_previous(frame.columns).cum_sum())


@pytest.mark.parametrize("of", [sizes, sizes_of_structs, runs])
def test_an_expression_over_all_columns_takes_time_linear_in_them(
    of: Callable[[int], Callable[[], object]],
) -> None:
    def cpu_s(columns: int) -> float:
        call = of(columns)
        taken = []
        for _ in range(3):
            begun = time.process_time()
            call()
            taken.append(time.process_time() - begun)
        return min(taken)

    assert cpu_s(MANY) <= MOST_TIMES * cpu_s(FEW) + NOISE_S


def analysed(folder: Path, columns: int) -> Callable[[], object]:
    rows = pl.DataFrame({"k": [1], **{f"c{number}": ["x"] for number in range(columns)}})
    (folder / str(columns)).mkdir()
    rows.write_parquet(folder / str(columns) / "1.parquet")
    pipeline = Pipeline("wide")
    source = pipeline.source("rows", Files(str(folder / str(columns)), format="parquet"))
    counts: dict[str, Any] = {
        f"n{n}": agg.sum(f"length(d{n})", where=f"d{n} = 'x'") for n in range(columns)
    }
    selected = source.select("k", *(f"c{n} AS d{n}" for n in range(columns)))
    selected.key_by("k").aggregate("counts", **counts).sink("out", FilesTable(upsert_key=("k",)))
    return lambda: analyse(pipeline, {}, None)


def test_what_is_checked_of_a_declaration_is_linear_in_its_columns(tmp_path: Path) -> None:
    few, many = (calls_of(analysed(tmp_path, columns)) for columns in (FEW, MANY))

    assert many <= MOST_TIMES * few


def test_blocks_are_put_together_in_time_linear_in_them() -> None:
    rows = pl.DataFrame({HASH: [1, 2], "v": ["a", "b"]})
    writer = BlockWriter(TaskPlan(uid="stage", parallelism=1, max_parallelism=8), None, 0)
    (block,) = writer.to_owners(BlockKind.ROWS, "0", rows)
    few, many = (calls_of(partial(list, received([block] * count))) for count in (FEW, MANY))

    assert many <= MOST_TIMES * few
    (part,) = received([block] * MANY)
    assert (part.rows.height, part.input_rows) == (2 * MANY, 2 * MANY)
