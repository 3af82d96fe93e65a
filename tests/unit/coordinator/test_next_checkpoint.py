"""What the next periodic checkpoint waits for, and that asking costs next to nothing."""

from __future__ import annotations

import secrets
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from harness.counting_store import CountingStore
from harness.jobs import ManualClock, a_job, a_running_job
from sluice.coordinator.next_checkpoint import (
    POLLS_PER_JOURNAL_LISTING,
    Due,
    NextCheckpoint,
    Waiting,
)
from sluice.coordinator.planning import NothingToDo
from sluice.coordinator.requests import NewTimes, UserRequest, pause, request_checkpoint, retime
from sluice.coordinator.restore import restore, savepoint_target, stop
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import Triggered, trigger
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.restoring import Latest
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job, open_job
from sluice.sinks import FilesTable
from sluice.sources import DeltaTable, Files
from sluice.store.memory import InMemoryStore
from sluice.store.open import StoreLocation
from tests.subtasks import a_savepoint, acknowledge, finish, take_checkpoint

MINUTE_MS = 60_000


def a_pipeline_of_files(folder: Path, *, bounded: bool = False) -> Pipeline:
    pipeline = Pipeline("auctions", checkpointing=Checkpointing())
    lines = pipeline.source("lines", Files(str(folder), bounded=bounded))
    counts = lines.key_by("line").aggregate("count", n=agg.count())
    counts.sink("results", FilesTable(changelog=True))
    return pipeline


def an_outlook(job: Job, interval_ms: int = MINUTE_MS, lead_ms: int = 0) -> NextCheckpoint:
    return NextCheckpoint(job, interval_ms=interval_ms, lead_ms=lead_ms)


def test_a_job_that_was_never_submitted_is_due() -> None:
    sight = an_outlook(a_job()).poll()

    assert sight == Due(message="the job was never submitted", next_id=CheckpointId(1))


def test_the_interval_is_the_shortest_distance_and_the_lead_shortens_it() -> None:
    clock = ManualClock()
    job = a_running_job(clock=clock)
    take_checkpoint(job)
    clock.advance(MINUTE_MS - 2_500)

    early = an_outlook(job, lead_ms=2_000).poll()
    clock.advance(500)
    in_time = an_outlook(job, lead_ms=2_000).poll()

    assert early == Waiting(message="the interval lasts 500 ms more", rest_ms=500)
    assert in_time == Due(message="new records in events", next_id=CheckpointId(2))


def test_where_a_source_begins_at_the_end_is_kept_though_nothing_is_read(tmp_path: Path) -> None:
    place = str(tmp_path / "sales")
    rows = pa.table({"k": [1]})
    write_deltalake(place, rows)
    pipeline = Pipeline("sales")
    sales = pipeline.source("sales", DeltaTable(f"file://{place}", start="latest"))
    counts = sales.key_by("k").aggregate("count", n=agg.count())
    counts.sink("results", FilesTable(upsert_key=("k",)))
    clock = ManualClock()
    job = a_running_job(pipeline, clock=clock)

    first = an_outlook(job).poll()
    take_checkpoint(job)
    clock.advance(MINUTE_MS)
    idle = an_outlook(job).poll()
    write_deltalake(place, rows, mode="append")
    second = an_outlook(job).poll()

    said = "sales begins with what comes from now on"
    assert first == Due(message=said, next_id=CheckpointId(1))
    assert idle == Waiting(message="waiting for records in sales")
    assert second == Due(message="new records in sales", next_id=CheckpointId(2))


def a_pipeline_of_the_longest(folder: Path, n: int) -> Pipeline:
    pipeline = Pipeline("auctions")
    lines = pipeline.source("lines", Files(str(folder), bounded=False))
    lines.key_by("line").top_n("best", n, by="line").sink("results", FilesTable(changelog=True))
    return pipeline


def test_what_is_kept_follows_a_declaration_that_changed_though_nothing_is_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").write_text("one\n")
    before = a_running_job(a_pipeline_of_the_longest(tmp_path, n=3))
    take_checkpoint(before)
    job = open_job(a_pipeline_of_the_longest(tmp_path, n=2), before.location)
    restore(job, Latest())

    changed = an_outlook(job, interval_ms=0).poll()
    take_checkpoint(job)
    idle = an_outlook(job, interval_ms=0).poll()

    said = "the declaration changed, and what is kept has to follow it"
    assert changed == Due(message=said, next_id=CheckpointId(2))
    assert idle == Waiting(message="waiting for records in lines")


def test_a_tick_has_one_checkpoint_and_passes_where_there_is_nothing_to_do(tmp_path: Path) -> None:
    clock, ticks = ManualClock(), [0]
    pipeline = a_pipeline_of_files(tmp_path)
    (tmp_path / "a").write_text("one\n")
    job = a_running_job(pipeline, clock=clock)
    outlook = NextCheckpoint(job, interval_ms=0, latest_tick_ms=lambda: ticks[0])
    nothing = Waiting(message="waiting for the next tick of the clock")

    ticks[0] = clock()
    due = outlook.poll()
    take_checkpoint(job)
    (tmp_path / "b").write_text("two\n")
    clock.advance(MINUTE_MS)
    between = outlook.poll()
    ticks[0] = clock()
    next_due = outlook.poll()
    take_checkpoint(job)
    clock.advance(MINUTE_MS)
    ticks[0] = clock()
    idle = outlook.poll()
    (tmp_path / "c").write_text("three\n")
    too_late = outlook.poll()

    assert due == Due(message="new records in lines", next_id=CheckpointId(1))
    assert next_due == Due(message="new records in lines", next_id=CheckpointId(2))
    assert idle == Waiting(message="waiting for records in lines")
    assert [between, too_late] == [nothing] * 2


