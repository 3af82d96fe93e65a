"""A Kafka topic that people change: what no longer fits is refused, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sluice.connectors.kafka.declared import AvroValue, KafkaTopic
from sluice.connectors.kafka.sink import KafkaTarget
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation
from tests.contract.sink_case import (
    JOB,
    SCHEMA,
    SinkCase,
    open_staged,
    publish,
    rows,
    seen,
    staged_rows,
)
from tests.contract.test_kafka_sink import transactional
from tests.kafka_cluster import Place, place


@pytest.fixture(scope="module")
def kafka() -> Iterator[Place]:
    with place("broker") as found:
        yield found


def target_of(case: SinkCase) -> KafkaTarget:
    target = open_staged(case).target
    assert isinstance(target, KafkaTarget)
    return target


def test_a_topic_that_is_gone_is_refused_and_published_to_when_it_is_back(
    kafka: Place, tmp_path: Path
) -> None:
    assert kafka.broker is not None
    case = transactional(kafka, tmp_path)
    sink = case.open()
    sink.check(None, SCHEMA, ())
    publish(sink, 1, None, rows(1))
    staged = staged_rows(sink, 2, 2, 3)
    (topic,) = [name for name in kafka.broker.topics if target_of(case).topic.name == name]
    gone = kafka.broker.topics.pop(topic)

    with pytest.raises(ConfigurationError, match=f"has no topic '{topic}'; create it"):
        case.open().check(1, SCHEMA, ())
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=f"has no topic '{topic}'; create it"):
            case.open().commit(JOB, 2, 1, [staged])
    kafka.broker.topics[topic] = gone
    case.open().commit(JOB, 2, 1, [staged])

    assert seen(case) == rows(1, 2, 3)


AVRO = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "shop", "type": "string", "default": ""},
        ],
    }
)


@pytest.mark.parametrize(
    ("options", "schema", "says"),
    [
        ({"key": "id"}, {"n": pa.int64()}, "takes the column 'id', but its rows have n"),
        ({"key": "id"}, {"id": pa.float64()}, "column 'id' of a Kafka sink is double; make it"),
        ({"value": "body"}, {"id": pa.int64()}, "takes the column 'body', but its rows have id"),
        ({"headers": ("h",)}, {"id": pa.int64()}, "takes the column 'h', but its rows have id"),
        ({"value": AvroValue(AVRO)}, {"n": pa.int64()}, "has a field 'id', but its rows have n;"),
    ],
    ids=["key", "type of the key", "value", "header", "field"],
)
def test_columns_of_which_no_message_can_be_made_are_refused_before_the_checkpoint_completes(
    options: dict[str, object],
    schema: dict[str, pa.DataType],
    says: str,
    kafka: Place,
    tmp_path: Path,
) -> None:
    spec = KafkaTopic(kafka.servers, kafka.create(), **options)  # type: ignore[arg-type]
    sink = spec.open("alerts", {}, StoreLocation(root=f"file://{tmp_path}"))

    with pytest.raises(ConfigurationError, match=says):
        sink.check(None, pa.schema([*schema.items()]), ())


def test_a_field_that_may_be_null_or_has_a_default_needs_no_column(
    kafka: Place, tmp_path: Path
) -> None:
    spec = KafkaTopic(kafka.servers, kafka.create(), key="id", value=AvroValue(AVRO))
    sink = spec.open("alerts", {}, StoreLocation(root=f"file://{tmp_path}"))

    sink.check(None, pa.schema([("id", pa.int64())]), ())


def test_a_message_that_the_producer_would_refuse_is_refused_before_it_is_staged(
    kafka: Place, tmp_path: Path
) -> None:
    location = StoreLocation(root=f"file://{tmp_path}")
    spec = KafkaTopic(kafka.servers, kafka.create(), config={"message.max.bytes": "2000"})
    sink = spec.open("alerts", {}, location)
    long = pa.table({"id": [1, 2], "note": ["short", "x" * 2_000]})
    short = long.slice(0, 1)

    to: Any = {"checkpoint_id": 1, "subtask": 0, "attempt_token": "a"}

    with pytest.raises(ConfigurationError, match=r"than message\.max\.bytes, 2,000; its row"):
        sink.stage(long, **to)
    staged = sink.stage(short, **to)

    assert staged is not None
    sink.commit(JOB, 1, None, [staged])
