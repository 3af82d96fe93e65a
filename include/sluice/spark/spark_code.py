"""Spark code as it is: its function is given the epoch's rows and the result before, and answers.

The function runs on the driver.  Its answer is a DataFrame that Spark computes once, into the
shuffle that places its rows on the subtasks which own their keys: these merge it with the state, so
an answer that would differ on a second call is still one answer (``operators/spark_result.py``).

Malformed rows of the inputs pass the function by, to the side output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import SparkCode
from sluice.declaration.pipeline import PREVIOUS
from sluice.declaration.places import MALFORMED_COLUMN, RAW
from sluice.declaration.results import Upsert
from sluice.errors import ConfigurationError
from sluice.exchange.reading import SOURCE, bounded
from sluice.job.lineage import assigned_state
from sluice.operators.build import build_operator
from sluice.operators.changes import COPIES, repeated
from sluice.operators.operator import WEIGHT
from sluice.operators.ranking import ROWS
from sluice.spark.frames import (
    RESERVED,
    added_up,
    for_spark,
    partition_numbers,
    pinned_table,
    polars_schema,
    read_in_parallel,
)
from sluice.spark.tasks import StageRun, columns_named
from sluice.state.cache import SegmentCache
from sluice.state.keyed import KeyedState
from sluice.state.merging import MERGE_ROWS, open_runs
from sluice.state.segments import DELETED, HASH, to_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE = "_change"  # What a row of changes does: 'insert' or 'delete'.


def empty_result(spark: SparkSession, node: StageNode) -> DataFrame:
    """No rows of the declared schema.

    Raises:
        ConfigurationError: it has a type that no state keeps as it is.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    rows = spark.createDataFrame([], _code_of(node).schema)
    kept = from_arrow_schema(for_spark(to_table(polars_schema(rows).to_frame())).schema)
    for declared, found in zip(rows.schema.fields, kept.fields, strict=True):
        if declared.dataType.simpleString() != found.dataType.simpleString():
            raise ConfigurationError(
                f"stage {node.uid!r} declares {declared.name!r} as "
                f"{declared.dataType.simpleString()}, which no stage keeps; declare it as "
                f"{found.dataType.simpleString()}, and cast it in the function"
            )
    return rows


def previous_result(run: StageRun) -> DataFrame:
    """The stage's result as the parent checkpoint has it; empty in the first epoch.

    A segment of which several subtasks have a part, as behind a rescale, is cut to each one's.
    """
    empty = empty_result(run.spark, run.node)
    shares = assigned_state(run.before, run.task)
    if not any(shares):
        return empty
    schema = build_operator(run.node, [polars_schema(empty)]).tables[ROWS]
    owner, location = f"stage {run.node.uid!r}", run.job.location
    columns = for_spark(to_table(polars_schema(empty).to_frame())).schema

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index in partition_numbers(batches):
            runs = open_runs(SegmentCache(location), shares[index])
            for piece in KeyedState(schema, runs, owner=owner).scan_pieces(MERGE_ROWS):
                rows = piece.drop(HASH)
                if COPIES in rows.columns:
                    rows = repeated(rows.drop(COPIES), rows[COPIES])
                yield from bounded(to_table(rows).cast(columns).to_batches())

    return read_in_parallel(run.spark, read, columns, len(shares))


def pinned_tables(run: StageRun) -> dict[str, DataFrame]:
    """The tables that the function is given, as the barrier pinned them."""
    tables = _code_of(run.node).tables
    return {name: pinned_table(run, table.uid, table.steps) for name, table in tables.items()}


def answered(
    node: StageNode,
    inputs: Sequence[DataFrame],
    tables: Mapping[str, DataFrame],
    previous: DataFrame,
) -> DataFrame:
    """The answer of the function of *node*, in the columns of its schema; malformed rows of the
    *inputs* are added, with nulls in these.

    Raises:
        ConfigurationError: the answer does not have the declared columns.
        Exception: whatever the function raises.
    """
    code = _code_of(node)
    given = {
        name: _given(node, name, _readable(rows))
        for name, rows in zip(code.names, inputs, strict=True)
    }
    given |= {name: rows.drop(*RESERVED) for name, rows in tables.items()}
    if code.takes_previous:
        given[PREVIOUS] = previous
    answer = _checked(node, code.function(**given), previous)
    for rows in inputs:
        if MALFORMED_COLUMN in rows.columns:
            malformed = rows.where(f"{MALFORMED_COLUMN} IS NOT NULL")
            answer = answer.unionByName(
                malformed.select(SOURCE, MALFORMED_COLUMN, RAW), allowMissingColumns=True
            )
    return answer


