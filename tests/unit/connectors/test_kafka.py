"""Kafka without a broker: declarations, values as rows and rows as messages, and the note.

A declaration refuses what is wrong and shows no password.  A record with a value that cannot be
decoded, or that its column cannot hold, is malformed, and does not stop the job.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from sluice.connectors.kafka.cluster import Cluster
from sluice.connectors.kafka.declared import (
    Avro,
    Json,
    Kafka,
    KafkaTopic,
    Protobuf,
    Raw,
    SchemaRegistry,
)
from sluice.connectors.kafka.formats import AvroValues, ProtobufValues, Registry, framed, unframed
from sluice.connectors.kafka.messages import AvroRow, ColumnBytes, JsonRow, MessageFormat
from sluice.connectors.kafka.sink import decoded_offset, encoded_offset
from sluice.connectors.kafka.values import Decoded, JsonValues, MetadataColumns, RawValues, Values
from sluice.connectors.staged_sink import Note
from sluice.core.timeline import Timeline
from sluice.declaration.change_events import Debezium
from sluice.declaration.params import Env, Param, env, param
from sluice.declaration.places import TextDecoding
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable
from sluice.store.open import StoreLocation
from tests.contract.s3_stub import served
from tests.patching import replace_in

HERE = "127.0.0.1:9092"
ROOT = StoreLocation(root="memory://kafka-spec")


def test_a_declaration_travels_and_resolves_its_parameters() -> None:
    registry = SchemaRegistry(param("registry"), password=env("NO_SUCH"))
    spec = Kafka(
        param("kafka"), param("topics"), Avro("{}", registry), config={"client.id": param("me")}
    )
    assert [one.name for one in spec.params] == ["kafka", "topics", "me", "registry"]
    given = {"kafka": HERE, "topics": "a, b", "registry": "http://r", "me": "x"}
    source: Any = pickle.loads(pickle.dumps(spec)).open(given, None)  # noqa: S301

    assert Kafka(HERE, "t").value == Raw()
    assert source.topics == ("a", "b")
    assert source.cluster == Cluster(HERE, (("client.id", "x"),))
    assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301


def test_json_is_decoded_by_spark_beside_what_kafka_says() -> None:
    source = Kafka(HERE, "t", Json("id bigint"), columns=("key", "offset as o")).open({}, None)
    assert source.decoding == TextDecoding(
        format="json", schema="id bigint", column="value", keeps=("key", "o", "tombstone")
    )
    assert source.schema().names == ["key", "o", "tombstone", "value", "_record"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"start": "first"}, "start is 'first'; use 'earliest'"),
        ({"start": {"u/0": 1}}, "start= names partition 'u/0'; partitions of t are called \"t/0\""),
        ({"on_expired": "ignore"}, "use 'fail' or 'skip'"),
        ({"key": "json"}, "use 'binary' or 'string'"),
        ({"columns": ("offsets",)}, "columns= names 'offsets'"),
        ({"topics": ()}, "name each topic once"),
        ({"topics": "t,t"}, "name each topic once"),
        ({"bootstrap_servers": ""}, "bootstrap_servers is empty"),
        ({"config": {"group.id": "g"}}, "'group.id' is set by sluice"),
        ({"config": {"isolation.level": "read_uncommitted"}}, "is set by sluice"),
        ({"value": Json(" ")}, "needs a schema"),
        ({"value": Protobuf("M", descriptors="/no/such")}, "cannot be read: No such file"),
    ],
)
def test_what_a_person_got_wrong_is_named(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Kafka(**{"bootstrap_servers": HERE, "topics": "t", **options}).open({}, None)
    assert problem in str(caught.value)


def test_a_property_that_librdkafka_does_not_know_is_named() -> None:
    source: Any = Kafka(HERE, "t", config={"fetch.speed": "high"}).open({}, None)
    with pytest.raises(ConfigurationError, match=r'No such configuration property: "fetch\.speed"'):
        source.readable()


def test_no_password_is_shown(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "hush-hush")
    config: dict[str, str | Param | Env] = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "hush-hush",
        "sasl.username": "me",
        "sasl.password": env("KAFKA_PASSWORD"),
        "ssl.key.password": "open-secret",
    }
    spec = Kafka(HERE, "t", config=config, timeout_s=0.2)
    source: Any = spec.open({}, None)
    with pytest.raises(ConfigurationError) as caught:
        source.readable()

    shown = f"{caught.value} {spec!r} {source!r} {KafkaTopic(HERE, 't', config=config)!r}"
    assert "hush-hush" not in shown + caplog.text
    assert "open-secret" not in shown
    assert b"hush-hush" not in pickle.dumps(source).replace(
        b"sasl.mechanism\x94\x8c\thush-hush", b""
    )


def test_a_topic_has_one_transactional_id_whichever_job_writes_it() -> None:
    def name(uid: str, root: str, **options: Any) -> str:
        sink: Any = KafkaTopic(HERE, "t", **options).open(uid, {}, StoreLocation(root=root))
        group: str = sink.target.topic.group
        return group

    assert name("alerts", "memory://shop/a") == "sluice-t"
    assert name("other", "memory://shop/b") == "sluice-t"
    assert name("alerts", "memory://shop/a", transactional_id="mine") == "mine"


def test_a_sink_that_upserts_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs key="):
        KafkaTopic(HERE, "t", upsert=True)
    assert KafkaTopic(HERE, "t", key="id", upsert=True).upsert_key == ("id",)
    assert KafkaTopic(HERE, "t", key="id").upsert_key == ()
    with pytest.raises(ConfigurationError, match="topic= of the Kafka sink 'alerts' is empty"):
        KafkaTopic(HERE, param("t", required=False)).open("alerts", {}, ROOT)


@pytest.mark.parametrize(
    ("schema", "columns", "words"),
    [
        ("n int, Key string", ("key",), "the values have a column 'key', and so has Kafka"),
        ("n int, tombstone string", (), "the values have a column 'tombstone'"),
        ("n int, `_Malformed` string", (), "has a column '_Malformed', a name that sluice gives"),
        ("n int", ("key as _raw",), "has a column '_raw', a name that sluice gives"),
    ],
)
def test_json_with_a_name_that_is_taken_is_refused(
    schema: str, columns: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Kafka("h:9092", "t", Json(schema), columns=columns).open({}, None)


REGISTRY_CLIENT = "confluent_kafka.schema_registry._sync.schema_registry_client"
LINE = {
    "type": "record",
    "name": "Line",
    "fields": [
        {"name": "sku", "type": "string"},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
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
        {"name": "lines", "type": {"type": "array", "items": LINE}},
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


def record_of(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [*fields]}


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


def test_an_avro_record_becomes_columns_and_what_is_no_avro_keeps_its_row() -> None:
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
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 40},
            "'x' of the .* is a decimal of 40 digits",
        ),
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
    """The registry's GET /schemas/ids/{id}, the only request that is made."""

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
    with served(Handler) as url:
        yield url


