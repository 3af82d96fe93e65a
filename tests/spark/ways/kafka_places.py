"""Topics of Kafka, with values of each format."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from confluent_kafka import Producer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from harness.kafka_broker import Broker
from sluice.connectors.avro import as_numbers
from sluice.connectors.kafka.declared import Avro, Json, Kafka, Protobuf, Raw
from tests.spark.ways import kinds as of
from tests.spark.ways.arrow_places import HOSTILE, LISTS, MAPS
from tests.spark.ways.kinds import Choices, Kind, Kinds

TOPIC = "Select.from-where_" + "x" * 200
WORDS = ("select", "Upper", "_1", "true", "NULL", "x" * 200, "end", "default", "offset_")


def logical(kind: str, type_: str = "long", **more: Any) -> dict[str, Any]:
    return {"type": type_, "logicalType": kind, **more}


def struct_of(name: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": "at", "type": ["null", logical("timestamp-millis")]},
            {"name": "tags", "type": ["null", {"type": "map", "values": "bytes"}]},
        ],
    }


MILLIS = (-62_135_596_800_000, -12_219_292_800_001, -1, 0, 253_402_300_799_999)
AT_AND_TAGS = pa.struct([("at", of.UTC), ("tags", pa.map_(pa.string(), pa.binary()))])
STRUCTS: tuple[Any, ...] = (
    {"at": -1, "tags": {}},
    {"at": None, "tags": None},
    {"at": 1, "tags": {"ü": b"\0"}},
)
READ_STRUCTS: tuple[Any, ...] = (
    {"at": -1_000, "tags": []},
    {"at": None, "tags": None},
    {"at": 1_000, "tags": [("ü", b"\0")]},
)  # fmt: skip
AVRO: dict[str, Kind] = {
    "int": Kind("int", pa.int32(), of.INTS),
    "long": Kind("long", pa.int64(), of.LONGS),
    "float": Kind("float", pa.float32(), of.FLOATS),
    "double": Kind("double", pa.float64(), of.DOUBLES),
    "truth": Kind("boolean", pa.bool_(), (True, False)),
    "text": Kind("string", pa.string(), of.WITH_NUL),
    "bytes": Kind("bytes", pa.binary(), of.BYTES),
    "fixed": Kind({"type": "fixed", "name": "f4", "size": 4}, pa.binary(), (b"\0" * 4, b"abcd")),
    "enum": Kind({"type": "enum", "name": "e", "symbols": ["A", "b"]}, pa.string(), ("A", "b")),
    "uuid": Kind(logical("uuid", "string"), pa.string(), ("00000000-0000-0000-0000-000000000000",)),
    "day": Kind(logical("date", "int"), pa.date32(), of.ALL_DAYS),
    "millis": Kind(
        logical("timestamp-millis"), of.UTC, MILLIS, tuple(1_000 * one for one in MILLIS)
    ),
    "micros": Kind(logical("timestamp-micros"), of.UTC, of.ALL_MICROS),
    "local": Kind(logical("local-timestamp-micros"), of.UTC, of.ALL_MICROS),
    "decimal": Kind(logical("decimal", "bytes", precision=38, scale=10), of.DECIMAL, of.DECIMALS),
    "wide": Kind(
        logical("decimal", "fixed", name="f16", size=16, precision=38, scale=0),
        pa.decimal128(38, 0),
        of.WIDE,
    ),
    "list": Kind({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32()), LISTS),
    "map": Kind(
        {"type": "map", "values": ["null", "long"]},
        pa.map_(pa.string(), pa.int64()),
        tuple(dict(one) for one in MAPS),
        MAPS,
    ),
    "struct": Kind(struct_of("s1"), AT_AND_TAGS, STRUCTS, READ_STRUCTS),
    "structs": Kind(
        {"type": "array", "items": ["null", struct_of("s2")]},
        pa.list_(AT_AND_TAGS),
        ([], [None, *STRUCTS]),
        ([], [None, *READ_STRUCTS]),
    ),
}  # fmt: skip


class Topic:
    partitions = 2

    def __init__(self, broker: Broker, topic: str = TOPIC) -> None:
        self.broker = broker
        self.topic = topic

    def source(self, value: Any, *columns: str, **how: Any) -> Kafka:
        self.broker.topics.pop(self.topic, None)
        self.broker.grow(self.topic, self.partitions)
        return Kafka(self.broker.servers, self.topic, value, columns=columns, **how)

    def send(self, values: Iterator[tuple[int, bytes | None]]) -> None:
        producer = Producer({"bootstrap.servers": self.broker.servers, "linger.ms": 0})
        for row, value in values:
            producer.produce(self.topic, value, partition=row % self.partitions)
        assert producer.flush(60) == 0
        producer.close()


class AvroTopic(Topic):
    names = WORDS
    kinds = AVRO

    def create(self, kinds: Kinds) -> Kafka:
        return self.source(Avro(json.dumps(_avro_schema(kinds))))

    def append(self, kinds: Kinds, choices: Choices, rows: range) -> None:
        schema = fastavro.parse_schema(as_numbers(_avro_schema(kinds)), named_schemas={})
        self.send((row, _avro(schema, _record(kinds, choices, row))) for row in rows)


def _avro_schema(kinds: Kinds) -> dict[str, Any]:
    fields = [{"name": name, "type": ["null", kind.declared]} for name, kind in kinds.items()]
    return {"type": "record", "name": "row", "fields": [{"name": "n", "type": "long"}, *fields]}


def _record(kinds: Kinds, choices: Choices, row: int) -> dict[str, Any]:
    return {"n": row} | {name: kind.written(choices[name][row]) for name, kind in kinds.items()}


def _avro(schema: Any, record: dict[str, Any]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, schema, record)
    return body.getvalue()


JSON: dict[str, Kind] = {
    "int": Kind("int", pa.int32(), of.INTS),
    "long": Kind("bigint", pa.int64(), of.LONGS),
    "double": Kind("double", pa.float64(), of.DOUBLES),
    "truth": Kind("boolean", pa.bool_(), (True, False)),
    "decimal": Kind("decimal(38, 10)", of.DECIMAL, of.DECIMALS),
    "text": Kind("string", pa.string(), of.WITH_NUL),
    "bytes": Kind("binary", pa.binary(), of.BYTES),
    "day": Kind("date", pa.date32(), of.DAYS),
    "at": Kind("timestamp", of.UTC, of.MICROS),
    "list": Kind("array<int>", pa.list_(pa.int32()), LISTS),
    "map": Kind(
        "map<string, bigint>",
        pa.map_(pa.string(), pa.int64()),
        tuple(dict(one) for one in MAPS),
        MAPS,
    ),
    "struct": Kind(
        "struct<`a b`: int, list: array<struct<real: double>>>",
        pa.struct([("a b", pa.int32()), ("list", pa.list_(pa.struct([("real", pa.float64())])))]),
        ({"a b": 1, "list": []}, {"a b": None, "list": [None, {"real": -0.0}]}),
    ),
}


class JsonTopic(Topic):
    names = HOSTILE
    kinds = JSON

    def create(self, kinds: Kinds) -> Kafka:
        columns = (f"`{name.replace('`', '``')}` {kind.declared}" for name, kind in kinds.items())
        return self.source(Json(", ".join(["n bigint", *columns])))

    def append(self, kinds: Kinds, choices: Choices, rows: range) -> None:
        self.send(
            (
                row,
                json.dumps(
                    {"n": row}
                    | {
                        name: _as_json(kind, kind.written(choices[name][row]))
                        for name, kind in kinds.items()
                    }
                ).encode(),
            )
            for row in rows
        )


def _as_json(kind: Kind, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    text = of.iso(kind, value)
    if text is None and pa.types.is_decimal(kind.column):
        text = str(value)
    return value if text is None else text


RAW: dict[str, Kind] = {"value": Kind("binary", pa.binary(), of.BYTES)}


class RawTopic(Topic):
    """Its rows are numbered by Kafka's own offsets."""

    names = ("value",)
    kinds = RAW
    partitions = 1

    def create(self, kinds: Kinds) -> Kafka:
        return self.source(Raw(), "offset as n", "key as a.b")

    def append(self, kinds: Kinds, choices: Choices, rows: range) -> None:
        self.send((row, kinds["value"].written(choices["value"][row])) for row in rows)


