"""A record with a value that its column cannot hold is malformed, and does not stop the job."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from google.protobuf import timestamp_pb2

from sluice.connectors.kafka.formats import AvroValues, ProtobufValues
from sluice.connectors.kafka.values import Decoded, Values
from sluice.errors import ConfigurationError
from tests.unit.connectors.test_kafka_values import as_rows

NEVER = 2**63 - 1


def avro(kind: str, at: int) -> tuple[AvroValues, Decoded]:
    """Two records: the first moment, and *at*."""
    written = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
    declared = {
        **written,
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": kind}}],
    }
    values = AvroValues(json.dumps(declared))
    return values, values.decode([_encoded(written, {"at": one}) for one in (0, at)])


def _encoded(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


@pytest.mark.parametrize("at", [NEVER, -(2**63), NEVER // 1000 + 1])
@pytest.mark.parametrize("kind", ["timestamp-millis", "local-timestamp-millis"])
def test_an_avro_time_that_is_no_moment_makes_its_record_malformed_alone(
    kind: str, at: int
) -> None:
    values, decoded = avro(kind, at)

    assert list(decoded.malformed) == [1]
    assert "would result in out of bounds timestamp" in decoded.malformed[1]
    first, second = as_rows(values, decoded)
    assert first["at"].year == 1970
    assert second["at"] is None


def test_an_avro_time_of_the_year_30000_is_kept() -> None:
    values, decoded = avro("timestamp-millis", 884_541_600_000_000)

    assert decoded.malformed == {}
    assert decoded.columns[1].cast("int64").to_pylist() == [0, 884_541_600_000_000_000]
    assert values.fields()[0].name == "at"


@pytest.mark.parametrize("seconds", [2**62, 10**15, -(2**62)])
def test_a_protobuf_time_that_is_no_moment_makes_its_record_malformed_alone(seconds: int) -> None:
    values = ProtobufValues("shop.Timed", _timed_descriptors())
    class_ = values.message_class()
    messages = [class_(n=7), class_(n=8)]
    messages[0].at.seconds = 1
    messages[1].at.seconds = seconds

    decoded = values.decode([*(one.SerializeToString() for one in messages), None])

    assert list(decoded.malformed) == [1]
    assert decoded.malformed[1].startswith("no column can hold it: ")
    rows = as_rows(values, decoded)
    assert [row["n"] for row in rows] == [7, None, None]
    assert [row["tombstone"] for row in rows] == [False, False, True]


def _timed_descriptors() -> bytes:
    from google.protobuf import descriptor_pb2

    of = descriptor_pb2.FieldDescriptorProto
    given = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(given)
    file = descriptor_pb2.FileDescriptorProto(
        name="timed.proto", package="shop", syntax="proto3", dependency=[given.name]
    )
    fields = file.message_type.add(name="Timed").field
    fields.add(
        name="at",
        number=1,
        type=of.TYPE_MESSAGE,
        label=of.LABEL_OPTIONAL,
        type_name=".google.protobuf.Timestamp",
    )
    fields.add(name="n", number=2, type=of.TYPE_INT64, label=of.LABEL_OPTIONAL)
    body: bytes = descriptor_pb2.FileDescriptorSet(file=[given, file]).SerializeToString()
    return body


def test_a_decimal_of_more_digits_than_a_column_holds_is_refused_by_name() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 40}}
        ],
    }
    values: Values = AvroValues(json.dumps(schema))

    with pytest.raises(ConfigurationError, match=r"'d' of the .* is a decimal of 40 digits"):
        values.fields()
