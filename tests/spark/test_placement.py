"""Key groups are computed in SQL for Spark and in Python for the core; they must never differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.key_groups import key_group_of, subtask_of
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.plan import TaskPlan
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import TopN
from sluice.spark.deployment import keyed_rows
from sluice.spark.tasks import Frame
from sluice.state.segments import HASH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(1, 128), (3, 128), (7, 10)])
def test_a_row_lands_on_the_subtask_that_owns_its_hash(
    spark: SparkSession, parallelism: int, max_parallelism: int
) -> None:
    from pyspark.sql.functions import spark_partition_id

    node = StageNode(
        uid="stage",
        operation=TopN(n=1, by="id", unique=("id",)),
        inputs=(Input(producer="source", keys=("id",)),),
    )
    task = TaskPlan(uid="stage", parallelism=parallelism, max_parallelism=max_parallelism)

    keyed = keyed_rows([spark.range(500)], node, task, None)
    assert isinstance(keyed.rows, Frame)
    placed = keyed.rows.rows.withColumn("partition", spark_partition_id())

    for row in placed.collect():
        group = key_group_of(row[HASH], max_parallelism)
        assert subtask_of(group, max_parallelism, parallelism) == row["partition"]
        owned = key_group_range(max_parallelism, parallelism, row["partition"])
        first, last = hash_range(max_parallelism, owned)
        assert first <= row[HASH] <= last
