"""JSON of Kafka, which Python decodes where it is certain what Spark makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from harness.kafka_broker import Broker, running_broker
from sluice.connectors.kafka.declared import Json, Kafka
from sluice.connectors.kafka.values import PlainJsonValues
from sluice.connectors.plain_lines import plain_lines
from sluice.core.completed import CheckpointMetadata
from sluice.declaration import aggregates as agg
from sluice.declaration.places import UndecidedError
from sluice.job.places import open_side_table
from sluice.sinks import FilesTable
from tests.spark.folder_job import FolderJob
from tests.spark.test_exchange import checksums
from tests.spark.test_text_files import HOW, by_spark, hostile_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED = 20261127
WITHIN = (
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "}\n{",
)  # A text of Kafka may have them; a line of a file not.
WRONG = (b'{"id": 1', b'{"id": "x"}', b"\xff", b'{"id": 1}\n{"id": 2}')
UNUSUAL = (b"", b" ", b'{"id":\n3}', None)  # Not wrong, and not all of them are rows.


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as found:
        yield found


def test_a_text_that_is_decoded_holds_what_spark_reads_of_it(spark: SparkSession) -> None:
    plain = plain_lines(HOW)
    assert plain is not None
    values, texts = PlainJsonValues(plain), [*hostile_lines(), *broken_texts()]
    expected = by_spark(spark, texts)

    decided = 0
    for number, text in enumerate(texts):
        try:
            decoded = values.decode([text.encode()])
        except UndecidedError:
            continue
        decided += 1
        assert decoded.malformed == {}
        tombstone, *columns = (column.to_pylist() for column in decoded.columns)
        rows = [
            dict(zip(plain.schema.names, row, strict=True)) for row in zip(*columns, strict=True)
        ]
        assert tombstone == [False]
        # As text, for a number may be a zero with a sign.
        assert repr(rows) == repr(expected.get(number, [])), text

    assert 400 < decided < len(texts) - 400


def broken_texts() -> list[str]:
    random = Random(SEED)
    broken = []
    for text in random.sample(hostile_lines(), 1_000):
        at = random.randrange(len(text) + 1)
        broken.append(text[:at] + random.choice(WITHIN) + text[at:])
    return broken


def test_texts_are_decoded_together_with_tombstones_or_not_at_all() -> None:
    plain = plain_lines(HOW)
    assert plain is not None
    values = PlainJsonValues(plain)

    tombstone, a, *_ = values.decode([b'{"a":1}', None, b"{}", b'{"a":4}\r']).columns

    assert tombstone.to_pylist() == [False, True, False, False]
    assert a.to_pylist() == [1, None, None, 4]
    # In the last one there are as many objects as values.
    for raw in ([b"{}", b""], [b"{}\n"], [b"{\n}"], [b"{}", b"\xff"], [b"{}\n{}", b""]):
        with pytest.raises(UndecidedError):
            values.decode(raw)


def test_both_ways_leave_the_same_state_and_report_the_same_records(
    spark: SparkSession,
    tmp_path: Path,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "sluice.spark.stage")
    topic = "both-ways"
    broker.grow(topic, 2)
    send(broker, topic, [good(n) for n in range(100)])
    send(broker, topic, [*WRONG, *UNUSUAL, *(good(n) for n in range(100, 192))])
    send(broker, topic, [*(good(n) for n in range(192, 290)), None, None])

    in_columns = played(spark, tmp_path / "columns", broker, topic)
    left = sorted(one for one in caplog.messages if one.startswith("rows are left to Spark"))
    monkeypatch.setattr("sluice.spark.deployment.exchange_of", lambda _: None)
    in_rows = played(spark, tmp_path / "rows", broker, topic)

    assert left == [
        "rows are left to Spark checkpoint_id=2 stage=newest",
        "rows are left to Spark checkpoint_id=2 stage=totals",
    ]
    assert len(in_columns[0]) == 3
    assert checksums(in_columns[0]) == checksums(in_rows[0])
    assert in_columns[1:] == in_rows[1:]
    newest, malformed = in_columns[1:]
    assert list(newest[0]) == [
        *("id", "name", "price", "inner"),
        *("topic", "at", "o", "kind", "key", "tombstone"),
    ]
    assert {(row["id"], row["tombstone"]) for row in newest} == {
        *((one, False) for one in range(7)),
        (None, True),
    }
    assert len(malformed) == len(WRONG)


def good(number: int) -> bytes:
    row = {"id": number % 7, "name": f"n{number}", "price": number / 4, "inner": {"a": number}}
    return json.dumps(row).encode()


def send(broker: Broker, topic: str, values: list[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, f"k{number}", number % 2, timestamp=10**12 + number)
    assert producer.flush(60) == 0
    producer.close()


def played(
    spark: SparkSession, folder: Path, broker: Broker, topic: str
) -> tuple[list[CheckpointMetadata], list[dict[str, Any]], list[tuple[object, ...]]]:
    """The checkpoints, the table of one stage, and what became of the wrong records."""
    job = FolderJob(spark, folder)
    job.limit(100)
    records = job.pipeline.source(
        "records",
        Kafka(
            broker.servers,
            topic,
            Json("id int, name string, price double, inner struct<a: bigint>"),
            columns=("topic", "timestamp as at", "offset as o", "timestamp_type as kind", "key"),
            key="string",
        ),
    )
    records.key_by("id").latest("newest", by="o").sink("out", FilesTable(upsert_key=("id",)))
    records.key_by("topic", "tombstone").aggregate(
        "totals", n=agg.count(), dear=agg.max("price"), last=agg.max("at")
    )
    completed = [job.epoch() for _ in range(3)]
    rows = job.table("out").sort("id", "o").to_dicts()
    malformed = open_side_table(job.job, "newest.malformed").read().to_pylist()
    return (
        completed,
        rows,
        [(row["partition"], row["line"], row["record_number"]) for row in malformed],
    )
