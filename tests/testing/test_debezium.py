"""Debezium's envelopes become the table that they are of: as a real engine sent them
(``harness.debezium``), and as its documentation shows them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness import debezium
from sluice import Pipeline
from sluice import aggregates as agg
from sluice.declaration.change_events import NOT_LOGGED, REKEYED, TRUNCATED, UNKNOWN, UNNAMED, Kind
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Avro, ChangeEvents, Debezium, Files, Json, Kafka
from sluice.testing import run_local
from tests.examples import slow_but

Row = dict[str, Any]
CUSTOMERS = {"id": "bigint", "first_name": "string", "email": "string"}
TOMBSTONE = "{}"  # As the source of Kafka reads a null.


def postgres(op: str, before: Row | None, after: Row | None, lsn: int | None) -> Row:
    """An event of the PostgreSQL connector."""
    source = {
        "version": "3.2.0.Final", "connector": "postgresql", "name": "PostgreSQL_server",
        "ts_ms": 1559033904863, "snapshot": op == "r", "db": "postgres", "schema": "public",
        "sequence": f'["{lsn}", "{lsn}"]', "table": "customers", "txId": 555, "lsn": lsn,
        "xmin": None,
    }  # fmt: skip
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1559033904863}


def mysql(op: str, before: Row | None, after: Row | None, file: int, pos: int, row: int) -> Row:
    source = {
        "version": "3.2.0.Final", "connector": "mysql", "name": "mysql-server-1", "snapshot": False,
        "db": "inventory", "table": "customers", "server_id": 0, "gtid": None,
        "file": f"mysql-bin.{file:06d}", "pos": pos, "row": row, "thread": 7, "query": None,
    }  # fmt: skip
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1465491411815}


def beside_its_schema(event: Row) -> Row:
    return {"schema": {"type": "struct", "name": "customers.Envelope"}, "payload": event}


def customer(number: int, email: str) -> Row:
    return {"id": number, "first_name": f"Anne {number}", "email": email}


def table_of(
    changes: Debezium, epochs: Sequence[list[str]], *, of_kafka: bool = True, by: str = "email"
) -> list[Row]:
    pipeline = Pipeline("shop")
    kafka = Kafka("host:9092", "customers", value=Json(changes.schema))
    files = Files("in", format="json", schema=changes.schema)
    events = pipeline.source("events", kafka if of_kafka else files)
    table = changes.table("customers", events)
    table.sink("table", FilesTable(upsert_key=changes.key))
    counts = table.key_by(by).aggregate("counted", n=agg.count(), ids=agg.sum("id"))
    counts.sink("counts", FilesTable(upsert_key=(by,)))
    found = run_local(pipeline, {"events": epochs})

    rows = sorted(found.table("table").to_dicts(), key=lambda row: str(row["id"]))
    expected = {value: (n, 0) for value, n in Counter(row[by] for row in rows).items()}
    for row in rows:
        n, ids = expected[row[by]]
        expected[row[by]] = (n, ids + row["id"])
    told = {row[by]: (row["n"], row["ids"]) for row in found.table("counts").to_dicts()}
    assert told == expected  # An aggregate takes back what a change or a delete took away.
    return rows


@pytest.mark.parametrize("of_kafka", slow_but([True, False], False), ids=["kafka", "files"])
def test_changes_in_any_order_and_delivered_again_are_the_table(of_kafka: bool) -> None:
    random, table = Random(7), dict[int, Row]()
    events: list[Row] = []
    for lsn in range(1, 161):
        number = random.randrange(12)
        before = table.get(number)
        after = customer(number, random.choice("xyz"))
        if before is None:
            events.append(postgres(random.choice("cr"), None, after, lsn))
        elif random.random() < 0.4:
            events.append(postgres("d", before, None, lsn))
            del table[number]
            continue
        else:  # With REPLICA IDENTITY DEFAULT there is no row before.
            events.append(postgres("u", random.choice([before, None]), after, lsn))
        table[number] = after
    sent = events + random.sample(events, 40)
    random.shuffle(sent)
    sent = [beside_its_schema(one) if random.random() < 0.5 else one for one in sent]
    texts = [json.dumps(one) for one in sent]
    for _ in range(10):
        texts.insert(random.randrange(len(texts)), TOMBSTONE)

    cuts = [texts[start : start + 70] for start in range(0, len(texts), 70)]
    rows = table_of(Debezium(CUSTOMERS, key=("id",)), cuts, of_kafka=of_kafka)

    assert rows == sorted(table.values(), key=lambda row: str(row["id"]))


def test_mysql_is_ordered_by_file_position_and_row() -> None:
    order = {"file": "string", "pos": "bigint", "row": "int"}
    changes = Debezium(CUSTOMERS, key=("id",), order=order)
    events = [
        mysql("u", customer(1, "b"), customer(1, "c"), 4, 154, 0),
        mysql("c", None, customer(1, "a"), 3, 484, 0),
        mysql("u", customer(1, "a"), customer(1, "b"), 3, 10_484, 0),
        mysql("u", customer(2, "b"), customer(2, "later row"), 3, 500, 11),
        mysql("u", customer(2, "a"), customer(2, "b"), 3, 500, 2),
        mysql("d", customer(3, "a"), None, 3, 600, 0),
        mysql("c", None, customer(3, "a"), 3, 590, 0),
    ]

    assert table_of(changes, [[json.dumps(one)] for one in events]) == [
        customer(1, "c"),
        customer(2, "later row"),
    ]


REFUSED = {
    "a value that was not logged": (
        postgres("u", None, customer(1, "__debezium_unavailable_value"), 7), NOT_LOGGED
    ),
    "no position": (postgres("c", None, customer(1, "a"), None), UNNAMED),
    "no key": (postgres("d", {"id": None}, None, 7), UNNAMED),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_applied_fails_with_the_fix(what: str) -> None:
    event, why = REFUSED[what]

    with pytest.raises(Exception, match=re.escape(why)):
        table_of(Debezium(CUSTOMERS, key=("id",)), [[json.dumps(event)]])


PLAYED = {"id": "bigint", "city": "string", "note": "string", "amount": "decimal(12, 2)"}
FORMS = [("by_key", False), ("whole", False), ("whole", True)]


def check_played(
    events: Sequence[Any], rows: Sequence[Row], table: str, *, before: bool, cuts: int
) -> None:
    """The *events* of a table, up to its TRUNCATE, are its *rows*; the TRUNCATE is refused."""
    changes = Debezium(PLAYED, key=("id",), before=before)
    end = [one is not None and one["op"] == "t" for one in events].index(True)
    texts = [TOMBSTONE if one is None else json.dumps(one) for one in events]
    random = Random(cuts)
    places = [0, *sorted(random.sample(range(end), cuts)), end]
    epochs = [texts[a:b] for a, b in pairwise(places)]
    expected = [
        row | {"amount": None if row["amount"] is None else Decimal(row["amount"])} for row in rows
    ]

    assert table_of(changes, epochs, by="city") == sorted(expected, key=lambda row: str(row["id"]))
    with pytest.raises(Exception, match=re.escape(TRUNCATED)):
        table_of(changes, [texts[end:]], by="city")


@pytest.mark.parametrize(("table", "before"), FORMS)
def test_what_a_real_engine_sent_of_a_real_postgresql_is_its_table(
    table: str, before: bool
) -> None:
    lines = (debezium.RECORDED / f"{table}.jsonl").read_text().splitlines()
    rows = json.loads((debezium.RECORDED / "rows.json").read_text())[table]

    check_played([json.loads(line) for line in lines], rows, table, before=before, cuts=3)


@pytest.mark.skipif(not debezium.is_here(), reason=debezium.MISSING)
def test_what_a_real_engine_sends_of_a_real_postgresql_is_its_table(tmp_path: Path) -> None:
    with debezium.engine_of_its_own(tmp_path) as engine:
        rows = debezium.play(engine)

    for table, before in FORMS:
        events = debezium.of_table(engine.events, table)
        check_played(events, rows[table], table, before=before, cuts=2)


def test_a_message_or_a_heartbeat_is_no_change() -> None:
    message = {"op": "m", "ts_ms": 1, "source": {"lsn": 9}, "message": {"prefix": "p"}}
    created = postgres("c", None, customer(1, "a"), 7)

    rows = table_of(Debezium(CUSTOMERS, key=("id",)), [[json.dumps(message), json.dumps(created)]])

    assert rows == [customer(1, "a")]


def test_an_envelope_without_a_payload_needs_none() -> None:
    changes = Debezium(CUSTOMERS, key=("id",), before=True, payload=False)
    events = [
        postgres("c", None, customer(1, "a"), 7),
        postgres("u", customer(1, "a"), customer(1, "b"), 8),
    ]

    assert "payload" not in changes.schema
    assert table_of(changes, [[json.dumps(one)] for one in events]) == [customer(1, "b")]


def test_avro_has_no_payload_and_its_schema_is_that_of_the_declaration() -> None:
    changes = Debezium(CUSTOMERS, key=("id",), payload=False)
    pipeline = Pipeline("shop")
    events = pipeline.source("events", Kafka("host:9092", "customers", value=Avro(changes.avro)))
    changes.table("customers", events).sink("table", FilesTable(upsert_key=changes.key))
    sent = [
        postgres("c", None, customer(1, "a"), 7),
        postgres("u", None, customer(1, "b"), 9),
        postgres("u", None, customer(1, "late"), 8),
        postgres("c", None, customer(2, "gone"), 10),
        postgres("d", customer(2, "gone"), None, 11),
    ]
    rows = [
        {"before": one["before"], "after": one["after"], "op": one["op"]}
        | {"source": {"lsn": one["source"]["lsn"]}, "tombstone": False}
        for one in sent
    ]

    found = run_local(pipeline, {"events": [[one] for one in rows]}).table("table")

    assert found.to_dicts() == [customer(1, "b")]


def test_a_column_may_be_called_as_a_field_of_the_position() -> None:
    changes = Debezium(CUSTOMERS | {"source_lsn": "bigint"}, key=("id",))
    row = customer(1, "a") | {"source_lsn": 77}

    assert table_of(changes, [[json.dumps(postgres("c", None, row, 7))]]) == [row]
    with pytest.raises(ConfigurationError, match="names that begin with 'debezium__'; leave it"):
        Debezium({"id": "bigint", "debezium__x": "int"}, key=("id",))


def test_a_declaration_without_its_key_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="the key 'uid' of Debezium is missing in its columns"
    ):
        Debezium(CUSTOMERS, key=("uid",))
    with pytest.raises(ConfigurationError, match="needs a key and an order"):
        Debezium(CUSTOMERS, key=())


SHELVES = {"id": "bigint", "daemon": "string"}


def maxwell(kind: str, position: str, data: Row | None, old: Row | None = None) -> str:
    """An event as "Data Format" of Maxwell's documentation has it, with output_binlog_position."""
    event = {
        "database": "test", "table": "maxwell", "type": kind, "ts": 1449786310, "xid": 940752,
        "commit": True, "position": position, "data": data,
    }  # fmt: skip
    return json.dumps(event | ({"old": old} if old else {}))


