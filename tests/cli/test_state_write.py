"""``sluice state schema``, ``rewrite``, ``drop`` and ``bootstrap``: savepoints made by command."""

from __future__ import annotations

import json
import math
from pathlib import Path

import polars as pl
import pytest

from harness.jobs import a_running_job
from sluice.cli.main import main
from sluice.connectors.files_table.table import ManifestTable
from sluice.job.job import Job
from sluice.state_processor import open_state
from sluice.surface.state import StateTable
from tests.cli.conftest import Answer, Sluice
from tests.subtasks import a_savepoint as a_savepoint_of_records
from tests.unit.state_processor.jobs import STAGE, a_job_of_two_epochs, a_pipeline, counted

pytestmark = pytest.mark.usefixtures("without_spark")


@pytest.fixture
def job() -> Job:
    return a_job_of_two_epochs(uid="auctions")


@pytest.fixture
def sluice(sluice: Sluice, monkeypatch: pytest.MonkeyPatch) -> Sluice:
    declared = {"auctions": a_pipeline("auctions")}
    monkeypatch.setattr("sluice.cli.options.load_pipeline", declared.__getitem__)
    return sluice


def state(job: Job, name: str) -> dict[int | None, int]:
    return counted(open_state(job, name, STAGE).frame())


def test_values_are_rewritten_where_a_condition_holds(job: Job, sluice: Sluice) -> None:
    before = state(job, "before")
    arguments = ("state", "rewrite", "auctions", "before", "after", "--stage", STAGE)

    printed = sluice(*arguments, "--set", "bids = bids * 2 + 1", "--where", "bids > 3").out

    assert state(job, "after") == {k: 2 * n + 1 if n > 3 else n for k, n in before.items()}
    count = len(before)
    assert f"per_auction.groups: {count} rows were read and {count} rows written" in printed
    assert "sluice restore auctions --savepoint after" in printed
    restored = sluice("restore", "auctions", "--savepoint", "after", "--dry-run").out
    assert "would restore savepoint after" in restored


def test_keys_are_dropped_or_all_that_the_stage_remembers(job: Job, sluice: Sluice) -> None:
    before = state(job, "before")

    def drop(name: str, *options: object) -> Answer:
        return sluice("state", "drop", "auctions", "latest", name, "--stage", STAGE, *options)

    kept = drop("kept", "--where", "bid_auction IS NULL OR bids < 3", "--json").json
    drop("cleared", "--table", "groups")
    drop("removed")

    assert state(job, "kept") == {k: n for k, n in before.items() if k is not None and n >= 3}
    assert (kept["name"], kept["checkpoint"]) == ("kept", 2)
    counts = {"rows_before": len(before), "rows": len(state(job, "kept"))}
    assert kept["tables"] == [{"stage": STAGE, "table": "groups", **counts}]
    for name in ("cleared", "removed"):
        error = sluice("state", "read", "auctions", name, STAGE).error
        assert "no keyed state in checkpoint 2" in error


