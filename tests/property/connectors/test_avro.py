"""A record of Avro has the same columns in a file and as a value of Kafka."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.connectors.avro import as_numbers
from sluice.connectors.files.avro import AvroSource
from sluice.connectors.kafka.formats import AvroValues
from sluice.connectors.kafka.messages import AvroRow, MessageFormat
from sluice.core.plan import Slice
from sluice.errors import ConfigurationError
from tests.examples import examples


@dataclass(frozen=True)
class Kind:
    """``values`` are as Avro has them: times are numbers."""

    schema: Any
    values: st.SearchStrategy[Any]


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def logical(kind: str, type_: str = "long", **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": kind, **more}


INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
DAYS = st.integers(-719_162, 2_932_896)  # The years that Python has, 1 to 9999.
SECONDS = st.integers(-62_135_596_800, 253_402_300_799)
NANOSECONDS = st.integers(-9_223_372_036, 9_223_372_036)  # What 64 bits hold, in seconds.
CENTS = st.decimals(-9_999_999, 9_999_999, places=2).map(Decimal.normalize)
UUIDS = st.uuids().map(str)
UNITS = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}


def times(unit: str) -> st.SearchStrategy[int]:
    seconds = NANOSECONDS if unit == "nanos" else SECONDS
    parts = st.integers(0, UNITS[unit] - 1)
    return st.builds(lambda second, part: second // 2 * UNITS[unit] + part, seconds, parts)


SIMPLE = [
    Kind("boolean", st.booleans()),
    Kind("int", INTS),
    Kind("long", LONGS),
    Kind("float", st.floats(width=32, allow_nan=False)),
    Kind("double", st.floats(allow_nan=False)),
    Kind("bytes", st.binary(max_size=4)),
    Kind("string", st.text(max_size=4)),
    Kind(logical("uuid", "string"), UUIDS),
    Kind(logical("date", "int"), DAYS),
    Kind(logical("decimal", "bytes", precision=9, scale=2), CENTS),
    Kind(logical("decimal", "bytes", precision=38), st.integers(-9, 9).map(Decimal)),
    Kind(logical("of another day", "string"), st.text(max_size=4)),
    Kind(logical("date", "string"), st.text(max_size=4)),  # Says nothing: Avro's rule.
    Kind(["int", "long"], INTS | LONGS),
    Kind(["int", "null", "long"], st.none() | LONGS),
    Kind(["float", "double"], st.floats(width=32, allow_nan=False)),
    *(
        Kind(logical(f"{local}timestamp-{unit}"), times(unit))
        for local in ("", "local-")
        for unit in UNITS
    ),
]


def named(numbers: Iterator[int]) -> st.SearchStrategy[Kind]:
    """Definitions, each with a name of its own."""

    def definition(type_: str) -> Kind:
        name = f"named{next(numbers)}"
        schema: dict[str, Any] = {"type": type_, "name": name}
        if type_ == "enum":
            return Kind(schema | {"symbols": ["A", "b"]}, st.sampled_from("Ab"))
        if type_ == "fixed":
            schema |= {"size": 3, "namespace": "of.tests"}
            return Kind(schema, st.binary(min_size=3, max_size=3))
        return Kind(logical("decimal", "fixed", name=name, size=8, precision=9, scale=2), CENTS)

    return st.sampled_from(["enum", "fixed", "decimal"]).map(definition)


def nested(numbers: Iterator[int], kinds: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def nullable(kind: Kind) -> Kind:
        if isinstance(kind.schema, list):
            return kind
        return Kind(["null", kind.schema], st.none() | kind.values)

    def an_array(kind: Kind) -> Kind:
        return Kind({"type": "array", "items": kind.schema}, st.lists(kind.values, max_size=3))

    def a_map(kind: Kind) -> Kind:
        values = st.dictionaries(st.text(max_size=2), kind.values, max_size=2)
        return Kind({"type": "map", "values": kind.schema}, values)

    def a_record(fields: list[Kind]) -> Kind:
        return record(f"record{next(numbers)}", fields)

    return st.one_of(
        kinds.map(nullable),
        kinds.map(an_array),
        kinds.map(a_map),
        st.lists(kinds, min_size=1, max_size=3).map(a_record),
    )


def record(name: str, fields: list[Kind]) -> Kind:
    schema = {
        "type": "record",
        "name": name,
        "fields": [field(f"f{n}", kind.schema) for n, kind in enumerate(fields)],
    }
    values = {f"f{n}": kind.values for n, kind in enumerate(fields)}
    return Kind(schema, st.fixed_dictionaries(values))


@st.composite
def records(draw: st.DrawFn) -> tuple[Any, list[dict[str, Any]]]:
    """A schema, and rows of it; a named type may be used again by its name."""
    numbers = count()
    simple = st.sampled_from(SIMPLE) | named(numbers)
    fields = draw(
        st.lists(
            st.recursive(simple, lambda kinds: nested(numbers, kinds), max_leaves=4),
            min_size=1,
            max_size=5,
        )
    )
    again = [
        Kind(kind.schema["name"], kind.values)
        for kind in fields
        if isinstance(kind.schema, dict) and kind.schema["type"] in {"enum", "record"}
    ]
    whole = record("row", [*fields, *again])
    return whole.schema, draw(st.lists(whole.values, min_size=1, max_size=4))


def as_file(folder: Path, schema: Any, rows: list[dict[str, Any]]) -> pa.Table:
    with (folder / "a").open("wb") as file:
        fastavro.writer(file, schema, rows)
    source = AvroSource(str(folder))
    piece = Slice(partition="a", start=0, end=len(rows), first_record=0, records=len(rows))
    return pa.Table.from_batches(source.read(piece), source.schema())


def as_messages(schema: Any, rows: list[dict[str, Any]]) -> list[bytes]:
    parsed = fastavro.parse_schema(as_numbers(schema), named_schemas={})
    messages = []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        messages.append(stream.getvalue())
    return messages


def read_messages(schema: Any, messages: list[bytes]) -> pa.Table:
    values = AvroValues(json.dumps(schema))
    decoded = values.decode(messages)
    assert decoded.malformed == {}
    return pa.table(decoded.columns[1:], schema=pa.schema(values.fields()))


@examples(80)
@given(drawn=records())
def test_a_record_is_the_same_row_in_a_file_as_in_a_message_and_when_it_is_written_again(
    drawn: tuple[Any, list[dict[str, Any]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    schema, rows = drawn
    folder = tmp_path_factory.mktemp("avro")

    file = as_file(folder, schema, rows)
    messages = read_messages(schema, as_messages(schema, rows))

    shutil.rmtree(folder)
    assert messages.schema == file.schema
    assert messages.equals(file), "values, and which of them are null"
    texts = MessageFormat(AvroRow(json.dumps(schema))).values(file)
    written = [message for message in texts if isinstance(message, bytes)]
    assert read_messages(schema, written).equals(file)


HEADER = {
    "type": "record",
    "name": "header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "four", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sixteen", "size": 16}},
    ],
}


def test_a_time_that_64_bits_of_nanoseconds_cannot_say_is_not_written() -> None:
    schema = {"type": "record", "name": "row", "fields": [field("at", logical("timestamp-nanos"))]}
    rows = pa.table({"at": pa.array([2**55], pa.timestamp("us", tz="UTC"))})

    with pytest.raises(ConfigurationError, match=r"does not fit the Avro schema .* column 'at'"):
        MessageFormat(AvroRow(json.dumps(schema))).values(rows)


def test_a_time_of_day_is_read_as_the_number_that_it_is_declared_as() -> None:
    time = logical("time-millis", "int")
    written = {"type": "record", "name": "row", "fields": [field("t", time)]}
    declared = {"type": "record", "name": "row", "fields": [field("t", "int")]}

    messages = as_messages(written, [{"t": 1}])

    assert read_messages(declared, messages).to_pylist() == [{"t": 1}]


REFUSED: dict[str, Any] = {
    "another union": ["int", "string"],
    "null alone": "null",
    "a time of day": logical("time-millis", "int"),
    "a finer time of day": logical("time-micros"),
    "a duration": logical("duration", "fixed", name="d", size=12),
    "a uuid as bytes": logical("uuid", "fixed", name="u", size=16),
    "39 digits": logical("decimal", "bytes", precision=39),
    "no digits": logical("decimal", "bytes", precision=0),
    "a record within itself": ["null", "row"],
    "a record without a field": {"type": "record", "name": "empty", "fields": []},
    "deep inside": {"type": "array", "items": {"type": "map", "values": logical("time-micros")}},
}


@pytest.mark.parametrize("kind", REFUSED.values(), ids=REFUSED)
def test_a_file_and_a_message_are_refused_with_the_same_words(kind: Any, tmp_path: Path) -> None:
    schema = {"type": "record", "name": "row", "fields": [field("x", kind)]}
    meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": b"null"}
    header = {"magic": b"Obj\x01", "meta": meta, "sync": bytes(16)}
    with (tmp_path / "a").open("wb") as file:  # A writer would refuse some of these schemas.
        fastavro.schemaless_writer(file, fastavro.parse_schema(HEADER), header)

    with pytest.raises(ConfigurationError) as of_file:
        AvroSource(str(tmp_path)).schema()
    with pytest.raises(ConfigurationError) as of_values:
        AvroValues(json.dumps(schema)).fields()

    words = str(of_file.value).replace(f"a of file://{tmp_path}", "the Avro schema of the values")
    assert str(of_values.value) == (
        f"{words}; or read the values with Raw() and decode them in a transform"
    )