def test_maxwells_events_are_the_table_that_they_are_of() -> None:
    changes = ChangeEvents(
        SHELVES,
        key=("id",),
        op="type",
        kinds={
            "insert": "insert", "bootstrap-insert": "insert", "update": "update",
            "delete": "delete", "bootstrap-start": "skip", "bootstrap-complete": "skip",
        },
        order={
            "file": "split(position, ':')[0]",
            "at": "CAST(split(position, ':')[1] AS bigint)",
        },
        after="data",
    )  # fmt: skip
    events = [
        maxwell("bootstrap-start", "master.000006:1", None),
        maxwell("bootstrap-insert", "master.000006:2", {"id": 1, "daemon": "Lem"}),
        maxwell("update", "master.000006:1000", {"id": 1, "daemon": "Later"}, {"daemon": "Lem"}),
        maxwell("update", "master.000006:999", {"id": 1, "daemon": "Earlier"}, {"daemon": "Lem"}),
        maxwell("insert", "master.000006:1001", {"id": 2, "daemon": "Gone"}),
        maxwell("delete", "master.000007:4", {"id": 2, "daemon": "Gone"}),
        maxwell("insert", "master.000006:1001", {"id": 2, "daemon": "Gone"}),
    ]
    schema = "type string, position string, data struct<id: bigint, daemon: string>"

    assert made_of(changes, schema, [[one] for one in events]) == [{"id": 1, "daemon": "Later"}]
    renamed = maxwell("table-alter", "master.000007:5", None)
    with pytest.raises(Exception, match=re.escape(UNKNOWN)):
        made_of(changes, schema, [[renamed]])


