"""State that rows are the beginning of: Parquet and frames become a savepoint."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest

from harness.jobs import a_job
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.submission import configure
from sluice.core.event_time import MIN_WATERMARK
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.restoring import RestoreApproval, Stop
from sluice.declaration import aggregates as agg
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.local.savepoint_tables import RewrittenTable, StateRows, bootstrap_table
from sluice.sinks import FilesTable
from sluice.sources import Files, Nexmark
from sluice.state.cache import SegmentCache
from sluice.state.key_hash import key_hash
from sluice.state.segments import HASH, StateSchema, to_frame
from sluice.state_processor import SavepointWriter, open_state, state_tables
from tests.unit.state_processor.jobs import STAGE, TABLE, a_job_of_two_epochs, a_pipeline, counted

KEYS = [None, *range(-50, 150)]
ROWS = pl.DataFrame({"bid_auction": KEYS, "bids": [*range(len(KEYS))]})


@pytest.fixture(name="new")
def _new() -> Job:
    """Of a job that was never submitted."""
    return a_job(a_pipeline())


def test_a_frame_a_file_a_folder_and_pieces_give_the_same_state(new: Job, tmp_path: Path) -> None:
    shuffled = ROWS.sample(fraction=1.0, shuffle=True, seed=1)
    one, folder = tmp_path / "one.parquet", tmp_path / "folder"
    folder.mkdir()
    shuffled.write_parquet(one)
    for number in range(3):
        shuffled[number * 80 : number * 80 + 80].write_parquet(folder / f"{number}.parquet")
    given: dict[str, StateRows] = {
        "frame": shuffled,
        "file": one,
        "text": str(one),
        "folder": folder,
        "pieces": (shuffled[start : start + 9] for start in range(0, shuffled.height, 9)),
    }

    for name, rows in given.items():
        written = SavepointWriter.new_savepoint(new).bootstrap(STAGE, rows).write(name)
        assert [(one.table, one.rows) for one in written.tables] == [(TABLE, ROWS.height)]
    files = {tuple(sorted(h.checksum for h in new.savepoint_metadata(n).files)) for n in given}

    assert counted(open_state(new, "frame", STAGE).frame()) == counted(ROWS)
    assert len(files) == 1


def test_keys_are_hashed_sorted_and_cut_at_the_key_groups_of_each_subtask(
    new: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.state.segments.ROWS_PER_FILE", 16)
    SavepointWriter.new_savepoint(new).bootstrap(STAGE, ROWS).write("made")
    stage = new.savepoint_metadata("made").stage(STAGE)
    assert stage is not None

    assert (stage.parallelism, stage.max_parallelism, stage.watermark_ms) == (2, 128, MIN_WATERMARK)
    assert all(len(one.state) > 3 for one in stage.subtasks)
    for one in stage.subtasks:
        first, last = hash_range(128, key_group_range(128, 2, one.subtask.index))
        hashes: list[int] = []
        for handle in one.state:
            rows = to_frame(SegmentCache(new.location).open(handle.segment))
            assert rows[HASH].to_list() == key_hash(rows, ["bid_auction"]).tolist()
            assert (handle.first_hash, handle.last_hash) == (rows[HASH][0], rows[HASH][-1])
            hashes += rows[HASH].to_list()
        assert hashes == sorted(hashes)
        assert first <= hashes[0] <= hashes[-1] <= last


def test_rows_beyond_the_memory_are_spilled_and_give_the_same_files(
    new: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(3)
    numbers = random.sample(range(10**9), 20_000)
    rows = pl.DataFrame({"bid_auction": numbers, "bids": numbers})
    SavepointWriter.new_savepoint(new).bootstrap(STAGE, rows).write("in_memory")
    monkeypatch.setattr("sluice.local.savepoint_tables.MEMORY_BYTES", 40_000)
    pieces = (rows[start : start + 1_000] for start in range(0, rows.height, 1_000))

    SavepointWriter.new_savepoint(new).bootstrap(STAGE, pieces).write("spilled")
    in_memory, spilled = (new.savepoint_metadata(n).files for n in ("in_memory", "spilled"))

    assert [one.checksum for one in in_memory] == [one.checksum for one in spilled]
    assert counted(open_state(new, "spilled", STAGE).frame()) == counted(rows)


def test_a_new_job_begins_with_it_at_the_beginning_of_its_sources_or_at_a_start(new: Job) -> None:
    SavepointWriter.new_savepoint(new).bootstrap(STAGE, ROWS).write("from_the_beginning")
    writer = SavepointWriter.new_savepoint(new, starts={"events": {"nexmark": 250}})
    writer.bootstrap(STAGE, ROWS).write("behind_250")

    assert new.savepoint_metadata("from_the_beginning").sources == ()
    (cut,) = new.savepoint_metadata("behind_250").sources
    assert [(one.offset, one.records) for one in cut.position] == [(250, 250)]
    for name in ("from_the_beginning", "behind_250"):
        target, configuration = savepoint_target(new, name), configure(new.pipeline, {})
        planned = plan_restore(new, target, configuration=configuration)
        assert isinstance(planned, RestoreApproval), planned
    restored = restore(new, target, configuration=configuration)
    assert restored.state.next_checkpoint_id == 2


def test_state_is_bootstrapped_in_the_place_of_what_was_removed() -> None:
    job = a_job_of_two_epochs()
    writer = SavepointWriter.from_existing_savepoint(job, "before")

    writer.remove(STAGE).bootstrap(STAGE, ROWS, TABLE).write("other")

    metadata, before = job.savepoint_metadata("other"), job.savepoint_metadata("before")
    assert counted(open_state(job, "other", STAGE).frame()) == counted(ROWS)
    assert metadata.sources == before.sources
    assert (metadata.life, metadata.checkpoint_id) == (before.life, before.checkpoint_id)
    assert metadata.tables == before.tables


def test_a_life_that_is_made_up_takes_no_table_for_its_own() -> None:
    """The job's own table shows what the new state knows nothing of, so a person has to decide."""
    job = a_job_of_two_epochs()
    SavepointWriter.new_savepoint(job).bootstrap(STAGE, ROWS).write("made")

    found = plan_restore(job, savepoint_target(job, "made"))

    assert isinstance(found, RestoreApproval)
    assert [one.checkpoints for one in found.tables_ahead] == [(1, 2)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ROWS.drop("bids"), "the rows lack bids; its columns are bid_auction .Int64., bids"),
        (ROWS.with_columns(x=1), "the table has no x; its columns are"),
        (ROWS.cast({"bids": pl.Float64}), "column 'bids' of the rows is Float64, and the state"),
        (pl.concat([ROWS, ROWS[7:8]]), "bid_auction=-44 is there more than once; a table of state"),
        (pl.concat([ROWS, ROWS[:1]]), "bid_auction=None is there more than once"),
        ("/no/such/file.parquet", "there is no Parquet file /no/such/file.parquet"),
        (__file__, "cannot be read as Parquet"),
    ],
)
def test_rows_of_another_table_are_refused_by_name(new: Job, rows: StateRows, words: str) -> None:
    writer = SavepointWriter.new_savepoint(new).bootstrap(STAGE, rows)

    with pytest.raises(ConfigurationError, match=f"stage 'per_auction', table 'groups'.*{words}"):
        writer.write("made")


