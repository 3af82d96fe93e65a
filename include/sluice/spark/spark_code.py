"""Spark code as it is: its function is given the epoch's rows and the result before, and answers.

The function runs on the driver.  Its answer is a DataFrame that Spark computes once, into the
shuffle that places its rows on the subtasks which own their keys: these merge it with the state, so
an answer that would differ on a second call is still one answer (``operators/spark_result.py``).

Malformed rows of the inputs pass the function by, to the side output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from sluice.core.completed import StageState
from sluice.core.handles import StateHandle
from sluice.declaration.functions import makes_global_views
from sluice.declaration.nodes import StageNode
from sluice.declaration.operations import SparkCode, needs_own_session
from sluice.declaration.pipeline import PREVIOUS, Pipeline
from sluice.declaration.places import MALFORMED_COLUMN, RAW
from sluice.declaration.results import RESULT, Upsert, column_of
from sluice.errors import ConfigurationError
from sluice.exchange.reading import SOURCE, bounded
from sluice.job.job import new_token
from sluice.job.lineage import assigned_state
from sluice.operators.build import build_operator
from sluice.operators.changes import COPIES, OURS, repeated
from sluice.operators.operator import WEIGHT
from sluice.operators.ranking import ROWS
from sluice.spark.frames import (
    CALLING,
    RESERVED,
    added_up,
    for_spark,
    partition_numbers,
    pinned_table,
    polars_schema,
    read_in_parallel,
)
from sluice.spark.session import SETTINGS, is_remote, set_again
from sluice.spark.tasks import StageRun, columns_named
from sluice.state.cache import SegmentCache
from sluice.state.keyed import KeyedState
from sluice.state.merging import MERGE_ROWS, open_runs
from sluice.state.segments import DELETED, HASH, StateSchema, empty_frame, to_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE = "_change"  # What a row of changes does: 'insert' or 'delete'.


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A result of a function: the stage that keeps it, no rows of its schema, and the rows that
    the function gets as the previous ones.
    """

    node: StageNode
    empty: DataFrame
    rows: DataFrame


def empty_results(spark: SparkSession, pipeline: Pipeline, node: StageNode) -> dict[str, KeptRows]:
    """The results of the function of *node* by their names, without rows; of a function that has
    one, it has no name.

    Raises:
        ConfigurationError: one has a type that no state keeps as it is.
    """
    several = {name: pipeline.stages[uid] for name, uid in _code_of(node).results.items()}
    found: dict[str, KeptRows] = {}
    for name, of in (several or {_ONE: node}).items():
        empty = _empty_result(spark, of)
        found[name] = KeptRows(of, empty, empty)
    return found


def previous_results(run: StageRun) -> dict[str, KeptRows]:
    """``empty_results`` with the rows as of the parent checkpoint, if the function takes them."""
    results = empty_results(run.spark, run.job.pipeline, run.node)
    if not _code_of(run.node).takes_previous:
        return results
    return {
        name: replace(
            one, rows=_rows_kept(run, one, run.kept[one.node.uid] if name else run.before)
        )
        for name, one in results.items()
    }


_ONE = ""


def _empty_result(spark: SparkSession, node: StageNode) -> DataFrame:
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


def _rows_kept(run: StageRun, result: KeptRows, state: StageState | None) -> DataFrame:
    """The rows of a *result* in the *state* of the stage that keeps it; none without one.

    A segment of which several subtasks have a part, as behind a rescale, is cut to each one's.
    """
    node, empty = result.node, result.empty
    shares = assigned_state(state, run.task)
    if not any(shares):
        return empty
    columns = polars_schema(empty)
    schema = build_operator(node, [columns]).tables[ROWS]
    return _rows_in(run, node.uid, columns, schema, shares)


def with_current_tables(run: StageRun, inputs: Sequence[DataFrame]) -> list[DataFrame]:
    """*inputs*, of which those that are ``current`` are all rows that are there."""
    code = _code_of(run.node)
    named = zip(code.names, run.node.inputs, inputs, strict=True)
    return [
        _table_of(run, given.producer) if name in code.current else rows
        for name, given, rows in named
    ]


