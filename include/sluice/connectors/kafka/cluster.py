"""How sluice reaches a Kafka cluster, and what its errors mean to a person.

A ``Cluster`` travels to Spark's workers; a client never does.  Secrets are resolved in the process
that builds a client, and no message shows one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sluice.errors import ConfigurationError, SluiceError, StoreUnavailable
from sluice.params import Env, value_of

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0  # A cluster that is up answers in milliseconds, electing a leader in 10 s.
# A coordinator that dies leaves its transaction open, and readers wait, until the next one comes
# or this has passed.  Sending a checkpoint may not take longer; a broker allows 900,000 by default.
TRANSACTION_TIMEOUT_MS = 300_000
SECRET_WORDS = ("password", "secret", "key.pem", "oauthbearer.config", "jaas")
# Sluice alone decides these: what it promises rests on them.
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

    @contextmanager
    def consumer(self, **ours: str | int | bool) -> Iterator[Consumer]:
        """A consumer of no group, which is closed at the end.  Dots are underscores in *ours*."""
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

    def producer(
        self, on_error: Callable[[KafkaError, Any], None] | None = None, **ours: str | int | bool
    ) -> Producer:
        """An idempotent producer; *on_error* hears of the messages that were not delivered."""
        from confluent_kafka import Producer

        defaults: dict[str, Any] = {
            "enable.idempotence": True,
            # Where Java's producers put a key, so that both may write one topic.
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "delivery.report.only.error": True,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
        if on_error is not None:
            defaults["on_delivery"] = on_error
        with self.explained():
            return Producer(self.properties(defaults, ours), logger=log)

    @contextmanager
    def explained(self, doing: str = "") -> Iterator[None]:
        """Turn the client's errors into sluice's; *doing* says what was tried."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.explain(error.args[0], doing) from None

    def explain(self, error: KafkaError, doing: str = "") -> SluiceError:
        """What a person is told of *error*: the fix, or that it may pass."""
        text = self._without_secrets(str(error.str()))
        what = f" {doing}" if doing else ""
        place = f"Kafka at {self.servers}"
        if error.code() in _to_be_fixed():
            return ConfigurationError(
                f"{place} refuses{what}: {error.name()}: {text}; see docs/connectors/kafka.md for "
                "the properties and the rights that sluice needs"
            )
        return StoreUnavailable(f"{place} did not answer{what}: {error.name()}: {text}")

    def properties(
        self, defaults: Mapping[str, Any], ours: Mapping[str, str | int | bool] | None = None
    ) -> dict[str, Any]:
        """What a client is built of: a person's properties count before *defaults*."""
        given = {name: value_of(value, {}) for name, value in self.config}
        fixed = {name.replace("_", "."): value for name, value in (ours or {}).items()}
        return {
            "log_level": 2,  # The rest comes as errors, too, and again with each attempt.
            "error_cb": self._noter(),
            **defaults,
            **given,
            **fixed,
            "bootstrap.servers": self.servers,
        }

    def _noter(self) -> Callable[[KafkaError], None]:
        """What a client hears from behind: each kind of trouble is logged once."""
        noted: set[str] = set()

        def note(error: KafkaError) -> None:
            if error.name() not in noted:
                noted.add(error.name())
                text = self._without_secrets(str(error.str()))
                log.warning("kafka error=%s text=%s", error.name(), text)

        return note

    def _without_secrets(self, text: str) -> str:
        for name, value in self.config:
            if isinstance(value, Env) or any(word in name for word in SECRET_WORDS):
                secret = value_of(value, {})
                text = text.replace(secret, "***") if secret else text
        return text


def _to_be_fixed() -> frozenset[int]:
    """Errors that do not pass by themselves."""
    from confluent_kafka import KafkaError

    return frozenset(
        {
            KafkaError._INVALID_ARG,  # noqa: SLF001 - the client's public names begin so
            KafkaError._AUTHENTICATION,  # noqa: SLF001
            KafkaError._SSL,  # noqa: SLF001
            KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
            KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
            KafkaError._UNSUPPORTED_FEATURE,  # noqa: SLF001
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.INVALID_TRANSACTION_TIMEOUT,
            KafkaError.MSG_SIZE_TOO_LARGE,
            KafkaError.OFFSET_METADATA_TOO_LARGE,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.TOPIC_EXCEPTION,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        }
    )
