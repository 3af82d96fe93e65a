"""The messages of a slice, a batch at a time, until its end has been passed."""

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

BATCH_MESSAGES = 10_000  # Beyond it the cost of a batch is not seen; 1 KB each makes it 10 MB.
# The client gives a batch that is not full after this time, and a slice with gaps never fills its
# last one.  A shorter wait makes smaller batches where the network is slow.
POLL_S = 0.05


def consume(
    cluster: Cluster, consumer: Consumer, piece: Slice, start: int
) -> Iterator[list[Message]]:
    """Yield the messages from *start* to the end of *piece*, none empty.

    The end has been passed when a message from behind it was seen, or when the partition ends
    there: where offsets have gaps no message may have the last one.

    Raises:
        ConfigurationError: the records are gone.
        StoreUnavailable: nothing came for as long as the cluster may take to answer.
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
    """Whether the end of the partition says that the slice has been read."""
    from confluent_kafka import KafkaError

    error = event.error()
    assert error is not None
    match error.code():
        case KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public names begin so
            # At an end before the slice's own a replica is behind: it is asked again.
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
