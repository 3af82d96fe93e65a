"""Kafka for tests: librdkafka's mock cluster, a broker with transactions, or a real one.

The mock cluster stores messages, and ends transactions without a word: it shows what was aborted,
fences nobody and loses offsets that were sent in a transaction.  ``Broker`` is what the protocol
says of those (KIP-98), on one node, in memory, without replicas or groups.
``SLUICE_TEST_KAFKA`` names a real one.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.kafka_broker import Broker, running_broker

REAL = os.environ.get("SLUICE_TEST_KAFKA", "")
QUIET = logging.getLogger("tests.kafka")


@contextmanager
def mock_cluster() -> Iterator[str]:
    """The address of librdkafka's own; topics come into being with four partitions."""
    from confluent_kafka import Producer

    host = Producer({"test.mock.num.brokers": "1", "log_level": 0}, logger=QUIET)
    brokers = host.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{one.host}:{one.port}" for one in brokers)
    host.close()


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster under test.  ``broker`` is ours, when it is, and does what no client may ask."""

    servers: str
    broker: Broker | None = None
    is_real: bool = False

    def create(self, partitions: int = 4) -> str:
        """A new topic; librdkafka's mock gives each four partitions."""
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        topic = f"t-{secrets.token_hex(4)}"
        properties: dict[str, Any] = {"bootstrap.servers": self.servers, "log_level": 0}
        if self.broker is not None:
            self.broker.grow(topic, partitions)
        elif self.is_real:
            admin = AdminClient(properties)
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        else:
            assert partitions == 4
            Producer(properties).list_topics(topic, timeout=10)
        return topic


@contextmanager
def place(kind: str) -> Iterator[Place]:
    """``mock``, ``broker`` or ``real``."""
    match kind:
        case "mock":
            with mock_cluster() as servers:
                yield Place(servers)
        case "broker":
            with running_broker() as broker:
                yield Place(broker.servers, broker)
        case _:
            yield Place(REAL, is_real=True)