def test_rows_are_printed_in_the_json_that_sinks_write(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pl.DataFrame({"share": [math.nan, None]})
    monkeypatch.setattr(StateTable, "frame", lambda *_: rows)
    monkeypatch.setattr(ManifestTable, "read", lambda _: rows.to_arrow())

    state = sluice("state", "read", "auctions", "before", STAGE, "--json").json
    malformed = sluice("side-output", "auctions", f"{STAGE}.malformed").out

    assert state == [{"share": "NaN"}, {"share": None}]
    assert [json.loads(line) for line in malformed.splitlines()] == state


def test_what_one_root_has_goes_into_another(job: Job, sluice: Sluice) -> None:
    there, stage = "memory://state-written-elsewhere", ("--stage", STAGE)

    out = sluice("state", "drop", "auctions", "before", "moved", *stage, "--to-root", there).out
    back = ("state", "rewrite", "auctions", "moved", "back", *stage, "--from-root", there)

    assert f"--savepoint moved --from-root {there}" in out
    assert "no keyed state of stage 'per_auction'" in sluice(*back, "--set", "bids=1").error


def test_parquet_that_was_read_from_state_becomes_state_again(
    job: Job, sluice: Sluice, tmp_path: Path
) -> None:
    file = tmp_path / "state.parquet"
    sluice("state", "read", "auctions", "before", STAGE, "--output", file)

    def bootstrap(name: str, *options: str, stage: str = STAGE) -> Answer:
        return sluice("state", "bootstrap", "auctions", name, f"{stage}={file}", *options)

    bootstrap("new")
    bootstrap("named", stage=f"{STAGE}.groups")
    bootstrap("begun", "--start", "events/nexmark=7")
    assert "has state of stage 'per_auction' already" in bootstrap("other", "--from", "1").error
    bootstrap("other", "--from", "1", "--replace")

    for name in ("new", "named", "begun", "other"):
        assert state(job, name) == state(job, "before")
    assert job.savepoint_metadata("new").sources == ()
    assert job.savepoint_metadata("begun").sources[0].position[0].offset == 7
    assert job.savepoint_metadata("other").sources[0].position[0].offset == 100


def test_the_columns_that_rows_have_to_have_are_told(sluice: Sluice) -> None:
    rows = sluice("state", "schema", "auctions", "--json").json
    shown = sluice("state", "schema", "auctions", STAGE).out

    column = {"stage": STAGE, "table": "groups", "type": "Int64"}
    assert rows == [
        {**column, "column": "bid_auction", "role": "key"},
        {**column, "column": "bids", "role": ""},
    ]
    assert "bid_auction" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("schema", "auctions", "--nope", "7", STAGE),
        ("drop", "auctions", "latest", "x", "--stage", STAGE, "--nope=7"),
        ("rewrite", "auctions", "latest", "x", "--stage", STAGE, "--set", "bids=1", "--nope=7"),
        ("bootstrap", "auctions", "x", "--nope", "7", f"{STAGE}=/nonexistent"),
    ],
)
def test_other_options_are_parameters_of_the_pipeline_as_in_a_run(
    sluice: Sluice, arguments: tuple[str, ...]
) -> None:
    assert "no parameter 'nope'" in sluice("state", *arguments).error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rewrite", "x", "--set", "nope=1"), "no column 'nope' to set; it has bid_auction, bids"),
        (("rewrite", "x", "--set", "bids"), "--set 'bids' is not understood; write COLUMN=SQL"),
        (("rewrite", "x", "--set", "bids=1", "--set", "bids = 2"), "'bids' is given twice, as 1 "),
        (("rewrite", "x", "--set", "bids=nope + 1"), "'nope + 1' cannot be computed"),
        (("rewrite", "x", "--set", "bids=bids +"), "'bids +' is no SQL of one row"),
        (("rewrite", "x", "--set", "bids=sum(bids)"), "'sum(bids)' has the aggregate sum()"),
        (("rewrite", "x", "--set", "bids=bids / 2"), "column 'bids' of the rows is Float64"),
        (("rewrite", "x", "--set", "bid_auction=1"), "the function gives the key bid_auction=1"),
        (("drop", "x", "--where", "bids"), "'bids' is Int64, and has to say yes or no"),
        (("drop", "x", "--where", "nope > 1"), "'nope > 1' cannot be computed"),
        (("drop", "x", "--where", ""), "an SQL text is empty; write one, or leave its option out"),
        (("drop", "x", "--table", "groups", "--where", ""), "an SQL text is empty"),
        (("drop", "x", "--table", "nope"), "has no table 'nope'; it has groups"),
        (("drop", "before"), "savepoint 'before' exists"),
    ],
)
def test_what_cannot_be_done_is_named(
    sluice: Sluice, arguments: tuple[str, ...], words: str
) -> None:
    command, name, *options = arguments

    error = sluice("state", command, "auctions", "before", name, "--stage", STAGE, *options).error

    assert words in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("per_auction",), "the argument 'per_auction' is not understood; write STAGE=FILE"),
        (("nope=x.parquet",), "has no stage 'nope'; with keyed state it has per_auction"),
        (("per_auction=x.parquet",), "there is no Parquet file x.parquet"),
        (("per_auction=x.parquet", "--replace"), "need the snapshot: give --from"),
        (("per_auction=x.parquet", "--start", "events=1"), "write SOURCE/PARTITION=OFFSET"),
        (("per_auction=x", "--start", "events/nexmark=1", "--from", "1"), "without --from"),
        (
            ("per_auction=x", "--start", "events/nexmark=1", "--start", "events/nexmark=2"),
            "--start 'events/nexmark' is given twice, as 1 and as 2; give it once",
        ),
    ],
)
def test_rows_that_cannot_be_bootstrapped_are_named(
    sluice: Sluice, arguments: tuple[str, ...], words: str
) -> None:
    assert words in sluice("state", "bootstrap", "auctions", "x", *arguments).error


def test_a_stage_that_reads_updates_of_the_changed_one_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = a_running_job()
    a_savepoint_of_records(job)
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": job.pipeline}.__getitem__)
    capsys.readouterr()

    arguments = ("drop", "auctions", "mine", "x", "--stage", "count_bids")
    with pytest.raises(SystemExit) as ended:
        main(["state", *arguments, "--root", job.store.root])

    assert ended.value.code == 0
    assert "warning: rank_bids read updates of the changed stages" in capsys.readouterr().err
