"""The reader of a slice's messages, in batches, until the slice's end is passed."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

    from sluice.connectors.kafka.cluster import Cluster
    from sluice.core.plan import Slice

BATCH_MESSAGES = 10_000  # Makes the cost per batch negligible; 10 MB with messages of 1 KB.
# The client gives a batch that is not full after this time, and a slice with gaps never fills its
# last one.  A shorter wait makes smaller batches where the network is slow.
POLL_S = 0.05


def consume(
    cluster: Cluster, consumer: Consumer, piece: Slice, start: int
) -> Iterator[list[Message]]:
    """Yield the messages from *start* to the end of *piece*, in batches that are not empty.

    The end is passed when a message from behind it arrives, or when the partition ends there: as
    offsets have gaps, there may be no message with the last offset.

    Raises:
        ConfigurationError: the records are gone.
        StoreUnavailable: no message arrived within the cluster's timeout.
    """
    from confluent_kafka import TopicPartition

    if start >= piece.end:
        return
    topic, _, number = piece.partition.rpartition("/")
    with cluster.explained(f"to read {piece.partition!r}"):
        consumer.assign([TopicPartition(topic, int(number), start)])
    waited_since = time.monotonic()
    while True:
        with cluster.explained(f"to read {piece.partition!r}"):
            polled = consumer.consume(min(BATCH_MESSAGES, piece.end - start), timeout=POLL_S)
        events = [one for one in polled if one.error() is not None]
        messages = [one for one in polled if one.error() is None] if events else polled
        if messages:
            last = _offset(messages[-1])
            start = last + 1
            waited_since = time.monotonic()
            if last >= piece.end:
                messages = messages[: bisect_left(messages, piece.end, key=_offset)]
            if messages:
                yield messages
        if start >= piece.end or any(_ends(cluster, one, piece) for one in events):
            return
        if time.monotonic() - waited_since > cluster.timeout_s:
            raise StoreUnavailable(
                f"Kafka at {cluster.servers} gave nothing of {piece.partition!r} for "
                f"{cluster.timeout_s:.0f} s, at offset {start} of {piece.end}"
            )


def _ends(cluster: Cluster, event: Message, piece: Slice) -> bool:
    """Whether an event at the end of the partition shows that the slice is read completely."""
    from confluent_kafka import KafkaError

    error = event.error()
    assert error is not None
    match error.code():
        case KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public names begin so
            # A partition that ends before the slice is a replica that is behind: poll again.
            return _offset(event) >= piece.end
        case KafkaError._AUTO_OFFSET_RESET | KafkaError.OFFSET_OUT_OF_RANGE:  # noqa: SLF001
            raise _gone(cluster, piece, error)
        case _ if error.retriable():
            return False
        case _:
            raise cluster.explain(error, f"to read {piece.partition!r}")


def _gone(cluster: Cluster, piece: Slice, error: KafkaError) -> ConfigurationError:
    return ConfigurationError(
        f"offsets {piece.start} to {piece.end - 1} of partition {piece.partition!r} of Kafka at "
        f"{cluster.servers} were planned, and some have expired or were truncated while they were "
        f"read ({error.str()}); raise the topic's retention, and restore"
    )


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "a message that was read has an offset"
    return offset
