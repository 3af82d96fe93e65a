"""A Kafka topic, to which each checkpoint is appended in one transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from sluice.declaration.params import Env, Param, value_of
from sluice.declaration.sink_spec import check_changelog
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.connectors.kafka.messages import Value
    from sluice.connectors.staging.staged_sink import StagedSink
    from sluice.storage.open import StoreLocation

Text: TypeAlias = str | Param | Env

JSON = "json"
ID_HEX_DIGITS = 16  # 64 bits of the root's hash: ids of two jobs do not collide by chance.


@dataclass(frozen=True, slots=True)
class AvroValue:
    """An Avro record of *schema*, as JSON, whose fields are the columns of their names.

    With *schema_id*, its id in a Schema Registry, values have the header of its serializers.
    """

    schema: str
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """Rows as messages of *topic*, which exists.

    ``value``      ``"json"``, an object of all columns; a column of text or bytes; or ``AvroValue``
    ``key``        a column of text, bytes or whole numbers; messages of one key keep their order
    ``headers``    columns that become headers of their names, and are left out of JSON and Avro
    ``upsert``     for a compacted topic: a deleted row becomes a tombstone of its key
    ``changelog``  every change is a message; ``kind`` tells inserts, updates and deletes apart

    ``transactional``: readers with ``isolation.level=read_committed`` see each checkpoint whole and
    once.  Otherwise rows that a coordinator sent before it died are sent again.  Either way a
    message has the header ``sluice-checkpoint-id``.  *transactional_id* names the sink to the
    broker, fences its zombies, and is the group that notes published checkpoints: do not change
    it, and give no other job the same.  By default it is made of the sink's uid and the job's root.

    Raises:
        ConfigurationError: *upsert* without a *key*, or with a changelog.
    """

    bootstrap_servers: Text
    topic: str | Param
    value: str | AvroValue = JSON
    key: str | None = None
    headers: tuple[str, ...] = ()
    upsert: bool = False
    transactional: bool = True
    transactional_id: str | Param = ""
    config: Mapping[str, Text] = field(default_factory=dict[str, Text], repr=False)
    changelog: bool = False
    timeout_s: float = 30.0  # The time that a cluster has to answer.

    def __post_init__(self) -> None:
        check_changelog(f"KafkaTopic {self.topic!r}", self)
        if self.upsert and self.key is None:
            raise ConfigurationError(
                "KafkaTopic(upsert=True) needs key=, the column whose newest message counts"
            )

    @property
    def params(self) -> tuple[Param, ...]:
        given = (
            self.bootstrap_servers,
            self.topic,
            self.transactional_id,
            *self.config.values(),
        )
        return tuple(dict.fromkeys(one for one in given if isinstance(one, Param)))

    @property
    def upsert_key(self) -> tuple[str, ...]:
        return (self.key,) if self.upsert and self.key is not None else ()

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> StagedSink:
        """See ``SinkSpec``; rows are staged at *default*."""
        from sluice.connectors.kafka.cluster import Cluster
        from sluice.connectors.kafka.messages import MessageFormat
        from sluice.connectors.kafka.topic_target import KafkaTarget
        from sluice.connectors.kafka.transactions import NotedTopic
        from sluice.connectors.staging.staged_files import StagedFiles
        from sluice.connectors.staging.staged_sink import StagedSink
        from sluice.storage.open import open_store

        cluster = Cluster(
            _resolved(self.bootstrap_servers, params),
            tuple((name, _resolved(value, params)) for name, value in self.config.items()),
            self.timeout_s,
        )
        name = value_of(self.transactional_id, params) or _default_id(uid, default)
        topic = value_of(self.topic, params)
        if not topic:
            raise ConfigurationError(f"topic= of the Kafka sink {uid!r} is empty")
        target = KafkaTarget(
            NotedTopic(cluster, topic, name),
            MessageFormat(self._value(), self.key, self.headers),
            self.transactional,
        )
        return StagedSink(StagedFiles(uid, open_store(default), self.upsert_key), target)

    def _value(self) -> Value:
        from sluice.connectors.kafka.messages import AvroRow, ColumnBytes, JsonRow

        match self.value:
            case AvroValue(schema=schema, schema_id=schema_id):
                return AvroRow(schema, schema_id)
            case "json":
                return JsonRow()
            case column:
                return ColumnBytes(column)


def _default_id(uid: str, location: StoreLocation) -> str:
    digest = hashlib.sha256(location.root.encode()).hexdigest()
    return f"sluice-{uid}-{digest[:ID_HEX_DIGITS]}"


def _resolved(value: Text, params: Mapping[str, str]) -> str | Env:
    """*value* with parameters resolved; a secret stays a name until it is used."""
    return value if isinstance(value, Env) else value_of(value, params)
