"""A value that a place can never hold is refused before it is staged, by its column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.declared import AvroValue
from sluice.connectors.staged_sink import StagedSink
from sluice.errors import ConfigurationError
from sluice.sinks import KafkaTopic, PostgresTable
from sluice.store.open import StoreLocation

DAY_10000 = pa.array([2_932_897], pa.int32()).cast(pa.date32())
SCHEMA = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})


def stage(sink: StagedSink, rows: pa.Table) -> object:
    return sink.stage(rows, checkpoint_id=1, subtask=0, attempt_token="1-a")  # noqa: S106


@pytest.mark.parametrize(
    ("column", "says"),
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
def test_what_postgresql_can_never_hold(column: pa.Array, says: str, tmp_path: Path) -> None:
    spec = PostgresTable("postgresql://nobody@127.0.0.1:9/none", "shop.orders")
    sink = spec.open("orders", {}, StoreLocation(root=f"file://{tmp_path}"))

    with pytest.raises(ConfigurationError, match=f"column 'c' .*{says}"):
        stage(sink, pa.table({"c": column}))
    assert [*sink.files.listed()] == []


def test_text_that_only_looks_like_it_is_fine(tmp_path: Path) -> None:
    spec = PostgresTable("postgresql://nobody@127.0.0.1:9/none", "shop.orders")
    sink = spec.open("orders", {}, StoreLocation(root=f"file://{tmp_path}"))

    assert stage(sink, pa.table({"c": [["\\u0000", "\\\\u0000"], None], "d": ["\\u0000", None]}))


@pytest.mark.parametrize(
    ("value", "column", "says"),
    [
        (
            AvroValue(SCHEMA),
            pa.array([1, None]),
            "a row does not fit the Avro schema of a Kafka sink",
        ),
        (AvroValue(SCHEMA), pa.array(["x"]), "a row does not fit the Avro schema of a Kafka sink"),
        ("json", DAY_10000, "column 'n' has times outside of the years 1 to 9999"),
    ],
    ids=["null", "text", "date"],
)
def test_what_makes_no_message(value: object, column: pa.Array, says: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {} if value == "json" else {"value": value}
    spec = KafkaTopic("127.0.0.1:9", "orders", **options)
    sink = spec.open("orders", {}, StoreLocation(root=f"file://{tmp_path}"))

    with pytest.raises(ConfigurationError, match=says):
        stage(sink, pa.table({"n": column}))
    assert [*sink.files.listed()] == []
