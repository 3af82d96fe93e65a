"""Files as a source, compared with plain libraries: rows per CPU-second, and the cost of a plan.

    PYTHONPATH=include:. .venv/bin/python -m bench.connectors.files [--rows 500000] [--rounds 5]
    PYTHONPATH=include:. .venv/bin/python -m bench.connectors.files --plans [--files 100000]

Each format is planned and read by the source, and read by libraries, over the same file, one after
the other in every round; the figures are of the CPU time of all threads of this process.  The files
are in the page cache.  Lines are compared with lines: what decodes them is Spark's JVM.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import fastavro
import msgspec
import polars as pl  # noqa: TID253 - no other module imports a benchmark
import pyarrow as pa  # noqa: TID253
import pyarrow.csv  # noqa: TID253
import pyarrow.json  # noqa: TID253
import pyarrow.parquet as pq  # noqa: TID253
import zstandard

from sluice.connectors.files.avro import AvroSource
from sluice.connectors.files.parquet import ParquetSource
from sluice.connectors.files.text import FilesSource
from sluice.declaration.places import Source, SourcePosition
from sluice.store.folder import FileStore
from sluice.store.memory import InMemoryStore, named_store

Reader = Callable[[Path], int]
BATCH_ROWS = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plans", action="store_true")
    parser.add_argument("--files", type=int, default=100_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sluice-files-"))
    try:
        if given.plans:
            measure_plans(folder, given.files)
        else:
            measure_formats(folder, given.rows, given.rounds)
    finally:
        shutil.rmtree(folder)


def measure_formats(folder: Path, rows: int, rounds: int) -> None:
    write_files(folder, rows)
    for name, readers in READERS.items():
        spent: dict[str, list[float]] = {reader: [] for reader in readers}
        for _ in range(rounds):
            for reader, read in readers.items():
                start = time.process_time()
                found = read(folder / name)
                spent[reader].append(time.process_time() - start)
                # With and without a header.
                assert found in {rows, rows + 1}, (name, reader, found)
        best = {reader: rows / min(times) for reader, times in spent.items()}
        middle = {reader: rows / statistics.median(times) for reader, times in spent.items()}
        for reader in readers:
            print(
                f"{name:10} {reader:28} {best[reader]:>12,.0f} best  {middle[reader]:>12,.0f} "
                f"median  sluice is {middle['sluice'] / middle[reader]:>5.0%} of it"
            )


def write_files(folder: Path, rows: int) -> None:
    columns: dict[str, Any] = {
        "id": list(range(rows)),
        "name": [f"customer number {n % 5000}" for n in range(rows)],
        "price": [n / 7 for n in range(rows)],
        "at": [1_767_323_045_000_000 + n * 1000 for n in range(rows)],
    }
    table = pa.table(columns)
    pyarrow.csv.write_csv(table, folder / "a.csv")
    objects = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (folder / "a.json").write_text("".join(json.dumps(one) + "\n" for one in objects))
    (folder / "a.json.gz").write_bytes(gzip.compress((folder / "a.json").read_bytes(), 3))
    (folder / "a.json.zst").write_bytes(zstandard.compress((folder / "a.json").read_bytes()))
    at = table["at"].cast(pa.timestamp("us", "UTC"))
    pq.write_table(
        table.set_column(3, "at", at), folder / "a.parquet", row_group_size=-(-rows // 3)
    )
    schema = {
        "type": "record",
        "name": "row",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", "type": ["null", "string"]},
            {"name": "price", "type": "double"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ],
    }
    with (folder / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, objects, codec="deflate")


def by_sluice(kind: Callable[[str], Source], parallelism: int = 4) -> Reader:
    def read(path: Path) -> int:
        source = kind(str(path))
        pieces = source.plan((), max_records=None, parallelism=parallelism).slices
        return sum(batch.num_rows for piece in pieces for batch in source.read(piece))

    return read


def lines_by_python(path: Path) -> int:
    """A loop over the file's lines, converted to Arrow."""
    with opened(path) as file:
        return sum(len(pa.array(lines)) for lines in batches(line.rstrip("\n") for line in file))


def opened(path: Path) -> TextIO:
    match path.suffix:
        case ".gz":
            return gzip.open(path, "rt", encoding="utf-8")
        case ".zst":
            text: TextIO = zstandard.open(path, "rt", encoding="utf-8")
            return text
        case _:
            return path.open(encoding="utf-8")


