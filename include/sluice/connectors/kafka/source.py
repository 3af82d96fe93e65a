"""Kafka topics as a source: partitions are ``topic/number``, and offsets are Kafka's own.

Epochs end at the last stable offset, so that no epoch has records of an open transaction.  Offsets
have gaps where a transaction ended or was aborted, and where a topic was compacted, so a slice may
have fewer records than offsets.  A new partition is read from its beginning, wherever the first
ones began (Flink's rule for discovered partitions).

An offset means a record in one log.  Positions and slices have the topic's id, which changes when
it is made anew, and the leader epoch in which the partition had its end (KIP-320).  While the epoch
is the same, the log is.  In a later one the leader is asked where the earlier one ended in its log
(OffsetForLeaderEpoch, by the client): before what was read or planned, and records were lost, and
others may have their offsets.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from sluice.connectors.kafka.cluster import NO_EPOCH, Cluster, LogBounds
from sluice.connectors.kafka.values import MetadataColumns, PlainJsonValues, Values
from sluice.connectors.offsets import OffsetSource, Readable
from sluice.connectors.plain_lines import plain_lines
from sluice.core.plan import PartitionOffset, Slice
from sluice.declaration.places import Source, SourcePosition, TextDecoding
from sluice.errors import BEGIN_ANEW, ConfigurationError, ProtocolViolation, StoreUnavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Consumer, KafkaError, Message
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

# The start: an end, milliseconds since 1970, or an offset per partition.
Start: TypeAlias = Literal["earliest", "latest"] | int | tuple[tuple[str, int], ...]

# The client's text (rdkafka.c): its event has the code of the reset that follows, as for records
# that have expired.
LOG_TRUNCATION = "log truncation detected"
FIX = "create it, or correct topics="
NOTIFY_TIMEOUT_S = 5.0  # Short, as it is for monitoring only.
BATCH_MESSAGES = 10_000  # Makes the cost per batch negligible; 10 MB with messages of 1 KB.
# The client gives a batch that is not full after this time, and a slice with gaps never fills its
# last one.  A shorter wait makes smaller batches where the network is slow.
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class KafkaSource(OffsetSource):
    """See ``Source``, and ``declared.Kafka`` for the options."""

    cluster: Cluster
    topics: tuple[str, ...]
    values: Values
    columns: MetadataColumns
    start: Start = "earliest"
    bounded: bool = False
    skips_gaps: bool = False

    @property
    def name(self) -> str:
        return f"Kafka {', '.join(self.topics)} at {self.cluster.servers}"

    @property
    def decoding(self) -> TextDecoding | None:
        if self.values.text_schema is None:
            return None
        return TextDecoding(
            format="json",
            schema=self.values.text_schema,
            column="value",
            keeps=tuple(field.name for field in (*self.columns.fields(), *self.values.kept())),
        )

    def decoded(self) -> Source | None:
        """See ``Source``; values of JSON are decoded as far as ``plain_lines`` goes."""
        if self.decoding is None:
            return self
        plain = plain_lines(self.decoding)
        if plain is None:
            return None
        columns = replace(self.columns, are_last=True)
        return replace(self, values=PlainJsonValues(plain), columns=columns)

    def schema(self) -> pa.Schema:
        return self.columns.schema(self.values)

    def readable(self) -> Mapping[str, Readable]:
        """See ``OffsetSource``.

        Raises:
            ConfigurationError: a topic is missing, or the cluster refuses us.
        """
        with self.cluster.consumer(isolation_level="read_committed") as consumer:
            names = [name for topic in self.topics for name in self._partitions(consumer, topic)]
        admin = self.cluster.admin()
        # Before the offsets: those of a topic must not get the id of one created after it.
        ids = self.cluster.topic_ids(admin, self.topics, FIX)
        found = self.cluster.log_bounds(admin, [parsed_partition(name) for name in names])
        bounds = {name: found[parsed_partition(name)] for name in names}
        return {
            name: Readable(one.first, one.end, str(LogId(ids[topic_of(name)], one.epoch)))
            for name, one in bounds.items()
        }

    def check_continued(self, read: Sequence[tuple[PartitionOffset, Readable]]) -> None:
        """See ``OffsetSource``.  It asks the leaders of partitions with another leader epoch."""
        doubtful: dict[str, tuple[int, int]] = {}
        for before, readable in read:
            then, now = LogId.parse(before.version), LogId.parse(readable.version)
            if then.topic and now.topic and then.topic != now.topic:
                raise self.made_anew(before, then.topic, now.topic)
            if then.is_led_otherwise(now):
                doubtful[before.partition] = (before.offset, then.epoch)
        self._check_logs(doubtful, "was read")

    def _check_logs(self, ends: Mapping[str, tuple[int, int]], what_was_done: str) -> None:
        """Check that the leader of each partition has the log of an epoch up to an offset.

        Raises:
            ConfigurationError: it has not.
            StoreUnavailable: it did not answer in time.
        """
        from confluent_kafka import TopicPartition

        if not ends:
            return
        doing = "to compare its log with what was read"
        waited_since = time.monotonic()
        left = set(ends)
        with self.cluster.consumer(
            isolation_level="read_committed",
            auto_offset_reset="error",
            enable_partition_eof=True,
            fetch_wait_max_ms=50,
            queued_min_messages=1,
            max_partition_fetch_bytes=1,  # The first message shows that the log was compared.
        ) as consumer:
            with self.cluster.explained(doing):
                consumer.assign(
                    [
                        TopicPartition(*parsed_partition(name), offset, leader_epoch=epoch)
                        for name, (offset, epoch) in ends.items()
                    ]
                )
            while left:
                with self.cluster.explained(doing):
                    polled = consumer.consume(len(left), timeout=POLL_S)
                for event in polled:
                    if _is_of_the_group(event.error()):
                        continue
                    name = f"{event.topic()}/{event.partition()}"
                    self._check_event(event, name, ends[name], what_was_done)
                    if (error := event.error()) is None or not error.retriable():
                        left.discard(name)
                if left and time.monotonic() - waited_since > self.cluster.timeout_s:
                    raise StoreUnavailable(
                        f"Kafka at {self.cluster.servers} did not compare the log of "
                        f"{min(left)!r} with what was read for {self.cluster.timeout_s:.0f} s"
                    )

    def _check_event(
        self, event: Message, name: str, end: tuple[int, int], what_was_done: str
    ) -> None:
        from confluent_kafka import KafkaError

        error = event.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF or error.retriable():  # noqa: SLF001
            return
        if error.code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise self.cluster.explain(error, f"to compare the log of {name!r}")
        if LOG_TRUNCATION not in error.str():
            return  # The log was compared, and the records there have expired since.
        raise ConfigurationError(
            f"partition {name!r} of {self.name} {what_was_done} to offset {end[0]} in leader epoch "
            f"{end[1]}, and its present leader has fewer records of that epoch ({error.str()}): a "
            "leader without the newest records was elected, so the records at these offsets are "
            f"lost or replaced; restore a checkpoint from before them, or {BEGIN_ANEW}"
        )

    @property
    def starts_at_end(self) -> bool:
        """See ``StartingSource``."""
        return self.start == "latest"

    def first_offset(self, partition: str, now: Readable, *, is_new: bool) -> int:
        if is_new:
            return now.first
        match self.start:
            case "earliest":
                return now.first
            case "latest":
                return now.end
            case int(timestamp_ms):
                return self._offset_at(partition, timestamp_ms, now)
            case offsets:
                offset = dict(offsets).get(partition, now.first)
        if not now.first <= offset <= now.end:
            raise ConfigurationError(
                f"start= of {self.name} names offset {offset} of {partition!r}, which has "
                f"{now.first} to {now.end}"
            )
        return offset

    def read(
        self,
        piece: Slice,
        columns: Sequence[str] | None = None,  # noqa: ARG002 - a value is decoded as a whole
    ) -> Iterator[pa.RecordBatch]:
        """See ``Source``.  Records of aborted and of open transactions are left out.

        Raises:
            ConfigurationError: some of it has expired since it was planned, or was truncated.
            StoreUnavailable: the cluster did not answer in time.
        """
        planned = LogId.parse(piece.version)
        topic = topic_of(piece.partition)
        admin = self.cluster.admin()
        start = self._start(self._bounds(admin, piece.partition), piece)
        with self.cluster.consumer(
            isolation_level="read_committed",
            auto_offset_reset="error",
            enable_partition_eof=True,
            # How long the broker waits for records; a slice may end in a gap.
            fetch_wait_max_ms=50,
            # Little more is fetched than the slice has; a full queue waits a second by default.
            queued_min_messages=min(max(piece.records, 1_000), 100_000),
            fetch_queue_backoff_ms=10,
        ) as consumer:
            for messages in consume(self.cluster, consumer, piece, start):
                self._check_epoch(messages[-1], piece, planned)
                yield self.columns.batch(messages, topic, self.values)
        # Checked after the rows, which count only when the slice has ended; no id is used twice,
        # and a leader epoch neither.
        if planned.topic and self.cluster.topic_ids(admin, [topic], FIX)[topic] != planned.topic:
            raise ConfigurationError(
                f"topic {topic!r} of {self.name} was made anew after this epoch was planned, so "
                f"its offsets mean other records; {BEGIN_ANEW}, too"
            )
        now = LogId(planned.topic, self._bounds(admin, piece.partition).epoch)
        if planned.is_led_otherwise(now):
            self._check_logs({piece.partition: (piece.end, planned.epoch)}, "was planned")

    def notify_complete(self, group: str, position: SourcePosition) -> None:
        """Commit the group's offsets, for tools that show its lag; sluice does not read them."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        offsets = [TopicPartition(*parsed_partition(one.partition), one.offset) for one in position]
        if not offsets:
            return
        properties = self.cluster.properties(
            {"group.id": group, "enable.auto.commit": False, "socket.timeout.ms": 5_000}
        )
        try:
            consumer = Consumer(properties, logger=log)
            try:
                # Describe the group first: this has a timeout, and a commit has none.
                consumer.committed(offsets[:1], timeout=NOTIFY_TIMEOUT_S)
                consumer.commit(offsets=offsets, asynchronous=False)
            finally:
                consumer.close()
        except KafkaException as error:
            reason = self.cluster.explain(
                error.args[0], f"to commit the offsets of group {group!r}"
            )
            log.warning("offsets are not shown group=%s reason=%s", group, reason)

    def _partitions(self, consumer: Consumer, topic: str) -> list[str]:
        numbers = self.cluster.partitions(consumer, topic, FIX)
        if not numbers:
            raise StoreUnavailable(f"topic {topic!r} has no partitions yet")
        return [f"{topic}/{number}" for number in numbers]

    def _bounds(self, admin: AdminClient, name: str) -> LogBounds:
        one = parsed_partition(name)
        return self.cluster.log_bounds(admin, [one])[one]

    def _check_epoch(self, last: Message, piece: Slice, planned: LogId) -> None:
        """Refuse the latest record of a batch if a leader elected after the plan wrote it."""
        epoch = last.leader_epoch()
        if planned.epoch != NO_EPOCH and epoch is not None and epoch > planned.epoch:
            raise ConfigurationError(
                f"offset {last.offset()} of partition {piece.partition!r} of {self.name} was "
                f"planned in leader epoch {planned.epoch} and has a record of epoch {epoch}: a "
                "leader without the newest records was elected, so other records have their "
                f"offsets; restore a checkpoint from before them, or {BEGIN_ANEW}"
            )

    def _offset_at(self, partition: str, timestamp_ms: int, now: Readable) -> int:
        """The first offset at or after the timestamp; the end when there is none."""
        from confluent_kafka import TopicPartition

        wanted = TopicPartition(*parsed_partition(partition), timestamp_ms)
        doing = f"to find a time in {partition!r}"
        with (
            self.cluster.consumer(isolation_level="read_committed") as consumer,
            self.cluster.explained(doing),
        ):
            found = consumer.offsets_for_times([wanted], timeout=self.cluster.timeout_s)[0]
        if found.error is not None:
            raise self.cluster.explain(found.error, doing)
        return found.offset if now.first <= found.offset <= now.end else now.end

    def _start(self, now: LogBounds, piece: Slice) -> int:
        """The offset to read the slice from: its start, or the first that has not expired."""
        if now.first <= piece.start and piece.end <= now.end:
            return piece.start
        if now.end < piece.end:
            raise ConfigurationError(
                f"partition {piece.partition!r} of {self.name} was planned to offset {piece.end} "
                f"and ends at {now.end} now: it was truncated or made anew; {BEGIN_ANEW}, too"
            )
        start = min(now.first, piece.end)
        lost = f"offsets {piece.start} to {start - 1} of {piece.partition!r}"
        if not self.skips_gaps:
            raise ConfigurationError(
                f"{lost} of {self.name} have expired after they were planned and before they "
                'were read; raise the topic\'s retention, and restore, or use on_expired="skip"'
            )
        log.error("RECORDS ARE LOST: %s of %s have expired", lost, self.name)
        return start


