"""What a subtask receives is put together in time linear in its blocks: Spark's partitions send
each subtask one, and there may be thousands.
"""

from __future__ import annotations

from functools import partial

import polars as pl

from sluice.core.plan import TaskPlan
from sluice.exchange.blocks import BlockKind, BlockWriter, received
from sluice.state.segments import HASH
from tests.operations import calls_of

FEW, MANY = 50, 500
MOST_TIMES = 12


def test_blocks_are_put_together_in_time_linear_in_them() -> None:
    rows = pl.DataFrame({HASH: [1, 2], "v": ["a", "b"]})
    writer = BlockWriter(TaskPlan(uid="stage", parallelism=1, max_parallelism=8), None, 0)
    (block,) = writer.to_owners(BlockKind.ROWS, "0", rows)
    few, many = (calls_of(partial(list, received([block] * count))) for count in (FEW, MANY))

    assert many <= MOST_TIMES * few
    (part,) = received([block] * MANY)
    assert (part.rows.height, part.input_rows) == (2 * MANY, 2 * MANY)