def dms(operation: str, record: int | None, data: Row, before: Row | None = None) -> str:
    """A message as "Using Apache Kafka as a target" of AWS DMS has it, with before images and
    transaction details.
    """
    metadata = {
        "timestamp": "2021-09-29T19:20:48.123456Z", "record-type": "data", "operation": operation,
        "partition-key-type": "primary-key", "schema-name": "test", "table-name": "shelves",
        "commit-timestamp": record and "2021-09-29T19:20:48.000000Z",
        "transaction-id": record and 4294970012, "transaction-record-id": record,
    }  # fmt: skip
    event = {"data": data, "metadata": metadata}
    return json.dumps(event | ({"before-image": before} if before else {}))


def test_the_messages_of_dms_are_the_table_that_they_are_of() -> None:
    changes = ChangeEvents(
        SHELVES,
        key=("id",),
        op="metadata.operation",
        kinds={"load": "insert", "insert": "insert", "update": "update", "delete": "delete"},
        order={
            "committed": "coalesce(metadata.`commit-timestamp`, '')",
            "record": "coalesce(metadata.`transaction-record-id`, 0)",
        },
        after="data",
        before="`before-image`",
        whole_before=True,
    )
    lem, asimov = {"id": 1, "daemon": "Lem"}, {"id": 1, "daemon": "Asimov"}
    gone = {"id": 2, "daemon": "Gone"}
    events = [
        dms("load", None, lem), dms("load", None, gone), dms("update", 1, asimov, lem),
        dms("delete", 2, gone, gone), dms("update", 1, asimov, lem),
    ]  # fmt: skip
    row = "struct<id: bigint, daemon: string>"
    metadata = "operation: string, `commit-timestamp`: string, `transaction-record-id`: bigint"
    schema = f"data {row}, `before-image` {row}, metadata struct<{metadata}>"

    assert made_of(changes, schema, [[one] for one in events]) == [asimov]


