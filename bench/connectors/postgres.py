"""PostgreSQL: rows per second, compared with plain psycopg in its fastest way (COPY).

    python -m bench.connectors.postgres [--rows 400000] [--runs 7]

Both do the same on the same server, in turns.  Reading: a table into Arrow.  Publishing: staged
Parquet files into the table, with the checkpoint's note, beside the same files without a note.  The
ratio is of minima; CPU-seconds are those of the client and the server together.
"""

# ruff: noqa: S608, TID253 - its own tables; run by hand

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from bench.cpu import tree_cpu_s
from harness.postgres_database import Database, running_postgres
from sluice.connectors.postgres.declared_sink import PostgresTable as SinkTable
from sluice.connectors.postgres.declared_source import PostgresTable as SourceTable
from sluice.connectors.staged_sink import StagedSink
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Writer
from sluice.declaration.places import RECORD
from sluice.store.open import StoreLocation

WRITER = Writer(life="bench", generation=1)
FILES = 4  # Of a checkpoint: one per subtask.
COLUMNS = """id bigint {key}, name text, shop text, price double precision, quantity integer,
    paid boolean, total numeric(18, 2), at timestamptz"""


@dataclass(slots=True)
class Times:
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def measure(self, work: Callable[[], int], rows: int) -> None:
        cpu, wall = tree_cpu_s(), time.perf_counter()
        done = work()
        self.wall_s.append(time.perf_counter() - wall)
        self.cpu_s.append(tree_cpu_s() - cpu)
        assert done == rows, f"{done} rows where {rows} were expected"


def table_of(rows: int, first: int = 1) -> pa.Table:
    ids = pa.array(range(first, first + rows), pa.int64())
    text = ids.cast(pa.string())
    cents = pc.multiply(ids, 37)
    return pa.table(
        {
            "id": ids,
            "name": pc.binary_join_element_wise("customer, number ", text, ""),
            "shop": pc.if_else(pc.equal(pc.bit_wise_and(ids, 7), 0), None, text),
            "price": pc.divide(ids.cast(pa.float64()), 7.0),
            "quantity": pc.bit_wise_and(ids, 1023).cast(pa.int32()),
            "paid": pc.equal(pc.bit_wise_and(ids, 1), 0),
            "total": cents.cast(pa.decimal128(19, 0)).cast(pa.decimal128(18, 2)),
            "at": pc.add(ids, 1_780_000_000_000_000).cast(pa.timestamp("us", "UTC")),
        }
    )