Of = descriptor_pb2.FieldDescriptorProto
PROTOBUF: dict[str, Kind] = {
    "int": Kind(Of.TYPE_SINT32, pa.int32(), of.INTS),
    "long": Kind(Of.TYPE_INT64, pa.int64(), of.LONGS),
    "u32": Kind(Of.TYPE_UINT32, pa.int64(), (0, 2**32 - 1)),
    "u64": Kind(Of.TYPE_FIXED64, pa.decimal128(20, 0), (0, 2**64 - 1)),
    "float": Kind(Of.TYPE_FLOAT, pa.float32(), of.FLOATS),
    "double": Kind(Of.TYPE_DOUBLE, pa.float64(), of.DOUBLES),
    "truth": Kind(Of.TYPE_BOOL, pa.bool_(), (True, False)),
    "text": Kind(Of.TYPE_STRING, pa.string(), of.WITH_NUL),
    "bytes": Kind(Of.TYPE_BYTES, pa.binary(), of.BYTES),
}


class ProtobufTopic(Topic):
    """Fields with presence, so that null is a value like others."""

    names = WORDS
    kinds = PROTOBUF

    def __init__(self, broker: Broker, folder: Path) -> None:
        super().__init__(broker)
        self.file = folder / "descriptors"

    def create(self, kinds: Kinds) -> Kafka:
        file = descriptor_pb2.FileDescriptorProto(name="rows.proto", package="w", syntax="proto3")
        message = file.message_type.add(name="Row")
        message.field.add(name="n", number=1, type=Of.TYPE_INT64, label=Of.LABEL_OPTIONAL)
        for number, (name, kind) in enumerate(kinds.items()):
            message.oneof_decl.add(name=f"_{name}")
            message.field.add(
                name=name,
                number=number + 2,
                type=kind.declared,
                label=Of.LABEL_OPTIONAL,
                proto3_optional=True,
                oneof_index=number,
            )
        self.file.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self.message = message_factory.GetMessageClass(pool.FindMessageTypeByName("w.Row"))
        return self.source(Protobuf("w.Row", str(self.file)))

    def append(self, kinds: Kinds, choices: Choices, rows: range) -> None:
        given = (
            {
                name: value
                for name, value in _record(kinds, choices, row).items()
                if value is not None
            }
            for row in rows
        )
        self.send((one["n"], self.message(**one).SerializeToString()) for one in given)
