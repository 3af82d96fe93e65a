"""Savepoints that are made of other ones: what changes in them, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from harness.jobs import a_job, a_running_job, keys_of
from sluice.coordinator.restore import foreign_target, restore, savepoint_target
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.submission import configure
from sluice.core.completed import CheckpointMetadata
from sluice.core.handles import StateHandle
from sluice.core.ids import CheckpointId
from sluice.core.key_groups import hash_range, key_group_range
from sluice.core.restoring import Latest, RestoreApproval, RestoreOptions
from sluice.core.transitions import Consent
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import (
    ConfigurationError,
    CorruptSegment,
    ProtocolViolation,
    RestoreError,
    StoreUnavailable,
)
from sluice.job.job import Job
from sluice.local.savepoint_tables import readers_of
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from sluice.state_processor import SavepointWriter, open_state
from sluice.store.object_store import CreateResult, ObjectStore
from sluice.store.open import PatientStore
from sluice.surface.differences import SnapshotName, open_pair, snapshot_difference
from tests.resealed import resealed
from tests.subtasks import a_savepoint as a_savepoint_of_records
from tests.subtasks import savepoint_key
from tests.unit.state_processor.jobs import (
    STAGE,
    a_job_of_two_epochs,
    a_pipeline,
    counted,
    published,
    take,
)


@pytest.fixture(name="job")
def _job() -> Job:
    return a_job_of_two_epochs()


def on(job: Job, snapshot: str = "before") -> SavepointWriter:
    return SavepointWriter.from_existing_savepoint(job, snapshot)


def state(job: Job, name: str) -> dict[int | None, int]:
    return counted(open_state(job, name, STAGE).frame())


def handles(metadata: CheckpointMetadata) -> list[list[StateHandle]]:
    stage = metadata.stage(STAGE)
    assert stage is not None
    return [[*one.state] for one in stage.subtasks]


@cache
def third_epoch() -> dict[int | None, int]:
    """What the third hundred of events adds, found out by another job."""
    job = a_job_of_two_epochs()
    take(job)
    before, after = state(job, "before"), state(job, "latest")
    return {key: n - before.get(key, 0) for key, n in after.items() if n != before.get(key)}


def twice_without_rare(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter(pl.col("bids") > 1).with_columns(pl.col("bids") * 2)


def test_a_job_goes_on_from_keys_that_were_dropped_and_values_that_were_rewritten(job: Job) -> None:
    before = state(job, "before")
    expected = {key: 2 * bids for key, bids in before.items() if bids > 1}

    written = on(job).transform(STAGE, twice_without_rare).write("after")
    restore(job, savepoint_target(job, "after"))
    take(job)

    third = third_epoch()
    every = {key: expected.get(key, 0) + third.get(key, 0) for key in {*expected, *third}}
    assert len(expected) < len(before)
    assert state(job, "after") == expected
    assert {(one.rows_before, one.rows) for one in written.tables} == {(len(before), len(expected))}
    assert state(job, "latest") == every
    assert published(job) == before | {key: every[key] for key in third}


def test_nothing_else_differs_and_the_snapshot_stays_as_it_is(job: Job) -> None:
    place = job.paths.savepoint("before")
    before = {key: job.store.get(key) for key in keys_of(job, place)}

    on(job).transform(STAGE, twice_without_rare).write("after")
    names = (SnapshotName(named="before"), SnapshotName(named="after"))
    difference = snapshot_difference(open_pair(job, *names))

    assert {key: job.store.get(key) for key in keys_of(job, place)} == before
    assert difference.differences == ()
    assert (difference.before.id, difference.before.type) == (
        difference.after.id,
        difference.after.type,
    )


def test_it_is_self_contained_and_restores_in_another_root(job: Job) -> None:
    elsewhere = a_job(a_pipeline(), root="memory://state-processor-elsewhere")
    on(job).transform(STAGE, twice_without_rare).write("after", root=elsewhere.store.root)
    expected = state(elsewhere, "after")
    job.store.delete(keys_of(job))

    target = foreign_target(elsewhere, elsewhere.store.root, savepoint="after")
    restore(elsewhere, target, configuration=configure(elsewhere.pipeline, {}))
    take(elsewhere)

    assert sum(state(elsewhere, "latest").values()) == sum(expected.values()) + 100
    assert all(key.startswith("bids/savepoints/after/") for key in _files(elsewhere, "after"))


def test_a_retained_checkpoint_is_as_good_as_a_savepoint_and_an_unchanged_copy_is_one(
    job: Job,
) -> None:
    on(job, "1").write("of_one")
    on(job, "latest").write("of_latest")

    assert state(job, "of_one") == state(job, "1")
    assert state(job, "of_latest") == state(job, "before")
    for name in ("of_one", "of_latest"):
        assert isinstance(plan_restore(job, savepoint_target(job, name)), RestoreApproval)


def test_pieces_and_files_of_any_size_hold_the_same_rows_within_their_key_groups(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def looked_at(rows: pl.DataFrame) -> pl.DataFrame:
        seen.append(rows.height)
        return twice_without_rare(rows)

    on(job).transform(STAGE, twice_without_rare).write("whole")
    monkeypatch.setattr("sluice.local.savepoint_tables.PIECE_ROWS", 3)
    monkeypatch.setattr("sluice.state.segments.ROWS_PER_FILE", 2)
    on(job).transform(STAGE, looked_at).write("cut")
    cut = handles(job.savepoint_metadata("cut"))

    assert len(seen) > 4
    assert max(seen) <= 3
    assert state(job, "cut") == state(job, "whole")
    assert all(len(segments) > 2 for segments in cut)
    for index, segments in enumerate(cut):
        first, last = hash_range(128, key_group_range(128, 2, index))
        assert all(first <= one.first_hash <= one.last_hash <= last for one in segments)


def test_segments_that_subtasks_share_since_a_rescale_are_read_once_by_each(job: Job) -> None:
    restore(job, Latest(), configuration=configure(job.pipeline, {}, parallelism=5))
    take(job)
    rescaled = handles(job.metadata(CheckpointId(3)))
    shared = [one.segment.key for segments in rescaled for one in segments]

    on(job, "3").transform(STAGE, lambda rows: rows).write("same")

    assert len(set(shared)) < len(shared)
    assert state(job, "same") == state(job, "3")
    assert [len(segments) for segments in handles(job.savepoint_metadata("same"))] == [1] * 5


def test_small_segments_travel_inside_the_metadata() -> None:
    job = a_job_of_two_epochs(data_inline_threshold=20_480)

    written = on(job).transform(STAGE, twice_without_rare).write("after")

    assert written.files == 0
    kept = [one for segments in handles(job.savepoint_metadata("after")) for one in segments]
    assert kept
    assert all(one.segment.inline for one in kept)
    restore(job, savepoint_target(job, "after"))
    take(job)


def test_functions_apply_one_after_the_other_and_may_leave_nothing(job: Job) -> None:
    plus = pl.col("bids") + 1
    writer = on(job).transform(STAGE, lambda rows: rows.with_columns(plus))
    writer.transform(STAGE, lambda rows: rows.with_columns(plus)).write("more")
    on(job).transform(STAGE, lambda rows: rows.clear()).write("none")

    assert state(job, "more") == {key: n + 2 for key, n in state(job, "before").items()}
    assert handles(job.savepoint_metadata("none")) == [[], []]


def test_state_that_is_removed_begins_empty_and_keeps_its_place_in_the_input(job: Job) -> None:
    on(job).remove(STAGE).write("without")
    restore(job, savepoint_target(job, "without"))
    take(job)

    assert sum(state(job, "latest").values()) == 100
    newest = job.metadata(job.state().completed[-1].checkpoint_id)
    assert newest.sources[0].position[0].records == 300


def test_a_stage_that_is_gone_can_be_removed_and_then_only_its_rows_need_a_consent(
    job: Job,
) -> None:
    after = declaring(job, "bid_auction", "per_auction_again", bids=agg.count())

    refused = plan_restore(after, savepoint_target(after, "before"))
    on(after).remove(STAGE).write("without")

    assert "has state but is not in the pipeline" in str(refused)
    without, kept = savepoint_target(after, "without"), Consent(kept=("counts",))
    assert "keep the rows of 'per_auction' in it" in str(plan_restore(after, without))
    planned = plan_restore(after, without, RestoreOptions(consent=kept))
    assert isinstance(planned, RestoreApproval)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda rows: rows.drop("bids"), "the rows lack bids; its columns are bid_auction"),
        (lambda rows: rows.with_columns(more=1), "the table has no more; its columns are"),
        (
            lambda rows: rows.with_columns(pl.col("bids").cast(pl.String)),
            "column 'bids' of the rows is String, and the state keeps Int64; cast it",
        ),
        (
            lambda rows: rows.with_columns(pl.col("bid_auction") + 1_000_000),
            "the function gives the key bid_auction=.*, which none of its rows has",
        ),
        (lambda rows: pl.concat([rows, rows]), "is there more than once; a table of state has one"),
        (lambda rows: None, "the function gives a NoneType"),
    ],
)
def test_rows_that_cannot_take_their_place_are_refused_by_name(
    job: Job, function: Callable[[pl.DataFrame], pl.DataFrame], words: str
) -> None:
    writer = on(job).transform(STAGE, function)

    with pytest.raises(ConfigurationError, match=f"stage 'per_auction', table 'groups'.*{words}"):
        writer.write("after")
    with pytest.raises(RestoreError, match="there is no savepoint 'after'"):
        job.savepoint_metadata("after")


def test_a_narrower_type_is_widened_and_rows_may_come_in_any_order(job: Job) -> None:
    def reordered(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.reverse().select(pl.lit(7, pl.Int16).alias("bids"), "bid_auction")

    on(job).transform(STAGE, reordered).write("sevens")

    assert state(job, "sevens") == dict.fromkeys(state(job, "before"), 7)


def test_what_is_not_there_is_named(job: Job) -> None:
    refusals: list[tuple[str, Callable[[], object]]] = [
        ("has no stage 'nope'", lambda: on(job).transform("nope", twice_without_rare)),
        ("has no table 'x'", lambda: on(job).transform(STAGE, twice_without_rare, "x")),
        ("the snapshot has no stage 'nope'", lambda: on(job).remove("nope")),
        ("has state of stage 'per_auction' already", lambda: on(job).bootstrap(STAGE, "x")),
        ("checkpoint 9 is not retained", lambda: on(job, "9")),
        (
            "is removed or bootstrapped already",
            lambda: on(job).remove(STAGE).transform(STAGE, twice_without_rare),
        ),
        ("savepoint 'before' exists in", lambda: on(job).write("before")),
        ("savepoint name '../up' is not usable", lambda: on(job).write("../up")),
        ("lies inside job 'bids'", lambda: on(job).write("x", root=f"{job.store.root}/bids")),
        ("is the job's own root", lambda: on(job).write("x", root=job.store.root)),
    ]
    for words, act in refusals:
        with pytest.raises(ConfigurationError, match=words):
            act()


class LosesAnswers:
    """The first create of each key takes effect, and its answer is lost."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lost: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, key: str, body: bytes) -> CreateResult:
        result = self._store.create(key, body)
        if key not in self._lost:
            self._lost.add(key)
            raise StoreUnavailable("the answer is lost")
        return result


