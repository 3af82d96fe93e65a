"""A Kafka topic to which checkpoints are appended.

With transactions, the rows and the note of a checkpoint are one transaction, so that readers with
``isolation.level=read_committed`` see all of it or nothing, once.  Without, the rows are sent and
then noted: if the coordinator dies in between, they are sent again.

Published records cannot be rolled back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.contracts.sink import DELETED, RollBack
from sluice.connectors.contracts.timeline_note import named
from sluice.connectors.kafka.message_size import check_sizes
from sluice.connectors.kafka.messages import MessageFormat, Texts
from sluice.connectors.kafka.transactions import FencedByAnother, NotedTopic
from sluice.core.timeline import Recovery, Timeline, Writer
from sluice.errors import ConfigurationError, StoreUnavailable, TableMismatch

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer

    from sluice.connectors.kafka.transactions import Todo
    from sluice.connectors.staging.staged_sink import EpochRows

CHECKPOINT_HEADER = "sluice-checkpoint-id"
LONGEST_MARK = (CHECKPOINT_HEADER, str(2**63 - 1).encode())
# A fenced producer lets the other one finish.  The pauses double, so that of two that fence each
# other one has enough time: 5 + 10 + 20 + 40 seconds, and then Airflow retries the task.
PATIENCE_S = 5.0
ATTEMPTS = 5
LOOK_EVERY_S = 0.05
BUFFER_WAIT_S = 0.05
MESSAGES_PER_POLL = 10_000


@dataclass(frozen=True, slots=True)
class KafkaTarget:
    """See ``staged_sink.Target``."""

    topic: NotedTopic
    format: MessageFormat
    transactional: bool = True

    @property
    def rolls_back(self) -> RollBack:
        return RollBack.NEVER

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:  # noqa: ARG002 - of ``Target``
        self.topic.check_exists()
        self.format.check(schema)

    def check_rows(self, rows: pa.Table) -> None:
        if DELETED not in rows.column_names:  # Only the keys of deletes are sent.
            self.format.check_years(rows)
            check_sizes(self.format, rows, self.topic.cluster.max_message_bytes, LONGEST_MARK)

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        """See ``Target``."""

        def todo(before: Timeline) -> Todo:
            with named(self._name):
                after = before.publishing(writer, checkpoint_id, parent)
            return None if after is None else (after, send)

        def send(producer: Producer) -> None:
            self._send(producer, checkpoint_id, rows)

        self.topic.check_exists()
        self._do(todo)

    def timeline(self) -> Timeline:
        """See ``Target``; of very many spans the oldest are dropped (``note.py``)."""
        return self.topic.note()

    def is_empty(self) -> bool:
        """See ``Sink``; False if a transaction was aborted, as its records still take offsets."""
        return self.topic.is_empty()

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        def todo(before: Timeline) -> Todo:
            with named(self._name):
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

        self.topic.check_exists()
        self._do(todo)

    def describe(self, version: int) -> str:
        return f"records of topic {self.topic.name} with header {CHECKPOINT_HEADER}={version}"

    @property
    def _name(self) -> str:
        return f"Kafka topic {self.topic.name!r}"

    def _do(self, todo: Callable[[Timeline], Todo]) -> None:
        if self.transactional:
            self._insist(todo)
        elif (found := todo(self.topic.note())) is not None:
            self.topic.at_least_once(*found)

    def _insist(self, todo: Callable[[Timeline], Todo]) -> None:
        """Do *todo*, or find that another process has done it; when fenced, wait for it first."""
        for attempt in range(ATTEMPTS):
            try:
                self.topic.in_transaction(todo)
            except FencedByAnother:
                patience_s = PATIENCE_S * 2**attempt * random.uniform(0.7, 1.3)  # noqa: S311
                until = time.monotonic() + patience_s
                while attempt + 1 < ATTEMPTS and time.monotonic() < until:
                    # Raises if the time line refuses it.
                    with suppress(TableMismatch):
                        if todo(self.topic.note()) is None:
                            return
                    time.sleep(LOOK_EVERY_S)
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


Header = tuple[str, str | bytes | None]


def _same(mark: Header) -> Iterator[list[Header]]:
    headers: list[Header] = [mark]
    while True:
        yield headers


def _produce(
    producer: Producer, topic: str, keys: Texts, values: Texts, headers: Iterator[list[Header]]
) -> None:
    produce = producer.produce
    for number, (key, value, marks) in enumerate(zip(keys, values, headers, strict=False)):
        while True:
            try:
                produce(topic, value, key, headers=marks)
                break
            except BufferError:
                producer.poll(BUFFER_WAIT_S)  # The producer's queue is full: let it send.
        if number % MESSAGES_PER_POLL == 0:
            producer.poll(0)
