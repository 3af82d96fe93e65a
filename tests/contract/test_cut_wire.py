"""A checkpoint is published once, wherever the wire to a sink's place is cut.

Each request of a commit is lost in turn, and each answer; the commit is then tried again, as a task
is, and a stranger reads the table by a wire of its own.
"""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness.cut_wire import CutWire, cut_wire
from harness.kafka_cluster import IF_REAL, Place, in_memory
from harness.kafka_server import KafkaServer
from harness.postgres_database import Database
from sluice.connectors.kafka.declared import KafkaTopic
from sluice.connectors.postgres.declared_sink import PostgresTable
from sluice.declaration.places import Sink
from sluice.errors import StoreUnavailable
from sluice.store.open import StoreLocation
from tests.contract.sink_case import JOB, SinkCase, publish, rows, seen, staged_rows
from tests.contract.test_kafka_sink import case_at
from tests.examples import slow
from tests.planted import Caught, assert_is_caught

MOST_CUTS = 200  # Of one commit; more would be one that never ends.


@dataclass(frozen=True, slots=True)
class Wired:
    """A table, by a wire of its own, and sinks of it whose wire is cut."""

    case: SinkCase
    cut: Callable[[], Sink]
    wire: CutWire


@pytest.fixture
def key() -> tuple[str, ...]:
    return ()


@pytest.fixture
def postgres(database: Database, tmp_path: Path, key: tuple[str, ...]) -> Iterator[Wired]:
    table = f"{database.new_schema()}.orders"
    columns = "id bigint NOT NULL, name text, price double precision, at timestamptz"
    database.run(f"CREATE TABLE {table} ({columns}{', PRIMARY KEY (id)' if key else ''})")
    root = StoreLocation(root=f"file://{tmp_path}/staged")

    def opened(database: Database) -> Sink:
        return PostgresTable(database.dsn, table, upsert_key=key).open("orders", {}, root)

    def read() -> list[dict[str, Any]]:
        return database.rows(f"SELECT id, name, price, at FROM {table}")

    with cut_wire(database.port) as wire:
        by_wire = replace(database, port=wire.port)
        yield Wired(SinkCase(lambda: opened(database), read), lambda: opened(by_wire), wire)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Wired]:
    with in_memory() as place, a_topic(place, tmp_path) as wired:
        yield wired


@pytest.fixture
def real_broker(real_kafka: KafkaServer, tmp_path: Path) -> Iterator[Wired]:
    with a_topic(Place(real_kafka.servers), tmp_path) as wired:
        yield wired


@contextmanager
def a_topic(place: Place, folder: Path) -> Iterator[Wired]:
    topic = place.create(1)
    with cut_wire(int(place.servers.rpartition(":")[2])) as wire:
        by_wire = KafkaTopic(f"127.0.0.1:{wire.port}", topic, key="id")
        case = case_at(replace(by_wire, bootstrap_servers=place.servers), place.servers, folder)
        yield Wired(case, case_at(by_wire, place.servers, folder).open, wire)


@pytest.mark.parametrize(
    ("place", "key", "loses_answer"),
    [
        pytest.param("postgres", (), False, id="postgres-appended-request"),
        pytest.param("postgres", ("id",), True, id="postgres-upserted-answer"),
        pytest.param("broker", (), True, id="kafka-broker-answer"),
        pytest.param(
            "real_broker", (), False, id="kafka-real-request", marks=[*IF_REAL.marks, slow]
        ),
        pytest.param("real_broker", (), True, id="kafka-real-answer", marks=IF_REAL.marks),
    ],
)
def test_a_commit_is_there_once_wherever_it_is_cut(
    place: str, key: tuple[str, ...], loses_answer: bool, request: pytest.FixtureRequest
) -> None:
    wired: Wired = request.getfixturevalue(place)
    publish(wired.case.open(), 1, None, rows(1))
    checkpoint_id, was_cut = 1, True
    while was_cut:
        cut_at, checkpoint_id = checkpoint_id - 1, checkpoint_id + 1
        assert cut_at < MOST_CUTS
        staged = [staged_rows(wired.case.open(), checkpoint_id, checkpoint_id)]
        sink = wired.cut()
        wired.wire.cut(cut_at, loses_answer=loses_answer)
        try:
            sink.commit(JOB, checkpoint_id, checkpoint_id - 1, staged)
        except StoreUnavailable:
            pass
        else:
            assert wired.case.open().is_published(checkpoint_id)
        was_cut = wired.wire.heal()
        for _ in range(2):
            wired.case.open().commit(JOB, checkpoint_id, checkpoint_id - 1, staged)
        assert seen(wired.case) == rows(*range(1, checkpoint_id + 1)), cut_at

    assert cut_at > 3  # Requests of that many pieces were cut.


FAULTS = [
    Caught(
        "rows are committed before the note of them",
        "connectors.postgres.target:PostgresTarget.publish",
        "self.ledger.note(", "connection.commit(); self.ledger.note(",
        test_a_commit_is_there_once_wherever_it_is_cut,
        {"place": "postgres", "key": (), "loses_answer": False},
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
