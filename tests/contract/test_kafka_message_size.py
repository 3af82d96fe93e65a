"""Messages that librdkafka would refuse to send, found before: the same ones, to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from sluice.connectors.kafka.cluster import DEFAULT_MAX_MESSAGE_BYTES, Cluster
from sluice.connectors.kafka.messages import (
    AvroRow,
    ColumnBytes,
    JsonRow,
    MessageFormat,
    check_sizes,
)
from sluice.connectors.kafka.sink import LONGEST_MARK
from sluice.errors import ConfigurationError

AVRO = {
    "type": "record",
    "name": "R",
    "fields": [{"name": name, "type": ["null", "string"]} for name in ("id", "body")],
}
FORMATS = {
    "json": MessageFormat(JsonRow(), key="id"),
    "json with headers": MessageFormat(JsonRow(), headers=("id", "shop")),
    "a column": MessageFormat(ColumnBytes("body"), key="id", headers=("shop",)),
    "avro": MessageFormat(AvroRow(json.dumps(AVRO)), key="id", headers=("shop",)),
}
NO_BROKER = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "message.timeout.ms": 1}


@pytest.fixture(scope="module")
def producer() -> Iterator[Producer]:
    """It refuses a message when it is given one, before it looks for a broker."""
    producer = Producer(NO_BROKER)
    yield producer
    producer.purge()


def a_row(length: int, *, character: str = "x") -> pa.Table:
    return pa.table({"id": ["k" * 70], "body": [character * length], "shop": [None]}).cast(
        pa.schema([(name, pa.string()) for name in ("id", "body", "shop")])
    )


def is_sent(producer: Producer, made: MessageFormat, row: pa.Table) -> bool:
    of_rows = made.header_rows(row) or [[]]
    try:
        producer.produce(
            "t", made.values(row)[0], made.keys(row)[0], headers=[*of_rows[0], LONGEST_MARK]
        )
    except KafkaException as error:
        if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return False
        raise
    return True


def is_accepted(made: MessageFormat, row: pa.Table) -> bool:
    try:
        check_sizes(made, row, DEFAULT_MAX_MESSAGE_BYTES, LONGEST_MARK)
    except ConfigurationError:
        return False
    return True


def longest(accepts: Any) -> int:
    low, high = 0, 2 * DEFAULT_MAX_MESSAGE_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if accepts(middle) else (low, middle - 1)
    return low


@pytest.mark.parametrize("made", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("character", ["x", "é", "\x01"], ids=["plain", "utf-8", "escaped"])
def test_the_longest_row_that_is_accepted_is_the_longest_that_is_sent(
    producer: Producer, made: MessageFormat, character: str
) -> None:
    found = longest(lambda length: is_accepted(made, a_row(length, character=character)))

    assert is_sent(producer, made, a_row(found, character=character))
    assert not is_sent(producer, made, a_row(found + 1, character=character))
    assert 100_000 < found < DEFAULT_MAX_MESSAGE_BYTES


def test_the_message_names_the_column_and_what_to_set() -> None:
    rows = pa.concat_tables([a_row(1), a_row(1_000_000)])

    with pytest.raises(ConfigurationError) as refused:
        check_sizes(FORMATS["json"], rows, 1_000_000, LONGEST_MARK)

    assert str(refused.value) == (
        "a message of 1,000,248 bytes is larger than message.max.bytes, 1,000,000; its row's "
        "longest column is 'body': shorten it before the sink, or give KafkaTopic "
        "config={'message.max.bytes': ...}, and the topic a max.message.bytes that is not smaller"
    )


def test_nested_columns_are_measured_as_they_are_written(producer: Producer) -> None:
    made = MessageFormat(JsonRow())

    def tagged(many: int) -> pa.Table:
        return pa.table({"tags": [["tag"] * many]})

    found = longest(lambda many: is_accepted(made, tagged(many)))

    assert is_sent(producer, made, tagged(found))
    assert not is_sent(producer, made, tagged(found + 1))


def test_the_limit_is_what_the_sink_gives_to_its_producer() -> None:
    assert Cluster("k:9092").max_message_bytes == DEFAULT_MAX_MESSAGE_BYTES
    assert Cluster("k:9092", (("message.max.bytes", "5000"),)).max_message_bytes == 5_000
    with pytest.raises(ConfigurationError, match=r"'message.max.bytes' is '5 MB'; make it a num"):
        _ = Cluster("k:9092", (("message.max.bytes", "5 MB"),)).max_message_bytes
