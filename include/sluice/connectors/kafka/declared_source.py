"""``Kafka``: the declared source of Kafka topics, and the formats of their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from sluice.connectors.contracts.row_schema import row_schema
from sluice.declaration.params import Env, Param, value_of
from sluice.declaration.source_spec import params_of
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.connectors.contracts.source import Source
    from sluice.connectors.kafka.framing import Registry
    from sluice.connectors.kafka.source import KafkaSource, Start
    from sluice.connectors.kafka.values import Values

Text: TypeAlias = str | Param | Env


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """A Confluent Schema Registry, or one with its REST interface.

    *user* and *password* are for HTTP's basic authentication.
    """

    url: Text
    user: Text = ""
    password: Text = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Raw:
    """The column ``value``: bytes, or with ``as_text`` a string."""

    as_text: bool = False


@dataclass(frozen=True, slots=True)
class Json:
    """A JSON object, with the columns of *schema*, written as Spark writes it: ``"id bigint"``."""

    schema: str


@dataclass(frozen=True, slots=True)
class Avro:
    """An Avro record; the fields of *schema*, as JSON, are the columns.

    With a *registry* each value begins with the id of the schema it was written with, and is
    resolved to *schema*, by Avro's rules; without one all were written with *schema*.
    """

    schema: str
    registry: SchemaRegistry | None = None


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
    timeout_s: float = 30.0  # The time that a cluster has to answer.

    def __post_init__(self) -> None:
        if isinstance(self.start, str) and self.start not in {"earliest", "latest"}:
            raise ConfigurationError(
                f"start={self.start!r} of Kafka; use 'earliest', 'latest', milliseconds since 1970 "
                'or offsets by partition, {"topic/0": 17}'
            )
        if self.on_expired not in {"fail", "skip"}:
            raise ConfigurationError(f"on_expired={self.on_expired!r}; use 'fail' or 'skip'")
        if self.key not in {"binary", "string"}:
            raise ConfigurationError(f"key={self.key!r}; use 'binary' or 'string'")

    @property
    def params(self) -> tuple[Param, ...]:
        registry = self.value.registry if isinstance(self.value, Avro) else None
        of_registry = (registry.url, registry.user, registry.password) if registry else ()
        given = (self.bootstrap_servers, self.topics, *self.config.values(), *of_registry)
        return tuple(dict.fromkeys(params_of(*given)))

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:  # noqa: ARG002 - not S3
        from sluice.connectors.kafka.cluster import Cluster
        from sluice.connectors.kafka.columns import Columns
        from sluice.connectors.kafka.source import KafkaSource

        source = KafkaSource(
            cluster=Cluster(
                resolved(self.bootstrap_servers, params),
                tuple((name, resolved(value, params)) for name, value in self.config.items()),
                self.timeout_s,
            ),
            topics=self._topics(params),
            values=_values(self.value, params),
            columns=Columns(self.columns, self.key),
            start=self._start(),
            is_bounded=self.bounded,
            skips_expired=self.on_expired == "skip",
        )
        _check_start(source)
        if isinstance(self.value, Json):
            decoded = row_schema("Json() of Kafka", self.value.schema)
            kept = [field.name for field in source.values.kept()]
            source.columns.check_values([*kept, *decoded])
        return source

    def _topics(self, params: Mapping[str, str]) -> tuple[str, ...]:
        if isinstance(self.topics, tuple):
            names = self.topics
        else:
            names = tuple(one.strip() for one in value_of(self.topics, params).split(","))
        if not names or not all(names) or len(set(names)) < len(names):
            raise ConfigurationError(f"topics={names!r} of Kafka; name each topic once")
        return names

    def _start(self) -> Start:
        if isinstance(self.start, Mapping):
            return tuple(sorted(self.start.items()))
        return self.start


def resolved(value: Text, params: Mapping[str, str]) -> str | Env:
    """*value* with parameters resolved; a secret stays a name until it is used."""
    return value if isinstance(value, Env) else value_of(value, params)


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
            from sluice.connectors.kafka.avro import AvroValues

            return AvroValues(schema, _registry(registry, params))
        case Protobuf(message=message, descriptors=descriptors, framed=framed):
            from sluice.connectors.kafka.protobuf import ProtobufValues

            return ProtobufValues(message, _content(descriptors), framed)


def _registry(given: SchemaRegistry | None, params: Mapping[str, str]) -> Registry | None:
    from sluice.connectors.kafka.framing import Registry

    if given is None:
        return None
    return Registry(
        url=resolved(given.url, params),
        user=resolved(given.user, params),
        password=resolved(given.password, params),
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
