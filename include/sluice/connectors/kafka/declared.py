"""``Kafka`` and ``KafkaTopic``: the declared source and sink, and the formats of their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from sluice.declaration.arguments import NumberLimits, checked_initializer
from sluice.declaration.column_types import row_schema
from sluice.declaration.params import Env, Param, of_place, placed, said_of, value_of
from sluice.declaration.places import (
    Dataset,
    GivenForm,
    SourceMeaning,
    check_changelog,
    nulls_of,
    params_of,
)
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.connectors.kafka.cluster import Cluster
    from sluice.connectors.kafka.formats import Registry
    from sluice.connectors.kafka.messages import MessageFormat, Value
    from sluice.connectors.kafka.sink import KafkaTarget
    from sluice.connectors.kafka.source import KafkaSource, Start
    from sluice.connectors.kafka.values import Values
    from sluice.connectors.staged_sink import StagedSink
    from sluice.declaration.places import Filler, RowChecks, Source
    from sluice.store.open import StoreLocation

Text: TypeAlias = str | Param | Env
Seconds: TypeAlias = Annotated[float, NumberLimits(0.001, 86_400)]


@checked_initializer
@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A Confluent Schema Registry, or one with its REST interface.

    *user* and *password* are for HTTP's basic authentication.
    """

    url: Text
    user: Text = ""
    password: Text = field(default="", repr=False)


@checked_initializer
@dataclass(frozen=True, slots=True)
class Raw:
    """The column ``value``: bytes, or with ``as_text`` a string."""

    as_text: bool = False


@checked_initializer
@dataclass(frozen=True, slots=True)
class Json:
    """A JSON object, with the columns of *schema*, written as Spark writes it: ``"id bigint"``."""

    schema: str


@checked_initializer
@dataclass(frozen=True, slots=True)
class Avro:
    """An Avro record; the fields of *schema*, as JSON, are the columns.

    With a *registry* each value begins with the id of the schema it was written with, and is
    resolved to *schema*, by Avro's rules; without one all were written with *schema*.
    """

    schema: str
    registry: SchemaRegistry | None = None


@checked_initializer
@dataclass(frozen=True, slots=True)
class Protobuf:
    """A Protobuf message.

    *message* is ``package.module_pb2:Class``, or the full name of a message in the file
    *descriptors*, which ``protoc --include_imports --descriptor_set_out`` writes.  *framed* values
    have the header of the Schema Registry's serializers; the registry itself is not needed.
    """

    message: str
    descriptors: str = ""
    framed: bool = False