def without_reading(node: StageNode) -> StageNode:
    """The stage of Spark code that reads a place, whose answer is that nothing differs."""
    code = _code_of(node)

    def nothing(due: DataFrame) -> DataFrame:
        return due.sparkSession.createDataFrame([], code.schema)

    unread = replace(code, function=nothing, result=Upsert(code.identity), takes_previous=False)
    return replace(node, operation=unread)


def _readable(rows: DataFrame) -> DataFrame:
    if MALFORMED_COLUMN not in rows.columns:
        return rows
    return rows.where(f"{MALFORMED_COLUMN} IS NULL")


def _given(node: StageNode, name: str, rows: DataFrame) -> DataFrame:
    """*rows* as the function's parameter *name* gets them."""
    if name not in _code_of(node).changes:
        return rows.drop(*RESERVED)
    if CHANGE in rows.columns:
        raise ConfigurationError(
            f"stage {node.uid!r} is given the changes of {name!r}, whose rows have a column "
            f"{CHANGE!r} of their own; rename it before, select('{CHANGE} AS ...')"
        )
    from pyspark.sql.functions import expr

    if WEIGHT not in rows.columns:
        return rows.drop(*RESERVED).withColumn(CHANGE, expr("'insert'"))
    # A row that is read anew has another origin than the one that is taken back.
    changes = added_up(rows.drop(*(name for name in RESERVED if name != WEIGHT)))
    return changes.select("*", expr(f"IF({WEIGHT} < 0, 'delete', 'insert') AS {CHANGE}")).drop(
        WEIGHT
    )


def _checked(node: StageNode, answer: object, declared: DataFrame) -> DataFrame:
    """*answer* in the order of the columns that are *declared*."""
    from pyspark.sql import DataFrame as SparkDataFrame  # Of a remote session, too.

    owner = f"the function of stage {node.uid!r}"
    if not isinstance(answer, SparkDataFrame):
        raise ConfigurationError(
            f"{owner} returns {type(answer).__name__}, and not a DataFrame of Spark's; return one"
        )
    rows: DataFrame = answer
    of_schema = polars_schema(declared)
    marks = [DELETED] if isinstance(_code_of(node).result, Upsert) else []
    found = [name for name in rows.columns if name not in marks]
    if len({*found}) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        raise ConfigurationError(f"{owner} answers with two columns {twice!r}; rename one")
    missing = [name for name in of_schema if name not in found]
    if missing:
        raise ConfigurationError(
            f"{owner} answers without {missing[0]!r}, which its schema has; it answers with "
            f"{', '.join(found)}: add it, or take it out of the schema"
        )
    more = [name for name in found if name not in of_schema]
    if more:
        hint = ", or declare the result as Upsert" if more[0] == DELETED else ""
        raise ConfigurationError(
            f"{owner} answers with {more[0]!r}, which its schema does not have: drop it, or add it "
            f"to the schema{hint}"
        )
    types = {
        frame: {field.name: field.dataType.simpleString() for field in of.schema.fields}
        for frame, of in (("answer", rows), ("schema", declared))
    }
    of_answer = polars_schema(rows)
    for name in of_schema:
        if of_answer[name] != of_schema[name]:
            is_of, should_be = types["answer"][name], types["schema"][name]
            raise ConfigurationError(
                f"{owner} answers with {name!r} as {is_of}, and its schema says {should_be}; "
                f"cast it, F.col({name!r}).cast({should_be!r}), or declare it as {is_of}"
            )
    present = [name for name in marks if name in rows.columns]
    if present and types["answer"][DELETED] != "boolean":
        raise ConfigurationError(
            f"{owner} answers with {DELETED!r} as {types['answer'][DELETED]}; it says of a row "
            "whether it is taken away, so it is a boolean: cast it, or rename it"
        )
    return rows.select(*columns_named([*of_schema, *present]))


def _code_of(node: StageNode) -> SparkCode:
    assert isinstance(node.operation, SparkCode)
    return node.operation