def test_what_the_pipeline_has_not_is_named(new: Job) -> None:
    def writer(**given: Any) -> SavepointWriter:
        return SavepointWriter.new_savepoint(new, **given)

    def twice(table: str | None) -> SavepointWriter:
        return writer().bootstrap(STAGE, ROWS).bootstrap(STAGE, ROWS, table)

    refusals: list[tuple[str, Callable[[], object]]] = [
        ("has no stage 'nope'; with keyed state", lambda: writer().bootstrap("nope", ROWS)),
        ("no table 'x'; it", lambda: writer().bootstrap(STAGE, ROWS, "x").write("y")),
        ("no table ''; it", lambda: writer().bootstrap(STAGE, ROWS, "").write("y")),
        ("given the rows of one table twice", lambda: twice(None)),
        ("given its rows twice", lambda: twice(TABLE).write("y")),
        ("no stream source of 'bids'; those are events", lambda: writer(starts={"nope": {}})),
        ("names partition 'x'", lambda: writer(starts={"events": {"x": 1}})),
        ("offset 9999", lambda: writer(starts={"events": {"nexmark": 9_999}})),
    ]
    for words, act in refusals:
        with pytest.raises(ConfigurationError, match=words):
            act()


def test_no_start_is_given_for_a_source_that_takes_rows_back(tmp_path: Path) -> None:
    pipeline = Pipeline("lines")
    lines = pipeline.source("files", Files(str(tmp_path), "text", replaced="by partition"))
    lines.key_by("line").aggregate("counted", n=agg.count()).sink("out", FilesTable(changelog=True))

    with pytest.raises(ConfigurationError, match="given for 'files', which takes rows back"):
        SavepointWriter.new_savepoint(a_job(pipeline), starts={"files": {"a.txt": 0}})


def test_max_parallelism_is_that_of_the_snapshot_for_life(new: Job) -> None:
    SavepointWriter.new_savepoint(new).bootstrap(STAGE, ROWS).write("made")
    other = Pipeline("bids", new.pipeline.checkpointing, parallelism=2, max_parallelism=64)
    events = other.source("events", Nexmark(900, columns=("bid_auction",)))
    rows = events.key_by("bid_auction").deduplicate(STAGE)
    rows.sink("counts", FilesTable())
    job = a_job(other, root=new.store.root)

    refused = plan_restore(job, savepoint_target(job, "made"), configuration=configure(other, {}))

    assert isinstance(refused, Stop)
    assert "its state has 128, which is fixed for life" in refused.problems[0]


def test_a_key_that_only_spark_can_hash_is_refused() -> None:
    schema = StateSchema(
        columns=pl.Schema({"key": pl.Float64(), "day": pl.Date()}), key_columns=("key",)
    )
    place = RewrittenTable(
        stage="s", table="t", schema=schema, parallelism=1, max_parallelism=128, now_ms=0
    )

    rows = pl.DataFrame({"key": [1.0], "day": [date(2026, 1, 1)]})

    with pytest.raises(ConfigurationError, match="its key column 'key' is Float64, whose hash"):
        bootstrap_table(place, rows, lambda segment, _: segment)


def test_the_tables_that_a_stage_keeps_are_told(new: Job) -> None:
    found = state_tables(new, [STAGE])

    assert {name: dict(of.columns) for name, of in found[STAGE].items()} == {
        TABLE: {"bid_auction": pl.Int64(), "bids": pl.Int64()}
    }
    assert found[STAGE][TABLE].key_columns == ("bid_auction",)
