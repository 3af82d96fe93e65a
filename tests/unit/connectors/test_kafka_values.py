"""The rows of Kafka's values, and of those that cannot be decoded."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from sluice.connectors.kafka.formats import AvroValues, ProtobufValues, Registry, framed
from sluice.connectors.kafka.values import Decoded, JsonValues, MetadataColumns, RawValues, Values
from sluice.declaration.params import env
from sluice.errors import ConfigurationError, StoreUnavailable
from tests.patching import replace_in

REGISTRY_CLIENT = "confluent_kafka.schema_registry._sync.schema_registry_client"
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {
                            "name": "seen",
                            "type": {"type": "long", "logicalType": "timestamp-millis"},
                        },
                    ],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "second", "type": ["null", "Kind"], "default": None},
    ],
}
AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
A_ROW: dict[str, Any] = {
    "id": 7,
    "at": AT,
    "day": date(2026, 1, 2),
    "price": Decimal("12.50"),
    "note": None,
    "kind": "B",
    "lines": [{"sku": "ü", "seen": AT}],
    "tags": {"a": 1},
    "second": "A",
}
READ = A_ROW | {"tags": [("a", 1)]}


def avro(row: dict[str, Any], schema: dict[str, Any] = ORDER) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, named_schemas={}), row)
    return stream.getvalue()


def as_rows(values: Values, decoded: Decoded) -> list[dict[str, Any]]:
    fields = [*values.kept(), *values.fields()]
    assert [one.type for one in decoded.columns] == [field.type for field in fields]
    rows: list[dict[str, Any]] = pa.table(decoded.columns, schema=pa.schema(fields)).to_pylist()
    return rows


def nulls(values: Values) -> dict[str, Any]:
    return {field.name: None for field in values.fields()}


def test_an_avro_record_becomes_columns_and_what_is_none_keeps_its_row() -> None:
    values = AvroValues(json.dumps(ORDER))
    good = avro(A_ROW)

    decoded = values.decode([good, None, good[:-1], b"", good + b"\0", good])
    rows = as_rows(values, decoded)

    assert rows[0] == rows[5] == {"tombstone": False} | READ
    assert rows[1] == {"tombstone": True} | nulls(values)
    assert rows[2] == rows[3] == rows[4] == {"tombstone": False} | nulls(values)
    assert sorted(decoded.malformed) == [2, 3, 4]
    assert "1 bytes are left over" in decoded.malformed[4]
    times = [one.type for one in values.fields() if pa.types.is_timestamp(one.type)]
    assert times == [pa.timestamp("us", tz="UTC")]


@pytest.mark.parametrize(
    ("type_", "problem"),
    [
        (["int", "string"], "is a union of int, string, which no column can hold"),
        ("Unknown", "is Unknown, which has no column type here"),
        (["null", "shop.Order"], "'shop.Order' within itself"),
    ],
)
def test_an_avro_schema_that_no_column_can_hold_is_refused(type_: Any, problem: str) -> None:
    schema = ORDER | {"fields": [{"name": "x", "type": type_}]}
    with pytest.raises(ConfigurationError, match=problem):
        AvroValues(json.dumps(schema)).fields()


def test_an_avro_schema_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is no JSON"):
        AvroValues("{").fields()
    with pytest.raises(ConfigurationError, match="has rows of type 'string'"):
        AvroValues('"string"').fields()


class Handler(BaseHTTPRequestHandler):
    """The registry's GET /schemas/ids/{id}, which is all that is asked."""

    schemas: ClassVar[dict[str, str]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        wanted = "Basic " + base64.b64encode(b"reader:hush").decode()
        name = self.path.split("?")[0].removeprefix("/schemas/ids/")
        if self.headers.get("Authorization") != wanted:
            self._answer(401, {"error_code": 40101, "message": "no"})
        elif name == "503":
            self._answer(503, {"error_code": 50302, "message": "later"})
        elif name in self.schemas:
            self._answer(200, {"schema": self.schemas[name]})
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def registry_url() -> Iterator[str]:
    Handler.schemas, Handler.asked = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_each_value_is_read_with_its_writers_schema_from_the_registry(
    registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = ORDER | {"fields": [one for one in ORDER["fields"] if one["name"] != "note"]}
    Handler.schemas = {"1": json.dumps(older), "2": json.dumps(ORDER), "3": '"string"'}
    monkeypatch.setenv("REGISTRY_PASSWORD", "hush")
    registry = Registry(registry_url, "reader", env("REGISTRY_PASSWORD"))
    values = AvroValues(json.dumps(ORDER), registry)
    without_note = {name: value for name, value in A_ROW.items() if name != "note"}
    noted = framed(2, avro(A_ROW | {"note": "n"}))
    old = framed(1, avro(without_note, older))

    decoded = values.decode(
        [noted, old, framed(9, b""), b"\1plain", framed(3, b"\2a"), None, noted]
    )
    rows = as_rows(values, decoded)

    assert rows[0] == rows[6] == {"tombstone": False} | READ | {"note": "n"}
    assert rows[1] == {"tombstone": False} | READ
    assert "has no schema 9" in decoded.malformed[2]
    assert "not in the Schema Registry's wire format" in decoded.malformed[3]
    assert sorted(decoded.malformed) == [2, 3, 4]
    assert len(Handler.asked) == 4, "each schema is asked for once"


def test_a_registry_that_refuses_or_is_away_is_no_malformed_row(
    registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_in(monkeypatch, REGISTRY_CLIENT, "time", sleep=lambda _: None)  # Before it asks again.
    schema = json.dumps(ORDER)
    refused = AvroValues(schema, Registry(registry_url, "reader", "wrong-password"))
    with pytest.raises(ConfigurationError, match="answers 401 for schema 1") as caught:
        refused.decode([framed(1, b"")])
    assert "wrong-password" not in str(caught.value) + repr(refused)
    with pytest.raises(StoreUnavailable, match="answers 503"):
        AvroValues(schema, Registry(registry_url, "reader", "hush")).decode([framed(503, b"")])
    with pytest.raises(StoreUnavailable, match="did not answer"):
        AvroValues(schema, Registry("http://127.0.0.1:9")).decode([framed(1, b"")])


def descriptors() -> bytes:
    """What protoc writes of a file with a nested message, a map, an enum and an optional field."""
    of = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.enum_type.add(name="Kind").value.add(name="A", number=0)
    file.message_type.add(name="Other").field.add(
        name="x", number=1, type=of.TYPE_INT32, label=of.LABEL_OPTIONAL
    )
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=of.TYPE_INT32, label=of.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_note")
    one, many = of.LABEL_OPTIONAL, of.LABEL_REPEATED
    declared: list[tuple[str, int, int, dict[str, Any]]] = [
        ("id", of.TYPE_INT64, one, {}),
        ("note", of.TYPE_STRING, one, {"oneof_index": 0, "proto3_optional": True}),
        ("kind", of.TYPE_ENUM, one, {"type_name": ".shop.Kind"}),
        ("lines", of.TYPE_MESSAGE, many, {"type_name": ".shop.Order.Line"}),
        ("tags", of.TYPE_MESSAGE, many, {"type_name": ".shop.Order.TagsEntry"}),
        ("first", of.TYPE_MESSAGE, one, {"type_name": ".shop.Order.Line"}),
        ("big", of.TYPE_UINT64, one, {}),
        ("raw", of.TYPE_BYTES, one, {}),
    ]
    for number, (name, type_, label, rest) in enumerate(declared, start=1):
        order.field.add(name=name, number=number, type=type_, label=label, **rest)
    body: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return body


def test_a_protobuf_message_becomes_columns_and_what_is_none_keeps_its_row() -> None:
    values = ProtobufValues("shop.Order", descriptors())
    class_ = values.message_class()
    full = class_(id=-1, note="", kind=0, tags={"a": 1}, big=2**64 - 1, raw=b"\0")
    full.lines.add(sku="x")
    full.first.sku = "y"

    decoded = values.decode([full.SerializeToString(), b"", None, b"\xff"])
    rows = as_rows(values, decoded)

    assert rows[0] == {
        "tombstone": False,
        "id": -1,
        "note": "",
        "kind": "A",
        "lines": [{"sku": "x"}],
        "tags": [("a", 1)],
        "first": {"sku": "y"},
        "big": Decimal(2**64 - 1),
        "raw": b"\0",
    }
    assert rows[1] == {
        "tombstone": False,
        "id": 0,
        "note": None,
        "kind": "A",
        "lines": [],
        "tags": [],
        "first": None,
        "big": Decimal(0),
        "raw": b"",
    }
    assert rows[2] == {"tombstone": True} | nulls(values)
    assert list(decoded.malformed) == [3]


def test_framed_protobuf_names_the_message_by_its_place_in_the_file() -> None:
    values = ProtobufValues("shop.Order", descriptors(), framed=True)
    body = values.message_class()(id=5).SerializeToString()
    as_order = framed(1, b"\x02\x02" + body)  # One index, 1, as zigzag varints.
    as_other = framed(1, b"\0" + body)

    decoded = values.decode([as_order, as_other, body, framed(1, b"\x80")])

    assert [row["id"] for row in as_rows(values, decoded)] == [5, None, None, None]
    assert "is message [0] of its file, not [1]" in decoded.malformed[1]
    assert sorted(decoded.malformed) == [1, 2, 3]


def test_a_generated_protobuf_class_is_imported() -> None:
    values = ProtobufValues("google.protobuf.timestamp_pb2:Timestamp")
    assert [one.name for one in values.fields()] == ["seconds", "nanos"]
    with pytest.raises(ConfigurationError, match="cannot be imported"):
        ProtobufValues("no.such_pb2:Thing").fields()
    with pytest.raises(ConfigurationError, match="is no Protobuf class"):
        ProtobufValues("json:loads").fields()
    with pytest.raises(ConfigurationError, match="has no message"):
        ProtobufValues("shop.Nothing", descriptors()).fields()


def test_json_is_text_for_spark_where_a_tombstone_is_an_object_without_fields() -> None:
    values = JsonValues("id bigint")
    decoded = values.decode([b'{"id": 1}', None, b'{"id": "\xff"}'])

    assert [row["tombstone"] for row in as_rows(values, decoded)] == [False, True, False]
    texts = [row["value"] for row in as_rows(values, decoded)]
    assert texts[:2] == ['{"id": 1}', "{}"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(texts[2])


def test_text_that_is_none_keeps_its_row() -> None:
    values = RawValues(as_text=True)
    decoded = values.decode([b"ok", b"\xff", None])
    assert as_rows(values, decoded) == [{"value": "ok"}, {"value": None}, {"value": None}]
    assert decoded.malformed == {1: "the value is not UTF-8"}


def test_a_value_with_a_column_of_kafkas_name_is_refused_until_one_is_renamed() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "offset", "type": "int"}]}
    values = AvroValues(json.dumps(schema))
    with pytest.raises(ConfigurationError, match=r'columns=\("offset as kafka_offset",\)'):
        MetadataColumns(("offset",)).schema(values)
    names = MetadataColumns(("offset as kafka_offset",)).schema(values).names
    assert names == ["kafka_offset", "tombstone", "offset", "_malformed", "_raw", "_record"]
