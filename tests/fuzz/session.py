"""A Spark in this process: frames of Arrow tables, SQL by DuckDB, a shuffle that keeps no order.

The real ``run_stage`` runs over it, and everything below: feeds, blocks and subtasks past the JVM;
for the way through the JVM, what only Catalyst can do is done here, in ``jvm``.
"""

# ruff: noqa: S608 - queries are made of what a drawing named
from __future__ import annotations

import atexit
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random
from typing import Any, Self

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

Around = Callable[[int, int], AbstractContextManager[Any]]  # Of a subtask: its place, how many.
_DDL = {"binary": pa.binary(), "string": pa.string(), "bigint": pa.int64(), "int": pa.int32()}
_NAMED = re.compile(r"(.*) AS (\w+)", re.DOTALL)
_current = [0]
PLANNED_AWAY = 0.5  # Of the filters that no row passes, those of which Spark's plan says so.


class InThisThread:
    """In the place of a pool of threads: to start one takes longer than to read files in memory."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[..., Any], *given: Iterable[Any]) -> Iterator[Any]:
        return map(function, *given)


class Settings:
    """A session's; nothing here follows them but the time zone, which is what it must be."""

    def __init__(self) -> None:
        # One machine; how many tasks run at once it does not say, so rows are shuffled.
        self._given = {"spark.master": "local[*]", "spark.default.parallelism": "1"}

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(name, default)

    def _set_all(self, configs: Mapping[str, str], silent: bool) -> None:
        self._given |= configs


class TaskContext:
    def partitionId(self) -> int:  # noqa: N802 - Spark's
        return _current[0]

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's
        return 0  # Nothing is tried again here.


@cache
def duck(purpose: str) -> duckdb.DuckDBPyConnection:
    """One of the process: to open one takes longer than to play an epoch."""
    connection = duckdb.connect()
    atexit.register(_close, connection)
    connection.execute("SET threads = 1; SET TimeZone = 'UTC'")
    return connection


def _close(connection: duckdb.DuckDBPyConnection) -> None:
    duck.cache_clear()
    connection.close()


@dataclass(eq=False)
class Session:
    """``random`` decides the order in which rows leave a shuffle; ``around`` is entered around
    each task of a job that acknowledges.
    """

    random: Random
    around: Around = lambda index, count: nullcontext()
    way: str = "plain"
    conf: Settings = field(default_factory=Settings)
    sql: duckdb.DuckDBPyConnection = field(default_factory=partial(duck, "session"))

    def range(self, start: int, end: int, step: int, partitions: int) -> Frame:
        assert (start, step, end) == (0, 1, partitions)
        return Frame(self, [pa.table({"id": pa.array([n], pa.int64())}) for n in range(end)])

    def createDataFrame(self, table: pa.Table) -> Frame:  # noqa: N802 - Spark's
        return Frame(self, [table])

    def evaluate(self, table: pa.Table, expressions: Sequence[str]) -> list[pa.ChunkedArray]:
        self.sql.register("rows", table)
        result = self.sql.sql(f"SELECT {', '.join(expressions)} FROM rows").to_arrow_table()
        self.sql.unregister("rows")
        return list(result.columns)


