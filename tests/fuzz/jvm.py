"""The work of Spark's JVM, done by DuckDB and Polars: keying, event times, lookups.

``replace`` puts it in the place of the functions that speak to Catalyst; nothing else of the
product is touched.
"""

# ruff: noqa: S608 - queries are made of what a drawing named
from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from harness.key_groups import key_group_of, subtask_of
from sluice.core.plan import TaskPlan
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Attached, KeyedLookup, Lookup, Tumbling, WindowTopN
from sluice.declaration.places import MALFORMED_COLUMN, RAW, TextDecoding
from sluice.exchange.blocks import BlockFolder, BlockKind
from sluice.exchange.reading import SOURCE
from sluice.operators.aggregate import aggregate_arguments, to_compute
from sluice.operators.build import build_operator
from sluice.operators.common_types import united_columns
from sluice.operators.operator import WEIGHT
from sluice.spark import deployment, tasks
from sluice.spark.deployment import KeyedRows, needed_columns
from sluice.spark.frames import OBJECT
from sluice.state.key_hash import can_hash, key_hash
from sluice.state.segments import HASH, to_frame
from tests.fuzz.functions import OURS
from tests.fuzz.lines import NO_ROW, decoded
from tests.fuzz.session import Frame, set_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def replace(patch: Any) -> None:
    patch.setattr("sluice.spark.deployment.keyed_rows", keyed_rows)
    patch.setattr("sluice.spark.deployment.keyed_inputs", looked_up)
    patch.setattr("sluice.spark.deployment._measured", measure)
    patch.setattr("sluice.spark.deployment.exchange_of", exchange_of)
    patch.setattr("sluice.spark.frames._look_up", look_up)
    patch.setattr("sluice.spark.frames.marked", lambda rows: rows)
    patch.setattr("sluice.spark.frames.keeps_every_row", lambda rows: False)
    patch.setattr("sluice.spark.frames._united", united)
    patch.setattr("sluice.spark.frames.net_changes", settled)
    patch.setattr("sluice.spark.frames.decoded_text", decoded_text)
    patch.setattr("pyspark.sql.functions.expr", Expression)
    patch.setattr("pyspark.sql.functions.col", Expression)
    patch.setattr("pyspark.sql.functions.lit", literal)
    patch.setattr("sluice.spark.frames._check_ours", lambda *_: None)  # By a column's metadata.


class Expression(str):
    """A Column's place: its SQL."""

    __slots__ = ()

    def __or__(self, other: str) -> Expression:
        return Expression(f"({self}) OR ({other})")

    def isNotNull(self) -> Expression:  # noqa: N802 - Spark's
        return Expression(f"{self} IS NOT NULL")

    def cast(self, kind: str) -> Expression:
        return Expression(f"CAST({self} AS {kind})")


def literal(value: None) -> Expression:
    assert value is None, "the product writes no other"
    return Expression("NULL")


_REAL_EXCHANGE_OF = deployment.exchange_of


def exchange_of(run: Any) -> Any:
    """Past the JVM, unless the plan says through it."""
    return None if run.spark.way == "jvm" else _REAL_EXCHANGE_OF(run)


def decoded_text(rows: Frame, how: TextDecoding, *, is_begun: bool = False) -> Frame:
    """The rows in lines; Python has decoded some with *is_begun*."""

    def of_lines(part: pa.Table) -> pa.Table:
        if how.has_header:
            records = pc.struct_field(part.column(SOURCE), "record")
            part = part.filter(pc.greater(records, 0))
        texts = part.column(how.column).to_pylist()
        left = [place for place, text in enumerate(texts) if text is not None]
        table = decoded(how.format, how.schema, [texts[place] for place in left])
        if is_begun:
            begun = [place for place, text in enumerate(texts) if text is None]
            objects = part.column(OBJECT).take(pa.array(begun, pa.int64())).to_pylist()
            table = pa.concat_tables([table, pa.Table.from_pylist(objects, table.schema)])
            table = table.take(np.argsort(np.array([*left, *begun], np.int64)))
        for name in (*how.keeps, SOURCE):
            table = table.append_column(part.schema.field(name), part.column(name))
        bad = [text if text is not None and text.startswith(NO_ROW) else None for text in texts]
        for name in (MALFORMED_COLUMN, RAW):
            table = table.append_column(name, pa.array(bad, pa.string()))
        return table

    return rows.each(of_lines)


