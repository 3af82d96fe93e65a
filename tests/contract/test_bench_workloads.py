"""The benchmark's inputs and its harness, at a thousandth of their size: what is compared is right.

The engine is Polars, the oracle is DuckDB over the same files.  Figures are not checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import duckdb
import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bench.cpu import tree_cpu_s
from bench.engines import duckdb_table, flink_input, polars_alone
from bench.inputs import Input, make_input
from bench.protocol import Phase, Request
from bench.results import digest_of, sample_of
from bench.workloads import WORKLOADS, Workload

REPOSITORY = Path(__file__).resolve().parents[2]
SCALE = 0.001

ORACLE = {
    "": """
        SELECT key, count(*) AS count, sum(value) AS sum, max(value) AS max
        FROM events GROUP BY key
    """,
    "q4": """
        SELECT category, sum(final) AS sum_final, count(*) AS auctions
        FROM (
            SELECT max(b.price) AS final, any_value(a.category) AS category
            FROM (SELECT auction.* FROM events WHERE event_type = 1) AS a
            JOIN bids AS b
            ON a.id = b.auction AND b.dateTime BETWEEN a.dateTime AND a.expires
            GROUP BY a.id
        )
        GROUP BY category
    """,
    "q5": """
        WITH counts AS (
            SELECT auction, count(*) AS num, starttime
            FROM bids, unnest(generate_series(0, 4)) AS back(n),
                LATERAL (SELECT (dateTime // 2000 - n) * 2000 AS starttime)
            GROUP BY auction, starttime
        )
        SELECT * FROM counts
        QUALIFY num = max(num) OVER (PARTITION BY starttime)
    """,
    "q11": """
        WITH marked AS (
            SELECT bidder, dateTime, coalesce(
                dateTime - lag(dateTime) OVER (PARTITION BY bidder ORDER BY dateTime) > 10000, true
            )::INTEGER AS is_first
            FROM bids
        ), numbered AS (
            SELECT bidder, dateTime, sum(is_first)
                OVER (PARTITION BY bidder ORDER BY dateTime RANGE UNBOUNDED PRECEDING) AS session
            FROM marked
        )
        SELECT bidder, count(*) AS bid_count, min(dateTime) AS starttime,
            max(dateTime) + 10000 AS endtime
        FROM numbered GROUP BY bidder, session
    """,
    "q18": """
        SELECT auction, bidder, price, dateTime
        FROM bids
        QUALIFY row_number()
            OVER (PARTITION BY auction, bidder ORDER BY dateTime DESC, price DESC) = 1
    """,
}


def oracle(workload: Workload, found: Input) -> pl.DataFrame:
    paths = [str(path) for epoch in found.epochs for path in sorted(Path(epoch.folder).iterdir())]
    with duckdb.connect() as database:
        database.read_parquet(paths).create_view("events")
        if workload.kind == "nexmark":
            database.execute(
                "CREATE VIEW bids AS SELECT unnest(bid) FROM events WHERE event_type = 2"
            )
        return canonical(database.sql(ORACLE[workload.query]).pl(), workload)


def canonical(table: pl.DataFrame, workload: Workload) -> pl.DataFrame:
    columns = list(workload.result)
    return table.select(columns).with_columns(pl.exclude(pl.String).cast(pl.Int64)).sort(columns)


def a_request(
    workload: Workload,
    found: Input,
    work: Path,
    phase: Phase = "run",
    epochs: slice = slice(None),
) -> Request:
    return Request(
        spec=workload,
        engine="any",
        phase=phase,
        epochs=tuple(epoch.folder for epoch in found.epochs[epochs]),
        flush=found.flush,
        work=str(work),
    )


@pytest.mark.parametrize(
    "workload",
    [one for one in WORKLOADS.values() if one.kind != "restore"],
    ids=lambda one: one.name,
)
def test_the_limit_agrees_with_an_oracle(workload: Workload, tmp_path: Path) -> None:
    found = make_input(workload, SCALE, tmp_path / "cache")

    report = polars_alone.run(a_request(workload, found, tmp_path))

    assert report.result is not None
    expected = oracle(workload, found)
    assert_frame_equal(canonical(pl.read_parquet(report.result), workload), expected)
    expected.sample(fraction=1, shuffle=True).write_parquet(tmp_path / "expected.parquet")
    digests = [
        digest_of(path, workload) for path in (report.result, str(tmp_path / "expected.parquet"))
    ]
    assert digests[0] == digests[1]
    sample = sample_of(workload, found, report)
    assert sample.wall_s > 0
    assert sum(epoch.rows for epoch in found.epochs) > 0


@pytest.mark.parametrize("name", ["keyed_5m_1m", "keyed_5m_1m_text", "small_delta"])
def test_a_table_in_duckdb_agrees_with_the_limit(name: str, tmp_path: Path) -> None:
    workload = WORKLOADS[name]
    found = make_input(workload, SCALE, tmp_path / "cache")

    reports = [
        engine.run(a_request(workload, found, tmp_path)) for engine in (duckdb_table, polars_alone)
    ]

    results = [pl.read_parquet(report.result or "") for report in reports]
    assert_frame_equal(canonical(results[0], workload), canonical(results[1], workload))
    assert all(epoch.bytes_uploaded for epoch in reports[0].epochs)


def test_duckdb_takes_an_epoch_only_once(tmp_path: Path) -> None:
    workload = WORKLOADS["restore_1m"]
    found = make_input(workload, SCALE, tmp_path / "cache")
    duckdb_table.run(a_request(workload, found, tmp_path, "prepare", slice(-1)))

    duckdb_table.run(a_request(workload, found, tmp_path, "restore", slice(-1, None)))

    with pytest.raises(duckdb.ConstraintException, match="Duplicate key"):
        duckdb_table.run(a_request(workload, found, tmp_path, "restore", slice(-1, None)))
    with duckdb.connect(tmp_path / "state.duckdb") as database:
        state = database.sql("SELECT * FROM state").pl()
    assert_frame_equal(canonical(state, workload), oracle(workload, found))


@pytest.mark.parametrize("name", ["small_delta", "keyed_5m_1m_text", "nexmark_q4"])
def test_an_input_is_made_once_and_the_same_everywhere(name: str, tmp_path: Path) -> None:
    workload = WORKLOADS[name]
    one = make_input(workload, SCALE, tmp_path / "one")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").glob("**/*.parquet")}

    again = make_input(workload, SCALE, tmp_path / "one")
    other = make_input(workload, SCALE, tmp_path / "other")

    assert again == one
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [(epoch.rows, epoch.changed) for epoch in other.epochs] == [
        (epoch.rows, epoch.changed) for epoch in one.epochs
    ]
    for path in before:
        twin = tmp_path / "other" / path.relative_to(tmp_path / "one")
        assert twin.read_bytes() == path.read_bytes()


def test_a_seed_brings_every_key_and_an_epoch_says_how_many_it_changes(tmp_path: Path) -> None:
    workload = WORKLOADS["small_delta"]

    found = make_input(workload, SCALE, tmp_path)

    assert [epoch.rows for epoch in found.epochs] == [5_000] + [100] * (
        workload.warm_up + workload.measured
    )
    assert found.epochs[0].changed == 5_000
    distinct = pl.read_parquet(f"{found.epochs[3].folder}/*.parquet")["key"].n_unique()
    assert found.epochs[3].changed == distinct


def test_the_event_that_closes_every_window_has_ids_of_nobody(tmp_path: Path) -> None:
    found = make_input(WORKLOADS["nexmark_q5"], SCALE, tmp_path)

    assert found.flush is not None
    [event] = pl.read_parquet(f"{found.flush}/*.parquet").to_dicts()
    assert (event["event_type"], event["bid"]["auction"], event["bid"]["bidder"]) == (2, -1, -1)


def test_text_keys_are_uuids_and_flink_gets_them_whole(tmp_path: Path) -> None:
    workload = WORKLOADS["keyed_5m_1m_text"]
    found = make_input(workload, SCALE, tmp_path / "cache")
    folder = found.epochs[0].folder
    keys = pl.read_parquet(f"{folder}/*.parquet")["key"].to_list()

    flink_input.write_rows(folder, tmp_path / "rows", workload)

    assert len(set(keys)) == 1_000
    assert {str(UUID(key)) for key in keys} == set(keys)
    assert workload.row_bytes == len(keys[0]) + 3 * 8
    # As the answers of the job: here the last column is the row's ``ts``, once more.
    longs = np.fromfile(sorted((tmp_path / "rows").iterdir())[0], ">i8").reshape(-1, 7)
    (tmp_path / "answers").mkdir()
    np.hstack([longs, longs[:, -1:]]).astype(">i8").tofile(tmp_path / "answers" / "0.bin")
    read = flink_input.read_result(tmp_path / "answers", workload)
    assert read["key"].to_list() == keys[: read.height]
    assert read.columns == list(workload.result)


def test_what_flink_reads_holds_the_same_rows(tmp_path: Path) -> None:
    """Flink's own results are compared when it is measured; it is not installed for the tests."""
    workload = WORKLOADS["keyed_5m_100k"]
    found = make_input(workload, SCALE, tmp_path / "cache")
    folder = found.epochs[0].folder

    rows = flink_input.write_rows(folder, tmp_path / "rows", workload)

    expected = pl.read_parquet(f"{folder}/*.parquet").select(pl.all().cast(pl.Int64))
    # What a job writes has the same form; here a workload whose result has as many columns.
    read = flink_input.read_result(tmp_path / "rows", WORKLOADS["nexmark_q5"])
    assert rows == expected.height
    assert read.rows() == expected.rows()


def test_the_harness_writes_rows_and_says_what_it_left_out(tmp_path: Path) -> None:
    output = tmp_path / "results" / "latest.json"
    command = [sys.executable, "-m", "bench.run", "--output", str(output)]
    command += ["--cache", str(tmp_path / "cache"), "--repetitions", "2"]
    chosen = {"WORKLOAD": "keyed_5m_100k,restore_1m", "ENGINES": "polars", "SCALE": str(SCALE)}

    result = subprocess.run(
        command,
        check=False,
        cwd=REPOSITORY,
        env=os.environ | chosen,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert result.returncode == 0, result.stderr
    keyed, restore = json.loads(output.read_text())["rows"]
    assert (keyed["workload"], keyed["engine"], keyed["events"]) == (
        *("keyed_5m_100k", "polars", 5_000),
    )
    assert (keyed["repetitions"], keyed["result_rows"], keyed["error"]) == (2, 100, "")
    assert keyed["wall_s"]["min"] <= keyed["wall_s"]["median"]
    assert keyed["bytes_changed"] == 100 * 32
    assert (restore["repetitions"], restore["refused"]) == (0, "keeps nothing to restore from")
    assert "keeps nothing to restore from" in result.stdout
    assert not (tmp_path / "cache" / "work" / "keyed_5m_100k").exists()


def test_the_time_of_processes_that_ended_is_counted() -> None:
    # A tree of its own: what ends beside it in the tests' tree takes its time along.
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    command = ["sh", "-c", '"$0" -c "$1"; echo ended; read _', sys.executable, burn]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ended\n"

        counted = tree_cpu_s(parent.pid)

    # User and system time are each rounded down to a hundredth.
    assert counted >= 0.28