def lines_by_pyarrow(path: Path) -> int:
    """Arrow's own reader with one column; it decompresses by the file's name."""
    with pyarrow.csv.open_csv(
        path,
        read_options=pyarrow.csv.ReadOptions(column_names=["line"], use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(delimiter="\x01", quote_char=False),
    ) as lines:
        return sum(batch.num_rows for batch in lines)


def csv_by_pyarrow(path: Path) -> int:
    with pyarrow.csv.open_csv(path) as rows:
        return sum(batch.num_rows for batch in rows)


def json_by_pyarrow(path: Path) -> int:
    return int(pyarrow.json.read_json(path).num_rows)


def parquet_by_pyarrow(path: Path) -> int:
    with pq.ParquetFile(path) as file:
        return sum(batch.num_rows for batch in file.iter_batches(BATCH_ROWS))


def parquet_by_polars(path: Path) -> int:
    return pl.read_parquet(path).rechunk().height


def avro_by_fastavro(path: Path) -> int:
    """Objects only; no columns are made of them."""
    with path.open("rb") as file:
        return sum(1 for _ in fastavro.reader(file))


def avro_by_fastavro_to_arrow(path: Path) -> int:
    with path.open("rb") as file:
        return sum(
            pa.RecordBatch.from_pylist(records).num_rows
            for records in batches(fastavro.reader(file))
        )


def avro_by_polars(path: Path) -> int:
    return pl.read_avro(path).height


def batches(items: Any) -> Iterator[list[Any]]:  # noqa: ANN401
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == BATCH_ROWS:
            yield batch
            batch = []
    yield batch


LINES = {
    "sluice": by_sluice(FilesSource),
    "Python, lines to Arrow": lines_by_python,
    "pyarrow.csv, lines": lines_by_pyarrow,
}
# Each slice of a compressed file is read from the file's start.
COMPRESSED = {
    "sluice": by_sluice(FilesSource, parallelism=1),
    "sluice, in 4 slices": by_sluice(FilesSource),
    "Python, lines to Arrow": lines_by_python,
    "pyarrow.csv, lines": lines_by_pyarrow,
}
READERS: dict[str, dict[str, Reader]] = {
    "a.csv": LINES | {"pyarrow.csv, decoded": csv_by_pyarrow},
    "a.json": LINES | {"pyarrow.json, decoded": json_by_pyarrow},
    "a.json.gz": COMPRESSED,
    "a.json.zst": COMPRESSED,
    "a.parquet": {
        "sluice": by_sluice(ParquetSource, parallelism=3),
        "sluice, groups cut": by_sluice(ParquetSource),
        "pyarrow.parquet": parquet_by_pyarrow,
        "polars": parquet_by_polars,
    },
    "a.avro": {
        "sluice": by_sluice(AvroSource),
        "fastavro": avro_by_fastavro,
        "fastavro, to Arrow": avro_by_fastavro_to_arrow,
        "polars": avro_by_polars,
    },
}


@dataclass
class Counts:
    """``listed`` are keys, a LIST of S3 has 1000; ``reads`` are ranged reads, empty ones too."""

    listed: int = 0
    reads: int = 0


@contextmanager
def counted(kind: type[FileStore | InMemoryStore]) -> Iterator[Counts]:
    counts = Counts()
    list_, read = kind.list, kind.get_range

    def counted_list(store: Any, prefix: str, *, start_after: str = "") -> Iterator[Any]:  # noqa: ANN401
        for found in list_(store, prefix, start_after=start_after):
            counts.listed += 1
            yield found

    def counted_read(store: Any, key: str, start: int, end: int) -> bytes | None:  # noqa: ANN401
        counts.reads += 1
        return read(store, key, start, end)

    kind.list, kind.get_range = counted_list, counted_read  # type: ignore[method-assign, assignment]
    try:
        yield counts
    finally:
        kind.list, kind.get_range = list_, read  # type: ignore[method-assign]


def measure_plans(folder: Path, files: int) -> None:
    """Measure an idle plan, and one with ten new files, after *files* files were read."""
    name = "bench-files"
    memory = named_store(name)
    for number in range(files):
        (folder / f"log-{number:08d}").write_bytes(b"1\n2\n")
        memory.put(f"log-{number:08d}", b"1\n2\n")
    for location, kind in ((f"memory://{name}/", InMemoryStore), (str(folder), FileStore)):
        for ordered in (False, True):
            source = FilesSource(location, bounded=False, ordered=ordered)
            position: SourcePosition = ()
            for step in ("first", "second", "idle", "ten new files"):
                if step == "ten new files":
                    for number in range(10):
                        key = f"log-{files + number:08d}"
                        (folder / key).write_bytes(b"1\n2\n")
                        memory.put(key, b"1\n2\n")
                with counted(kind) as counts:
                    start = time.process_time()
                    barrier = source.plan(position, max_records=None, parallelism=2)
                    cpu_s = time.process_time() - start
                position = barrier.position
                encoded = len(msgspec.json.encode(position))
                print(
                    f"{location.partition('://')[0][:6]:7} ordered={ordered!s:5} {step:14} "
                    f"cpu_s={cpu_s:7.3f} listed={counts.listed:>7,} reads={counts.reads:>7,} "
                    f"records={barrier.records:>7,} entries={len(position):>7,} bytes={encoded:,}"
                )
            for number in range(10):
                (folder / f"log-{files + number:08d}").unlink()
            memory.delete([f"log-{files + number:08d}" for number in range(10)])


if __name__ == "__main__":
    main()
