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
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.kafka.framing import unframed
from sluice.connectors.kafka.messages import AvroRow, ColumnBytes, JsonRow, MessageFormat
from sluice.connectors.kafka.note import Note, decoded
from sluice.errors import ConfigurationError, ProtocolViolation


def note_of(ids: list[int], floor: int = 0) -> Note:
    note = Note()
    for one in ids:
        note = note.with_checkpoint(one)
    return note.with_floor(floor)


@given(st.lists(st.integers(1, 400), unique=True).map(sorted), st.integers(0, 500))
def test_a_note_is_read_as_it_was_written(ids: list[int], floor: int) -> None:
    note = note_of(ids, floor)
    again = decoded(*note.encoded(), "here")

    assert again == note
    assert [*again.after(None)] == ids
    assert [*again.after(200)] == [one for one in ids if one > 200]
    assert all((one in again) is (one in ids) for one in range(402))


def test_checkpoints_in_a_row_take_no_room() -> None:
    assert note_of([*range(1, 5_000)]).encoded() == (4_999, '{"v":1,"ids":"1-4999","floor":0}')


def test_what_does_not_fit_into_a_brokers_limit_is_forgotten_oldest_first() -> None:
    ids = [*range(10_000, 14_000, 2)]
    offset, metadata = note_of(ids, 9).encoded()
    kept = [*decoded(offset, metadata, "here").after(None)]

    assert len(metadata) <= 4_096
    assert len(kept) > 500
    assert kept == ids[-len(kept) :]


@pytest.mark.parametrize(
    ("offset", "metadata"),
    [
        (5, None),
        (5, ""),
        (5, "theirs"),
        (5, '{"v":2,"ids":"5","floor":0}'),
        (5, '{"v":1,"ids":"4","floor":0}'),
        (5, '{"v":1,"ids":"3-5,4","floor":0}'),
        (5, '{"v":1,"ids":"x","floor":0}'),
    ],
)
def test_what_is_no_note_is_refused(offset: int, metadata: str | None) -> None:
    with pytest.raises(ProtocolViolation, match="here is "):
        decoded(offset, metadata, "here")


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
    first, second = (json.loads(one) for one in MessageFormat(JsonRow()).values(table))

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


def test_avro_is_framed_with_the_schemas_id() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "text", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "R", "fields": fields}
    table = TABLE.select(["id", "text"])
    plain = MessageFormat(AvroRow(json.dumps(schema))).values(table)
    framed = MessageFormat(AvroRow(json.dumps(schema), 42)).values(table)

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
