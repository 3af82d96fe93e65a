"""The note of what was published, and rows as messages."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from sluice.connectors.kafka.formats import unframed
from sluice.connectors.kafka.messages import AvroRow, ColumnBytes, JsonRow, MessageFormat
from sluice.connectors.kafka.sink import decoded_offset, encoded_offset
from sluice.core.timeline import Timeline
from sluice.errors import ConfigurationError, ProtocolViolation


@pytest.mark.parametrize(
    ("offset", "metadata", "words"),
    [
        (5, None, "is no note that this sluice"),
        (5, "theirs", r"is no note that this sluice .*'theirs'; give the sink a transactional_id"),
        (5, '{"v":1,"ids":"1-5","floor":0}', r"is no note .*\(format 2\) reads: .*--accept-tables"),
        (
            6,
            encoded_offset(Timeline(life="a", published=((1, 5),)))[1],
            "is 6, and its note says 5",
        ),
    ],
)
def test_what_is_no_note_is_refused(offset: int, metadata: str | None, words: str) -> None:
    with pytest.raises(ProtocolViolation, match=f"here {words}"):
        decoded_offset(offset, metadata, "here")


TABLE = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "text": ["ü", None],
        "raw": pa.array([b"\0", b"x"], pa.binary()),
        "at": pa.array([datetime(2026, 1, 1, 0, 0, 0, 1, UTC)] * 2, pa.timestamp("us", tz="UTC")),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(9, 2)),
        "weight": [float("nan"), 0.5],
        "tags": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())),
    }
)


@pytest.mark.parametrize("without", [(), ("tags",)], ids=["by Arrow", "by Polars"])
def test_json_has_every_column_in_a_form_that_is_documented(without: tuple[str, ...]) -> None:
    table = TABLE.drop_columns([*without])
    first, second = (json.loads(one or b"") for one in MessageFormat(JsonRow()).values(table))

    expected = {
        "id": 1,
        "text": "ü",
        "raw": base64.b64encode(b"\0").decode(),
        "at": "2026-01-01T00:00:00.000001Z",
        "price": "1.50",
        "weight": None,
        "tags": {"a": 1},
    }
    assert first == {name: one for name, one in expected.items() if name not in without}
    assert (second["text"], second["price"], second["weight"]) == (None, None, 0.5)


def messages(row: AvroRow, table: pa.Table) -> list[bytes]:
    made = MessageFormat(row).values(table)
    return [one for one in made if isinstance(one, bytes)]


def test_avro_is_framed_with_the_schemas_id() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "text", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "R", "fields": fields}
    table = TABLE.select(["id", "text"])
    plain = messages(AvroRow(json.dumps(schema)), table)
    framed = messages(AvroRow(json.dumps(schema), 42), table)

    assert [unframed(one) for one in framed] == [(42, one) for one in plain]
    read = [fastavro.schemaless_reader(io.BytesIO(one), schema) for one in plain]
    assert read == [{"id": 1, "text": "ü"}, {"id": 2, "text": None}]
    with pytest.raises(ConfigurationError, match="does not fit the Avro schema"):
        MessageFormat(AvroRow(json.dumps(schema))).values(TABLE.select(["text"]))


def test_keys_and_values_are_columns_of_text_bytes_or_whole_numbers() -> None:
    assert MessageFormat(ColumnBytes("raw"), key="id").keys(TABLE) == ["1", "2"]
    assert MessageFormat(ColumnBytes("raw")).values(TABLE) == [b"\0", b"x"]
    assert MessageFormat(ColumnBytes("text")).values(TABLE) == ["ü", None]
    with pytest.raises(ConfigurationError, match="column 'nope', but its rows have id, text"):
        MessageFormat(JsonRow(), key="nope").keys(TABLE)
    with pytest.raises(ConfigurationError, match=r"column 'price' .* is decimal128"):
        MessageFormat(JsonRow(), key="price").keys(TABLE)