class Bench:
    def __init__(self, database: Database, folder: Path, rows: int) -> None:
        self.database, self.folder, self.rows = database, folder, rows
        self.checkpoint = 0
        database.run("CREATE SCHEMA bench")
        for name, key in (("appended", ""), ("upserted", "PRIMARY KEY")):
            for who in ("sluice", "plain"):
                database.run(f"CREATE TABLE bench.{name}_{who} ({COLUMNS.format(key=key)})")
        self.table = table_of(rows)
        self.sinks = {
            "append": self._sink("bench.appended_sluice", ()),
            "upsert": self._sink("bench.upserted_sluice", ("id",)),
        }

    def _sink(self, table: str, key: tuple[str, ...]) -> StagedSink:
        location = StoreLocation(root=f"file://{self.folder}/{table}")
        return SinkTable(self.database.dsn, table, upsert_key=key).open("bench", {}, location)

    def stage(self, kind: str) -> list[Committable]:
        self.checkpoint += 1
        each = -(-self.rows // FILES)
        staged = [
            self.sinks[kind].stage(
                self.table.slice(part * each, each),
                Attempt(
                    checkpoint_id=self.checkpoint,
                    subtask=part,
                    checkpoint_token=WRITER.life,
                    attempt_token=f"1-{kind}",
                ),
            )
            for part in range(FILES)
        ]
        return [one for one in staged if one is not None]

    def publish(self, kind: str, staged: list[Committable]) -> int:
        self.sinks[kind].commit(WRITER, self.checkpoint, None, staged)
        return sum(one.rows for one in staged)

    def plain_publish(self, kind: str, staged: list[Committable]) -> int:
        """The same by hand: Parquet, CSV, COPY, and a temporary table for upserts."""
        root = self.folder / f"bench.{kind}ed_sluice"
        into = f"bench.{kind}ed_plain"
        written = 0
        with psycopg.connect(self.database.dsn) as connection:
            connection.execute("SET synchronous_commit = on")
            target = into
            if kind == "upsert":
                connection.execute(f"CREATE TEMP TABLE t (LIKE {into}) ON COMMIT DROP")
                target = "t"
            with connection.cursor() as cursor:
                with cursor.copy(f"COPY {target} FROM STDIN (FORMAT csv)") as copy:
                    for one in staged:
                        part = pq.read_table(root / one.file)
                        sink = pa.BufferOutputStream()
                        arrow_csv.write_csv(
                            part, sink, arrow_csv.WriteOptions(include_header=False)
                        )
                        copy.write(memoryview(sink.getvalue()))
                written = cursor.rowcount
            if kind == "upsert":
                changes = ", ".join(f"{n} = EXCLUDED.{n}" for n in self.table.column_names[1:])
                connection.execute(
                    f"INSERT INTO {into} SELECT * FROM t ON CONFLICT (id) DO UPDATE SET {changes}"
                )
        return written

    def read(self) -> int:
        source = SourceTable(self.database.dsn, "bench.read", "id").open({}, None)
        barrier = source.plan((), max_records=None, parallelism=1)
        return sum(batch.num_rows for one in barrier.slices for batch in source.read(one))

    def plain_read(self) -> int:
        """psycopg's COPY, joined and parsed by Arrow, with the offset once more."""
        types = {one.name: one.type for one in self.table.schema} | {RECORD: pa.int64()}
        with (
            psycopg.connect(self.database.dsn) as connection,
            connection.cursor() as cursor,
        ):
            connection.execute("SET timezone = 'UTC'")
            query = "SELECT *, id FROM bench.read WHERE id >= 1 ORDER BY id"
            with cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy:
                text = b"".join(copy)
        table = arrow_csv.read_csv(
            pa.BufferReader(text),
            arrow_csv.ReadOptions(column_names=[*types], use_threads=False),
            arrow_csv.ParseOptions(newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=types,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
        return int(table.num_rows)

    def prepare_reading(self) -> None:
        self.database.run(
            f"CREATE TABLE bench.read ({COLUMNS.format(key='GENERATED ALWAYS AS IDENTITY')})"
        )
        self.database.run(
            "INSERT INTO bench.read OVERRIDING SYSTEM VALUE SELECT * FROM bench.appended_sluice"
            " LIMIT %s",
            self.rows,
        )
        self.database.run("SELECT setval('bench.read_id_seq', %s)", self.rows)
        self.database.run("ALTER TABLE bench.read ADD PRIMARY KEY (id)")
        self.database.run("VACUUM ANALYZE bench.read")


def run(bench: Bench, runs: int) -> dict[str, Times]:
    times: dict[str, Times] = {}

    def measure(name: str, work: Callable[[], int]) -> None:
        times.setdefault(name, Times()).measure(work, bench.rows)

    for kind in ("append", "upsert"):
        for number in range(runs):
            staged: list[Committable] = []

            def stage(kind: str = kind, staged: list[Committable] = staged) -> int:
                staged[:] = bench.stage(kind)
                return sum(one.rows for one in staged)

            measure(f"stage {kind}", stage)
            # The order alternates, too; the plain one needs the files, which a commit deletes.
            keep = [(one, _path(bench, kind, one).read_bytes()) for one in staged]
            order = ("plain", "sluice") if number % 2 else ("sluice", "plain")
            for who in order:
                for one, body in keep:
                    path = _path(bench, kind, one)
                    path.parent.mkdir(parents=True, exist_ok=True)  # The store removes empty ones.
                    path.write_bytes(body)
                work: Any = bench.publish if who == "sluice" else bench.plain_publish
                measure(f"{kind} {who}", partial(work, kind, staged))
            if kind == "append" and number < runs - 1:
                for who in order:
                    bench.database.run(f"TRUNCATE bench.appended_{who}")
    bench.prepare_reading()
    for number in range(runs):
        both = [("read sluice", bench.read), ("read plain", bench.plain_read)]
        for name, work in both[:: -1 if number % 2 else 1]:
            measure(name, work)
    return times


def _path(bench: Bench, kind: str, staged: Committable) -> Path:
    return bench.folder / f"bench.{kind}ed_sluice" / staged.file


def report(times: dict[str, Times], rows: int) -> None:
    print(f"{'':16}{'min s':>8}{'median':>8}{'rows/s':>11}{'CPU-s':>8}{'median':>8}")
    for name, one in times.items():
        print(
            f"{name:16}{min(one.wall_s):8.2f}{statistics.median(one.wall_s):8.2f}"
            f"{rows / min(one.wall_s):11,.0f}{min(one.cpu_s):8.2f}"
            f"{statistics.median(one.cpu_s):8.2f}"
        )
    for kind in ("append", "upsert", "read"):
        ours, plain = times[f"{kind} sluice"], times[f"{kind} plain"]
        print(
            f"{kind}: {min(plain.wall_s) / min(ours.wall_s):.0%} of plain by minimum, "
            f"{statistics.median(plain.wall_s) / statistics.median(ours.wall_s):.0%} by median, "
            f"{min(plain.cpu_s) / min(ours.cpu_s):.0%} by CPU"
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=400_000)
    arguments.add_argument("--runs", type=int, default=7)
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_postgres(Path(folder)) as database:
        report(run(Bench(database, Path(folder), given.rows), given.runs), given.rows)


if __name__ == "__main__":
    main()
