"""Iceberg: rows read and published per second, compared with plain pyiceberg.

    PYTHONPATH=include:. python -m bench.connectors.iceberg [rows] [repetitions]

Both sides have a table on the same disk and a SQLite catalog, and take turns; each figure is the
process's CPU time, threads included.  Published: the same files of 262,144 rows, of which pyiceberg
appends each, in one transaction.  Upserted: a tenth of the keys, of which pyiceberg deletes those
that are there by an ``In`` of them, and appends, in one transaction.  Its own ``upsert`` compares
rows, and takes too long for so many; both sides have 2,000 keys for that.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import In
from pyiceberg.table import Table

from sluice.connectors.iceberg.declared_sink import IcebergTable as Sink
from sluice.connectors.iceberg.declared_source import IcebergTable as Source
from sluice.connectors.iceberg.sink import IcebergSink
from sluice.core.answers import Attempt
from sluice.core.timeline import Writer
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    import pyarrow as pa

WRITER = Writer(life="bench", generation=1)
ROWS_PER_FILE = 262_144  # The size of files that stages write.
UPSERTED = 10  # One in this many keys is upserted.
FEW = 2_000


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_097_152
    repetitions = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), rows)
        for name, sides in bench.pairs().items():
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for number in range(repetitions + 1):
                for side, run in sides.items():
                    taken = run()
                    if number:  # The first one warms up.
                        seconds[side].append(taken)
            count = {"upsert": rows // UPSERTED, "few": FEW}.get(name, rows)
            show(name, count, seconds)


class Bench:
    """Two tables of the same columns, one for each side."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }
        self._root = StoreLocation(root=f"file://{folder}/root")
        self._files = [
            events(start, min(start + ROWS_PER_FILE, rows))
            for start in range(0, rows, ROWS_PER_FILE)
        ]
        self._upserts = events(0, rows, UPSERTED)
        self._catalog = load_catalog("default", **self._properties)
        self._catalog.create_namespace("bench")

    def pairs(self) -> dict[str, dict[str, Callable[[], float]]]:
        return {
            "publish": {"pyiceberg": self.append, "sluice": self.publish},
            "read": {"pyiceberg": self.scan, "sluice": self.read},
            "upsert": {
                "pyiceberg delete+append": self.delete_and_append,
                "sluice": partial(self.upsert, self._upserts),
            },
            "few": {
                "pyiceberg upsert": self.upsert_by_rows,
                "sluice": partial(self.upsert, self._upserts.slice(0, FEW)),
            },
        }

    def append(self) -> float:
        table = self._fresh("theirs")
        return cpu(lambda: self._append(table, self._files))

    def publish(self) -> float:
        self._fresh("ours")
        sink = self._sink()
        return cpu(lambda: self._publish(sink, 1, self._files))

    def scan(self) -> float:
        return cpu(lambda: self._catalog.load_table("bench.theirs").scan().to_arrow())

    def read(self) -> float:
        def run() -> int:
            source = Source("bench.theirs", self._properties).open({}, None)
            barrier = source.plan((), max_records=None, parallelism=2)
            return sum(batch.num_rows for piece in barrier.slices for batch in source.read(piece))

        return cpu(run)

    def upsert_by_rows(self) -> float:
        table = self._filled("theirs")
        few = self._upserts.slice(0, FEW)
        return cpu(lambda: table.upsert(few, ["id"]))

    def delete_and_append(self) -> float:
        table = self._filled("theirs")
        keys = self._upserts["id"].to_pylist()

        def run() -> None:
            with table.transaction() as transaction:
                transaction.delete(In("id", keys))  # type: ignore[call-arg, arg-type]  # of pydantic
                transaction.append(self._upserts)

        return cpu(run)

    def upsert(self, rows: pa.Table) -> float:
        self._filled("ours")
        sink = self._sink("id")
        return cpu(lambda: self._publish(sink, 1, [rows]))

    def _sink(self, *key: str) -> IcebergSink:
        spec = Sink("bench.ours", self._properties, upsert_key=key)
        return spec.open("bench", {}, self._root)

    def _publish(self, sink: IcebergSink, checkpoint_id: int, files: list[pa.Table]) -> None:
        staged = [
            sink.stage(
                file,
                Attempt(
                    checkpoint_id=checkpoint_id,
                    subtask=0,
                    checkpoint_token=WRITER.life,
                    attempt_token=f"{number}",
                ),
            )
            for number, file in enumerate(files)
        ]
        sink.commit(WRITER, checkpoint_id, None, [one for one in staged if one is not None])

    def _append(self, table: Table, files: list[pa.Table]) -> None:
        with table.transaction() as transaction:
            for file in files:
                transaction.append(file)

    def _fresh(self, name: str) -> Table:
        if self._catalog.table_exists(f"bench.{name}"):
            self._catalog.drop_table(f"bench.{name}")
        return self._catalog.create_table(f"bench.{name}", self._files[0].schema)

    def _filled(self, name: str) -> Table:
        table = self._fresh(name)
        self._append(table, self._files)
        return table


def events(start: int, end: int, step: int = 1) -> pa.Table:
    import pyarrow as pa

    ids = range(start, end, step)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "price": pa.array([id_ * 7919 % 100_003 / 7 for id_ in ids], pa.float64()),
            "name": pa.array([f"customer {id_ * 31 % 50_021}" for id_ in ids], pa.large_string()),
            "at": pa.array([id_ * 1000 for id_ in ids], pa.timestamp("us", tz="UTC")),
        }
    )


def cpu(run: Callable[[], Any]) -> float:
    before = time.process_time()
    run()
    return time.process_time() - before


def show(name: str, rows: int, seconds: dict[str, list[float]]) -> None:
    ours = seconds["sluice"]
    best, median = min, statistics.median
    for side, taken in seconds.items():
        print(
            f"{name:8} {side:24} {rows / best(taken):>12,.0f} rows/CPU-s at best, "
            f"{rows / median(taken):>12,.0f} in the median; sluice has "
            f"{best(taken) / best(ours):.2f} and {median(taken) / median(ours):.2f} times as many"
        )


if __name__ == "__main__":
    main()
