"""The rights that docs/connectors/kafka.md asks for are enough, and each of them is needed."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined] # Not in its __all__.
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from harness.kafka_cluster import IF_REAL, WAIT_S, Place
from harness.kafka_server import KafkaServer
from sluice.connectors.kafka.declared import Kafka, KafkaTopic, Raw
from sluice.connectors.kafka.source import KafkaSource
from sluice.core.timeline import Recovery
from sluice.errors import ConfigurationError
from sluice.store.open import StoreLocation
from tests.contract.sink_case import JOB, RESTORED, SCHEMA, publish, rows
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "connectors" / "kafka.md"
OF_SOURCE = ("a source",)
OF_SINK = ("a sink", "a sink with `transactional=True`")


@dataclass(frozen=True, slots=True)
class Right:
    """One right, as the page's table says it."""

    of: str
    resource: str
    operation: str

    def __str__(self) -> str:
        return f"{self.operation} on the {self.resource}"


def documented() -> Iterator[Right]:
    """The rows of the page's table."""
    table = PAGE.read_text().partition("| rights |\n")[2].partition("\n\n")[0]
    for line in table.splitlines()[1:]:
        of, resource, operations = (cell.strip() for cell in line.strip("|").split("|"))
        for operation in re.findall(r"\*(\w+)\*", operations):
            yield Right(of, resource.partition(":")[0], operation)


RIGHTS = [*documented()]


def of(whom: tuple[str, ...]) -> list[Right]:
    return [right for right in RIGHTS if right.of in whom]


def of_sink(transactional: bool) -> tuple[str, ...]:
    return OF_SINK if transactional else OF_SINK[:1]


def named(missing: Right) -> str:
    """What the message says: the right, and the kind of thing it is on."""
    return rf"; give the user .*\b{missing.operation}\b.*{missing.resource}"


@pytest.fixture(scope="module", params=[IF_REAL])
def server(request: pytest.FixtureRequest) -> KafkaServer:
    found: KafkaServer = request.getfixturevalue("real_kafka")
    if not found.sasl_servers:
        pytest.skip("the broker of SLUICE_TEST_KAFKA has no SASL listener that we know")
    return found


@dataclass(frozen=True, slots=True)
class User:
    """A user with rights for *topic* alone."""

    servers: str
    name: str
    topic: str

    @property
    def config(self) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": self.name,
            "sasl.password": "secret",
        }


def user_with(server: KafkaServer, *rights: Right) -> User:
    topic = Place(server.servers).create()
    user = User(server.sasl_servers, f"user-{secrets.token_hex(4)}", topic)
    admin = AdminClient({"bootstrap.servers": server.servers})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
    changed = UserScramCredentialUpsertion(user.name, info, b"secret")
    admin.alter_user_scram_credentials([changed])[user.name].result(WAIT_S)
    if rights:
        for answer in admin.create_acls([acl(user, right) for right in rights]).values():
            answer.result(WAIT_S)
    wait_until_known(admin, user, len(rights))
    return user


def acl(user: User, right: Right) -> AclBinding:
    kind = {"topic": "TOPIC", "group": "GROUP", "transactional id": "TRANSACTIONAL_ID"}
    named = user.topic if right.resource == "topic" else f"sluice-{user.topic}"
    return AclBinding(
        ResourceType[kind[right.resource]],
        named,
        ResourcePatternType.LITERAL,
        f"User:{user.name}",
        "*",
        AclOperation[right.operation.upper()],
        AclPermissionType.ALLOW,
    )


def wait_until_known(admin: AdminClient, user: User, rights: int) -> None:
    """The controller knows of users and rights before its brokers do."""
    anything: Any = None
    theirs = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, f"User:{user.name}", anything,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    until = time.monotonic() + WAIT_S
    while len(admin.describe_acls(theirs).result(WAIT_S)) < rights:
        assert time.monotonic() < until
        time.sleep(0.05)
    while True:
        asking = AdminClient({"bootstrap.servers": user.servers, "log_level": 0, **user.config})
        try:
            asking.list_topics(timeout=60)
        except KafkaException:
            assert time.monotonic() < until
        else:
            return


def use_source(server: KafkaServer, user: User) -> None:
    sender = Producer({"bootstrap.servers": server.servers})
    sender.produce(user.topic, b"a", partition=0)
    assert sender.flush(60) == 0
    spec = Kafka(user.servers, user.topic, Raw(as_text=True), config=user.config, bounded=True)
    source = spec.open({}, None)
    assert isinstance(source, KafkaSource)
    barrier = source.plan((), max_records=None, parallelism=1)
    for _ in range(8):  # Now and then the client has been refused its group by then.
        read = [
            row for piece in barrier.slices for one in source.read(piece) for row in one.to_pylist()
        ]
        assert [row["value"] for row in read] == ["a"]


def use_sink(user: User, folder: Path, *, transactional: bool) -> None:
    spec = KafkaTopic(
        user.servers, user.topic, key="id", config=user.config, transactional=transactional
    )

    def opened() -> Any:
        return spec.open("alerts", {}, StoreLocation(root=f"file://{folder}"))

    opened().check(None, SCHEMA, ())
    publish(opened(), 1, None, rows(1))
    publish(opened(), 2, 1, rows(2))
    opened().recover(RESTORED, Recovery(version=2, through=3, roll_back=True))
    publish(opened(), 4, 2, rows(4), RESTORED)
    assert opened().compare(JOB.life, None).ahead == (1, 2, 4)


def test_the_page_names_rights_of_both() -> None:
    assert {right.of for right in RIGHTS} == {*OF_SOURCE, *OF_SINK}


def test_the_rights_of_a_source_are_enough(server: KafkaServer) -> None:
    use_source(server, user_with(server, *of(OF_SOURCE)))


@pytest.mark.parametrize("missing", of(OF_SOURCE), ids=str)
def test_a_right_that_a_source_lacks_is_named(server: KafkaServer, missing: Right) -> None:
    user = user_with(server, *(right for right in of(OF_SOURCE) if right != missing))

    with pytest.raises(ConfigurationError, match=named(missing)):
        use_source(server, user)


@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "idempotent"])
def test_the_rights_of_a_sink_are_enough(
    server: KafkaServer, tmp_path: Path, transactional: bool
) -> None:
    use_sink(user_with(server, *of(of_sink(transactional))), tmp_path, transactional=transactional)


@pytest.mark.parametrize(
    ("transactional", "missing"),
    [(one, right) for one in (True, False) for right in of(of_sink(one))],
    ids=str,
)
def test_a_right_that_a_sink_lacks_is_named(
    server: KafkaServer, tmp_path: Path, transactional: bool, missing: Right
) -> None:
    given = (right for right in of(of_sink(transactional)) if right != missing)
    user = user_with(server, *given)

    with pytest.raises(ConfigurationError, match=named(missing)):
        use_sink(user, tmp_path, transactional=transactional)
