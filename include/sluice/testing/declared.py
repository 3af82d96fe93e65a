"""The columns of a declared source's rows, without a connection to its place.

They are known of text, JSON and CSV files, Kafka and Nexmark.  The columns of Parquet and Avro
files, PostgreSQL and Iceberg are those of the given rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from sluice.connectors.contracts.source import MALFORMED_COLUMN, RAW, RECORD, TextDecoding
from sluice.declaration.nodes import SourceNode
from sluice.declaration.params import Env, Param
from sluice.sources import Files, Kafka, Nexmark
from sluice.testing.arrow_types import as_spark_has_it

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sluice.connectors.contracts.source import Source

_PLACEHOLDER = "given.rows"  # A stand-in for the name of a place that is never opened.
_OURS = (RECORD, MALFORMED_COLUMN, RAW)
_T = TypeVar("_T")

# From the number of the first row in the source, and the number of rows, to a column of them.
Filler = Callable[[int, int], pa.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRows:
    """The form in which rows may be given.

    ``schema`` None: any columns.  ``fills`` are columns that the place adds to each row, if they
    are not given.  With a column ``text``, rows may be given as texts: ``text_schema`` is that of
    the place's rows then, and ``decoding`` their format.
    """

    schema: pa.Schema | None = None
    fills: Mapping[str, Filler] = field(default_factory=dict[str, Filler])
    decoding: TextDecoding | None = None
    text: str = ""
    text_schema: pa.Schema | None = None


def declared_rows(node: SourceNode, params: Mapping[str, str], spark: SparkSession) -> DeclaredRows:
    """The form of the source's rows; ConfigurationError when an option for it is wrong."""
    match node.spec:
        case Files() as files:
            return _of_files(placed(files, keeps=("format",)).open(params, None), spark)
        case Kafka() as kafka:
            return _of_kafka(placed(replace(kafka, start="earliest")).open({}, None), spark)
        case Nexmark() as nexmark:
            opened = replace(nexmark, events=0, events_per_second=1_000).open({}, None)
            return DeclaredRows(schema=_plain(opened.schema()))
        case _:
            return DeclaredRows()


def placed(spec: _T, *, keeps: tuple[str, ...] = ()) -> _T:
    """*spec* with parameters and secrets replaced by a stand-in, except for the fields *keeps*."""
    assert is_dataclass(spec)
    assert not isinstance(spec, type)
    changed = {
        one.name: _without_params(value)
        for one in fields(spec)
        if one.init and one.name not in keeps
        if (value := getattr(spec, one.name)) is not None
    }
    return replace(spec, **changed)


def _without_params(value: Any) -> Any:  # noqa: ANN401 - whatever a spec holds
    match value:
        case Param():
            return value.default or _PLACEHOLDER
        case Env():
            return _PLACEHOLDER
        case Mapping():
            return {name: _without_params(one) for name, one in value.items()}
        case tuple():
            return tuple(map(_without_params, value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return placed(value)
        case _:
            return value


def _of_files(source: Source, spark: SparkSession) -> DeclaredRows:
    from sluice.connectors.files.text_source import FilesSource

    if not isinstance(source, FilesSource):
        return DeclaredRows()
    fills: dict[str, Filler] = {
        "file": lambda _, count: pa.repeat(pa.scalar("rows"), count),
        "line_number": lambda first, count: pa.array(range(first + 1, first + count + 1)),
    }
    lines, how = _plain(source.schema()), source.decoding
    if how is None:
        return DeclaredRows(schema=lines, fills=fills, text="line", text_schema=lines)
    return DeclaredRows(
        schema=_held(how, spark),
        fills=fills,
        decoding=replace(how, has_header=False),
        text=how.column,
        text_schema=lines,
    )


def _of_kafka(source: Source, spark: SparkSession) -> DeclaredRows:
    from sluice.connectors.kafka.source import KafkaSource

    assert isinstance(source, KafkaSource)
    schema, how = _plain(source.schema()), source.decoding
    known: dict[str, Filler] = {
        "topic": lambda _, count: pa.repeat(pa.scalar(source.topics[0]), count),
        "partition": lambda _, count: pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": lambda first, count: pa.array(range(first, first + count), pa.int64()),
    }
    fills = {
        name: known.get(kind, _nulls(schema.field(name).type))
        for kind, name in source.columns.named()
    } | {
        one.name: lambda _, count: pa.repeat(pa.scalar(False), count)  # noqa: FBT003 - a value
        for one in source.values.kept()
    }
    if how is None:
        text = "value" if "value" in schema.names else ""
        return DeclaredRows(schema=schema, fills=fills, text=text, text_schema=schema)
    kept = [schema.field(name) for name in how.keeps]
    return DeclaredRows(
        schema=pa.schema([*_held(how, spark), *kept]),
        fills=fills,
        decoding=how,
        text=how.column,
        text_schema=schema,
    )


def _nulls(dtype: pa.DataType) -> Filler:
    return lambda _, count: pa.nulls(count, dtype)


def _held(how: TextDecoding, spark: SparkSession) -> pa.Schema:
    """The Arrow schema of the columns in a text."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return _plain(to_arrow_schema(spark.createDataFrame([], how.schema).schema, timezone="UTC"))


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            pa.field(column.name, as_spark_has_it(column.type))
            for column in schema
            if column.name not in _OURS
        ]
    )