@pytest.mark.parametrize("is_nested", [False, True], ids=["alone", "in a list of records"])
def test_a_time_of_another_unit_than_the_declared_one_makes_a_malformed_row(
    is_nested: bool, registry_url: str
) -> None:
    def of_unit(unit: str) -> dict[str, Any]:
        at = {"name": "at", "type": ["null", {"type": "long", "logicalType": f"timestamp-{unit}"}]}
        if not is_nested:
            return record_of(at)
        item = {"type": "record", "name": "I", "fields": [at]}
        return record_of({"name": "items", "type": {"type": "array", "items": item}})

    Handler.schemas = {"1": json.dumps(of_unit("millis")), "2": json.dumps(of_unit("micros"))}
    row: dict[str, Any] = {"items": [{"at": AT}]} if is_nested else {"at": AT}
    values = AvroValues(json.dumps(of_unit("micros")), Registry(registry_url, "reader", "hush"))

    written = {1: "millis", 2: "micros"}
    decoded = values.decode([framed(id_, avro(row, of_unit(it))) for id_, it in written.items()])

    assert [*decoded.malformed] == [0]
    assert "was written with times of another unit" in decoded.malformed[0]
    assert decoded.columns[1].to_pylist() == [None, [{"at": AT}] if is_nested else AT]


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


