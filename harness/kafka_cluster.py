"""Kafka for tests: librdkafka's mock cluster, a broker with transactions, or a real one.

The mock cluster stores messages and ignores transactions: it shows what was aborted, fences nobody
and loses offsets that were sent in a transaction.  ``Broker`` has transactions (KIP-98), on one
node, in memory, without replicas or groups.  ``SLUICE_TEST_KAFKA`` names a real one.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from harness.kafka_broker import Broker, running_broker

REAL = os.environ.get("SLUICE_TEST_KAFKA", "")
IF_REAL = pytest.param(
    "real", marks=pytest.mark.skipif(not REAL, reason="SLUICE_TEST_KAFKA names no real broker")
)
QUIET = logging.getLogger("harness.kafka")


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
    """A cluster under test."""

    servers: str
    own_broker: Broker | None = None
    is_real: bool = False

    @property
    def broker(self) -> Broker:
        """Our own broker, which does what no client may request."""
        assert self.own_broker is not None
        return self.own_broker

    def create(self, partitions: int = 4) -> str:
        """A new topic; librdkafka's mock gives each four partitions."""
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        topic = f"t-{secrets.token_hex(4)}"
        properties: dict[str, Any] = {"bootstrap.servers": self.servers, "log_level": 0}
        if self.own_broker is not None:
            self.own_broker.grow(topic, partitions)
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