def settled(rows: Frame, parallelism: int) -> Frame:
    """Changes of several epochs as those of one: rows that came and went are gone."""
    whole = pa.concat_tables(rows.partitions)
    kept = [name for name in whole.column_names if name != WEIGHT]
    total = pl.col(WEIGHT).cast(pl.Int64).sum()
    net = to_frame(whole).group_by(kept, maintain_order=True).agg(total)
    copies = pl.col(WEIGHT).sign().cast(pl.Int8).repeat_by(pl.col(WEIGHT).abs())
    changes = net.filter(pl.col(WEIGHT) != 0).with_columns(copies).explode(WEIGHT)
    table = changes.select(whole.column_names).to_arrow().cast(whole.schema)
    empty = [table.slice(0, 0)] * (parallelism - 1)
    return Frame(rows.session, [table, *empty])


def united(node: StageNode, inputs: Sequence[Frame]) -> Frame:
    """The rows of all inputs; reserved columns of one input are added to the others, too."""
    schemas = [to_frame(rows.partitions[0]).drop(OURS, strict=False).schema for rows in inputs]
    united_columns(node.uid, list(zip(node.producers, schemas, strict=True)))
    ours = {
        field.name: field.type
        for rows in inputs
        for field in rows.partitions[0].schema
        if field.name in OURS
    }

    def completed(table: pa.Table) -> pa.Table:
        for name, dtype in ours.items():
            if name not in table.column_names:
                value = pa.scalar(1 if name == WEIGHT else None, dtype)
                table = table.append_column(name, pa.repeat(value, table.num_rows))
        return table

    return reduce(lambda a, b: a.unionByName(b), [rows.each(completed) for rows in inputs])


def measure(rows: Frame, event_time: str) -> dict[str, tuple[int, int]]:
    """The least and the largest of each partition, in milliseconds."""
    whole = to_frame(pa.concat_tables(rows.partitions))
    if MALFORMED_COLUMN in whole.columns:
        whole = whole.filter(pl.col(MALFORMED_COLUMN).is_null())
    at_ms = pl.col(event_time).dt.epoch("ms")
    partition = pl.col(SOURCE).struct.field("partition").alias("partition")
    found = whole.group_by(partition).agg(at_ms.min().alias("least"), at_ms.max().alias("most"))
    return {name: (least, most) for name, least, most in found.iter_rows() if most is not None}


def looked_up(node: StageNode, inputs: Sequence[Frame], table: Frame | None) -> Sequence[Frame]:
    """The input of a keyed lookup: new rows that are looked up, and deletes that are not."""
    if not isinstance(node.operation, KeyedLookup):
        return inputs
    assert table is not None
    new = look_up(node.uid, node.operation.lookup, inputs[0].where(f"{WEIGHT} > 0"), table)
    schema = new.partitions[0].schema

    def completed(part: pa.Table) -> pa.Table:
        for name in schema.names:
            if name not in part.column_names:
                part = part.append_column(name, pa.nulls(part.num_rows, schema.field(name).type))
        return part

    return [new.unionByName(inputs[0].where(f"{WEIGHT} < 0").each(completed))]


def look_up(_: str, lookup: Lookup, rows: Frame, table: Frame) -> Frame:
    """A lookup by DuckDB, partition by partition, as with a broadcast join."""
    wanted = ", ".join(f'{e} AS "_t_{c}"' for c, e in {**lookup.on, **lookup.add}.items())
    on = " AND ".join(f'r."{column}" = t."_t_{column}"' for column in lookup.on)
    right = f"(SELECT {wanted} FROM looked_up)"
    added = "".join(f', t."_t_{column}" AS "{column}"' for column in lookup.add)
    texts = {
        "matched": f"SELECT r.*{added} FROM rows r JOIN {right} t ON {on}"
        if lookup.add
        else f"SELECT r.* FROM rows r SEMI JOIN {right} t ON {on}",
        "unmatched": f"SELECT r.* FROM rows r ANTI JOIN {right} t ON {on}",
        "all": f"SELECT r.*{added} FROM rows r LEFT JOIN {right} t ON {on}",
    }
    text, sql = texts[lookup.keep], rows.session.sql
    if MALFORMED_COLUMN in rows.columns:
        good = f"(FROM rows WHERE {MALFORMED_COLUMN} IS NULL)"
        text = text.replace("FROM rows r", f"FROM {good} r")
        text = f"{text} UNION ALL BY NAME FROM rows WHERE {MALFORMED_COLUMN} IS NOT NULL"

    def joined(part: pa.Table) -> pa.Table:
        sql.register("rows", part)
        sql.register("looked_up", table.partitions[0])
        return sql.sql(text).to_arrow_table()

    return rows.each(joined)