def _table_of(run: StageRun, uid: str) -> DataFrame:
    """The rows that the stage *uid* has kept behind this epoch, in the columns of its stream."""
    streamed = pa.ipc.read_schema(pa.py_buffer(run.given.streams[uid].schema))
    columns = empty_frame(streamed).drop(*OURS, strict=False).schema
    schema = StateSchema(columns=columns, key_columns=run.job.pipeline.stages[uid].keys)
    shares = [
        [handle for handle in handles if handle.table == ROWS]
        for handles in assigned_state(run.kept[uid], run.task)
    ]
    return _rows_in(run, uid, columns, schema, shares)


def _rows_in(
    run: StageRun,
    uid: str,
    names: pl.Schema,
    schema: StateSchema,
    shares: Sequence[Sequence[StateHandle]],
) -> DataFrame:
    """The live rows of a table of state of the stage *uid*, a partition for each of *shares*."""
    owner, location = f"stage {uid!r}", run.job.location
    columns = for_spark(to_table(names.to_frame())).schema

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for index in partition_numbers(batches):
            runs = open_runs(SegmentCache(location), shares[index])
            for piece in KeyedState(schema, runs, owner=owner).scan_pieces(MERGE_ROWS):
                rows = piece.drop(HASH)
                if COPIES in rows.columns:
                    rows = repeated(rows.drop(COPIES), rows[COPIES])
                found = to_table(rows.select(columns.names))
                yield from bounded(found.cast(columns).to_batches())

    return read_in_parallel(run.spark, read, columns, len(shares))


def pinned_tables(run: StageRun) -> dict[str, DataFrame]:
    """The tables that the function is given, as the barrier pinned them."""
    tables = _code_of(run.node).tables
    return {name: pinned_table(run, table.uid, table.steps) for name, table in tables.items()}


def answered(
    node: StageNode,
    inputs: Sequence[DataFrame],
    tables: Mapping[str, DataFrame],
    results: Mapping[str, KeptRows],
) -> DataFrame:
    """The answer of the function of *node*, in the columns of its schema; malformed rows of the
    *inputs* are added, with nulls in these.

    Raises:
        ConfigurationError: the answer is not what the stage declares, ``empty_results``.
        Exception: whatever the function raises.
    """
    code, call = _code_of(node), f"{_GIVEN}{new_token()}"
    check_views(node.uid, code.function)
    given: dict[str, object] = {
        name: _given(node, name, _readable(rows)).alias(call)
        for name, rows in zip(code.names, inputs, strict=True)
    }
    given |= {name: rows.drop(*RESERVED).alias(call) for name, rows in tables.items()}
    is_one = _ONE in results
    if code.takes_previous:
        kept = {name: one.rows.alias(call) for name, one in results.items() if one.node.is_stateful}
        given[PREVIOUS] = kept[_ONE] if is_one else kept
    with CALLING:
        found: object = code.function(**given)
        _check_settings(node, next(iter(results.values())).empty.sparkSession)
    for rows in found.values() if isinstance(found, Mapping) else [found]:
        _check_is_of_call(node, rows, call)
    owner = f"the function of stage {node.uid!r}"
    answer = (
        _checked(owner, found, results[_ONE]) if is_one else _packed(owner, node, found, results)
    )
    for rows in inputs:
        if MALFORMED_COLUMN in rows.columns:
            malformed = rows.where(f"{MALFORMED_COLUMN} IS NOT NULL")
            ours = [name for name in (SOURCE, MALFORMED_COLUMN, RAW) if name in rows.columns]
            answer = answer.unionByName(malformed.select(*ours), allowMissingColumns=True)
    return answer


_GIVEN = "given_in_"  # The alias of what a function is given begins so; its call is behind it.


