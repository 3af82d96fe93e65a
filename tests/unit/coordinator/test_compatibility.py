"""A declaration that changes under its job: nothing is dropped, or read again, without consent.

Beside a source that has ended, its finished stages are skipped, and their state is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from harness.jobs import (
    COUNT,
    ONE,
    RANK,
    THREE,
    TWO,
    a_running_job,
    keys_of,
    published_records,
    results,
    trigger_one,
)
from sluice.coordinator import compatibility
from sluice.coordinator.compatibility import change_of, find_changes
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import restore, savepoint_target
from sluice.coordinator.restore_plan import plan_restore
from sluice.coordinator.trigger import Queued, trigger
from sluice.core.configuration import CheckpointType, JobStatus
from sluice.core.event_time import MAX_WATERMARK
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Choice, Latest, RestoreOptions, Stop
from sluice.core.transitions import Consent
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.expressions import Filter, Projection, Step
from sluice.declaration.fingerprints import fingerprints
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job
from sluice.job.lineage import CompletedParent
from sluice.operators.changes import stream_schema
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    carry_out,
    complete_one,
    finish,
    in_flight_records,
    state_records,
    take_checkpoint,
    take_checkpoints,
)

CONSENT = RestoreOptions(allow_non_restored_state=True, consent=Consent(kept=("count_bids",)))


def a_chain(
    *,
    source: str = "events",
    stateless: str | None = None,
    stages: tuple[str, ...] = ("count_bids", "rank_bids"),
    sink: str = "results",
    parallelism: int = 2,
    max_parallelism: int | None = None,
    **checkpointing: Any,
) -> Pipeline:
    """Nexmark -> keyed stages -> a table, ten records an epoch."""
    usual = {"max_records_per_epoch": 10, "data_inline_threshold": 0}
    pipeline = Pipeline(
        "auctions",
        checkpointing=Checkpointing(**usual | checkpointing),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )
    stream = pipeline.source(source, Nexmark(0))
    if stateless:
        stream = stream.transform(stateless, lambda rows: rows)
    for number, uid in enumerate(stages):
        stream = stream.key_by("bids" if number else "bid_auction").deduplicate(uid, by="bids")
    stream.sink(sink, FilesTable(changelog=True))
    return pipeline


def changed(job: Job, **chain: Any) -> Job:
    """The same job, as a process sees it that has read the new declaration."""
    return replace(job, pipeline=a_chain(**chain))


RENAMED: dict[str, Any] = {"stages": ("count_bids", "rank")}

CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "a stage is renamed": (
        RENAMED,
        (
            r"pipeline 'auctions' changed under its job: stage 'rank_bids' has state but is not in "
            r"the pipeline any more; stage 'rank' is new\. Was 'rank_bids' renamed to 'rank'\? "
            r"Give it its old uid back, or restore the job, .* with allow non-restored state"
        ),
    ),
    "a stage is removed": (
        {"stages": ("count_bids",)},
        r"stage 'rank_bids' has state but is not .*\. Declare it again, or restore the job",
    ),
    "a stage is new": (
        {"stages": ("count_bids", "rank_bids", "more")},
        r"stage 'more' is new\. A chain changes only at a restore: undo the change, or restore",
    ),
    "a stage without state is new": ({"stateless": "parse"}, "stage 'parse' is new"),
    "a source is renamed": (
        {"source": "bids"},
        (
            r"source 'events' has a position but .*; source 'bids' is new; stage 'count_bids': its "
            r"input was events and is now bids; .*\. Was 'events' renamed to "
        ),
    ),
    "a sink is renamed": (
        {"sink": "table"}, r"sink 'results' has a table but .*; sink 'table' is new\. Was 'results'"
    ),
    "another max parallelism": (
        {"max_parallelism": 64},
        "'count_bids' declares max parallelism 64, but its state has 128, which is fixed for life",
    ),
    "too much parallelism": (
        {"parallelism": 200}, "'count_bids' has parallelism 200, which is not within 1 and its max",
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_mid_run_is_refused_before_anything_is_journaled(change: str) -> None:
    chain, message = CHANGES[change]
    job = a_running_job(a_chain())
    take_checkpoint(job)
    before = keys_of(job)

    with pytest.raises(ConfigurationError, match=message):
        trigger(changed(job, **chain))

    assert keys_of(job) == before
    assert take_checkpoint(job) == 2, "the old declaration goes on as if nothing had happened"


def test_before_anything_is_completed_any_chain_will_do() -> None:
    job = a_running_job(a_chain())
    other = changed(job, source="bids", stages=("rank",), sink="table")

    assert state_records(other, other.metadata(take_checkpoint(other)), "rank") == list(range(10))


@pytest.mark.parametrize("chain", [RENAMED, {"stateless": "parse"}, {"source": "bids"}])
def test_a_chain_does_not_change_behind_a_pending_checkpoint(chain: dict[str, Any]) -> None:
    job = a_running_job(a_chain(max_concurrent_checkpoints=2))
    trigger_one(job)

    with pytest.raises(ConfigurationError, match="'auctions' changed under its job"):
        trigger(changed(job, **chain, max_concurrent_checkpoints=2), is_periodic=False)
    assert len(job.state().pending) == 1


def test_a_queued_request_of_a_changed_chain_leaves_the_queue() -> None:
    job = a_running_job(a_chain())
    first = trigger_one(job)
    assert isinstance(trigger(job, request_id="mine", is_periodic=False), Queued)
    carry_out(job, first)

    with pytest.raises(ConfigurationError, match="changed under its job"):
        trigger(changed(job, **RENAMED), request_id="mine", is_periodic=False)

    assert (job.state().queue, job.state().status) == ((), JobStatus.RUNNING)


@pytest.mark.parametrize(
    ("chain", "dropped"),
    [
        (RENAMED, ("rank_bids",)),
        ({"stages": ("count_bids",)}, ("rank_bids",)),
        ({"source": "bids"}, ("events",)),
        ({"sink": "table"}, ("results",)),
    ],
)
def test_what_is_gone_needs_consent_at_the_restore_and_only_there(
    chain: dict[str, Any], dropped: tuple[str, ...]
) -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    other = changed(job, **chain)

    refused = plan_restore(other, Latest(), replace(CONSENT, allow_non_restored_state=False))
    restore(other, Latest(), CONSENT)

    assert isinstance(refused, Stop)
    assert [p for p in refused.problems if f"'{dropped[0]}' has" in p] == list(refused.problems)
    assert "(allow non-restored state to drop it)" in refused.problems[0]
    assert other.state().dropped_stages == dropped
    assert take_checkpoint(other) == 2
    assert other.state().dropped_stages == (), "the new checkpoint holds nothing of it"
    assert take_checkpoint(other) == 3


def test_a_failure_before_the_next_checkpoint_keeps_the_consent() -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    other = changed(job, **RENAMED)
    restore(other, Latest(), CONSENT)
    plan = trigger_one(other)
    fail_checkpoint(other, plan.checkpoint_id, Reason.TASK_FAILURE, "lost", is_task_failure=True)

    restore(other, Latest(), only_generation=2)

    assert other.state().dropped_stages == ("rank_bids",)
    assert take_checkpoint(other) == 3


def test_consent_to_one_is_no_consent_to_another() -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    restore(changed(job, **RENAMED), Latest(), CONSENT)
    both_gone = changed(job, stages=("rank",))

    with pytest.raises(ConfigurationError, match="stage 'count_bids' has state but is not in"):
        trigger(both_gone)
    with pytest.raises(RestoreError, match="stage 'count_bids' has state but is not in"):
        restore(both_gone, Latest())


def test_consent_ends_with_the_checkpoint_that_no_longer_needs_it() -> None:
    """Otherwise a stage that is declared again would lose its state by an old consent."""
    job = a_running_job(a_chain())
    take_checkpoint(job)
    restore(changed(job, stages=("count_bids",)), Latest(), CONSENT)
    take_checkpoint(job)  # The person changed his mind: nothing was dropped yet.

    with pytest.raises(ConfigurationError, match="stage 'rank_bids' has state"):
        trigger(changed(job, stages=("count_bids",)))


def test_whoever_goes_back_to_the_older_checkpoint_consents_anew() -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    other = changed(job, **RENAMED)
    restore(other, Latest(), CONSENT)
    take_checkpoint(other)

    with pytest.raises(RestoreError, match="stage 'rank_bids' has state"):
        restore(other, Choice(CheckpointId(1)))


def test_what_is_new_starts_empty_at_a_restore() -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    other = changed(job, stages=("count_bids", "rank_bids", "more"))

    restore(other, Latest())
    metadata = other.metadata(take_checkpoint(other))

    assert state_records(other, metadata, "rank_bids") == list(range(20))
    assert state_records(other, metadata, "more") == list(range(10, 20))
    assert take_checkpoint(other) == 3


def test_a_job_that_was_stopped_with_a_savepoint_goes_on_with_another_chain() -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    a_savepoint(job, "before", type=CheckpointType.SAVEPOINT_SUSPEND)
    other = changed(job, stages=("count_bids", "top"), parallelism=3)

    restore(other, savepoint_target(other, "before"), CONSENT)
    metadata = other.metadata(take_checkpoint(other))

    assert state_records(other, metadata, "count_bids") == list(range(30))
    assert state_records(other, metadata, "top") == list(range(20, 30))
    assert {stage.parallelism for stage in metadata.stages} == {3}
    assert published_records(other) == list(range(30))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_another_parallelism_in_mid_run_cuts_the_state_anew(parallelism: int) -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    other = changed(job, parallelism=parallelism)

    metadata = other.metadata(take_checkpoint(other))

    for uid in ("count_bids", "rank_bids"):
        stage = metadata.stage(uid)
        assert stage is not None
        assert (stage.parallelism, stage.max_parallelism) == (parallelism, 128)
        assert state_records(other, metadata, uid) == list(range(20))
    assert published_records(other) == list(range(20))


def test_a_stage_that_is_declared_without_state_now_does_not_drop_it() -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    other = changed(job, stateless="rank_bids", stages=("count_bids",))

    with pytest.raises(ConfigurationError, match="stage 'rank_bids' has state"):
        trigger(other)
    restore(other, Latest(), CONSENT)
    assert take_checkpoint(other) == 2


@pytest.mark.parametrize("chain", [RENAMED, {"source": "bids"}])
def test_a_checkpoint_is_not_completed_without_what_it_was_made_of(chain: dict[str, Any]) -> None:
    """Otherwise stages would be missing in the checkpoint, without an error."""
    job = a_running_job(a_chain())
    plan = trigger_one(job)
    acknowledge(job, plan)

    with pytest.raises(
        ConfigurationError, match=r"checkpoint 1 of 'auctions' was triggered with '"
    ):
        finalize(changed(job, **chain), plan.checkpoint_id)
    assert finalize(job, plan.checkpoint_id).checkpoint_id == 1


def committing(job: Job) -> None:
    commit(job, CheckpointId(1))


@pytest.mark.parametrize("act", [committing, trigger])
def test_rows_of_a_sink_that_is_gone_are_not_lost_by_a_commit(act: Callable[[Job], object]) -> None:
    job = a_running_job(a_chain())
    complete_one(job)

    with pytest.raises(ConfigurationError, match=r"has unpublished rows for sink 'results'"):
        act(changed(job, sink="table"))

    assert not job.state().completed[0].is_committed
    take_checkpoint(job)
    assert published_records(job) == list(range(20))


def test_a_sink_whose_rows_are_not_published_may_be_dropped_with_consent() -> None:
    job = a_running_job(a_chain())
    complete_one(job)
    other = changed(job, sink="table")

    restore(other, Latest(), CONSENT)

    assert other.state().completed[0].is_committed
    take_checkpoint(other)
    assert published_records(other) == list(range(10, 20))


def test_rows_in_flight_are_state_too() -> None:
    chain: dict[str, Any] = {"unaligned": True, "stages": ("count_bids", "rank_bids")}
    job = a_running_job(a_chain(**chain))
    take_checkpoints(job, 2)
    in_flight = job.metadata(CheckpointId(2)).stage("rank_bids")
    assert in_flight is not None
    assert in_flight.in_flight_segments
    assert not job.metadata(CheckpointId(1)).stage("rank_bids").has_state  # type: ignore[union-attr]

    rewired = replace(job, pipeline=a_chain(unaligned=True, stages=("rank_bids", "count_bids")))

    with pytest.raises(ConfigurationError, match="stage 'rank_bids' has rows in flight"):
        trigger(rewired)


def test_rows_in_flight_are_not_read_with_other_steps_than_they_were_sent_with() -> None:
    chain: dict[str, Any] = {"unaligned": True, "stages": ("count_bids", "rank_bids")}
    job = a_running_job(a_chain(**chain))
    take_checkpoints(job, 2)
    metadata = job.metadata(CheckpointId(2))
    sent = pl.DataFrame({"n": [1]})

    def change(was: tuple[Step, ...], now: tuple[Step, ...]) -> str | None:
        pipeline = a_chain(**chain)
        counts = pipeline.stages["count_bids"]
        pipeline.stages["count_bids"] = replace(counts, steps=now)
        stages = tuple(
            replace(
                stage,
                in_flight=tuple(
                    replace(data, schema=stream_schema(sent, was)) for data in stage.in_flight
                ),
            )
            for stage in metadata.stages
        )
        meant = fingerprints(pipeline, {})
        parent = CompletedParent(replace(metadata, stages=stages, fingerprints=meant), None)
        return change_of(pipeline, job.state(), parent)

    own = (Filter("n > 1"), Projection(("n + 1 AS n",)))
    assert change(own, own) is None
    assert change((), ()) is None
    refused = change(own, own[:1])
    assert refused is not None
    assert (
        "rows in flight to stage 'rank_bids' passed where('n > 1').select('n + 1 AS n') behind "
        "'count_bids', where the declaration now has where('n > 1'); restore an aligned checkpoint"
    ) in refused
    assert "passed no step behind" in (change((), own) or "")


def test_changes_are_found_in_the_bucket_until_a_restore_consents() -> None:
    job = a_running_job(a_chain())
    other = changed(job, **RENAMED)

    def found() -> dict[str, str]:
        return find_changes([other.pipeline], job.location, timeout_s=60)

    assert found() == {}
    take_checkpoint(job)
    assert "Was 'rank_bids' renamed to 'rank'?" in found()["auctions"]
    assert find_changes([job.pipeline], job.location, timeout_s=60) == {}
    restore(other, Latest(), CONSENT)
    assert found() == {}
    take_checkpoint(other)
    assert found() == {}


def test_a_stopped_job_is_told_of_what_a_restore_would_refuse_and_of_nothing_else() -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    a_savepoint(job, "before", type=CheckpointType.SAVEPOINT_SUSPEND)
    more, renamed = a_chain(stages=("count_bids", "rank_bids", "more")), a_chain(**RENAMED)

    assert find_changes([more], job.location, timeout_s=60) == {}
    assert (
        "stage 'rank_bids' has state"
        in (find_changes([renamed], job.location, timeout_s=60)["auctions"])
    )


def test_a_job_that_cannot_be_read_says_nothing_of_its_declaration() -> None:
    job = a_running_job(a_chain())
    take_checkpoint(job)
    broken = Pipeline("broken")
    damaged = job.paths.journal_entry(1).replace("auctions/", "broken/")
    job.store.put(damaged, b"not an entry")

    found = find_changes([broken, a_chain(**RENAMED)], job.location, timeout_s=60)

    assert list(found) == ["auctions"]


def test_a_store_that_hangs_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    job = a_running_job(a_chain())
    release = threading.Event()

    class Hanging:
        root = job.store.root

        def __getattr__(self, name: str) -> object:
            release.wait(30)
            raise AttributeError(name)

    monkeypatch.setattr(compatibility, "open_store", lambda _: Hanging())

    assert find_changes([a_chain(**RENAMED)], job.location, timeout_s=0.1) == {}
    release.set()


CLICKS = "count_clicks"


def a_chain_with_an_ending_source(
    clicks: int = 0, *, cleaned: bool = False, **checkpointing: Any
) -> Pipeline:
    """Two stages read 15 events in two epochs of ten; a third reads clicks without an end."""
    usual = {"max_records_per_epoch": 10, "data_inline_threshold": 0}
    pipeline = Pipeline("auctions", checkpointing=Checkpointing(**usual | checkpointing))
    events = pipeline.source("events", Nexmark(15))
    if cleaned:
        events = events.transform("clean", lambda rows: rows)
    counted = events.key_by("bid_auction")
    ranked = counted.aggregate(COUNT, bids=agg.count()).key_by("bids")
    ranked.aggregate(RANK, bids=agg.count()).sink("results", FilesTable(changelog=True))
    clicked = pipeline.source("clicks", Nexmark(clicks)).key_by("bid_auction")
    clicked.aggregate(CLICKS, n=agg.count()).sink("clicked", FilesTable(changelog=True))
    return pipeline


def a_job_with_an_ending_source(clicks: int = 0, **checkpointing: Any) -> Job:
    return a_running_job(a_chain_with_an_ending_source(clicks, **checkpointing))


def running(plan: CheckpointPlan) -> list[str]:
    return [task.uid for task in plan.tasks]


def counted(job: Job, checkpoint_id: CheckpointId) -> list[int]:
    """How many records each stage has absorbed."""
    metadata = job.metadata(checkpoint_id)
    return [len(state_records(job, metadata, stage)) for stage in (COUNT, RANK, CLICKS)]


def test_who_has_seen_the_end_is_skipped_and_carried() -> None:
    job = a_job_with_an_ending_source()
    take_checkpoints(job, 2)
    before = job.metadata(TWO)

    plan = complete_one(job)
    commit(job, THREE)
    take_checkpoint(job)

    assert (running(plan), plan.finished) == ([CLICKS], (COUNT, RANK))
    metadata = job.metadata(THREE)
    assert [stage.is_finished for stage in metadata.stages] == [True, True, False]
    for stage, ended in zip(before.stages[:2], metadata.stages[:2], strict=True):
        assert ended.watermark_ms == MAX_WATERMARK
        assert [s.state for s in ended.subtasks] == [s.state for s in stage.subtasks]
        assert all(subtask.output == () for subtask in ended.subtasks)
    assert (metadata.tables["results"], metadata.tables["clicked"]) == (2, 3)
    assert counted(job, CheckpointId(4)) == [15, 15, 40]
    assert published_records(job) == list(range(15))
    assert job.state().status is JobStatus.RUNNING


def test_the_files_of_a_finished_stage_outlive_the_checkpoints_it_took_part_in() -> None:
    job = a_job_with_an_ending_source(num_retained=1)

    for _ in range(5):
        last = take_checkpoint(job)

    assert counted(job, last) == [15, 15, 50]
    assert not keys_of(job, job.paths.all_streams())  # No stage reads them any more.


def test_no_stage_finishes_before_the_job_where_checkpoints_may_not_follow_that() -> None:
    """Else the rest of the other sources would never be read."""
    job = a_job_with_an_ending_source(clicks=35, checkpoints_after_tasks_finish=False)
    take_checkpoints(job, 2)

    plan = complete_one(job)
    commit(job, THREE)
    last = complete_one(job)
    counts = counted(job, last.checkpoint_id)
    state = commit(job, last.checkpoint_id)

    assert (running(plan), plan.finished) == ([COUNT, RANK, CLICKS], ())
    assert (counts, last.drains) == ([15, 15, 35], True)
    assert published_records(job) == list(range(15))
    assert state.status is JobStatus.FINISHED


def test_the_job_finishes_with_its_last_source() -> None:
    job = a_job_with_an_ending_source(clicks=35)
    take_checkpoints(job, 3)
    plan = complete_one(job)
    assert counted(job, plan.checkpoint_id) == [15, 15, 35]

    state = commit(job, plan.checkpoint_id)

    assert (running(plan), plan.drains, state.status) == ([CLICKS], True, JobStatus.FINISHED)
    assert published_records(job) == list(range(15))


def test_after_a_restore_who_had_finished_stays_so_and_its_table_keeps_its_rows() -> None:
    job = a_job_with_an_ending_source()
    take_checkpoints(job, 3)
    restore(job, Latest())

    plan = complete_one(job)
    commit(job, plan.checkpoint_id)

    assert running(plan) == [CLICKS]
    assert results(job).versions() == (1, 2, 4)  # The first of a generation publishes each table.
    assert published_records(job) == list(range(15))
    assert counted(job, plan.checkpoint_id) == [15, 15, 40]


def test_a_restore_to_before_the_end_reads_to_the_end_again() -> None:
    job = a_job_with_an_ending_source()
    take_checkpoints(job, 3)
    restore(job, Choice(CheckpointId(1)))

    assert running(trigger_one(job)) == [COUNT, RANK, CLICKS]


def test_who_had_finished_copies_its_state_out_of_a_savepoint() -> None:
    job = a_job_with_an_ending_source()
    take_checkpoints(job, 2)
    a_savepoint(job)
    assert [s.is_finished for s in job.savepoint_metadata("mine").stages] == [True, True, False]
    restore(job, savepoint_target(job, "mine"))

    first = take_checkpoint(job)
    second = take_checkpoint(job)

    for taken in (first, second):
        assert not [handle for handle in job.metadata(taken).files if "/savepoints/" in handle.key]
    assert counted(job, second) == [15, 15, 50]
    assert [s.is_finished for s in job.metadata(first).stages] == [False, False, False]
    assert [s.is_finished for s in job.metadata(second).stages] == [True, True, False]
    assert published_records(job) == list(range(15))


def test_the_end_passes_an_unaligned_stage_an_epoch_later() -> None:
    job = a_job_with_an_ending_source(unaligned=True)
    plans = []
    for _ in range(4):
        plans.append(trigger_one(job))
        acknowledge(job, plans[-1])
        finish(job, plans[-1].checkpoint_id)

    everybody = [COUNT, RANK, CLICKS]
    assert [running(plan) for plan in plans] == [everybody, everybody, [RANK, CLICKS], [CLICKS]]
    assert len(in_flight_records(job, job.metadata(TWO), RANK)) == 5
    assert counted(job, CheckpointId(4)) == [15, 15, 40]
    assert published_records(job) == list(range(15))


def test_the_end_is_seen_in_a_chain_of_pending_checkpoints() -> None:
    job = a_job_with_an_ending_source(max_concurrent_checkpoints=4)

    plans = [trigger_one(job) for _ in range(4)]
    assert isinstance(trigger(job), Queued)
    for stage in (COUNT, RANK, CLICKS):
        for plan in plans:
            if stage in running(plan):
                acknowledge(job, plan, stage)
    for plan in plans:
        finish(job, plan.checkpoint_id)

    assert [plan.finished for plan in plans] == [(), (), (COUNT, RANK), (COUNT, RANK)]
    assert counted(job, CheckpointId(4)) == [15, 15, 40]
    assert published_records(job) == list(range(15))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_failure_after_the_end_changes_nothing(number: int) -> None:
    job = a_job_with_an_ending_source()
    for epoch in range(1, 5):
        if epoch == number:
            trigger_one(job)
            restore(job, Latest())
        last = take_checkpoint(job)

    assert counted(job, last) == [15, 15, 40]
    assert published_records(job) == list(range(15))


def test_a_new_stage_before_a_finished_one_is_refused_by_every_way_in() -> None:
    job = a_job_with_an_ending_source(num_retained=4)
    take_checkpoints(job, 3)
    a_savepoint(job)
    changed = replace(job, pipeline=a_chain_with_an_ending_source(cleaned=True))
    before = keys_of(job)

    said = "stage 'count_bids' has finished in checkpoint [34], and stage 'clean' before it is new"
    for target in (Latest(), Choice(THREE), savepoint_target(changed, "mine")):
        with pytest.raises(RestoreError, match=said):
            restore(changed, target, RestoreOptions(allow_non_restored_state=True))
    with pytest.raises(ConfigurationError, match=f"changed under its job: {said}"):
        trigger(changed)

    assert keys_of(job) == before
    restore(changed, Choice(ONE), RestoreOptions(consent=Consent(kept=(COUNT,))))
    assert running(trigger_one(changed)) == ["clean", COUNT, RANK, CLICKS]
