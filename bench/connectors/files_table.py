"""A FilesTable, compared with plain pyarrow: the same rows, folder and compression.

    python -m bench.connectors.files_table

Staging and committing is compared with ``write_table``, once to the same folder and once synced as
the store syncs; ``read`` with ``read_table`` of the same files.  Runs are interleaved.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa  # noqa: TID253
import pyarrow.parquet as pq  # noqa: TID253

from sluice.connectors.files_table.table import ManifestTable
from sluice.core.answers import Attempt
from sluice.core.timeline import Writer
from sluice.store.folder import FileStore

WRITER = Writer(life="bench", generation=1)
ROWS = 1_000_000
FILES = 4
RUNS = 7


def rows(start: int, count: int) -> pa.Table:
    numbers = pa.array(range(start, start + count), pa.int64())
    names = pa.array([f"bidder {n * 2654435761 % 100_003}" for n in range(start, start + count)])
    prices = pa.array([n * 40503 % 65_537 / 100 for n in range(start, start + count)])
    return pa.table({"id": numbers, "name": names, "price": prices})


def write_plain(folder: Path, parts: list[pa.Table], *, synced: bool) -> None:
    folder.mkdir()
    for number, part in enumerate(parts):
        path = folder / f"{number}.parquet"
        pq.write_table(part, path, compression="zstd")
        if synced:
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def write_table(folder: Path, parts: list[pa.Table]) -> None:
    table = ManifestTable("bench", FileStore(folder))
    staged = [
        table.stage(
            part,
            Attempt(
                checkpoint_id=1,
                subtask=number,
                checkpoint_token=WRITER.life,
                attempt_token=f"{number}",
            ),
        )
        for number, part in enumerate(parts)
    ]
    table.commit(WRITER, 1, None, [one for one in staged if one is not None])


def timed(act: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parts = [rows(n * ROWS // FILES, ROWS // FILES) for n in range(FILES)]
    took: dict[str, list[tuple[float, float]]] = {}
    root = Path(tempfile.mkdtemp())
    try:
        for run in range(RUNS):
            place = root / str(run)
            place.mkdir()
            plain, synced, ours = place / "plain", place / "synced", place / "ours"
            files = [str(plain / f"{n}.parquet") for n in range(FILES)]
            acts: dict[str, Callable[[], object]] = {
                "write plain": partial(write_plain, plain, parts, synced=False),
                "write plain, synced": partial(write_plain, synced, parts, synced=True),
                "stage and commit": partial(write_table, ours, parts),
                "read plain": partial(pq.read_table, files),
                "read": ManifestTable("bench", FileStore(ours)).read,
            }
            for name, act in acts.items():
                took.setdefault(name, []).append(timed(act))
            shutil.rmtree(place)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{ROWS:,} rows in {FILES} files, {RUNS} interleaved runs; rows/s by the wall")
    for name, runs in took.items():
        walls = [wall for wall, _ in runs]
        cpu = statistics.median(cpu for _, cpu in runs)
        print(
            f"{name:22} best {ROWS / min(walls):>12,.0f} "
            f"median {ROWS / statistics.median(walls):>12,.0f}   median CPU {cpu:.3f} s"
        )


if __name__ == "__main__":
    main()
