"""Columns: those that a stage was started for, their names, and their values.

Rows of other columns fail with the name of one.  A name that some layer would take for other
columns is refused.  A value that a place can never hold is refused before it is staged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.columns import check_announced, narrowed, narrowed_schema
from sluice.connectors.kafka.declared import AvroValue
from sluice.connectors.staged_sink import StagedSink
from sluice.core.answers import Attempt
from sluice.errors import ConfigurationError
from sluice.sinks import KafkaTopic, PostgresTable
from sluice.store.open import StoreLocation
from tests.builders import ATTEMPTED, PLANNED

BID = pa.struct([("price", pa.int64()), ("at", pa.int64()), ("name", pa.string())])
ANNOUNCED = pa.schema([("a", pa.int32()), ("b", pa.int32()), ("bid", BID), ("x.y", pa.int32())])


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            [("b", "int32"), ("a", "int32")],
            r"columns of t/0 were a, b, bid, x.y when .*, and are b, a, bid",
        ),
        (
            [("a", "int32"), ("c", "int32")],
            r"'b' of t/0 was int32 when .*, and is missing now",
        ),
        (
            [("a", "int64"), ("b", "int32")],
            r"column 'a' of t/0 was int32 when .*, and is int64 now",
        ),
        (
            [("a", "int32"), ("b", "int32"), ("c", "int32")],
            r"'c' of t/0 was missing when .*, and is int32",
        ),
        (
            [("a", "int32"), ("b", "int32"), ("b", "int32")],
            r"column 'b' of t/0 was int32 when .*, and is there twice",
        ),
    ],
)
def test_other_columns_are_refused_by_name(found: list[tuple[str, str]], sentence: str) -> None:
    rest = [ANNOUNCED.field(2), ANNOUNCED.field(3)]
    fields = [pa.field(name, pa.type_for_alias(kind)) for name, kind in found]

    with pytest.raises(ConfigurationError, match=sentence):
        check_announced(pa.schema([*fields, *rest]), ANNOUNCED, "t/0")


def test_the_same_columns_are_taken_and_what_is_read_of_them_is_known() -> None:
    check_announced(pa.schema([*ANNOUNCED]), ANNOUNCED, "t/0")

    some = narrowed_schema(ANNOUNCED, ["bid.name", "a", "bid.price"])

    bid = pa.struct([("price", pa.int64()), ("name", pa.string())])
    assert some == pa.schema([("a", pa.int32()), ("bid", bid)])
    assert narrowed_schema(ANNOUNCED, ["bid", "bid.price"]) == pa.schema([("bid", BID)])


DAY_10000 = pa.array([2_932_897], pa.int32()).cast(pa.date32())
POSTGRES = PostgresTable("postgresql://nobody@127.0.0.1:9/none", "shop.orders")
SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})


def opened(spec: PostgresTable | KafkaTopic, folder: Path) -> StagedSink:
    return spec.open("orders", {}, StoreLocation(root=f"file://{folder}"))


def stage(sink: StagedSink, rows: pa.Table) -> object:
    return sink.stage(
        rows, Attempt(checkpoint_id=1, subtask=0, checkpoint_token=PLANNED, attempt_token=ATTEMPTED)
    )


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        (pa.array(["a", "a\0b"]), r"text with the character U\+0000, which PostgreSQL cannot hold"),
        (pa.array(["a\0"]).dictionary_encode(), r"with the character U\+0000"),
        (pa.array([["a", "a\0b"]]), r"U\+0000, which PostgreSQL's json cannot hold"),
        (DAY_10000, "times outside of the years 1 to 9999"),
        (pa.array([2**63 - 1], pa.timestamp("us", "UTC")), "times outside of the years 1 to 9999"),
        (pa.array([1], pa.timestamp("ns")), "has nanoseconds, and PostgreSQL keeps microseconds"),
    ],
    ids=["text", "coded", "nested", "date", "never", "nanoseconds"],
)
def test_what_postgresql_can_never_hold(column: pa.Array, sentence: str, tmp_path: Path) -> None:
    sink = opened(POSTGRES, tmp_path)

    with pytest.raises(ConfigurationError, match=f"column 'c' .*{sentence}"):
        stage(sink, pa.table({"c": column}))
    assert [*sink.files.listed()] == []


def test_text_that_only_looks_like_it_is_fine(tmp_path: Path) -> None:
    sink = opened(POSTGRES, tmp_path)

    assert stage(sink, pa.table({"c": [["\\u0000", "\\\\u0000"], None], "d": ["\\u0000", None]}))


A_LIST = pa.array([[{"day": 10**8}]], pa.list_(pa.struct([("day", pa.date32())])))
A_MAP = pa.array([[("a", 10**8)]], pa.map_(pa.string(), pa.date32()))


@pytest.mark.parametrize(
    ("value", "column", "sentence"),
    [
        (AvroValue(SCHEMA), pa.array([1, None]), "a row does not fit the Avro schema of a Kafka"),
        (AvroValue(SCHEMA), pa.array(["x"]), "a row does not fit the Avro schema of a Kafka sink"),
        ("json", DAY_10000, "column 'n' has times outside of the years 1 to 9999"),
        ("json", A_LIST, "column 'n' has times outside of the years 1 to 9999"),
        ("json", A_MAP, "column 'n' has a value that JSON cannot hold"),
    ],
    ids=["null", "text", "date", "within a list", "within a map"],
)
def test_what_makes_no_message(
    value: object, column: pa.Array, sentence: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {} if value == "json" else {"value": value}
    sink = opened(KafkaTopic("127.0.0.1:9", "orders", **options), tmp_path)

    with pytest.raises(ConfigurationError, match=sentence):
        stage(sink, pa.table({"n": column}))
    assert [*sink.files.listed()] == []


WIDE = pa.RecordBatch.from_pylist(
    [{"a": 0, "s": None, "b": "w"}, {"a": 1, "s": {"x": 1, "y": "p"}, "b": "z"}, {"s": {"x": 2}}],
    pa.schema(
        [
            ("a", pa.int64()),
            ("s", pa.struct([("x", pa.int64()), ("y", pa.string())])),
            ("b", pa.string()),
        ]
    ),
)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["b"], [{"b": "w"}, {"b": "z"}, {"b": None}]),
        (["s.y", "a"], [
            {"a": 0, "s": None}, {"a": 1, "s": {"y": "p"}}, {"a": None, "s": {"y": None}},
        ]),
        (["s"], [{"s": None}, {"s": {"x": 1, "y": "p"}}, {"s": {"x": 2, "y": None}}]),
    ],
)  # fmt: skip
def test_what_nobody_asked_for_is_left_out(paths: list[str], expected: list[object]) -> None:
    wanted = narrowed_schema(WIDE.schema, paths)

    found = [narrowed(WIDE.slice(first), wanted) for first in (0, 1)]

    assert [batch.schema for batch in found] == [wanted, wanted]
    assert [batch.to_pylist() for batch in found] == [expected, expected[1:]]


def test_a_column_that_is_not_there_or_is_another_is_left_to_the_check() -> None:
    wanted = pa.schema([("a", pa.string()), ("c", pa.int64())])

    found = narrowed(WIDE, wanted)

    assert found.schema == pa.schema([("a", pa.int64())])
    with pytest.raises(
        ConfigurationError, match=r"column 'a' of p was string when .*, and is int64"
    ):
        check_announced(found.schema, wanted, "p")