@checked_initializer
@dataclass(frozen=True, slots=True)
class Kafka:
    """The records of *topics*, in Kafka's order by partition.

    ``start``       ``"earliest"``, ``"latest"``, milliseconds since 1970, or offsets by partition,
                    ``{"topic/0": 17}``, where others begin at the earliest; only for a job that
                    has no checkpoint, and never for a partition that is added later
    ``bounded``     the input ends where the topics end when it is first read
    ``on_expired``  what to do when records expired before they were read: ``"fail"`` or ``"skip"``
    ``columns``     a record's metadata, each ``name`` or ``name as other``: ``topic``,
                    ``partition``, ``offset``, ``timestamp``, ``timestamp_type``, ``key`` or
                    ``headers``
    ``config``      librdkafka's properties, such as ``security.protocol``; secrets as ``env(...)``

    Raises:
        ConfigurationError: an option is none of these.
    """

    bootstrap_servers: Text
    topics: str | Param | tuple[str, ...]
    value: Raw | Json | Avro | Protobuf = field(default_factory=Raw)
    start: Literal["earliest", "latest"] | int | Mapping[str, int] = "earliest"
    bounded: bool = False
    on_expired: Literal["fail", "skip"] = "fail"
    key: Literal["binary", "string"] = "binary"
    columns: tuple[str, ...] = ("topic", "partition", "offset", "timestamp", "key")
    config: Mapping[str, Text] = field(default_factory=dict[str, Text], repr=False)
    timeout_s: Seconds = 30.0  # The time that a cluster has to answer.

    def __post_init__(self) -> None:
        if isinstance(self.start, str) and self.start not in {"earliest", "latest"}:
            raise ConfigurationError(
                f"start={self.start!r} of Kafka; use 'earliest', 'latest', milliseconds since 1970 "
                'or offsets by partition, {"topic/0": 17}'
            )

    @property
    def params(self) -> tuple[Param, ...]:
        registry = self.value.registry if isinstance(self.value, Avro) else None
        of_registry = (registry.url, registry.user, registry.password) if registry else ()
        options = (self.bootstrap_servers, self.topics, *self.config.values(), *of_registry)
        return tuple(dict.fromkeys(params_of(*options)))

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        servers = of_place(self.bootstrap_servers, params)
        return tuple(_dataset(servers, topic) for topic in self._topics(params))

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:  # noqa: ARG002 - not S3
        return self._source(params)

    def _source(self, params: Mapping[str, str]) -> KafkaSource:
        from sluice.connectors.kafka.source import KafkaSource
        from sluice.connectors.kafka.values import MetadataColumns

        source = KafkaSource(
            cluster=_cluster(self, params),
            topics=self._topics(params),
            values=_values(self.value, params),
            columns=MetadataColumns(self.columns, self.key),
            start=self._start(),
            bounded=self.bounded,
            skips_gaps=self.on_expired == "skip",
        )
        _check_start(source)
        if isinstance(self.value, Json):
            decoded = row_schema("Json() of Kafka", self.value.schema)
            kept = [field.name for field in source.values.kept()]
            source.columns.check_values([*kept, *decoded])
        return source

    def given_form(self, params: Mapping[str, str]) -> GivenForm:  # noqa: ARG002 - none tells columns
        """See ``GivenSourceSpec``."""
        import pyarrow as pa

        source = placed(replace(self, start="earliest"))._source({})  # noqa: SLF001 - its own
        schema, how = source.schema(), source.decoding
        known: dict[str, Filler] = {
            "topic": lambda _, count: pa.repeat(pa.scalar(source.topics[0]), count),
            "partition": lambda _, count: pa.repeat(pa.scalar(0, pa.int32()), count),
            "offset": lambda first, count: pa.array(range(first, first + count), pa.int64()),
        }
        fills = {
            name: known.get(kind, nulls_of(schema.field(name).type))
            for kind, name in source.columns.named()
        } | {
            one.name: lambda _, count: pa.repeat(pa.scalar(False), count)  # noqa: FBT003 - a value
            for one in source.values.kept()
        }
        text = "value" if how is not None or "value" in schema.names else ""
        return GivenForm(schema=schema, decoding=how, fills=fills, text=text)

    def meaning(self, params: Mapping[str, str]) -> SourceMeaning:
        named = (one.partition(" as ") for one in self.columns)
        renamed = {new.strip(): kind.strip() for kind, _, new in named if new}
        return SourceMeaning(
            places=tuple(sorted(f"topic {name}" for name in self._named(said_of, params))),
            decoding=_decoding(self.value),
            columns={name: f"{kind} of the record" for name, kind in renamed.items()},
        )

    def _named(
        self, text_of: Callable[[str | Param, Mapping[str, str]], str], params: Mapping[str, str]
    ) -> tuple[str, ...]:
        if isinstance(self.topics, tuple):
            return self.topics
        return tuple(name.strip() for name in text_of(self.topics, params).split(","))

    def _topics(self, params: Mapping[str, str]) -> tuple[str, ...]:
        names = self._named(value_of, params)
        if not names or not all(names) or len(set(names)) < len(names):
            raise ConfigurationError(f"topics={names!r} of Kafka; name each topic once")
        return names

    def _start(self) -> Start:
        if isinstance(self.start, Mapping):
            return tuple(sorted(self.start.items()))
        return self.start


def _decoding(value: Raw | Json | Avro | Protobuf) -> str:
    match value:
        case Raw(as_text=as_text):
            return "text" if as_text else "raw"
        case Json():
            return "json"
        case Avro():
            return "avro"
        case Protobuf(message=message, framed=framed):
            return f"protobuf({message}{', framed' * framed})"


@checked_initializer
@dataclass(frozen=True, slots=True)
class AvroValue:
    """An Avro record of *schema*, as JSON, whose fields are the columns of their names.

    With *schema_id*, its id in a Schema Registry, values have the header of its serializers.
    """

    schema: str
    schema_id: int | None = None