def test_a_lost_answer_to_its_own_create_is_no_other_savepoint(job: Job) -> None:
    lossy = replace(job, store=PatientStore(LosesAnswers(job.store)))

    on(lossy).write("after")

    assert state(job, "after") == state(job, "before")


def test_a_savepoint_of_another_root_is_not_overwritten(job: Job) -> None:
    on(job).write("copy", root="memory://state-processor-taken")

    with pytest.raises(ConfigurationError, match="savepoint 'copy' exists in memory://state-"):
        on(job).write("copy", root="memory://state-processor-taken")


def test_a_checkpoint_whose_commit_is_owed_is_refused(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.state_processor.jobs.commit", lambda *_: None)
    take(job)

    with pytest.raises(ConfigurationError, match="checkpoint 3 is not committed yet"):
        on(job, "latest")


@pytest.mark.parametrize("way", ["rewritten", "copied"])
def test_a_damaged_file_fails_it_by_name_and_leaves_no_savepoint(
    job: Job, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE_DIR", str(tmp_path / "empty"))
    key = next(key for key in _files(job, "before"))
    raw = job.store.get(key)
    assert raw is not None
    job.store.put(key, raw[:-9] + bytes(9))
    writer = on(job)
    if way == "rewritten":
        writer.transform(STAGE, twice_without_rare)

    with pytest.raises(CorruptSegment, match=f"{key} is (corrupt|damaged)"):
        writer.write("after")
    with pytest.raises(RestoreError, match="there is no savepoint 'after'"):
        job.savepoint_metadata("after")


def test_a_file_that_is_gone_is_named(job: Job) -> None:
    key = next(key for key in _files(job, "before"))
    job.store.delete([key])

    with pytest.raises(RestoreError, match=f"{key} is gone; savepoint 'after' cannot be completed"):
        on(job).write("after")


def test_alien_metadata_is_refused_before_anything_is_written(job: Job) -> None:
    key = savepoint_key(job, "before")
    raw = job.store.get(key)
    assert raw is not None
    there, other = key.removesuffix("_metadata").encode(), b"bids/savepoints/other/"
    job.store.put(key, resealed(raw.replace(there, other)))

    with pytest.raises(ProtocolViolation, match="is no file of savepoint 'before'"):
        on(job)
    job.store.put(key, b"PK\x03\x04 of another program")
    with pytest.raises(ProtocolViolation, match="cannot be read"):
        on(job)


def test_a_changed_declaration_decides_the_columns_or_is_refused(job: Job) -> None:
    more = declaring(job, "bid_auction", STAGE, bids=agg.count(), largest=agg.max("bid_auction"))
    other_key = declaring(job, "bidder", STAGE, bids=agg.count())

    on(more).transform(STAGE, lambda rows: rows.with_columns(largest=5)).write("wider")

    wider = open_state(more, "wider", STAGE).frame()
    assert counted(wider) == state(job, "before")
    assert wider["largest"].to_list() == [5] * wider.height
    with pytest.raises(RestoreError, match="stage 'per_auction' cannot read its state: its key"):
        on(other_key).transform(STAGE, lambda rows: rows).write("other")


def declaring(job: Job, key: str, stage: str, **aggregates: Any) -> Job:
    """The same job in the same root, which declares another stage today."""
    pipeline = Pipeline("bids", job.pipeline.checkpointing, parallelism=2)
    events = pipeline.source("events", Nexmark(900, columns=("bid_auction", "bidder")))
    rows = events.key_by(key).aggregate(stage, **aggregates)
    rows.sink("counts", FilesTable(upsert_key=(key,)))
    return a_job(pipeline, root=job.store.root)


def _files(job: Job, name: str) -> list[str]:
    return [handle.key for handle in job.savepoint_metadata(name).files]


def test_stages_that_were_told_of_the_old_values_are_named() -> None:
    pipeline = Pipeline("bids", Checkpointing(max_records_per_epoch=100), parallelism=1)
    events = pipeline.source("events", Nexmark(900, columns=("bid_auction",)))
    counts = events.key_by("bid_auction").aggregate("counts", bids=agg.count())
    counts.transform("known", lambda rows: rows).key_by("bids").aggregate("ranks", n=agg.count())
    once = events.key_by("bid_auction").deduplicate("firsts")
    once.key_by("bid_auction").aggregate("of_firsts", n=agg.count())
    counts.sink("results", FilesTable(upsert_key=("bid_auction",)))

    assert readers_of(pipeline, ["counts"]) == ("ranks",)
    assert readers_of(pipeline, ["counts", "ranks"]) == ()
    assert readers_of(pipeline, ["firsts"]) == ()
    assert readers_of(pipeline, ["gone"]) == ()


def test_a_written_savepoint_tells_who_reads_what_was_changed() -> None:
    job = a_running_job()
    a_savepoint_of_records(job)

    removed = SavepointWriter.from_existing_savepoint(job, "mine").remove("count_bids")

    assert removed.write("one").readers == ("rank_bids",)
    assert removed.remove("rank_bids").write("both").readers == ()
