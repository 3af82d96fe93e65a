"""One producer and the note that goes with it: what a coordinator does to the topic at once.

``init_transactions`` fences every older producer of the same id, and returns only when the broker
has ended what that one had begun.  The note that is read after it is the last word, therefore:
whatever a zombie sent is in it, or will never be.

    init_transactions -> read the note -> begin -> rows and note -> commit
    (zombies fenced)     (published? stop)         (both or none)

Brokers before 4.0 may end a transaction a moment before its note is to be seen (KAFKA-17507).  That
read asks for stable offsets, therefore, which a broker since 2.5 gives only when no note of an
ended transaction is still on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.kafka.cluster import Cluster
from sluice.connectors.kafka.note import decoded, encoded
from sluice.core.timeline import Timeline
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

    Send = Callable[[Producer], None]
    # The new note, and who sends the rows; None for nothing.
    Todo = tuple[Timeline, Send] | None

FLUSH_TIMEOUT_S = 300.0


class FencedByAnother(Exception):
    """Not an error yet: a younger producer of the same id began; nothing of ours will be seen."""


@dataclass(frozen=True, slots=True)
class NotedTopic:
    """*name* at *cluster*, and what its group's offset notes of the checkpoints in it."""

    cluster: Cluster
    name: str
    group: str

    def note(self) -> Timeline:
        """What is noted now.  A transaction that has not ended does not count, and is not awaited.

        Raises:
            ProtocolViolation: the group's offset is not ours.
            StoreUnavailable: try again.
        """
        with self._consumer() as consumer:
            return self._read(consumer)

    def is_empty(self) -> bool:
        """Whether no partition has a record, or anything else at an offset."""
        from confluent_kafka import TopicPartition

        self.check_exists()
        with self._consumer() as consumer, self.cluster.explained(f"to look into {self.name!r}"):
            timeout_s = self.cluster.timeout_s
            found = consumer.list_topics(self.name, timeout=timeout_s).topics[self.name]
            ends = (
                consumer.get_watermark_offsets(TopicPartition(self.name, one), timeout=timeout_s)
                for one in found.partitions
            )
            return all(low == high for low, high in ends)

    def in_transaction(self, todo: Callable[[Timeline], Todo]) -> None:
        """Fence older producers, and do what *todo* says of the note that is true then.

        Raises:
            FencedByAnother: it was not done, and another process is at work.
            StoreUnavailable: whether it was done is not known; the note will tell.
        """
        with self._consumer(stable=True) as consumer, self._translated():
            producer = self.cluster.producer(transactional_id=self.group)
            producer.init_transactions(self.cluster.timeout_s)
            found = todo(self._read(consumer))
            if found is None:
                return
            producer.begin_transaction()
            try:
                self._fill(producer, consumer, *found)
                producer.commit_transaction()
            except BaseException:
                # Else readers wait for the transaction's time to run out.
                with suppress(Exception):
                    producer.purge()
                    producer.abort_transaction(self.cluster.timeout_s)
                raise

    def at_least_once(self, note: Timeline, send: Send) -> None:
        """Send what is to be sent, and then note it: who dies in between sends it again."""
        failed: list[KafkaError] = []
        with self._consumer() as consumer, self.cluster.explained(f"to write {self.name!r}"):
            producer = self.cluster.producer(lambda error, _: failed.append(error))
            send(producer)
            left = producer.flush(FLUSH_TIMEOUT_S)
            if failed or left:
                raise self.cluster.explain(failed[0] if failed else _timed_out(), "the rows")
            consumer.commit(offsets=[self._offset(note)], asynchronous=False)

    def check_exists(self) -> None:
        """Raises ConfigurationError when there is no such topic: none is created by a typo."""
        from confluent_kafka import KafkaError

        what = f"to describe topic {self.name!r}"
        with self._consumer() as consumer, self.cluster.explained(what):
            found = consumer.list_topics(self.name, timeout=self.cluster.timeout_s)
        error = found.topics[self.name].error
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise ConfigurationError(
                f"Kafka at {self.cluster.servers} has no topic {self.name!r}; create it, with as "
                "many partitions as its readers need, or correct topic="
            )
        if error is not None:
            raise self.cluster.explain(error, what)

    def _fill(self, producer: Producer, consumer: Consumer, note: Timeline, send: Send) -> None:
        send(producer)
        group = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction([self._offset(note)], group, self.cluster.timeout_s)

    def _read(self, consumer: Consumer) -> Timeline:
        from confluent_kafka import TopicPartition

        with self.cluster.explained(f"to read the note of group {self.group!r}"):
            found = consumer.committed(
                [TopicPartition(self.name, 0)], timeout=self.cluster.timeout_s
            )[0]
        if found.error is not None:
            raise self.cluster.explain(found.error, f"to read the note of group {self.group!r}")
        if found.offset < 0:
            return Timeline()
        place = f"the offset of group {self.group!r} for topic {self.name!r}"
        return decoded(found.offset, found.metadata, place)

    def _offset(self, note: Timeline) -> TopicPartition:
        from confluent_kafka import TopicPartition

        offset, metadata = encoded(note)
        return TopicPartition(self.name, 0, offset, metadata)

    @contextmanager
    def _consumer(self, *, stable: bool = False) -> Iterator[Consumer]:
        """Of the group, but never a member of it.  Uncommitted notes are not seen either way;
        *stable* waits for a transaction that has not ended, as that of one that died.
        """
        level = "read_committed" if stable else "read_uncommitted"
        with self.cluster.consumer(group_id=self.group, isolation_level=level) as consumer:
            yield consumer

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            cause = error.args[0]
            if _is_fenced(cause):
                raise FencedByAnother(str(cause.str())) from None
            raise self.cluster.explain(cause, f"to write {self.name!r}") from None


def _is_fenced(error: KafkaError) -> bool:
    from confluent_kafka import KafkaError

    return error.code() in {
        KafkaError._FENCED,  # noqa: SLF001 - the client's public names begin so
        KafkaError._FATAL,  # noqa: SLF001
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.PRODUCER_FENCED,
        KafkaError.TRANSACTION_COORDINATOR_FENCED,
    }


def _timed_out() -> KafkaError:
    from confluent_kafka import KafkaError

    return KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001
