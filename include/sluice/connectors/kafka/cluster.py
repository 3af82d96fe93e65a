"""``Cluster``: the clients of a Kafka cluster, and the translation of its errors.

A ``Cluster`` is pickled for Spark's workers; a client never is.  Secrets are resolved in the
process that builds a client, and no message shows one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from sluice.core.failures import KAFKA
from sluice.declaration.params import Env, value_of
from sluice.errors import ConfigurationError, SluiceError, StoreUnavailable
from sluice.extras import require_installed

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

ELECTION_POLL_S = 0.1
REQUEST_TIMEOUT_S = 30.0  # A cluster answers in milliseconds, and elects a leader in 10 s.
# A coordinator that dies leaves its transaction open, and readers wait until the next one begins
# or this time has passed.  Sending a checkpoint must be faster; brokers allow 900,000 by default.
TRANSACTION_TIMEOUT_MS = 300_000
MAX_MESSAGE_BYTES = "message.max.bytes"
DEFAULT_MAX_MESSAGE_BYTES = 1_000_000  # That of librdkafka.
SECRET_WORDS = ("password", "secret", "key.pem", "oauthbearer.config", "jaas")
# Properties that sluice sets itself, because its guarantees rest on them.
OURS = frozenset(
    {
        "auto.offset.reset",
        "bootstrap.servers",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "isolation.level",
        "transactional.id",
    }
)


NO_EPOCH = -1


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The first offset of a partition, its end, and the leader epoch in which that was its end.

    A leader never takes records from its own log, so a log only becomes another one with a new
    leader, and a new epoch (KIP-101).  ``NO_EPOCH`` for brokers before 2.1.
    """

    first: int
    end: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """*config* are librdkafka's properties, by name; its values stay out of ``repr``.

    Raises:
        ConfigurationError: a property is one that sluice sets itself.
    """

    bootstrap_servers: str | Env
    config: tuple[tuple[str, str | Env], ...] = field(default=(), repr=False)
    timeout_s: float = REQUEST_TIMEOUT_S

    def __post_init__(self) -> None:
        if taken := sorted(OURS & {name for name, _ in self.config}):
            raise ConfigurationError(
                f"the Kafka property {taken[0]!r} is set by sluice, because its guarantees rest "
                "on it; remove it from config="
            )
        if not self.bootstrap_servers:
            raise ConfigurationError(
                'bootstrap_servers is empty; give "host:9092", several separated by commas'
            )

    @property
    def servers(self) -> str:
        return value_of(self.bootstrap_servers, {})

    @property
    def max_message_bytes(self) -> int:
        """The largest message that a producer takes, with keys, headers and 36 bytes for the rest.

        Raises:
            ConfigurationError: the property is no number.
        """
        declared = dict(self.config).get(MAX_MESSAGE_BYTES, str(DEFAULT_MAX_MESSAGE_BYTES))
        text = value_of(declared, {})
        if not text.isdecimal():
            raise ConfigurationError(
                f"the Kafka property {MAX_MESSAGE_BYTES!r} is {text!r}; make it a number of bytes"
            )
        return int(text)

    @contextmanager
    def consumer(self, **ours: str | int | bool) -> Iterator[Consumer]:
        """A consumer without a group, closed with the block.  *ours* has underscores for dots."""
        require_installed("confluent_kafka", who="Kafka")
        from confluent_kafka import Consumer

        with self.explained():
            consumer = Consumer(
                self.properties({"group.id": "sluice", "enable.auto.commit": False}, ours),
                logger=log,
            )
        try:
            yield consumer
        finally:
            consumer.close()

    def partitions(self, consumer: Consumer, topic: str, fix: str) -> list[int]:
        """The numbers of the topic's partitions.

        Raises:
            ConfigurationError: there is no such topic; the message ends with *fix*.
        """
        with self.explained(f"to describe topic {topic!r}"):
            found = consumer.list_topics(topic, timeout=self.timeout_s).topics[topic]
        if found.error is None:
            return sorted(found.partitions)
        raise self._undescribed(found.error, topic, fix)

    def admin(self) -> AdminClient:
        require_installed("confluent_kafka", who="Kafka")
        from confluent_kafka.admin import AdminClient

        with self.explained():
            return AdminClient(self.properties({}), logger=log)

    def topic_ids(self, admin: AdminClient, topics: Sequence[str], fix: str) -> Mapping[str, str]:
        """The id of each topic (KIP-516), which changes when it is deleted and created again.

        Empty for brokers before 2.8, which have no ids.

        Raises:
            ConfigurationError: there is no such topic, and the message ends with *fix*; or the user
                may not see it.
        """
        from confluent_kafka import KafkaException, TopicCollection

        asked = admin.describe_topics(TopicCollection([*topics]), request_timeout=self.timeout_s)
        found: dict[str, str] = {}
        for name, answer in asked.items():
            try:
                id_ = answer.result().topic_id
            except KafkaException as error:
                raise self._undescribed(error.args[0], name, fix) from None
            is_told = id_ is not None and id_.get_most_significant_bits() != 0
            found[name] = str(id_) if is_told else ""
        return found

    def log_bounds(
        self, admin: AdminClient, partitions: Sequence[tuple[str, int]]
    ) -> Mapping[tuple[str, int], LogBounds]:
        """The bounds of each partition's log, for readers of committed records.

        Raises:
            ConfigurationError: there is no such partition, or the user may not read it.
        """
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined] # Not in its __all__.

        earliest: Any = OffsetSpec.earliest  # They have no types.
        latest: Any = OffsetSpec.latest

        def ask() -> list[dict[tuple[str, int], tuple[int, int]]]:
            asked = [
                admin.list_offsets(
                    {TopicPartition(*one): spec for one in partitions},
                    isolation_level=IsolationLevel.READ_COMMITTED,
                    request_timeout=self.timeout_s,
                )
                for spec in (earliest(), latest())
            ]
            found = []
            for answers in asked:
                results = {(one.topic, one.partition): it.result() for one, it in answers.items()}
                found.append(
                    {
                        one: (it.offset, NO_EPOCH if it.leader_epoch is None else it.leader_epoch)
                        for one, it in results.items()
                    }
                )
            return found

        firsts, ends = self.answered(ask, "to say what its partitions have")
        return {
            one: LogBounds(firsts[one][0], max(firsts[one][0], ends[one][0]), ends[one][1])
            for one in partitions
        }

    def producer(
        self, on_error: Callable[[KafkaError, Any], None] | None = None, **ours: str | int | bool
    ) -> Producer:
        """An idempotent producer; it calls *on_error* for messages that were not delivered."""
        require_installed("confluent_kafka", who="Kafka")
        from confluent_kafka import Producer

        defaults: dict[str, Any] = {
            "enable.idempotence": True,
            # The partitioner of Java's producers, so that both may write one topic.
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "delivery.report.only.error": True,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        if on_error is not None:
            defaults["on_delivery"] = on_error
        with self.explained():
            return Producer(self.properties(defaults, ours), logger=log)

    def answered(self, ask: Callable[[], _Answer], doing: str) -> _Answer:
        """The answer of *ask*, which is asked again while a leader or a coordinator is elected.

        The client does so for what it reads and writes, and hands on what it is asked.
        """
        from confluent_kafka import KafkaException

        until = time.monotonic() + self.timeout_s
        while True:
            try:
                return ask()
            except KafkaException as error:
                if error.args[0].code() not in _elected() or time.monotonic() > until:
                    raise self.explain(error.args[0], doing) from None
            time.sleep(ELECTION_POLL_S)

    @contextmanager
    def explained(self, doing: str = "") -> Iterator[None]:
        """Translate the client's errors into those of sluice; *doing* is for their messages."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.explain(error.args[0], doing) from None
        except SystemError as error:  # Of a client that calls us back over its own exception.
            if not isinstance(error.__cause__, KafkaException):
                raise
            raise self.explain(error.__cause__.args[0], doing) from None

    def _undescribed(self, error: KafkaError, topic: str, fix: str) -> SluiceError:
        from confluent_kafka import KafkaError

        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return ConfigurationError(f"Kafka at {self.servers} has no topic {topic!r}; {fix}")
        return self.explain(error, f"to describe topic {topic!r}")

    def explain(self, error: KafkaError, doing: str = "") -> SluiceError:
        """The error to raise for *error*: with the fix, or as one that may pass."""
        text = self._without_secrets(str(error.str()))
        what = f" {doing}" if doing else ""
        place = f"Kafka at {self.servers}"
        if right := _rights().get(error.code()):
            return ConfigurationError(
                f"{place} refuses{what}: {error.name()}: {text}; give the user {right} ({KAFKA})"
            )
        if error.code() in _to_be_fixed():
            return ConfigurationError(
                f"{place} refuses{what}: {error.name()}: {text}; see {KAFKA} for the properties "
                "that sluice needs"
            )
        return StoreUnavailable(f"{place} did not answer{what}: {error.name()}: {text}")

    def properties(
        self, defaults: Mapping[str, Any], ours: Mapping[str, str | int | bool] | None = None
    ) -> dict[str, Any]:
        """The properties of a client: declared ones take precedence over *defaults*."""
        return {
            "log_level": 2,  # Other messages also arrive as errors, and again with each attempt.
            "error_cb": self._error_callback(),
            **defaults,
            **{name: value_of(value, {}) for name, value in self.config},
            **{name.replace("_", "."): value for name, value in (ours or {}).items()},
            "bootstrap.servers": self.servers,
        }

    def _error_callback(self) -> Callable[[KafkaError], None]:
        """A callback for a client's background errors, which logs each kind once."""
        logged: set[str] = set()

        def log_once(error: KafkaError) -> None:
            if error.name() not in logged:
                logged.add(error.name())
                text = self._without_secrets(str(error.str()))
                log.warning("kafka error=%s text=%s", error.name(), text)

        return log_once

    def _without_secrets(self, text: str) -> str:
        for name, value in self.config:
            if isinstance(value, Env) or any(word in name for word in SECRET_WORDS):
                secret = value_of(value, {})
                text = text.replace(secret, "***") if secret else text
        return text


def _elected() -> frozenset[int]:
    """The errors of a broker that is no leader or coordinator yet, or any more."""
    from confluent_kafka import KafkaError

    return frozenset(
        {
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.NOT_COORDINATOR,
            KafkaError.NOT_LEADER_FOR_PARTITION,
        }
    )


def _rights() -> Mapping[int, str]:
    """By error code, the right that is to be given to a user whom a broker refuses with it."""
    from confluent_kafka import KafkaError

    return {
        # Of an idempotent producer, who may write to no topic.
        KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Write on a sink's topic",
        KafkaError.GROUP_AUTHORIZATION_FAILED: (
            "Read on the group with the name of a sink's transactional id"
        ),
        KafkaError.TOPIC_AUTHORIZATION_FAILED: (
            "Read on a source's topic, and Read and Write on a sink's topic"
        ),
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write on a sink's transactional id",
    }


def _to_be_fixed() -> frozenset[int]:
    """The errors that do not pass by themselves."""
    from confluent_kafka import KafkaError

    return frozenset(
        {
            KafkaError._INVALID_ARG,  # noqa: SLF001 - the client's public names begin so
            KafkaError._AUTHENTICATION,  # noqa: SLF001
            KafkaError._SSL,  # noqa: SLF001
            KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
            KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
            KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001
            KafkaError.INVALID_RECORD,
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
            KafkaError.MSG_SIZE_TOO_LARGE,
            KafkaError.OFFSET_METADATA_TOO_LARGE,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.TOPIC_EXCEPTION,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        }
    )
