# ruff: noqa: S608 - the tests' own tables
"""A real Debezium: its embedded engine, on the tests' own PostgreSQL, writing events as lines.

``python -m harness.debezium`` fetches its jars by Maven into ``.sluice``, once; with ``record`` it
writes the events of ``play`` to ``tests/testing/debezium``, where a test of every run reads them.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import maven
from harness.postgres_database import (
    LOGICAL,
    Database,
    as_superuser,
    prepare_postgres,
    serving_postgres,
)

VERSION = "3.6.1.Final"
JARS = maven.FETCHED / f"debezium-{VERSION}"
RECORDED = Path(__file__).parents[1] / "tests" / "testing" / "debezium"
WAIT_S = 300.0  # For an event of the engine; it starts in 5 s on a quiet machine.
MISSING = "Debezium is not here; `make debezium` fetches it, with Java 17 and Maven"
TABLES = ("by_key", "whole")  # With REPLICA IDENTITY DEFAULT, and FULL.

_MODULES = ("debezium-api", "debezium-embedded", "debezium-connector-postgres")
_ENGINE = """
import io.debezium.engine.*;
import io.debezium.engine.format.Json;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.Properties;

public class Engine {
    public static void main(String[] args) throws Exception {
        var settings = new Properties();
        try (var file = new FileReader(args[0])) { settings.load(file); }
        var out = new FileOutputStream(args[1], true);
        var engine = DebeziumEngine.create(Json.class).using(settings).notifying((some, told) -> {
            for (var event : some) {
                try {
                    out.write((event.value() + "\\n").getBytes(StandardCharsets.UTF_8));
                } catch (IOException failed) { throw new UncheckedIOException(failed); }
                if (args.length < 3) told.markProcessed(event);
            }
            if (args.length < 3) told.markBatchFinished();
        }).using((success, message, error) -> System.err.println(message + " " + error)).build();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try { engine.close(); } catch (IOException failed) { failed.printStackTrace(); }
        }));
        engine.run();
    }
}
"""


def is_here() -> bool:
    return maven.is_fetched(JARS)


def fetch() -> None:
    """Have Maven fetch the engine and what it needs (38 MB)."""
    maven.fetch(JARS, [f"io.debezium:{name}:{VERSION}" for name in _MODULES], _compile)


def _compile() -> None:
    (JARS / "Engine.java").write_text(_ENGINE)
    subprocess.run(["javac", "-cp", f"{JARS}/*", "Engine.java"], cwd=JARS, check=True)


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of *database*; its offsets and its events are in *folder*."""

    database: Database
    folder: Path

    @property
    def events(self) -> list[Any]:
        """The values that it has sent, of every start; None is a tombstone."""
        path = self.folder / "events"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    @contextmanager
    def running(self, *, killed: bool = False) -> Iterator[None]:
        """*killed* by SIGKILL before it has said what it has sent, which is then sent again."""
        settings = {
            "name": "engine",
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": f"{self.folder}/offsets",
            "offset.flush.interval.ms": "100",
            "converter.schemas.enable": "false",
            "database.hostname": "127.0.0.1",
            "database.port": str(self.database.port),
            "database.user": "airflow",
            "database.password": self.database.password,
            "database.dbname": "airflow",
            "table.include.list": ",".join(f"public.{name}" for name in TABLES),
            "topic.prefix": "shop",
            "plugin.name": "pgoutput",
            "publication.autocreate.mode": "filtered",
            "skipped.operations": "none",
            "decimal.handling.mode": "string",
        }
        path = self.folder / "settings"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = ["java", "-Xmx256m", "-cp", f"{JARS}/*:{JARS}", "Engine", str(path)]
        with (self.folder / "log").open("ab") as log:
            arguments = [f"{self.folder}/events", *(["silent"] if killed else [])]
            process = subprocess.Popen([*command, *arguments], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
            process.wait(WAIT_S)

    def wait_for(self, is_there: Callable[[list[Any]], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not is_there(self.events):
            if time.monotonic() > until:
                raise AssertionError((self.folder / "log").read_text()[-4000:])
            time.sleep(0.2)


@contextmanager
def engine_of_its_own(folder: Path) -> Iterator[Engine]:
    """An engine that is not started, and a PostgreSQL with logical decoding and both TABLES."""
    prepare_postgres(folder / "postgres")
    as_superuser(folder / "postgres", "ALTER ROLE airflow REPLICATION")
    with serving_postgres(folder / "postgres", **LOGICAL) as database:
        for table in TABLES:
            database.run(
                f"CREATE TABLE public.{table} (id bigint PRIMARY KEY, city text, note text, "
                "amount numeric(12, 2))"
            )
            database.run(f"ALTER TABLE public.{table} ALTER note SET STORAGE EXTERNAL")
        database.run("ALTER TABLE public.whole REPLICA IDENTITY FULL")
        yield Engine(database, folder)


def play(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Changes of both tables over three starts of *engine*; the rows that each has before the last.

    A snapshot; inserts, COPY, transactions that overlap, updates of TOASTed rows, deletes, keys
    that change; a SIGKILL, after which all since the last orderly end is sent again; TRUNCATE.
    """
    database = engine.database
    large = "repeat('long ', 450)"
    both(database, f"INSERT INTO {{}} SELECT n, 'York', {large}, n FROM generate_series(1, 5) AS n")
    with engine.running():
        engine.wait_for(lambda events: _count(events, "r") >= 10)
        both(database, f"INSERT INTO {{}} VALUES (6, 'Bath', {large}, 1.5), (7, NULL, NULL, NULL)")
        _until_told(engine, 8)
    with engine.running(killed=True):
        both(database, "UPDATE {} SET city = 'Wells', amount = amount + 1 WHERE id IN (1, 6)")
        both(database, "DELETE FROM {} WHERE id = 2")
        both(database, "UPDATE {} SET id = 70 WHERE id = 7")
        database.run("UPDATE public.whole SET id = 30 WHERE id = 3")
        _overlap(database)
        for table in TABLES:
            with closing(database.connect()) as copied, copied.cursor() as cursor:
                rows = io.StringIO("".join(f"{n}\tCopied\t\\N\t{n}\n" for n in (20, 21, 22)))
                cursor.copy_expert(f"COPY public.{table} FROM STDIN", rows)
        _until_told(engine, 9)
    with engine.running():
        both(database, "UPDATE {} SET note = 'short' WHERE id = 1")
        both(database, "UPDATE {} SET city = 'Ely' WHERE id = 1")
        both(database, f"INSERT INTO {{}} VALUES (2, 'Truro', {large}, 9)")
        both(database, "DELETE FROM {} WHERE id IN (20, 70)")
        _until_told(engine, 10)
        found = {
            table: [
                row | {"amount": None if row["amount"] is None else str(row["amount"])}
                for row in database.rows(f"SELECT * FROM public.{table} ORDER BY id")
            ]
            for table in TABLES
        }
        both(database, "TRUNCATE {}")
        _until_told(engine, 11)
    return found


def both(database: Database, statement: str) -> None:
    for table in TABLES:
        database.run(statement.format(f"public.{table}"))


def of_table(events: list[Any], table: str) -> list[Any]:
    """The *events* of one table; a tombstone is of that before it."""
    found, of = list[Any](), ""
    for event in events:
        of = event["source"]["table"] if event else of
        if of == table:
            found.append(event)
    return found


def _overlap(database: Database) -> None:
    """A transaction that changes a row first, and is committed last."""
    for table in TABLES:
        with closing(database.connect()) as slow, slow.cursor() as cursor:
            slow.autocommit = False
            cursor.execute(f"UPDATE public.{table} SET city = 'Hull' WHERE id = 4")
            database.run(f"UPDATE public.{table} SET city = 'Deal' WHERE id = 5")
            cursor.execute(f"UPDATE public.{table} SET amount = 44 WHERE id = 4")
            slow.commit()
        database.run(f"UPDATE public.{table} SET amount = 45 WHERE id = 4")


def _until_told(engine: Engine, number: int) -> None:
    """Wait until the engine has sent all until now: it sends the row *number* + 1000 last."""
    both(engine.database, f"INSERT INTO {{}} VALUES ({number + 1000})")
    engine.wait_for(
        lambda events: (
            {
                one["source"]["table"]
                for one in events
                if one and one["after"] and one["after"]["id"] == number + 1000
            }
            == set(TABLES)
        )
    )


def _count(events: list[Any], op: str) -> int:
    return sum(bool(event) and event["op"] == op for event in events)


def main() -> None:
    fetch()
    if sys.argv[1:] != ["record"]:
        return
    RECORDED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, engine_of_its_own(Path(folder)) as engine:
        rows = play(engine)
        for table in TABLES:
            lines = [json.dumps(event) for event in of_table(engine.events, table)]
            (RECORDED / f"{table}.jsonl").write_text("\n".join(lines) + "\n")
        (RECORDED / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