def test_debeziums_envelopes_are_read_with_the_schema_that_its_declaration_makes(
    registry_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's schema is as Kafka Connect makes it of a table, with fields nobody declared."""
    monkeypatch.setenv("REGISTRY_PASSWORD", "hush")
    digits = {"scale": 2, "precision": 12, "connect.version": 1, "logicalType": "decimal"}
    value = {
        "type": "record", "name": "Value", "connect.name": "shop.public.customers.Value",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "size", "type": {"type": "int", "connect.type": "int16"}},
            {"name": "email", "type": ["null", "string"], "default": None},
            {"name": "amount", "type": ["null", {"type": "bytes", **digits}], "default": None},
            {"name": "unread", "type": ["null", "bytes"], "default": None},
        ],
    }  # fmt: skip
    source = {
        "type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql",
        "fields": [
            {"name": "version", "type": "string"},
            {"name": "snapshot", "type": ["string", "null"], "default": "false"},
            {"name": "lsn", "type": ["null", "long"], "default": None},
        ],
    }  # fmt: skip
    envelope = {
        "type": "record", "name": "Envelope", "namespace": "shop.public.customers",
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
    }  # fmt: skip
    Handler.schemas = {"7": json.dumps(envelope)}
    columns = {"id": "bigint", "size": "int", "email": "string", "amount": "decimal(12, 2)"}
    changes = Debezium(columns, key=("id",), payload=False)
    values = AvroValues(changes.avro, Registry(registry_url, "reader", env("REGISTRY_PASSWORD")))
    row = {"id": 1, "size": 3, "email": None, "amount": Decimal("1.50")}
    at = {"version": "3.6.1.Final", "snapshot": "false", "lsn": 2**40}
    changed = {"before": row, "after": row | {"unread": b"x"}, "source": at, "op": "u"}
    deleted = {"before": row, "after": None, "source": at, "op": "d", "ts_ms": 1}

    sent = [framed(7, avro(one, envelope)) for one in (changed, deleted)]
    decoded = values.decode([*sent, None])

    assert not decoded.malformed
    named = [*values.kept(), *values.fields()]
    found = pa.Table.from_arrays(decoded.columns, [one.name for one in named]).to_pylist()
    known = {"tombstone": False, "before": row, "source": {"lsn": 2**40}}
    assert found[:2] == [
        known | {"after": row, "op": "u"}, known | {"after": None, "op": "d"}
    ]  # fmt: skip
    assert found[2] == {"tombstone": True} | dict.fromkeys(("before", "after", "op", "source"))
    with pytest.raises(ConfigurationError, match="a smallint as int, a date as int"):
        _ = Debezium({"id": "bigint", "on": "date"}, key=("id",)).avro


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
    """What protoc writes of a file with a nested message, a map, an enum, an optional field and a
    time.
    """
    of = descriptor_pb2.FieldDescriptorProto
    imported = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(imported)
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=[imported.name]
    )
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
    timed = file.message_type.add(name="Timed").field
    time = {"type": of.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"}
    timed.add(name="at", number=1, label=one, **time)
    timed.add(name="n", number=2, type=of.TYPE_INT64, label=one)
    body: bytes = descriptor_pb2.FileDescriptorSet(file=[imported, file]).SerializeToString()
    return body


def test_a_protobuf_message_becomes_columns_and_what_is_no_protobuf_keeps_its_row() -> None:
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


def test_a_value_that_is_no_text_keeps_its_row() -> None:
    values = RawValues(as_text=True)
    decoded = values.decode([b"ok", b"\xff", None])
    assert as_rows(values, decoded) == [{"value": "ok"}, {"value": None}, {"value": None}]
    assert decoded.malformed == {1: "the value is not UTF-8"}


def test_a_value_with_a_column_of_kafkas_name_is_refused_until_one_is_renamed() -> None:
    values = AvroValues(json.dumps(record_of({"name": "offset", "type": "int"})))
    with pytest.raises(ConfigurationError, match=r'columns=\("offset as kafka_offset",\)'):
        MetadataColumns(("offset",)).schema(values)
    names = MetadataColumns(("offset as kafka_offset",)).schema(values).names
    assert names == ["kafka_offset", "tombstone", "offset", "_malformed", "_raw", "_record"]


NEVER = 2**63 - 1


def avro_of_sentinels(kind: str, at: int) -> tuple[AvroValues, Decoded]:
    """Two records: the first moment, and *at*."""
    written = record_of({"name": "at", "type": "long"})
    declared = record_of({"name": "at", "type": {"type": "long", "logicalType": kind}})
    values = AvroValues(json.dumps(declared))
    return values, values.decode([avro({"at": moment}, written) for moment in (0, at)])


@pytest.mark.parametrize("at", [NEVER, -(2**63), NEVER // 1000 + 1])
@pytest.mark.parametrize("kind", ["timestamp-millis", "local-timestamp-millis"])
def test_an_avro_time_that_is_no_moment_makes_its_record_malformed_alone(
    kind: str, at: int
) -> None:
    values, decoded = avro_of_sentinels(kind, at)

    assert list(decoded.malformed) == [1]
    assert "would result in out of bounds timestamp" in decoded.malformed[1]
    first, second = as_rows(values, decoded)
    assert first["at"].year == 1970
    assert second["at"] is None


def test_an_avro_time_of_the_year_30000_is_kept() -> None:
    values, decoded = avro_of_sentinels("timestamp-millis", 884_541_600_000_000)

    assert decoded.malformed == {}
    assert decoded.columns[1].cast("int64").to_pylist() == [0, 884_541_600_000_000_000]
    assert values.fields()[0].name == "at"


@pytest.mark.parametrize("seconds", [2**62, 10**15, -(2**62)])
def test_a_protobuf_time_that_is_no_moment_makes_its_record_malformed_alone(seconds: int) -> None:
    values = ProtobufValues("shop.Timed", descriptors())
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


@pytest.mark.parametrize(
    ("offset", "metadata", "words"),
    [
        (5, None, "is no note that this sluice"),
        (5, "theirs", r"is no note that this sluice .*'theirs'; give the sink a transactional_id"),
        (5, '{"v":1,"ids":"1-5","floor":0}', r"is no note .*\(format 3\) reads: .*--accept-tables"),
        (
            6,
            encoded_offset(Note(timeline=Timeline(life="a", published=((1, 5),))))[1],
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
        "weight": "NaN",
        "tags": {"a": 1},
    }
    assert first == {name: one for name, one in expected.items() if name not in without}
    assert (second["text"], second["price"], second["weight"]) == (None, None, 0.5)


def messages(row: AvroRow, table: pa.Table) -> list[bytes]:
    return [value for value in MessageFormat(row).values(table) if isinstance(value, bytes)]


def test_avro_is_framed_with_the_schemas_id() -> None:
    schema = record_of({"name": "id", "type": "long"}, {"name": "text", "type": ["null", "string"]})
    table = TABLE.select(["id", "text"])
    plain = messages(AvroRow(json.dumps(schema)), table)
    framed = messages(AvroRow(json.dumps(schema), 42), table)

    assert [unframed(one) for one in framed] == [(42, one) for one in plain]
    read = [fastavro.schemaless_reader(io.BytesIO(one), schema) for one in plain]
    assert read == [{"id": 1, "text": "ü"}, {"id": 2, "text": None}]
    with pytest.raises(ConfigurationError, match="does not fit the Avro schema"):
        MessageFormat(AvroRow(json.dumps(schema))).values(TABLE.select(["text"]))


def of_avro(kind: object, column: pa.Array) -> list[object]:
    """The values that a reader has of a *column*, written as a field of that *kind*."""
    schema = record_of({"name": "c", "type": kind})
    written = messages(AvroRow(json.dumps(schema)), pa.table({"c": column}))
    read: list[Any] = [fastavro.schemaless_reader(io.BytesIO(one), schema) for one in written]
    return [one["c"] for one in read]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("int", pa.array([2**31])),
        ({"type": "array", "items": "int"}, pa.array([[2**31]])),
        ({"type": "map", "values": "int"}, pa.array([[("a", 2**31)]], pa.map_("string", "int64"))),
        (record_of({"name": "n", "type": "int"}), pa.array([{"n": 2**31}])),
        ("long", pa.array([1.5])),
        ("long", pa.array([Decimal("1.5")])),
        ("double", pa.array([2**53 + 1])),
        ("double", pa.array([Decimal("0.1")])),
        (["null", "float"], pa.array([0.1])),
        ("boolean", pa.array([5])),
        ({"type": "int", "logicalType": "date"}, pa.array([AT])),
    ],
)
def test_a_value_that_would_be_another_in_avro_is_refused(kind: object, column: pa.Array) -> None:
    with pytest.raises(ConfigurationError, match=r"does not fit the Avro schema .* column 'c': "):
        of_avro(kind, column)


def test_a_value_that_avro_has_is_the_same_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    at = {"type": "long", "logicalType": "timestamp-micros"}
    there = pa.array([AT.replace(tzinfo=None)], pa.timestamp("us"))
    try:
        assert of_avro(at, there) == [AT], "whatever the machine's time zone is"
    finally:
        monkeypatch.undo()
        time.tzset()
    assert of_avro({"type": "array", "items": at}, pa.array([[AT]])) == [[AT]]
    assert of_avro("boolean", pa.array(["false"])) == [False]
    assert of_avro("int", pa.array([2**31 - 1])) == [2**31 - 1]


@pytest.mark.parametrize("row", [AvroRow(json.dumps(record_of())), JsonRow()])
def test_rows_whose_columns_are_all_headers_are_messages_all_the_same(
    row: AvroRow | JsonRow,
) -> None:
    format_ = MessageFormat(row, headers=("id", "text"))

    assert len(format_.values(TABLE.select(["id", "text"]))) == TABLE.num_rows


def test_keys_and_values_are_columns_of_text_bytes_or_whole_numbers() -> None:
    assert MessageFormat(ColumnBytes("raw"), key="id").keys(TABLE) == ["1", "2"]
    assert MessageFormat(ColumnBytes("raw")).values(TABLE) == [b"\0", b"x"]
    assert MessageFormat(ColumnBytes("text")).values(TABLE) == ["ü", None]
    with pytest.raises(ConfigurationError, match="column 'nope', but its rows have id, text"):
        MessageFormat(JsonRow(), key="nope").keys(TABLE)
    with pytest.raises(ConfigurationError, match=r"column 'price' .* is decimal128"):
        MessageFormat(JsonRow(), key="price").keys(TABLE)