@pytest.mark.parametrize("whole_before", [False, True])
def test_an_update_of_the_key_is_refused_as_the_old_keys_row_would_stay(whole_before: bool) -> None:
    changes = ChangeEvents(
        SHELVES,
        key=("id",),
        op="type",
        kinds={"insert": "insert", "update": "update"},
        order={"at": "CAST(position AS bigint)"},
        after="data",
        before="old",
        whole_before=whole_before,
    )
    row = "struct<id: bigint, daemon: string>"
    schema = f"type string, position string, data {row}, old {row}"
    first, same = {"id": 1, "daemon": "Lem"}, {"id": 1, "daemon": "Later"}
    events = [maxwell("insert", "1", first), maxwell("update", "2", same, first)]
    moved = maxwell("update", "3", {"id": 2, "daemon": "Later"}, same)

    assert made_of(changes, schema, [[one] for one in events]) == [same]
    with pytest.raises(Exception, match=re.escape(REKEYED)):
        made_of(changes, schema, [[one] for one in (*events, moved)])


def test_rows_of_dms_in_files_are_events_themselves() -> None:
    kinds: dict[str, Kind] = {"I": "insert", "U": "update", "D": "delete"}
    changes = ChangeEvents(SHELVES, ("id",), op="Op", kinds=kinds, order={"seq": "AR_H_CHANGE_SEQ"})
    lines = [
        ("I", "2021092919204800000000000000000000009", 1, "Lem"),
        ("U", "2021092919204800000000000000000000011", 1, "Asimov"),
        ("U", "2021092919204800000000000000000000010", 1, "Between"),
        ("I", "2021092919204800000000000000000000012", 2, "Gone"),
        ("D", "2021092919204800000000000000000000013", 2, "Gone"),
    ]
    names = ("Op", "AR_H_CHANGE_SEQ", "id", "daemon")
    texts = [json.dumps(dict(zip(names, line, strict=True))) for line in lines]
    schema = "Op string, AR_H_CHANGE_SEQ string, id bigint, daemon string"

    assert made_of(changes, schema, [[one] for one in texts]) == [{"id": 1, "daemon": "Asimov"}]


def made_of(changes: ChangeEvents, schema: str, epochs: Sequence[list[str]]) -> list[Row]:
    pipeline = Pipeline("shop")
    events = pipeline.source("events", Files("in", format="json", schema=schema))
    changes.table("shelves", events).sink("table", FilesTable(upsert_key=changes.key))
    return run_local(pipeline, {"events": epochs}).table("table").sort("id").to_dicts()


def test_a_mapping_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the key 'uid' of ChangeEvents is missing"):
        ChangeEvents(SHELVES, ("uid",), op="op", kinds={"I": "insert"}, order={"at": "at"})
    with pytest.raises(ConfigurationError, match="which is none of an event"):
        ChangeEvents(SHELVES, ("id",), op="op", kinds={"I'": "insert"}, order={"at": "at"})
    with pytest.raises(ConfigurationError, match="has whole_before, and no before"):
        ChangeEvents(
            SHELVES, ("id",), op="op", kinds={"I": "insert"}, order={"at": "at"}, whole_before=True
        )