@dataclass(frozen=True, slots=True)
class LogId:
    """The version of a partition: its topic's id, and a leader epoch; empty where not known."""

    topic: str
    epoch: int

    @classmethod
    def parse(cls, text: str) -> LogId:
        """Raises ProtocolViolation for a text of another format."""
        if not text:
            return cls("", NO_EPOCH)
        topic, separator, epoch = text.partition("@")
        if not separator or not (epoch.isdecimal() or not epoch):
            raise ProtocolViolation(f"{text!r} is no topic's id with a leader epoch")
        return cls(topic, int(epoch) if epoch else NO_EPOCH)

    def is_led_otherwise(self, now: LogId) -> bool:
        """Whether the log may have become another one since, as another leader has it."""
        return NO_EPOCH not in (self.epoch, now.epoch) and self.epoch != now.epoch

    def __str__(self) -> str:
        epoch = "" if self.epoch == NO_EPOCH else str(self.epoch)
        return f"{self.topic}@{epoch}" if self.topic or epoch else ""


def topic_of(partition: str) -> str:
    return parsed_partition(partition)[0]


def parsed_partition(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("/")
    return topic, int(number)


def consume(
    cluster: Cluster, consumer: Consumer, piece: Slice, start: int
) -> Iterator[list[Message]]:
    """Yield the messages from *start* to the end of *piece*, in batches that are not empty.

    It ends when a message at or after the slice's end arrives, or when the partition ends there: as
    offsets have gaps, there may be no message with the last offset.

    Raises:
        ConfigurationError: the records are gone.
        StoreUnavailable: no message arrived within the cluster's timeout.
    """
    from confluent_kafka import TopicPartition

    if start >= piece.end:
        return
    doing = f"to read {piece.partition!r}"
    with cluster.explained(doing):
        consumer.assign([TopicPartition(*parsed_partition(piece.partition), start)])
    waited_since = time.monotonic()
    while True:
        with cluster.explained(doing):
            polled = consumer.consume(min(BATCH_MESSAGES, piece.end - start), timeout=POLL_S)
        events = [message for message in polled if message.error() is not None]
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
            raise ConfigurationError(
                f"offsets {piece.start} to {piece.end - 1} of partition {piece.partition!r} of "
                f"Kafka at {cluster.servers} were planned, and some have expired or were truncated "
                f"while they were read ({error.str()}); raise the topic's retention, and restore"
            )
        case _ if error.retriable() or _is_of_the_group(error):
            return False
        case _:
            raise cluster.explain(error, f"to read {piece.partition!r}")


def _is_of_the_group(error: KafkaError | None) -> bool:
    """Whether the client looks in vain for the coordinator of its group, which is not used."""
    from confluent_kafka import KafkaError

    return error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "a message that was read has an offset"
    return offset