class Frame:
    """A DataFrame's place: a table for each partition.

    Where it *is_planned_away* there are no rows, as Spark sees in its plan, and starts no task.
    Rows that are *only_sent* are not those of subtasks.
    """

    def __init__(
        self,
        session: Session,
        partitions: list[pa.Table],
        *,
        is_planned_away: bool = False,
        only_sent: bool = False,
    ) -> None:
        self.session = session
        self.partitions = partitions
        self.is_planned_away = is_planned_away
        self.only_sent = only_sent

    @property
    def sparkSession(self) -> Session:  # noqa: N802 - Spark's
        return self.session

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's
        return not any(table.num_rows for table in self.partitions)

    @property
    def columns(self) -> list[str]:
        return list(self.partitions[0].column_names)

    @property
    def schema(self) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self.partitions[0].schema)

    def mapInArrow(self, function: Any, schema: Any) -> Frame:  # noqa: N802 - Spark's
        arrow = _arrow(schema)
        count = len(self.partitions)
        if self.is_planned_away:
            return Frame(self.session, [arrow.empty_table()] * count)
        # Those that acknowledge, also where others are chained to them; not those that only send.
        is_job = "ack" in arrow.names or not (self.only_sent or self.columns == ["id"])
        answers = []
        for index, table in enumerate(self.partitions):
            with self.session.around(index, count) if is_job else nullcontext():
                _current[0] = index
                answers.append(self._run(function, table, arrow))
        return Frame(self.session, answers)

    def _run(self, function: Any, table: pa.Table, schema: pa.Schema) -> pa.Table:
        size = self.session.random.choice((1, 3, 7, 1_000, 1_000))
        batches: Iterable[pa.RecordBatch] = table.to_batches(max_chunksize=size)
        out = list(function(iter(batches)))
        return pa.Table.from_batches(out).cast(schema) if out else schema.empty_table()

    def repartitionById(self, count: int, column: str) -> Frame:  # noqa: N802 - Spark's
        whole = pa.concat_tables(self.partitions)
        owners = whole.column(column).to_pylist()
        parts = []
        for subtask in range(count):
            places = [place for place, owner in enumerate(owners) if owner == subtask]
            self.session.random.shuffle(places)
            parts.append(whole.take(pa.array(places, pa.int64())).combine_chunks())
        return Frame(self.session, parts, is_planned_away=self.is_planned_away)

    def collect(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.toArrow().to_pylist()
        return rows

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's
        return pa.concat_tables(self.partitions)

    def where(self, condition: str) -> Frame:
        kept = self.each(lambda table: table.filter(self._passes(table, condition)))
        if kept.isEmpty() and Random(condition).random() < PLANNED_AWAY:
            kept.is_planned_away = True
        return kept

    def selectExpr(self, *expressions: str) -> Frame:  # noqa: N802 - Spark's
        def select(table: pa.Table) -> pa.Table:
            names, columns = [], []
            for expression in expressions:
                found = table.column_names if expression == "*" else [expression.strip("`")]
                for one in found:
                    name, column = self._column(table, one)
                    names.append(name)
                    columns.append(column)
            return pa.Table.from_arrays(columns, names=names)

        return self.each(select)

    def withColumn(self, name: str, expression: str) -> Frame:  # noqa: N802 - Spark's
        return self.each(lambda table: set_column(table, name, self._column(table, expression)[1]))

    def withColumns(self, expressions: Mapping[str, str]) -> Frame:  # noqa: N802 - Spark's
        def computed(table: pa.Table) -> pa.Table:
            changed = table
            for name, expression in expressions.items():
                changed = set_column(changed, name, self._column(table, expression)[1])
            return changed

        return self.each(computed)

    def withColumnsRenamed(self, names: Mapping[str, str]) -> Frame:  # noqa: N802 - Spark's
        return self.each(
            lambda table: table.rename_columns([names.get(n, n) for n in table.schema.names])
        )

    def withMetadata(self, name: str, metadata: Mapping[str, str]) -> Frame:  # noqa: N802 - Spark's
        return self

    def coalesce(self, count: int) -> Frame:
        assert count == len(self.partitions), "a union puts partitions side by side"
        return self

    def drop(self, *names: str) -> Frame:
        return self.each(lambda t: t.drop_columns([n for n in names if n in t.column_names]))

    def union(self, other: Frame) -> Frame:
        assert self.columns == other.columns, (self.columns, other.columns)
        return Frame(self.session, [*self.partitions, *other.partitions])

    def unionByName(self, other: Frame, allowMissingColumns: bool = False) -> Frame:  # noqa: N802, N803 - Spark's
        if allowMissingColumns:
            other = other.each(self._completed)
        assert set(self.columns) == set(other.columns), (self.columns, other.columns)
        pairs = zip(self.partitions, other.partitions, strict=True)
        return Frame(
            self.session,
            [pa.concat_tables([a, b.select(a.column_names).cast(a.schema)]) for a, b in pairs],
            is_planned_away=self.is_planned_away and other.is_planned_away,
        )

    def _completed(self, table: pa.Table) -> pa.Table:
        """*table* with the columns that it lacks, null."""
        for of in self.partitions[0].schema:
            if of.name not in table.column_names:
                table = table.append_column(of, pa.nulls(table.num_rows, of.type))
        return table

    def each(self, change: Callable[[pa.Table], pa.Table]) -> Frame:
        changed = [change(table) for table in self.partitions]
        return Frame(self.session, changed, is_planned_away=self.is_planned_away)

    def _passes(self, table: pa.Table, condition: str) -> pa.ChunkedArray:
        (passes,) = self.session.evaluate(table, [f"CAST(({condition}) AS BOOLEAN)"])
        return pc.fill_null(passes, False)

    def _column(self, table: pa.Table, expression: str) -> tuple[str, pa.ChunkedArray]:
        if expression in table.column_names:
            return expression, table.column(expression)
        named = _NAMED.fullmatch(expression)
        text, name = (named[1], named[2]) if named else (expression, expression)
        (column,) = self.session.evaluate(table, [text])
        return name, column


def set_column(table: pa.Table, name: str, column: Any) -> pa.Table:
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)


def _arrow(schema: Any) -> pa.Schema:
    from sluice.spark.versions import arrow_schema

    if not isinstance(schema, str):
        return arrow_schema(schema)
    return pa.schema([(n, _DDL[kind]) for n, kind in (p.split() for p in schema.split(","))])


@contextmanager
def spark_in_process() -> Iterator[None]:
    """Within the block stages run over ``Session``s, in this thread."""
    from tests.fuzz import jvm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyspark.TaskContext.get", TaskContext)
        patch.setattr("sluice.store.object_store.ThreadPoolExecutor", InThisThread)
        # Threads race there for the place of a table.
        patch.setattr("sluice.connectors.files_table.table.verify_store", lambda *_: None)
        jvm.replace(patch)
        yield
