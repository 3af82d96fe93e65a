"""Kafka for tests: a broker in memory, which does what no client may ask for, or a real one.

The real one is ``harness.kafka_server``'s; ``SLUICE_TEST_KAFKA`` names another.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from harness import kafka_server
from harness.kafka_broker import Broker, running_broker
from harness.kafka_server import MISSING

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

WAIT_S = 120.0  # For what a real one does in milliseconds.
REAL = os.environ.get("SLUICE_TEST_KAFKA", "")
IF_REAL = pytest.param(
    "real", marks=pytest.mark.skipif(not (REAL or kafka_server.is_here()), reason=MISSING)
)


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster under test."""

    servers: str
    own_broker: Broker | None = None

    @property
    def broker(self) -> Broker:
        """Our own broker, which does what no client may request."""
        assert self.own_broker is not None
        return self.own_broker

    def create(self, partitions: int = 4) -> str:
        """A new topic."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        topic = f"t-{secrets.token_hex(4)}"
        if self.own_broker is not None:
            self.own_broker.grow(topic, partitions)
        else:
            properties: dict[str, Any] = {"bootstrap.servers": self.servers, "log_level": 0}
            admin = AdminClient(properties)  # What it is asked ends with it.
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(WAIT_S)
            _wait_for_leaders(admin, [TopicPartition(topic, one) for one in range(partitions)])
        return topic


@contextmanager
def in_memory() -> Iterator[Place]:
    with running_broker() as broker:
        yield Place(broker.servers, broker)


def wait_for_ends(servers: str, topic: str) -> None:
    """A transaction's end is told when it is decided, and is in the topic a moment later."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import (  # type: ignore[attr-defined] # Not in its __all__.
        AdminClient,
        OffsetSpec,
    )

    latest: Any = OffsetSpec.latest  # It has no types.
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    partitions = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    asked = {TopicPartition(topic, number): latest() for number in partitions}
    until = time.monotonic() + WAIT_S

    def ends(level: IsolationLevel) -> list[int]:
        answers = admin.list_offsets(asked, isolation_level=level)
        return [answers[one].result(WAIT_S).offset for one in asked]

    while ends(IsolationLevel.READ_COMMITTED) != ends(IsolationLevel.READ_UNCOMMITTED):
        assert time.monotonic() < until, f"a transaction of {topic} is open"
        time.sleep(0.02)


def _wait_for_leaders(admin: AdminClient, partitions: list[TopicPartition]) -> None:
    """A topic is created when the controller knows of it, and its leaders learn of it later."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined] # Not in its __all__.

    earliest: Any = OffsetSpec.earliest  # It has no types.
    until = time.monotonic() + WAIT_S
    while True:
        asked = admin.list_offsets({one: earliest() for one in partitions})
        try:
            for answer in asked.values():
                answer.result(WAIT_S)
        except KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