def check_views(uid: str, function: object) -> None:
    """Raises ConfigurationError if the *function* of a stage makes a view that others read."""
    if makes_global_views(function):
        raise ConfigurationError(
            f"the function of stage {uid!r} makes a global temporary view, which stages of all "
            "jobs of that Spark see and replace; use createOrReplaceTempView(), and read the view "
            "without 'global_temp.'"
        )


def _check_settings(node: StageNode, spark: SparkSession) -> None:
    """Raises ConfigurationError if the function has set what the rows of all stages depend on."""
    for name, value in set_again(spark).items():
        raise ConfigurationError(
            f"the function of stage {node.uid!r} sets {name} to {value!r}, and all stages of a job "
            f"compute with {SETTINGS[name]!r}; leave it out, and say what is meant where it is "
            "meant, as to_utc_timestamp(), convert_timezone() and try_cast() do"
        )


def _check_is_of_call(node: StageNode, answer: object, call: str) -> None:
    """Raises ConfigurationError if the *answer* has rows that another *call* was given: they are of
    another epoch, and may be gone.
    """
    if not isinstance(answer, _frame_type()):
        return
    others = {*re.findall(rf"{_GIVEN}[0-9a-f]{{16}}", _plan_of(answer))} - {call}
    if others:
        raise ConfigurationError(
            f"the function of stage {node.uid!r} answers with rows of a DataFrame that it kept "
            f"from an earlier call; use those of this call, and {PREVIOUS!r} for earlier results"
        )


def _plan_of(rows: DataFrame) -> str:
    """The plan by which Spark, or a server's client, would compute *rows*, with its names."""
    execution: Any = getattr(rows, "_jdf", None)
    if execution is not None:
        return str(execution.queryExecution().analyzed().toString())
    plan: Any = getattr(rows, "_plan")  # noqa: B009 - of Spark Connect alone
    client: Any = getattr(rows.sparkSession, "client")  # noqa: B009 - as above
    return str(plan.to_proto(client).SerializeToString(), "latin-1")


def _frame_type() -> type[DataFrame]:
    from pyspark.sql import DataFrame as SparkDataFrame  # Of a remote session, too.

    return SparkDataFrame


def views_of_its_call(run: StageRun) -> AbstractContextManager[object]:
    """A block in which no other function's call makes a view, until this one's rows are computed.

    Without a server the name of a view is resolved in the call, and other calls need not wait.
    """
    is_resolved_late = is_remote(run.spark) and needs_own_session(run.node.operation)
    return CALLING if is_resolved_late else nullcontext()


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


def _packed(
    owner: str, node: StageNode, answers: object, results: Mapping[str, KeptRows]
) -> DataFrame:
    """The *answers* of a function of several *results*, as one: see ``packed_schema``."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

    names = ", ".join(results)
    if not isinstance(answers, Mapping):
        raise ConfigurationError(
            f"{owner} returns {type(answers).__name__}, and not a dict of its results by name; "
            f"return one of {names}"
        )
    named = {str(name): of for name, of in answers.items()}
    for name in sorted(named.keys() ^ results.keys()):
        what = "without the result" if name in results else "with"
        raise ConfigurationError(
            f"{owner} answers {what} {name!r}, and its results are {names}: return a DataFrame of "
            "each, one without rows where there are none"
        )
    packed = _empty_result(next(iter(results.values())).empty.sparkSession, node)
    for name, result in results.items():
        rows = _checked(f"{owner}, in its result {name!r},", named[name], result)
        columns = F.struct(*columns_named(rows.columns)).alias(column_of(name))
        packed = packed.unionByName(
            rows.select(F.lit(name).alias(RESULT), columns), allowMissingColumns=True
        )
    return packed


def _checked(owner: str, answer: object, result: KeptRows) -> DataFrame:
    """*answer* in the order of the declared columns."""
    declared = result.empty
    if not isinstance(answer, _frame_type()):
        raise ConfigurationError(
            f"{owner} returns {type(answer).__name__}, and not a DataFrame of Spark's; return one"
        )
    rows: DataFrame = answer
    of_schema = polars_schema(declared)
    marks = [DELETED] if isinstance(_code_of(result.node).result, Upsert) else []
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