def test_a_tick_under_a_pending_checkpoint_is_owed_until_that_has_ended() -> None:
    clock = ManualClock()
    job = a_running_job(clock=clock)
    triggered = trigger(job)
    assert isinstance(triggered, Triggered)
    clock.advance(1_000)
    tick_ms = clock()
    outlook = NextCheckpoint(job, interval_ms=0, latest_tick_ms=lambda: tick_ms)

    meanwhile = outlook.poll()
    acknowledge(job, triggered.plan)
    finish(job, triggered.plan.checkpoint_id)

    assert meanwhile == Waiting(message="checkpoint 1 is still pending")
    assert isinstance(outlook.poll(), Due)


def test_a_person_who_asks_paused_it_or_changed_the_interval_is_heeded() -> None:
    clock = ManualClock()
    job = a_running_job(clock=clock)
    take_checkpoint(job)
    outlook = an_outlook(job)

    retime(job, NewTimes(interval=timedelta(seconds=10)), by="ada")
    clock.advance(10_000)
    sooner = outlook.poll()
    pause(job, by="ada")
    paused = outlook.poll()
    request_checkpoint(job, UserRequest(by="ada"))
    asked = outlook.poll()

    assert sooner == Due(message="new records in events", next_id=CheckpointId(2))
    assert paused.message == "checkpointing is paused by ada; resume it to go on"
    assert asked == Due(message="a person asked for one", next_id=CheckpointId(2))


def test_it_waits_for_records_until_some_arrive(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    clock = ManualClock()
    job = a_running_job(a_pipeline_of_files(tmp_path), clock=clock)
    outlook = an_outlook(job)
    before = outlook.poll()
    take_checkpoint(job)
    clock.advance(2 * MINUTE_MS)

    idle = outlook.poll()
    (tmp_path / "b.txt").write_text("b\n")
    arrived = outlook.poll()

    assert before == Due(message="new records in lines", next_id=CheckpointId(1))
    assert idle == Waiting(message="waiting for records in lines")
    assert arrived == Due(message="new records in lines", next_id=CheckpointId(2))


@pytest.mark.parametrize("bounded", [True, False])
def test_what_it_says_is_what_trigger_does(tmp_path: Path, *, bounded: bool) -> None:
    (tmp_path / "a.txt").write_text("")
    clock = ManualClock()
    job = a_running_job(a_pipeline_of_files(tmp_path, bounded=bounded), clock=clock)

    sight = an_outlook(job).poll()
    outcome = trigger(job)

    assert isinstance(sight, Due) is bounded
    assert isinstance(outcome, NothingToDo) is not bounded
    assert sight.message == ("lines ended" if bounded else "waiting for records in lines")


def test_a_pending_checkpoint_and_a_job_that_ended_are_waited_for() -> None:
    job = a_running_job()
    outlook = an_outlook(job, interval_ms=0)
    trigger(job)
    pending = outlook.poll()
    stop(job, JobStatus.SUSPENDED)
    suspended = outlook.poll()
    restore(job, Latest())
    restored = outlook.poll()

    assert pending == Waiting(message="checkpoint 1 is still pending")
    assert isinstance(suspended, Waiting)
    assert suspended.message.startswith("the job is SUSPENDED")
    assert restored == Due(message="new records in events", next_id=CheckpointId(2))


def test_the_first_checkpoint_behind_a_savepoint_needs_no_records(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    job = a_running_job(a_pipeline_of_files(tmp_path))
    a_savepoint(job, "mine")
    restore(job, savepoint_target(job, "mine"))

    sight = an_outlook(job, interval_ms=0).poll()

    assert isinstance(sight, Due)
    assert sight.message == "the first checkpoint after a restore shares no files"


def test_a_source_that_is_gone_is_an_error_with_its_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("a\n")
    job = a_running_job(a_pipeline_of_files(folder))
    take_checkpoint(job)
    (folder / "a.txt").write_text("x\n")

    with pytest.raises(ConfigurationError, match=r"a\.txt"):
        an_outlook(job, interval_ms=0).poll()


def test_an_idle_look_is_one_request_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    store = CountingStore(InMemoryStore())
    location = StoreLocation(root=f"memory://{secrets.token_hex(6)}")
    clock = ManualClock()
    job = open_job(a_pipeline_of_files(tmp_path), location, clock=clock, store=store)
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    clock.advance(2 * MINUTE_MS)
    outlook = an_outlook(job)
    outlook.poll()

    with store.counted() as asked:
        for _ in range(POLLS_PER_JOURNAL_LISTING - 2):
            outlook.poll()

    assert asked == {"get": POLLS_PER_JOURNAL_LISTING - 2}


def test_a_root_that_was_emptied_is_noticed() -> None:
    job = a_running_job()
    take_checkpoint(job)
    outlook = an_outlook(job, interval_ms=0)
    outlook.poll()
    job.store.delete([listed.key for listed in job.store.list("")])

    seen = [outlook.poll() for _ in range(POLLS_PER_JOURNAL_LISTING)][-1]

    assert seen == Due(message="the job was never submitted", next_id=CheckpointId(1))