@checked_initializer
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
    message has the header ``sluice-checkpoint-id``.  *transactional_id* names the topic's writer to
    the broker, fences its zombies, and is the group that notes published checkpoints: do not change
    it.  By default it is made of the topic's name, so that one job at a time writes a topic; jobs
    that share one have to declare an id each, and are then not compared with each other.

    Raises:
        ConfigurationError: *upsert* without a *key*, or with a changelog.
    """

    bootstrap_servers: Text
    topic: str | Param
    value: str | AvroValue = "json"
    key: str | None = None
    headers: tuple[str, ...] = ()
    upsert: bool = False
    transactional: bool = True
    transactional_id: str | Param = ""
    config: Mapping[str, Text] = field(default_factory=dict[str, Text], repr=False)
    changelog: bool = False
    timeout_s: Seconds = 30.0  # The time that a cluster has to answer.

    def __post_init__(self) -> None:
        check_changelog(f"KafkaTopic {self.topic!r}", self)
        if self.upsert and self.key is None:
            raise ConfigurationError(
                "KafkaTopic(upsert=True) needs key=, the column whose newest message counts"
            )

    @property
    def params(self) -> tuple[Param, ...]:
        texts = (self.bootstrap_servers, self.topic, self.transactional_id, *self.config.values())
        return tuple(dict.fromkeys(params_of(*texts)))

    @property
    def upsert_key(self) -> tuple[str, ...]:
        return (self.key,) if self.upsert and self.key is not None else ()

    def check_types(self, uid: str, schema: pa.Schema) -> None:
        """See ``TypedSinkSpec``."""
        from sluice.connectors.kafka.messages import JsonRow

        if isinstance(self._value(), JsonRow):
            self._format().check_json(schema, f"sink {uid!r}")

    def datasets(self, params: Mapping[str, str]) -> tuple[Dataset, ...]:
        """See ``NamedPlaceSpec``."""
        servers = of_place(self.bootstrap_servers, params)
        return (_dataset(servers, value_of(self.topic, params)),)

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> StagedSink:
        """See ``SinkSpec``; rows are staged at *default*."""
        from sluice.connectors.staged_sink import StagedSink

        return StagedSink.at(default, uid, self.upsert_key, self._target(uid, params))

    def table_of(
        self,
        params: Mapping[str, str],
        default: StoreLocation,  # noqa: ARG002 - of a spec
    ) -> tuple[str, ...]:
        """See ``PlacedSinkSpec``: each writer of a topic has a time line of its own."""
        servers = sorted(map(str.strip, of_place(self.bootstrap_servers, params).split(",")))
        topic = value_of(self.topic, params)
        return (topic, value_of(self.transactional_id, params) or f"sluice-{topic}", *servers)

    def _target(self, uid: str, params: Mapping[str, str]) -> KafkaTarget:
        from sluice.connectors.kafka.sink import KafkaTarget, NotedTopic

        cluster = _cluster(self, params)
        topic = value_of(self.topic, params)
        group = value_of(self.transactional_id, params) or f"sluice-{topic}"
        if not topic:
            raise ConfigurationError(f"topic= of the Kafka sink {uid!r} is empty")
        return KafkaTarget(
            NotedTopic(cluster, topic, group),
            self._format(),
            self.transactional,
            self.upsert_key,
        )

    def row_checks(self, uid: str) -> RowChecks:
        """See ``CheckingSinkSpec``."""
        return placed(self)._target(uid, {})  # noqa: SLF001 - its own

    def _format(self) -> MessageFormat:
        from sluice.connectors.kafka.messages import MessageFormat

        return MessageFormat(self._value(), self.key, self.headers)

    def _value(self) -> Value:
        from sluice.connectors.kafka.messages import AvroRow, ColumnBytes, JsonRow

        match self.value:
            case AvroValue(schema=schema, schema_id=schema_id):
                return AvroRow(schema, schema_id)
            case "json":
                return JsonRow()
            case column:
                return ColumnBytes(column)


def _check_start(source: KafkaSource) -> None:
    """Refuse unknown partitions: a misspelt one would silently begin at the earliest offset."""
    if isinstance(source.start, tuple):
        for name, _ in source.start:
            topic, _, number = name.rpartition("/")
            if topic not in source.topics or not number.isdecimal():
                raise ConfigurationError(
                    f"start= names partition {name!r}; partitions of {', '.join(source.topics)} "
                    f'are called "{source.topics[0]}/0" and so on'
                )


def _values(value: Raw | Json | Avro | Protobuf, params: Mapping[str, str]) -> Values:
    match value:
        case Raw(as_text=as_text):
            from sluice.connectors.kafka.values import RawValues

            return RawValues(as_text)
        case Json(schema=schema):
            from sluice.connectors.kafka.values import JsonValues

            if not schema.strip():
                raise ConfigurationError('Json() of Kafka needs a schema: Json("id bigint")')
            row_schema("Json() of Kafka", schema)
            return JsonValues(schema)
        case Avro(schema=schema, registry=registry):
            from sluice.connectors.kafka.formats import AvroValues

            return AvroValues(schema, _registry(registry, params))
        case Protobuf(message=message, descriptors=descriptors, framed=framed):
            from sluice.connectors.kafka.formats import ProtobufValues

            return ProtobufValues(message, _content(descriptors), framed)


def _registry(declared: SchemaRegistry | None, params: Mapping[str, str]) -> Registry | None:
    from sluice.connectors.kafka.formats import Registry

    if declared is None:
        return None
    return Registry(
        url=_resolved(declared.url, params),
        user=_resolved(declared.user, params),
        password=_resolved(declared.password, params),
    )


def _content(descriptors: str) -> bytes:
    if not descriptors:
        return b""
    try:
        return Path(descriptors).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"descriptors={descriptors!r} of Protobuf cannot be read: {error.strerror}"
        ) from error


def _cluster(declared: Kafka | KafkaTopic, params: Mapping[str, str]) -> Cluster:
    from sluice.connectors.kafka.cluster import Cluster

    return Cluster(
        _resolved(declared.bootstrap_servers, params),
        tuple((name, _resolved(value, params)) for name, value in declared.config.items()),
        declared.timeout_s,
    )


def _resolved(value: Text, params: Mapping[str, str]) -> str | Env:
    """*value* with parameters resolved; a secret stays a name until it is used."""
    return value if isinstance(value, Env) else value_of(value, params)


def _dataset(bootstrap_servers: str, topic: str) -> Dataset:
    """The dataset of *topic*, named after the least of the brokers' addresses."""
    return Dataset(f"kafka://{min(map(str.strip, bootstrap_servers.split(',')))}", topic)
