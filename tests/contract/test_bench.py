"""The benchmarks and their harness, at a thousandth of their size: what they compare is right.

The engine is Polars, the oracle is DuckDB over the same files.  Figures are not checked.  On a busy
machine, with processes that burn, disturbed samples are marked and not compared.  The quick form
runs every row within its time.  The history says which commit it measured, and refuses what is no
record; charts show it, and the same history gives the same bytes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from uuid import UUID
from xml.etree import ElementTree as ET

import duckdb
import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from bench.charts import IMAGES, draw, latest, ratios
from bench.cpu import tree_cpu_s
from bench.disturbance import DISTURBED_SHARE, is_disturbed, other_share
from bench.engines import duckdb_table, flink_input, polars_alone
from bench.forms import QUICK_S, FormName, form_of
from bench.history import (
    CannotRecord,
    Machine,
    Record,
    append_history,
    measured_commit,
    read_history,
    records_of,
    this_machine,
)
from bench.inputs import Input, make_input
from bench.measuring import measure, quieter
from bench.protocol import EpochRecord, Meter, Phase, Request
from bench.results import Row, Sample, digest_of, sample_of
from bench.table import print_table
from bench.workloads import WORKLOADS, Workload

REPOSITORY = Path(__file__).resolve().parents[2]
SCALE = 0.001
QUICK = form_of(quick=True, scale=SCALE, repetitions=None)
FULL = form_of(quick=False, scale=None, repetitions=None)
CHARTS = ("bench-ratio.svg", "bench-state.svg", "bench-change.svg")


def run(module: str, *options: str, **environment: str) -> str:
    """What the module prints."""
    result = subprocess.run(
        [sys.executable, "-m", module, *options],
        check=False,
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.s3
def test_the_benchmark_says_what_a_finalize_costs() -> None:
    printed = run("bench.finalize", "--rounds", "1", "--subtasks", "4")

    table = [line.split("|")[1:3] for line in printed.splitlines() if "subtasks, " in line]
    assert [(name.strip(), int(requests)) for name, requests in table] == [
        ("4 subtasks, memory", 8),
        ("4 subtasks, S3 server", 8),
    ]


def a_record(
    row: str,
    engine: str,
    wall_s: float,
    *,
    commit: str = "aaaaaaaaaaaa",
    form: FormName = "full",
    scale: float = 1,
    disturbed: bool = False,
    bytes_written: int | None = None,
) -> Record:
    return Record(
        commit=commit,
        date="2026-11-23",
        source="measured",
        form=form,
        scale=scale,
        machine=Machine(processors=2, memory_gb=24, model=""),
        row=row,
        engine=engine,
        repetitions=3,
        wall_min_s=wall_s,
        wall_median_s=wall_s,
        cpu_min_s=wall_s,
        cpu_median_s=wall_s,
        bytes_written=bytes_written,
        bytes_changed=3_200_000,
        disturbed=disturbed,
        other_share=0.0,
    )


HISTORY = [
    a_record("small_delta", "sluice", 1.0, bytes_written=4_000_000),
    a_record("small_delta", "flink_hashmap", 1.5, bytes_written=165_000_000),
    a_record("small_delta", "spark_rocksdb", 2.4, bytes_written=9_000_000),
    a_record("small_delta", "polars", 0.1),
    a_record("small_delta_50m", "sluice", 1.1),
    a_record("delta_10k", "sluice", 0.8),
    a_record("restore_1m", "sluice", 0.8),
    a_record("restore_1m", "flink_hashmap", 4.5),
    a_record("small_delta", "sluice", 0.5, commit="bbbbbbbbbbbb"),
    a_record("small_delta", "flink_hashmap", 1.5, commit="bbbbbbbbbbbb"),
    a_record("restore_1m", "sluice", 0.9, commit="bbbbbbbbbbbb"),
    a_record("restore_1m", "flink_hashmap", 9.9, commit="bbbbbbbbbbbb", disturbed=True),
    a_record("nexmark_q4", "sluice", 18.0),
    a_record("keyed_5m_1m", "sluice_run", 0.6),
    a_record("keyed_5m_1m", "duckdb", 0.3),
    a_record("keyed_5m_1m", "sluice", 0.6, form="quick", scale=0.001),
    a_record("keyed_5m_1m", "duckdb", 60.0, form="quick", scale=0.001),
]


def texts_of(path: Path) -> list[str]:
    root = ET.parse(path).getroot()  # noqa: S314 - we have just drawn it
    return [
        "".join(text.itertext()).strip() for text in root.iter("{http://www.w3.org/2000/svg}text")
    ]


def test_a_ratio_is_that_to_the_best_peer_and_of_undisturbed_rows_only() -> None:
    a, b = "aaaaaaaaaaaa", "bbbbbbbbbbbb"

    of_a_task, of_a_run = ratios(HISTORY, "sluice"), ratios(HISTORY, "sluice_run")

    # q4 has no peer; the last restore's was disturbed; what ran at another scale is not compared.
    assert of_a_task == {
        "small_delta": {a: 1.5, b: 3.0},
        "restore_1m": {a: pytest.approx(4.5 / 0.8)},
    }
    assert of_a_run == {"keyed_5m_1m": {a: 0.5}}


def test_the_newest_undisturbed_figures_count() -> None:
    found = latest(HISTORY, ["restore_1m"])

    assert {name: by_row["restore_1m"].wall_median_s for name, by_row in found.items()} == {
        "sluice": 0.9,
        "flink_hashmap": 4.5,
    }


def test_charts_show_rows_engines_and_commits(tmp_path: Path) -> None:
    drawn = draw(HISTORY, tmp_path)

    assert [path.name for path in drawn] == list(CHARTS)
    ratio, state, change = map(texts_of, drawn)
    assert {"small_delta", "restore_1m", "keyed_5m_1m"} <= set(ratio)
    assert "nexmark_q4" not in ratio
    assert any("aaaaaaa" in text for text in ratio)
    assert any("bbbbbbb" in text for text in ratio)
    assert {"sluice", "flink_hashmap", "polars", "50M"} <= set(state)
    assert {"what changed", "10k", "bytes written"} <= set(change)
    assert "nothing recorded yet" not in [*ratio, *state, *change]


@pytest.mark.parametrize("history", [HISTORY, []], ids=["small", "empty"])
def test_the_same_history_gives_the_same_bytes(history: Sequence[Record], tmp_path: Path) -> None:
    """In another process, with other hashes, on another day."""
    append_history(history, tmp_path / "history.jsonl")
    options = ["--history", str(tmp_path / "history.jsonl"), "--output", str(tmp_path / "other")]
    run("bench.charts", *options, PYTHONHASHSEED="7", SOURCE_DATE_EPOCH="1")

    draw(history, tmp_path / "here")

    for name in CHARTS:
        here = (tmp_path / "here" / name).read_bytes()
        assert here == (tmp_path / "other" / name).read_bytes()
        assert b"<dc:date>" not in here
        assert str(tmp_path).encode() not in here


def test_the_charts_of_the_page_are_those_of_the_history(tmp_path: Path) -> None:
    draw(read_history(), tmp_path)

    stale = [
        name for name in CHARTS if (tmp_path / name).read_bytes() != (IMAGES / name).read_bytes()
    ]
    assert stale == [], "run make bench-charts"


PROCESSORS = os.cpu_count() or 1
# The burning process is an orphan: no descendant of the one that measures.
ORPHAN = """
import subprocess, sys
burn = "import time\\nend = time.monotonic() + 60\\nwhile time.monotonic() < end: pass"
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
print(subprocess.Popen([sys.executable, "-c", burn], **quiet).pid)
"""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    pids = [
        int(subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, check=True).stdout)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def burn(cpu_s: float) -> EpochRecord:
    meter = Meter()
    with meter.epoch(rows_in=1):
        end = time.process_time() + cpu_s
        while time.process_time() < end:
            pass
    return meter.records[0]


def a_sample(*epochs: EpochRecord, wall_s: float = 1.0, share: float | None = None) -> Sample:
    return Sample(
        wall_s=wall_s,
        cpu_s=wall_s,
        bytes_uploaded=None,
        epochs=epochs,
        notes={},
        other_share=other_share(epochs) if share is None else share,
    )


def a_row(engine: str, *samples: Sample) -> Row:
    return Row(
        workload="keyed_5m_1m",
        engine=engine,
        events=1,
        bytes_changed=None,
        samples=samples,
        agrees=True,
        result_rows=1,
        error="",
        refused="",
    )


def test_a_busy_machine_is_divided_between_the_engine_and_the_others() -> None:
    with busy_processes(PROCESSORS):
        epoch = burn(cpu_s=0.5)

    available_s = epoch.wall_s * PROCESSORS
    assert epoch.cpu_s >= 0.45  # User and system time are rounded down, before and after.
    assert epoch.cpu_s + epoch.other_cpu_s == pytest.approx(available_s, rel=0.1, abs=0.1)
    assert is_disturbed(other_share([epoch]))


def test_a_disturbed_sample_is_taken_once_more_and_then_marked() -> None:
    shares: list[float] = []

    def once() -> Sample:
        sample = a_sample(burn(cpu_s=0.25))
        shares.append(sample.other_share)
        return sample

    with busy_processes(PROCESSORS):
        sample = quieter(once)

    assert len(shares) == 2
    assert sample.repeated
    assert sample.is_disturbed
    assert sample.other_share == min(shares)
    assert "disturbed" in sample.line()


def test_a_quiet_sample_is_not_repeated() -> None:
    epoch = EpochRecord(epoch=0, wall_s=10.0, cpu_s=20.0, rows_in=1, other_cpu_s=0.3)
    samples = iter([a_sample(epoch)])

    sample = quieter(lambda: next(samples))

    assert not sample.repeated
    assert not sample.is_disturbed


def test_some_ticks_of_a_short_epoch_are_no_disturbance() -> None:
    """The kernel counts the machine in ticks; a share of so little says nothing."""
    epoch = EpochRecord(epoch=0, wall_s=0.1, cpu_s=0.1, rows_in=1, other_cpu_s=0.05)

    assert other_share([epoch]) == 0


def test_figures_are_those_of_the_samples_that_were_not_disturbed() -> None:
    above = DISTURBED_SHARE * 2

    mixed = a_row("sluice", a_sample(wall_s=3, share=0.01), a_sample(wall_s=9, share=above))
    disturbed = a_row("sluice", a_sample(wall_s=3, share=above), a_sample(wall_s=9, share=above))

    assert (mixed.wall_s(), mixed.is_disturbed) == ((3, 3), False)
    assert (disturbed.wall_s(), disturbed.is_disturbed) == ((3, 6), True)
    assert mixed.document()["counted"] == 1
    assert disturbed.document()["disturbed"] is True


@pytest.mark.parametrize(
    ("ours", "peers", "compared"),
    [
        (0.01, [0.02, 0.0], True),
        (0.5, [0.02, 0.0], False),
        (0.01, [0.02, 0.5], False),  # Undisturbed it might be the best peer.
    ],
)
def test_nothing_is_compared_with_a_disturbed_row(
    ours: float, peers: list[float], *, compared: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["flink_hashmap", "spark_rocksdb"]
    rows = [a_row("sluice", a_sample(wall_s=3, share=ours))]
    rows += [
        a_row(name, a_sample(wall_s=6, share=share))
        for name, share in zip(names, peers, strict=True)
    ]

    print_table(rows, FULL)

    printed = capsys.readouterr().out
    assert ("0.50" in printed) is compared
    assert ("disturbed: in each of its samples" in printed) is not compared
    assert (f"more than {DISTURBED_SHARE:.0%}" in printed) is not compared


def test_the_quick_form_runs_every_row_and_says_what_it_is(tmp_path: Path) -> None:
    output = tmp_path / "latest.json"
    options = ["--output", str(output), "--cache", str(tmp_path / "cache")]
    chosen = {"QUICK": "1", "WORKLOAD": "", "ENGINES": "duckdb,polars", "SCALE": str(SCALE)}

    printed = run("bench.run", *options, **chosen)

    document = json.loads(output.read_text())
    assert {row["workload"] for row in document["rows"]} == set(WORKLOADS)
    assert (document["form"], document["scale"], document["repetitions"]) == ("quick", 0.001, 1)
    assert document["differs"] == QUICK.differs()
    assert document["took_s"] < QUICK_S
    assert printed.startswith(f"quick form: {QUICK.differs()}")
    assert "QUICK, 0.001 of the size" in printed
    measured = [row for row in document["rows"] if row["samples"]]
    assert all(row["agrees"] for row in measured if row["workload"].startswith("keyed_"))
    keyed = next(row for row in measured if row["workload"] == "small_delta")
    assert len(keyed["samples"][0]["epochs"]) == 1 + 1 + 2  # The seed, the warm-up, two measured.


def test_the_quick_form_names_what_it_had_no_time_for(tmp_path: Path) -> None:
    answers = iter([False, True])

    rows = measure(
        QUICK.of(WORKLOADS["keyed_5m_1m"]),
        ["duckdb", "polars"],
        QUICK,
        tmp_path,
        is_over=lambda: next(answers),
    )

    assert [len(row.samples) for row in rows] == [1, 0]
    assert rows[1].refused == "keyed_5m_1m was left out: the quick form's time was up"


def test_where_time_may_run_out_comparisons_come_first() -> None:
    names = ["small_delta_50m", "keyed_5m_1m", "delta_10k", "restore_1m"]

    assert QUICK.in_order(names) == ["keyed_5m_1m", "restore_1m", "small_delta_50m", "delta_10k"]
    assert FULL.in_order(names) == names


def test_the_full_form_differs_in_nothing() -> None:
    assert FULL.differs() == ""
    assert FULL.limit_s is None
    assert all(FULL.of(workload) == workload for workload in WORKLOADS.values())
    smaller = form_of(quick=False, scale=0.01, repetitions=1)
    assert smaller.differs().startswith("0.01 of the events")
    assert "Repetitions: 1" in smaller.differs()


TODAY = date(2026, 11, 23)


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    command = ["git", *identity, *words]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def head_of(folder: Path) -> str:
    return git(folder, "rev-parse", "--short=12", "HEAD").strip()


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    """The tree as it is, in a repository of its own with one commit."""
    folder = tmp_path / "checkout"
    listed = git(REPOSITORY, "ls-files", "-co", "--exclude-standard", "bench", "harness", "include")
    for name in [*listed.splitlines(), "pyproject.toml", ".gitignore"]:
        if (REPOSITORY / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "All of it")
    return folder


def run_recorded(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.run", "--record", "--quick", "--scale", "0.001"]
    command += ["--workload", "keyed_5m_1m", "--engines", "duckdb,polars"]
    command += ["--cache", str(checkout.parent / "cache")]
    path = os.pathsep.join([str(checkout), str(checkout / "include")])
    return subprocess.run(
        command,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": path},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_run_appends_its_figures_and_the_commit_to_the_history(checkout: Path) -> None:
    history = checkout / "bench" / "history" / "results.jsonl"
    before = read_history(history)

    results = [run_recorded(checkout), run_recorded(checkout)]

    assert [result.returncode for result in results] == [0, 0], results
    records = read_history(history)
    assert records[: len(before)] == before
    added = records[len(before) :]
    assert [(record.row, record.engine) for record in added] == [
        ("keyed_5m_1m", "duckdb"),
        ("keyed_5m_1m", "polars"),
    ] * 2
    assert {record.commit for record in added} == {head_of(checkout)}
    forms = {(record.form, record.scale, record.source) for record in added}
    assert forms == {("quick", SCALE, "measured")}
    assert (added[0].bytes_written or 0) > 0
    assert added[1].bytes_written is None
    assert str(checkout.parent) not in history.read_text()


def test_a_tree_that_differs_from_its_commit_is_not_recorded(checkout: Path) -> None:
    history = checkout / "bench" / "history" / "results.jsonl"
    before = history.read_text()
    (checkout / "include" / "sluice" / "faster.py").write_text("")

    result = run_recorded(checkout)

    assert result.returncode == 2
    assert "error: 1 files differ from the commit, among them include/sluice/faster.py" in (
        result.stderr
    )
    assert history.read_text() == before
    assert not (checkout.parent / "cache").exists()  # Refused before anything was measured.


def test_pages_results_and_the_history_may_differ_from_the_commit(checkout: Path) -> None:
    (checkout / "docs").mkdir()
    (checkout / "docs" / "page.md").write_text("figures")
    (checkout / "bench" / "results").mkdir(exist_ok=True)
    (checkout / "bench" / "results" / "latest.json").write_text("{}")
    (checkout / "bench" / "history" / "results.jsonl").write_text("")

    assert measured_commit(checkout) == head_of(checkout)


def test_a_folder_without_a_commit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotRecord, match=r"git status failed"):
        measured_commit(tmp_path)


def test_a_row_that_failed_or_did_not_agree_is_not_recorded(tmp_path: Path) -> None:
    workload = QUICK.of(WORKLOADS["keyed_5m_1m"])
    [duckdb, polars] = measure(workload, ["duckdb", "polars"], QUICK, tmp_path)

    records = records_of(
        [duckdb, replace(polars, agrees=False), replace(polars, error="died")], QUICK, "c0", TODAY
    )

    [record] = records
    assert (record.engine, record.commit, record.date) == ("duckdb", "c0", "2026-11-23")
    assert record.machine == this_machine()
    assert record.wall_median_s == pytest.approx(duckdb.samples[0].wall_s, abs=1e-4)
    append_history(records, tmp_path / "history.jsonl")
    assert read_history(tmp_path / "history.jsonl") == records


def test_a_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"commit":"c0","path":"elsewhere"}\n')

    with pytest.raises(CannotRecord, match=r"history.jsonl, line 1: .*path"):
        read_history(path)


def test_figures_of_the_page_say_that_they_are() -> None:
    copied = [record for record in read_history() if record.source == "page"]

    assert len(copied) == 44
    assert {(record.repetitions, record.bytes_written) for record in copied} == {(1, None)}
    disturbed = {(record.row, record.engine) for record in copied if record.disturbed}
    assert disturbed == {("keyed_5m_1m", "flink_hashmap"), ("keyed_5m_1m", "flink_rocksdb")}


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
    [workload for workload in WORKLOADS.values() if workload.kind != "restore"],
    ids=lambda workload: workload.name,
)
def test_the_limit_agrees_with_an_oracle(workload: Workload, tmp_path: Path) -> None:
    found = make_input(workload, SCALE, tmp_path / "cache")

    report = polars_alone.run(a_request(workload, found, tmp_path))

    assert report.result is not None
    expected = oracle(workload, found)
    assert_frame_equal(canonical(pl.read_parquet(report.result), workload), expected)
    expected.sample(fraction=1, shuffle=True).write_parquet(tmp_path / "expected.parquet")
    shuffled = digest_of(str(tmp_path / "expected.parquet"), workload)
    assert digest_of(report.result, workload) == shuffled
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
    options = ["--output", str(output), "--cache", str(tmp_path / "cache"), "--repetitions", "2"]
    chosen = {"WORKLOAD": "keyed_5m_100k,restore_1m", "ENGINES": "polars", "SCALE": str(SCALE)}

    printed = run("bench.run", *options, **chosen)

    keyed, restore = json.loads(output.read_text())["rows"]
    figures = (keyed["workload"], keyed["engine"], keyed["events"])
    assert figures == ("keyed_5m_100k", "polars", 5_000)
    assert (keyed["repetitions"], keyed["result_rows"], keyed["error"]) == (2, 100, "")
    assert keyed["wall_s"]["min"] <= keyed["wall_s"]["median"]
    assert keyed["bytes_changed"] == 100 * 32
    assert (restore["repetitions"], restore["refused"]) == (0, "keeps nothing to restore from")
    assert "keeps nothing to restore from" in printed
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