def keyed_rows(
    inputs: Sequence[Frame],
    node: StageNode,
    task: TaskPlan,
    rows_per_group: float | None,
    folder: BlockFolder | None,
) -> KeyedRows:
    sides = [
        _prepared(rows, node, given) for rows, given in zip(inputs, node.shuffled, strict=True)
    ]
    hidden = (SOURCE, MALFORMED_COLUMN, "_raw")
    operator = build_operator(
        node, [to_frame(side).drop(*hidden, strict=False).schema for side in sides]
    )
    sides = [
        side.select(needed_columns(side.column_names, given, operator))
        for side, given in zip(sides, node.shuffled, strict=True)
    ]
    keyed = KeyedRows(
        rows=tasks.Frame(cast("DataFrame", inputs[0])),
        schemas=tuple(side.schema.serialize().to_pybytes() for side in sides),
        result=operator.output_schema,
        tables=operator.tables,
    )
    session = inputs[0].session
    if not operator.is_order_sensitive:
        frames = [cast("DataFrame", Frame(session, [side], only_sent=True)) for side in sides]
        blocks = deployment.blocks_by_spark(frames, BlockKind.ROWS, task, folder)
        return dataclasses.replace(keyed, rows=blocks, is_exchanged=True)
    (whole,) = sides
    owners = [
        subtask_of(
            key_group_of(hash_, task.max_parallelism), task.max_parallelism, task.parallelism
        )
        for hash_ in whole.column(HASH).to_pylist()
    ]
    numbered = whole.append_column(deployment.SUBTASK, pa.array(owners, pa.int32()))
    placed = Frame(session, [numbered]).repartitionById(task.parallelism, deployment.SUBTASK)
    rows = placed.drop(deployment.SUBTASK).each(_sorted)
    return dataclasses.replace(keyed, rows=tasks.Frame(cast("DataFrame", rows)))


def _sorted(table: pa.Table) -> pa.Table:
    frame = to_frame(table)
    plain = [n for n, dtype in frame.schema.items() if not dtype.is_nested()]
    order = frame.with_row_index("_place").sort(plain)["_place"].to_arrow()
    return table.take(order)


def _prepared(rows: Frame, node: StageNode, given: Input) -> pa.Table:
    for name, expression in given.key_expressions.items():
        rows = rows.withColumn(name, expression)
    for computed in to_compute(aggregate_arguments(node.operation), rows.columns):
        sql = f"CAST(({computed.sql}) AS BOOLEAN)" if computed.is_condition else computed.sql
        rows = rows.withColumn(computed.column, sql)
    whole = pa.concat_tables(rows.partitions).combine_chunks()
    return set_column(whole, HASH, pa.array(_hashes(whole, node, given), pa.int64()))


def _hashes(whole: pa.Table, node: StageNode, given: Input) -> Any:
    frame = to_frame(whole)
    if given.keys:
        return _hash(frame.select(given.keys))
    assert isinstance(node.operation, WindowTopN)
    match node.operation.window:
        case Attached():
            return _hash(frame.select("window_start"))
        case Tumbling(size=size):
            micros = pl.col(given.event_time or "").dt.epoch("us")
            width = int(size.total_seconds() * 1_000_000)
            return _hash(frame.select((micros // width * width).alias("start")))
        case _:
            return [0] * frame.height


def _hash(keys: pl.DataFrame) -> Any:
    if all(can_hash(dtype) for dtype in keys.dtypes):
        return key_hash(keys, keys.columns)
    floats = [pl.col(name) + 0.0 for name, dtype in keys.schema.items() if dtype.is_float()]
    return keys.with_columns(floats).hash_rows().reinterpret(signed=True).to_numpy()
