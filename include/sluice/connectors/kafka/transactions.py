"""``NotedTopic``: a producer's transaction, with the note that is committed in it.

``init_transactions`` fences every older producer of the same id, and returns only when the broker
has ended its open transaction.  So the note that is read after it is final: a zombie's transaction
is in it, or never will be.

    init_transactions -> read the note -> begin -> rows and note -> commit
    (zombies fenced)     (published? stop)         (both or none)

Brokers before 4.0 may end a transaction a moment before its note is visible (KAFKA-17507).  So the
note is read with stable offsets, which brokers since 2.5 return only when no note of an ended
transaction is outstanding.
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
    # The new note, and the function that sends the rows; None if there is nothing to do.
    Todo = tuple[Timeline, Send] | None

FLUSH_TIMEOUT_S = 300.0


class FencedByAnother(Exception):
    """A newer producer of the same id has begun, and this transaction was aborted."""


@dataclass(frozen=True, slots=True)
class NotedTopic:
    """The topic *name* at *cluster*, and the note of its checkpoints in the group's offset."""

    cluster: Cluster
    name: str
    group: str

    def note(self) -> Timeline:
        """The committed note.  A transaction that is still open is neither counted nor awaited.

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
        """Fence older producers, and carry out what *todo* returns for the note read after that.

        Raises:
            FencedByAnother: it was not done, as another process is at work.
            StoreUnavailable: it is not known whether it was done; the note will show it.
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
                # Otherwise readers wait until the transaction times out.
                with suppress(Exception):
                    producer.purge()
                    producer.abort_transaction(self.cluster.timeout_s)
                raise

    def at_least_once(self, note: Timeline, send: Send) -> None:
        """Send rows, and then commit the note; after a crash in between they are sent again."""
        failed: list[KafkaError] = []
        with self._consumer() as consumer, self.cluster.explained(f"to write {self.name!r}"):
            producer = self.cluster.producer(lambda error, _: failed.append(error))
            send(producer)
            left = producer.flush(FLUSH_TIMEOUT_S)
            if failed or left:
                raise self.cluster.explain(failed[0] if failed else _timed_out(), "the rows")
            consumer.commit(offsets=[self._offset(note)], asynchronous=False)

    def check_exists(self) -> None:
        """Raises ConfigurationError when there is no such topic, so that a typo creates none."""
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
        """A consumer with the group's id that never joins it.

        Uncommitted notes are never read; with *stable* it waits for transactions that are still
        open, such as that of a producer that died.
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
