"""``numbered``: the partitions that a stage's Spark job begins with, of the fastest kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.spark.partitions import NUMBERS, Frame, Objects, Partitions, numbers
from sluice.spark.pipelined import Pipelined
from sluice.spark.session import has_rdds, is_on_one_machine, task_slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbered(spark: SparkSession, count: int) -> Partitions:
    """*count* partitions, each of one row: its number."""
    if not (has_rdds(spark) and is_on_one_machine(spark)):
        return Frame(spark.range(0, count, 1, count))
    context = spark.sparkContext
    if count <= task_slots(context):
        return Pipelined(context, count)
    return Objects(numbers(context, count), NUMBERS)
