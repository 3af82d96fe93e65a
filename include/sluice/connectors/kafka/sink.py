"""A Kafka topic to which checkpoints are appended, and the note of those that were published.

The note is kept in the broker, as the offset of a consumer group with the name of the transactional
id, which is made of the topic's name.  The group commits one offset, for partition 0 of the topic:
the newest checkpoint; its metadata is the topic's time line (``staged_sink.encoded_note``), with
the topic's id (KIP-516).  A note of another id says nothing of this topic: a broker deletes the
offsets of a topic with it, but not if the coordinator of the group is away then.

With transactions, the rows and the note of a checkpoint are one transaction, so that readers with
``isolation.level=read_committed`` see all of it or nothing, once.  ``init_transactions`` fences
every older producer of the same id, and returns only when the broker has ended its open
transaction.  So the note that is read after it is final: a zombie's transaction is in it, or never
will be.

    init_transactions -> read the note -> begin -> rows and note -> commit
    (zombies fenced)     (published? stop)         (both or none)

Brokers before 4.0 may end a transaction a moment before its note is visible (KAFKA-17507).  So the
note is read with stable offsets, which brokers since 2.5 return only when no note of an ended
transaction is outstanding.

Without transactions, the rows are sent and then noted: if the coordinator dies in between, they are
sent again.  Published records cannot be rolled back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sluice.connectors.columns import check_no_null_keys
from sluice.connectors.kafka.cluster import Cluster
from sluice.connectors.kafka.messages import Header, MessageFormat, Texts, check_sizes
from sluice.connectors.staged_sink import (
    Note,
    TargetDefaults,
    decoded_note,
    encoded_note,
    errors_of_place,
)
from sluice.core.timeline import Recovery, Timeline, Writer
from sluice.declaration.places import DELETED
from sluice.errors import ConfigurationError, ProtocolViolation, StoreUnavailable, TableMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

    from sluice.connectors.staged_sink import EpochRows

    Send = Callable[[Producer], None]
    # The new note, and the function that sends its rows; None if there is nothing to write.
    Write = tuple[Timeline, Send] | None

CHECKPOINT_HEADER = "sluice-checkpoint-id"
LONGEST_MARK = (CHECKPOINT_HEADER, str(2**63 - 1).encode())
# A broker takes 4,096 bytes (offset.metadata.max.bytes): these leave room for 300 spans of ids of 5
# digits, and each aborted checkpoint begins another.
MAX_BYTES = 3_900
FIX = (
    "give the sink a transactional_id of its own, or delete the group's offset "
    "(kafka-consumer-groups.sh --delete-offsets) and restore the job with --accept-tables"
)
NO_TOPIC_FIX = "create it, with as many partitions as its readers need, or correct topic="
# A fenced producer lets the other one finish.  The pauses double, so that of two that fence each
# other one has enough time: 5 + 10 + 20 + 40 seconds, and then Airflow retries the task.
PATIENCE_S = 5.0
ATTEMPTS = 5
TRANSACTION_POLL_S = 0.05
FIRST_ATTEMPT_S = 2.0
BUFFER_WAIT_S = 0.05
FLUSH_TIMEOUT_S = 300.0
MESSAGES_PER_POLL = 10_000


class FencedByAnother(Exception):
    """A newer producer of the same id has begun, and this transaction was aborted."""


@dataclass(frozen=True, slots=True)
class KafkaTarget(TargetDefaults):
    """See ``staged_sink.Target``."""

    topic: NotedTopic
    format: MessageFormat
    transactional: bool = True
    upsert_key: tuple[str, ...] = ()

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:
        self.topic.check_exists()
        self.check_columns(schema)
        key = self.format.key
        may_lack_keys = rows.row_count > 0 and (key is None or rows.has_nulls([key]))
        if may_lack_keys and self.topic.is_compacted():
            which = "has no key=" if key is None else f"is null in rows in its key {key!r}"
            raise ConfigurationError(
                f"{self._name} is compacted and takes no message without a key, and its sink "
                f"{which}; declare a key that every row has, leave such rows out in the stage, or "
                "set the topic's cleanup.policy to delete"
            )

    def check_columns(self, schema: pa.Schema) -> None:
        """See ``RowChecks``."""
        self.format.check(schema)

    def check_rows(self, rows: pa.Table) -> None:
        if DELETED not in rows.column_names:  # Only the keys of deletes are sent.
            fix = "fill it in the stage, or leave such rows out"
            check_no_null_keys(rows, self.upsert_key, self._name, fix)
            self.format.check_years(rows)
            check_sizes(self.format, rows, self.topic.cluster.max_message_bytes, LONGEST_MARK)

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        def decide(before: Timeline) -> Write:
            with errors_of_place(self._name):
                after = before.publishing(writer, checkpoint_id, parent)
            return None if after is None else (after, send)

        def send(producer: Producer) -> None:
            self._send(producer, checkpoint_id, rows)

        self._write(decide)

    def timeline(self) -> Timeline:
        """See ``Target``; of very many spans the oldest are dropped (``MAX_BYTES``)."""
        return self.topic.note()

    def is_empty(self) -> bool:
        """See ``Sink``; False if a transaction was aborted, as its records still take offsets."""
        return self.topic.is_empty()

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        def decide(before: Timeline) -> Write:
            with errors_of_place(self._name):
                after = before.recovered(writer, recovery)
            if after is None:
                return None
            ahead = tuple(before.after(recovery.version))
            if recovery.roll_back and ahead and not self.is_empty():
                raise ConfigurationError(
                    f"{self._name} cannot be rolled back to checkpoint "
                    f"{recovery.version or 'nothing'}: {len(ahead)} checkpoints after it were "
                    f"published, through {ahead[-1]}, and Kafka takes no record back; restore "
                    "without rolling back, and let readers skip what has their "
                    f"{CHECKPOINT_HEADER} header"
                )
            return after, lambda _: None

        self._write(decide)

    def describe(self, version: int) -> str:
        return f"records of topic {self.topic.name} with header {CHECKPOINT_HEADER}={version}"

    @property
    def _name(self) -> str:
        return f"Kafka topic {self.topic.name!r}"

    def _write(self, decide: Callable[[Timeline], Write]) -> None:
        """Write what *decide* returns for the present note, unless another process has done it.

        When this process is fenced, it first waits for the other one.
        """
        if not self.transactional:
            self.topic.at_least_once(decide)
            return
        for attempt in range(ATTEMPTS):
            try:
                self.topic.in_transaction(decide)
            except FencedByAnother:
                patience_s = PATIENCE_S * 2**attempt * random.uniform(0.7, 1.3)  # noqa: S311
                until = time.monotonic() + patience_s
                while attempt + 1 < ATTEMPTS and time.monotonic() < until:
                    # Raises if the time line refuses it.
                    with suppress(TableMismatch):
                        if decide(self.topic.note()) is None:
                            return
                    time.sleep(TRANSACTION_POLL_S)
            else:
                return
        raise StoreUnavailable(
            f"another producer keeps using the transactional id {self.topic.group!r}; if it is not "
            "of this job, give each sink a transactional_id of its own"
        )

    def _send(self, producer: Producer, checkpoint_id: int, rows: EpochRows) -> None:
        mark = (CHECKPOINT_HEADER, str(checkpoint_id).encode())
        for table in rows.deletes():
            tombstones: Texts = [None] * table.num_rows
            _produce(producer, self.topic.name, self.format.keys(table), tombstones, _same(mark))
        for table in rows.upserts():
            _produce(
                producer,
                self.topic.name,
                self.format.keys(table),
                self.format.values(table),
                self._headers(table, mark),
            )

    def _headers(self, table: pa.Table, mark: Header) -> Iterator[list[Header]]:
        of_rows = self.format.header_rows(table)
        return ([*row, mark] for row in of_rows) if of_rows else _same(mark)


def _same(mark: Header) -> Iterator[list[Header]]:
    headers: list[Header] = [mark]
    while True:
        yield headers


def _produce(
    producer: Producer, topic: str, keys: Texts, values: Texts, headers: Iterator[list[Header]]
) -> None:
    produce = producer.produce
    messages = zip(keys, values, strict=True)
    for number, ((key, value), marks) in enumerate(zip(messages, headers, strict=False)):
        while True:
            try:
                produce(topic, value, key, headers=marks)
                break
            except BufferError:
                producer.poll(BUFFER_WAIT_S)  # The producer's queue is full: let it send.
        if number % MESSAGES_PER_POLL == 0:
            producer.poll(0)


@dataclass(frozen=True, slots=True)
class NotedTopic:
    """The topic *name* at *cluster*, and the note of its checkpoints in the group's offset."""

    cluster: Cluster
    name: str
    group: str

    def note(self) -> Timeline:
        """The committed note.  A transaction that is still open is neither counted nor awaited.

        Raises:
            ConfigurationError: there is no such topic.
            ProtocolViolation: the group's offset is not ours.
            StoreUnavailable: try again.
        """
        with self._consumer() as consumer:
            return self._read(consumer).timeline

    def is_empty(self) -> bool:
        """Whether no partition has a record, or anything else at an offset."""
        from confluent_kafka import TopicPartition

        timeout_s = self.cluster.timeout_s
        with self._consumer() as consumer:
            parts = [TopicPartition(self.name, number) for number in self._partitions(consumer)]

            def ask() -> bool:
                ends = (consumer.get_watermark_offsets(one, timeout=timeout_s) for one in parts)
                return all(low == high for low, high in ends)

            return self.cluster.answered(ask, f"to look into {self.name!r}")

    def in_transaction(self, decide: Callable[[Timeline], Write]) -> None:
        """Fence older producers, and write what *decide* returns for the note read after that.

        Raises:
            FencedByAnother: nothing was written, as another process is at work.
            StoreUnavailable: whether it was written is not known; the note will show it.
        """
        with self._consumer(stable=True) as consumer, self._translated():
            producer = self.cluster.producer(transactional_id=self.group)
            producer.init_transactions(self.cluster.timeout_s)
            decided = self._decided(consumer, decide)
            if decided is None:
                return
            note, send = decided
            producer.begin_transaction()
            try:
                send(producer)
                # Rows that are refused while the note is sent would be a call in a wrong state.
                producer.flush(FLUSH_TIMEOUT_S)
                producer.send_offsets_to_transaction(
                    [note], consumer.consumer_group_metadata(), self.cluster.timeout_s
                )
                producer.commit_transaction()
            except BaseException:
                # Otherwise readers wait until the transaction times out.
                with suppress(Exception):
                    producer.purge()
                    producer.abort_transaction(self.cluster.timeout_s)
                raise
            self._committed(consumer)  # Behind that, who does not wait for it sees it, too.

    def at_least_once(self, decide: Callable[[Timeline], Write]) -> None:
        """Send the rows that *decide* returns for the note, and then commit the new one.

        After a crash in between they are sent again.
        """
        from confluent_kafka import KafkaError

        failed: list[KafkaError] = []
        with self._consumer() as consumer, self.cluster.explained(f"to write {self.name!r}"):
            decided = self._decided(consumer, decide)
            if decided is None:
                return
            note, send = decided
            producer = self.cluster.producer(lambda error, _: failed.append(error))
            send(producer)
            left = producer.flush(FLUSH_TIMEOUT_S)
            if failed or left:
                error = failed[0] if failed else KafkaError(KafkaError._TIMED_OUT)  # noqa: SLF001
                raise self.cluster.explain(error, "the rows")
            consumer.commit(offsets=[note], asynchronous=False)

    def check_exists(self) -> None:
        """Raises ConfigurationError when there is no such topic, so that a typo creates none."""
        with self._consumer() as consumer:
            self._partitions(consumer)

    def is_compacted(self) -> bool:
        """Whether the broker refuses messages without a key; False where it does not say."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined] # Not in its __all__.

        resource = ConfigResource("topic", self.name)
        admin = self.cluster.admin()  # What it is asked ends with it.
        asked = admin.describe_configs([resource], request_timeout=self.cluster.timeout_s)
        try:
            found = asked[resource].result()
        except KafkaException as error:
            if error.args[0].code() in _not_told():
                return False
            raise self.cluster.explain(error.args[0], f"to describe {self.name!r}") from None
        policy = found.get("cleanup.policy")
        return policy is not None and "compact" in (policy.value or "")

    def _partitions(self, consumer: Consumer) -> list[int]:
        return self.cluster.partitions(consumer, self.name, NO_TOPIC_FIX)

    def _decided(
        self, consumer: Consumer, decide: Callable[[Timeline], Write]
    ) -> tuple[TopicPartition, Send] | None:
        """The note that is to follow the one of now, and what sends its rows; None for nothing."""
        before = self._read(consumer)
        found = decide(before.timeline)
        if found is None:
            return None
        timeline, send = found
        return self._offset(replace(before, timeline=timeline)), send

    def _read(self, consumer: Consumer) -> Note:
        """The note of the topic as it is now, and its id; the default of a topic without any."""
        found = self._committed(consumer)
        # After the note, which may be of a topic that somebody deletes meanwhile.
        ids = self.cluster.topic_ids(self.cluster.admin(), [self.name], NO_TOPIC_FIX)
        now = Note(timeline=Timeline(), table=ids[self.name])
        if found.offset < 0:
            return now
        place = f"the offset of group {self.group!r} for topic {self.name!r}"
        note = decoded_offset(found.offset, found.metadata, place)
        # A broker before 2.8 has no ids, and tells them once it is a newer one.
        is_of_another = "" not in (note.table, now.table) and note.table != now.table
        return now if is_of_another else replace(note, table=now.table)

    def _committed(self, consumer: Consumer) -> TopicPartition:
        """The group's offset.

        The client says as an event why it found no coordinator, and waits on: so it is asked in
        ever longer attempts, with a look at its events in between.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        def ask() -> TopicPartition:
            until, attempt_s = time.monotonic() + self.cluster.timeout_s, FIRST_ATTEMPT_S
            while True:
                left_s = until - time.monotonic()
                asked, within_s = [TopicPartition(self.name, 0)], max(0.001, min(attempt_s, left_s))
                try:
                    (found,) = consumer.committed(asked, timeout=within_s)
                except KafkaException as error:
                    timed_out = error.args[0].code() == KafkaError._TIMED_OUT  # noqa: SLF001
                    event = consumer.poll(0) if timed_out else None
                    if event is not None and event.error() is not None:
                        raise KafkaException(event.error()) from None
                    if not timed_out or left_s <= attempt_s:
                        raise
                    attempt_s *= 2
                else:
                    if found.error is not None:
                        raise KafkaException(found.error)
                    return found

        return self.cluster.answered(ask, f"to read the note of group {self.group!r}")

    def _offset(self, note: Note) -> TopicPartition:
        from confluent_kafka import TopicPartition

        offset, metadata = encoded_offset(note)
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


def _not_told() -> frozenset[int]:
    """The errors of a broker that does not say what it has configured, or not to this user."""
    from confluent_kafka import KafkaError

    return frozenset(
        {
            KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001 - the client's public names begin so
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
        }
    )


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


def encoded_offset(note: Note) -> tuple[int, str]:
    """The offset and its metadata.  Spans that do not fit are dropped, oldest first."""
    return note.timeline.newest, encoded_note(note, MAX_BYTES)


def decoded_offset(offset: int, metadata: str | None, place: str) -> Note:
    """The note; ProtocolViolation when another client wrote it."""
    note = decoded_note(metadata, place, FIX)
    if note.timeline.newest != offset:
        raise ProtocolViolation(
            f"{place} is {offset}, and its note says {note.timeline.newest}: another client has "
            f"moved it; {FIX}"
        )
    return note
