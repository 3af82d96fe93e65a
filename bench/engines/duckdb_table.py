"""DuckDB with a database file: the state is a table, and an epoch is a transaction.

What a Python user may well write instead of a stream: the files that were taken and what they
change are committed together, so each counts exactly once, and a crash leaves either both or
neither.  There is no event time, no parallel machine and no second stage; so only keyed workloads.
``MERGE`` without an index was the fastest of four forms that were tried, among them ``ON CONFLICT``
with a primary key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.protocol import Meter, Report, Request
from bench.workloads import Workload

if TYPE_CHECKING:
    import duckdb

CHANGED = """
    CREATE OR REPLACE TEMP TABLE changed AS
    SELECT key, count(*) AS count, sum(value)::BIGINT AS sum, max(value) AS max
    FROM read_parquet($files) GROUP BY key
"""
# From a table: as a subquery of ``MERGE`` its size is not known, and the plan takes twenty times as
# long.
MERGE = """
    MERGE INTO state USING changed ON state.key = changed.key
    WHEN MATCHED THEN UPDATE SET count = state.count + changed.count,
        sum = state.sum + changed.sum, max = greatest(state.max, changed.max)
    WHEN NOT MATCHED THEN INSERT VALUES (changed.key, changed.count, changed.sum, changed.max)
"""


def refusal(workload: Workload) -> str | None:
    return "has no event time and no chain of stages" if workload.kind == "nexmark" else None


def run(request: Request) -> Report:
    work = Path(request.work)
    meter = Meter()
    if request.phase == "restore":
        _rehearse(request)
        [folder] = request.epochs
        with meter.epoch(_count(folder)):
            database = _open(work / "state.duckdb", request)
            _take(database, folder)
        database.close()
        return Report(epochs=tuple(meter.records))
    database = _open(work / "state.duckdb", request)
    # A failure leaves no time to tidy up: what is restored is the file and its log.
    database.execute("PRAGMA disable_checkpoint_on_shutdown")
    for folder in request.epochs:
        before = _written_bytes()
        with meter.epoch(_count(folder)):
            _take(database, folder)
        meter.uploaded_later(_written_bytes() - before)
    result = None
    if request.phase == "run":
        result = str(work / "result.parquet")
        database.sql("SELECT key, count, sum, max FROM state").write_parquet(result)
    database.close()
    return Report(epochs=tuple(meter.records), result=result)


def _open(path: Path, request: Request) -> duckdb.DuckDBPyConnection:
    import duckdb

    database = duckdb.connect(path, config={"threads": request.threads})
    key = "VARCHAR" if request.spec.text_keys else "BIGINT"
    columns = f"key {key}, count BIGINT, sum BIGINT, max BIGINT"
    database.execute(f"CREATE TABLE IF NOT EXISTS state ({columns})")
    database.execute("CREATE TABLE IF NOT EXISTS taken (folder VARCHAR PRIMARY KEY)")
    return database


def _take(database: duckdb.DuckDBPyConnection, folder: str) -> None:
    database.begin()
    database.execute("INSERT INTO taken VALUES ($folder)", {"folder": folder})
    database.execute(CHANGED, {"files": sorted(map(str, Path(folder).iterdir()))})
    database.execute(MERGE)
    database.commit()


def _rehearse(request: Request) -> None:
    """Run the query on some rows in another database, so that the library is loaded."""
    with _open(Path(request.work) / "rehearsal.duckdb", request) as database:
        _take(database, request.epochs[0])


def _written_bytes() -> int:
    """Bytes that this process has handed to the kernel, in files of any kind."""
    [line] = [
        line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("wchar:")
    ]
    return int(line.split()[1])


def _count(folder: str) -> int:
    import pyarrow.parquet as pq

    return sum(pq.read_metadata(path).num_rows for path in Path(folder).iterdir())
