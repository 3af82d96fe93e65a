"""Flows of kinds that no other test has, side by side in one job.

Each goes through three epochs, a worker that is killed in the second, and a restore behind it with
another parallelism and another declaration, and ends as plain Python says.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl
import pytest

from sluice.coordinator.restore import restore
from sluice.coordinator.submission import configure, submit
from sluice.core.completed import CompletedCheckpoint
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.operations import Attached, Hopping
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.exchange.faults import FAULT_VARIABLE
from sluice.job.job import Job, open_job
from sluice.job.places import open_sinks
from sluice.local.driver import EpochDriver
from sluice.sinks import FilesTable
from sluice.sources import Files
from sluice.state.segments import to_frame
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row: TypeAlias = dict[str, Any]

START = datetime(2026, 1, 1, tzinfo=UTC)
KEYS = ("a", "A", "a ", "ü", None, "日本", "NULL", "x'y\"")
ROWS: list[Row] = [{"k": KEYS[i * i % 11 % 8], "v": i * 37 % 19 - 9, "id": i} for i in range(45)]
EPOCHS = (ROWS[:15], ROWS[15:30], ROWS[30:])
SCHEMA = "k string, v bigint, id bigint"
BY_K = FilesTable(upsert_key=("k",))


@dataclass(frozen=True, slots=True)
class Flow:
    """Files of the *name*, each of what *encode* makes of rows, and what is declared over them.

    *declare* is given the spelling of the key, which is another behind the restore.
    """

    name: str
    encode: Callable[[list[Row]], bytes]
    spec: dict[str, Any]
    declare: Callable[[Stream, str, str], None]
    right: Callable[[], Iterable[Row]]
    event_time: str | None = None


def lines(rows: list[Row], end: str = "\n") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


def in_csv(rows: list[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerows([("ID", "K", "V"), *((row["id"], row["k"], row["v"]) for row in rows)])
    return text.getvalue().encode("utf-8-sig")


def in_parquet(rows: list[Row], names: Sequence[str] = ("k", "v", "id"), wide: int = 0) -> bytes:
    columns = {name: [row[of] for row in rows] for name, of in zip(names, ROWS[0], strict=True)}
    more = {f"c{number}": [row["id"] * number for row in rows] for number in range(wide)}
    file = io.BytesIO()
    pl.DataFrame(columns | more).write_parquet(file)
    return file.getvalue()


def timed(rows: list[Row]) -> bytes:
    at = ((START + row["id"] * timedelta(seconds=4)).isoformat() for row in rows)
    return lines([row | {"at": of} for row, of in zip(rows, at, strict=True)])


def totals(stream: Stream, uid: str, key: str) -> None:
    stream.key_by(key).aggregate(uid, n=agg.count(), s=agg.sum("v")).sink(f"of_{uid}", BY_K)


def all_totals() -> Iterable[Row]:
    for key, rows in by_key():
        yield {"k": key, "n": len(rows), "s": sum(row["v"] for row in rows)}


def by_key() -> Iterable[tuple[str | None, list[Row]]]:
    ordered = sorted(ROWS, key=lambda row: str(row["k"]) + str(type(row["k"])))
    return ((key, [*rows]) for key, rows in groupby(ordered, key=lambda row: row["k"]))


def a_wide_one(stream: Stream, uid: str, key: str) -> None:
    most = stream.select(key, "c999").key_by(key).aggregate(uid, m=agg.max("C999"))
    most.sink(f"of_{uid}", FilesTable(upsert_key=("k",), format="json"))


def odd_names(stream: Stream, uid: str, key: str) -> None:
    summed = stream.key_by("sp ace.k").aggregate(uid, s=agg.sum("`日本`"), m=agg.max("`a``b`"))
    summed.sink(f"of_{uid}", FilesTable(upsert_key=("sp ace.k",)))


def newest_ones(stream: Stream, uid: str, key: str) -> None:
    newest = stream.key_by("v").latest(f"newest_{uid}", by="id")
    counted = newest.key_by(key).aggregate(uid, n=agg.count(), d=agg.count_distinct("v"))
    counted.sink(f"of_{uid}", FilesTable(changelog=True))


def the_newest() -> Iterable[Row]:
    newest = {row["v"]: row["k"] for row in ROWS}
    return ({"k": key, "n": n, "d": n} for key, n in Counter(newest.values()).items())


def fewer_ranks(stream: Stream, uid: str, key: str) -> None:
    n = 3 if key == "k" else 1
    best = stream.key_by(key).top_n(uid, n, by="id")
    best.sink(f"of_{uid}", FilesTable(upsert_key=("k", "rank")))


def uneven_windows(stream: Stream, uid: str, key: str) -> None:
    hops = Hopping(timedelta(seconds=25), timedelta(seconds=10))
    counted = stream.key_by(key).window(f"hops_{uid}", hops, n=agg.count())
    most = counted.key_by(one="1").window(uid, Attached(), most=agg.max("n"), n=agg.sum("n"))
    most.select("window_start", "most", "n").sink(f"of_{uid}", FilesTable())


def the_windows() -> Iterable[Row]:
    for start in range(-20, 160, 10):  # Later ones end behind the last row, and are open.
        keys = Counter(row["k"] for row in ROWS if start <= row["id"] * 4 < start + 25)
        if keys:
            at = START + timedelta(seconds=start)
            yield {"window_start": at, "most": max(keys.values()), "n": keys.total()}


def in_two_cases(stream: Stream, uid: str, key: str) -> None:
    other = stream.select("v AS V", "K", "id")
    totals(stream.union(f"both_{uid}", other.where("v > 0")), uid, key)


def those_of_both() -> Iterable[Row]:
    for key, rows in by_key():
        values = [row["v"] for row in rows] + [row["v"] for row in rows if row["v"] > 0]
        yield {"k": key, "n": len(values), "s": sum(values)}


JSON: dict[str, Any] = {"format": "json", "schema": SCHEMA}
FLOWS: dict[str, Flow] = {
    "bzipped": Flow("x.json.bz2", lambda r: bz2.compress(lines(r)), JSON, totals, all_totals),
    "xz": Flow("x.json.xz", lambda r: lzma.compress(lines(r)), JSON, totals, all_totals),
    "two_members": Flow(
        "x.json.GZ",
        lambda r: gzip.compress(lines(r[:7])) + gzip.compress(lines(r[7:])),
        JSON,
        totals,
        all_totals,
    ),
    "marked": Flow(
        "x.json", lambda r: b"\xef\xbb\xbf" + lines(r, "\r\n"), JSON, totals, all_totals
    ),
    "blank_lines": Flow("x.json", lambda r: b"\n" + lines(r, "\n\n"), JSON, totals, all_totals),
    "newest": Flow("x.json", lines, JSON, newest_ones, the_newest),
    "folders": Flow("y=1/m= 2/%41 ü.json", lines, JSON | {"partitions": ""}, totals, all_totals),
    "in_csv": Flow(
        "x.csv",
        in_csv,
        {"format": "csv", "header": True, "schema": "id bigint, k string, v bigint"},
        totals,
        all_totals,
    ),
    "wide": Flow(
        "x.parquet",
        lambda r: in_parquet(r, wide=1_000),
        {"format": "parquet"},
        a_wide_one,
        lambda: ({"k": k, "m": 999 * max(row["id"] for row in rows)} for k, rows in by_key()),
    ),
    "odd": Flow(
        "x.parquet",
        lambda r: in_parquet(r, ("sp ace.k", "日本", "a`b")),
        {"format": "parquet"},
        odd_names,
        lambda: (
            {"sp ace.k": k, "s": sum(r["v"] for r in rows), "m": max(r["id"] for r in rows)}
            for k, rows in by_key()
        ),
    ),
    "fewer": Flow(
        "x.json",
        lines,
        JSON,
        fewer_ranks,
        lambda: (max(rows, key=lambda r: r["id"]) | {"rank": 1} for _, rows in by_key()),
    ),
    "hopping": Flow(
        "x.json",
        timed,
        {"format": "json", "schema": f"{SCHEMA}, at timestamp"},
        uneven_windows,
        the_windows,
        event_time="at",
    ),
    "united": Flow("x.json", lines, JSON, in_two_cases, those_of_both),
}


def a_job(folder: Path, key: str, parallelism: int) -> Job:
    pipeline = Pipeline(
        "flows", checkpointing=Checkpointing(interval=None), parallelism=parallelism
    )
    for uid, flow in FLOWS.items():
        spec = Files(str(folder / uid), bounded=False, **flow.spec)
        stream = pipeline.source(f"in_{uid}", spec, event_time=flow.event_time)
        flow.declare(stream, uid, key)
    return open_job(pipeline, StoreLocation(root=f"file://{folder / 'root'}"))


def test_each_flow_is_exact_through_a_kill_a_rescale_and_another_spelling(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for uid in FLOWS:
        (tmp_path / uid).mkdir()
    job = a_job(tmp_path, "k", 2)
    submit(job, configure(job.pipeline, {}))
    monkeypatch.setenv(FAULT_VARIABLE, "kill-worker stage=fewer checkpoint=2")

    for number, rows in enumerate(EPOCHS):
        for uid, flow in FLOWS.items():
            file = tmp_path / uid / flow.name
            file = file.with_name(f"{number}{file.name}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(flow.encode(rows))
        if number == 1:
            assert taken(job, spark) is None  # The worker is killed.
            monkeypatch.delenv(FAULT_VARIABLE)
            restore(job, Latest())
        assert taken(job, spark, drain=rows is EPOCHS[-1]) is not None
        if number == 1:
            job = a_job(tmp_path, "K", 3)
            restore(job, Latest())

    sinks = open_sinks(job, {})
    for uid, flow in FLOWS.items():
        table = to_frame(sinks[f"of_{uid}"].read())  # type: ignore[attr-defined]
        assert bag(shown(table)) == bag(flow.right()), uid


def taken(job: Job, spark: SparkSession, *, drain: bool = False) -> CompletedCheckpoint | None:
    with EpochDriver(job, spark) as driver:
        epoch = driver.take(drain=drain)
    assert epoch is not None
    return epoch.completed


def shown(table: pl.DataFrame) -> Iterable[Row]:
    """The rows of a table, or those that are there behind a log of changes."""
    if "kind" not in table.columns:
        return table.to_dicts()
    copies = Counter[tuple[tuple[str, Any], ...]]()
    for row in table.to_dicts():
        sign = 1 if row.pop("kind").startswith("+") else -1
        copies[tuple(row.items())] += sign
    assert min(copies.values()) >= 0, "what was not there was taken back"
    return (dict(row) for row in copies.elements())


def bag(rows: Iterable[Row]) -> Counter[tuple[tuple[str, Any], ...]]:
    return Counter(tuple(sorted(row.items())) for row in rows)
