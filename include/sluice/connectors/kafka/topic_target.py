"""A Kafka topic that checkpoints are appended to.

With transactions each checkpoint is one transaction, rows and note alike, so that readers with
``isolation.level=read_committed`` see all of it or nothing, once.  Without, the rows are sent and
then noted: a coordinator that dies in between has them sent again.

A topic is appended to, and what was published cannot be taken back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.kafka.messages import MessageFormat, Texts
from sluice.connectors.kafka.note import Note
from sluice.connectors.kafka.transactions import FencedByAnother, NotedTopic
from sluice.connectors.sink import RollBack
from sluice.errors import ConfigurationError, FencedError, StoreUnavailable

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Producer

    from sluice.connectors.staged_sink import EpochRows

CHECKPOINT_HEADER = "sluice-checkpoint-id"
# Who is fenced lets the other one finish.  Waiting doubles, so that of two that fence each other
# one gets as long as it needs: 5 + 10 + 20 + 40 seconds, and then the task is tried again.
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

    def publish(self, checkpoint_id: int, rows: EpochRows) -> None:
        """See ``Target``.

        Raises:
            FencedError: a later checkpoint is noted, or a restore has passed this one.
            ConfigurationError: the rows do not fit, or there is no such topic.
            StoreUnavailable: try again.
        """

        def todo(note: Note) -> tuple[Note, Callable[[Producer], None]] | None:
            if checkpoint_id in note:
                return None
            self._check_in_time(checkpoint_id, note)
            return note.with_checkpoint(checkpoint_id), send

        def send(producer: Producer) -> None:
            self._send(producer, checkpoint_id, rows)

        self.topic.check_exists()
        if self.transactional:
            self._insist(
                todo, lambda note: checkpoint_id in note or self._is_late(checkpoint_id, note)
            )
        elif (found := todo(self.topic.note())) is not None:
            self.topic.at_least_once(*found)

    def is_published(self, checkpoint_id: int) -> bool:
        return checkpoint_id in self.topic.note()

    def published_after(self, version: int | None) -> tuple[int, ...]:
        """See ``Sink``; of very many ids with gaps the oldest are forgotten (``note.py``)."""
        return tuple(self.topic.note().after(version))

    def recover(self, version: int | None, *, through: int, roll_back: bool) -> None:
        """Note the floor, behind which no late commit may publish."""
        if version is not None and version > through:
            return  # The job went on since; somebody repeats an old restore.

        def todo(note: Note) -> tuple[Note, Callable[[Producer], None]] | None:
            if through <= note.floor:
                return None
            if roll_back and (ahead := [*note.after(version)]):
                raise ConfigurationError(
                    f"the topic {self.topic.name!r} cannot be rolled back to checkpoint "
                    f"{version or 'nothing'}: {len(ahead)} checkpoints after it were published, "
                    f"through {ahead[-1]}, and Kafka takes no record back; restore without rolling "
                    "back, and let readers skip what has their "
                    f"{CHECKPOINT_HEADER} header"
                )
            return note.with_floor(through), lambda _: None

        if self.transactional:
            self._insist(todo, lambda note: through <= note.floor)
        elif (found := todo(self.topic.note())) is not None:
            self.topic.at_least_once(*found)

    def describe(self, version: int) -> str:
        return f"records of topic {self.topic.name} with header {CHECKPOINT_HEADER}={version}"

    def _insist(
        self,
        todo: Callable[[Note], tuple[Note, Callable[[Producer], None]] | None],
        is_settled: Callable[[Note], bool],
    ) -> None:
        """Do it, or see that another process has; who is fenced waits for that one first."""
        for attempt in range(ATTEMPTS):
            try:
                self.topic.in_transaction(todo)
            except FencedByAnother:
                patience_s = PATIENCE_S * 2**attempt * random.uniform(0.7, 1.3)  # noqa: S311
                until = time.monotonic() + patience_s
                while attempt + 1 < ATTEMPTS and time.monotonic() < until:
                    note = self.topic.note()
                    if is_settled(note):
                        todo(note)  # Raises when it is settled against us.
                        return
                    time.sleep(LOOK_EVERY_S)
            else:
                return
        raise StoreUnavailable(
            f"another producer keeps using the transactional id {self.topic.group!r}; if it is not "
            "of this job, give each sink a transactional_id of its own"
        )

    def _check_in_time(self, checkpoint_id: int, note: Note) -> None:
        if self._is_late(checkpoint_id, note):
            passed = (
                f"checkpoint {note.newest} is published"
                if note.newest > checkpoint_id
                else f"a restore has passed checkpoint {note.floor}"
            )
            raise FencedError(
                f"checkpoint {checkpoint_id} is too late for topic {self.topic.name!r}: {passed}"
            )

    def _is_late(self, checkpoint_id: int, note: Note) -> bool:
        return checkpoint_id not in note and checkpoint_id <= max(note.newest, note.floor)

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
                producer.poll(BUFFER_WAIT_S)  # Its queue is full: let it send.
        if number % MESSAGES_PER_POLL == 0:
            producer.poll(0)
