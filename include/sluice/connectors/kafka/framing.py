"""The Schema Registry's wire format: a zero byte, the schema's id in four bytes, the value.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.declaration.params import Env, value_of
from sluice.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

MAGIC = 0
HEADER_BYTES = 5
HTTP_NOT_FOUND = 404
HTTP_SERVER_ERROR = 500
HTTP_TOO_MANY = 429
TIMEOUT_S = 10


class NotFramed(ValueError):
    """A value without the header of the registry's serializers."""


@dataclass(frozen=True, slots=True)
class Registry:
    """A Schema Registry at *url*; *user* and *password* are for HTTP's basic authentication."""

    url: str | Env
    user: str | Env = ""
    password: str | Env = field(default="", repr=False)

    def client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        configured: dict[str, object] = {"url": self.place, "timeout": TIMEOUT_S, "max.retries": 2}
        if user := value_of(self.user, {}):
            configured["basic.auth.user.info"] = f"{user}:{value_of(self.password, {})}"
        try:
            return SchemaRegistryClient(configured)
        except ValueError as error:
            raise ConfigurationError(
                f"the Schema Registry {self.place!r} cannot be used: {error}"
            ) from None

    @property
    def place(self) -> str:
        return value_of(self.url, {})

    def schema(self, client: SchemaRegistryClient, schema_id: int) -> str | None:
        """The text of a schema; None when the registry has none of this id.

        Raises:
            ConfigurationError: the registry refuses us.
            StoreUnavailable: it does not answer.
        """
        import httpx2
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        what = f"the Schema Registry at {self.place}"
        try:
            return str(client.get_schema(schema_id).schema_str)
        except SchemaRegistryError as error:
            code = error.http_status_code
            if code == HTTP_NOT_FOUND:
                return None
            if code >= HTTP_SERVER_ERROR or code == HTTP_TOO_MANY:
                raise StoreUnavailable(f"{what} answers {code} for schema {schema_id}") from None
            raise ConfigurationError(
                f"{what} answers {code} for schema {schema_id}; correct its user and password"
            ) from None
        except httpx2.HTTPError as error:
            raise StoreUnavailable(f"{what} did not answer: {type(error).__name__}") from None


def unframed(raw: bytes) -> tuple[int, bytes]:
    """The id of the schema, and the value behind it.  Raises NotFramed."""
    if len(raw) < HEADER_BYTES or raw[0] != MAGIC:
        raise NotFramed("the value is not in the Schema Registry's wire format")
    return int.from_bytes(raw[1:HEADER_BYTES], "big"), raw[HEADER_BYTES:]


def framed(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">bI", MAGIC, schema_id) + body


def without_message_indexes(raw: bytes) -> tuple[tuple[int, ...], bytes]:
    """The message indexes of a Protobuf value, and the value behind them.

    They name the message by its place in the file, as zigzag varints; a single zero byte is the
    first message.
    """
    count, at = _varint(raw, 0)
    if count == 0:
        return (0,), raw[at:]
    indexes: list[int] = []
    for _ in range(count):
        index, at = _varint(raw, at)
        indexes.append(index)
    return tuple(indexes), raw[at:]


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        if at >= len(raw) or shift > 28:
            raise NotFramed("the value's message indexes are cut off")
        byte = raw[at]
        at += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at
