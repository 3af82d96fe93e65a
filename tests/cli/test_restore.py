"""``sluice restore`` and ``sluice cancel``: what they do, what they say, what they refuse."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from harness.jobs import (
    STAGES,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from harness.noted_target import NotedTable
from sluice.coordinator.restore import stop
from sluice.coordinator.submission import configure, submit
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus
from sluice.core.ids import CheckpointId
from sluice.declaration import aggregates as agg
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.expressions import Filter
from sluice.declaration.operations import Tumbling
from sluice.declaration.pipeline import Pipeline
from sluice.job.job import Job, open_job
from sluice.sinks import FilesTable
from sluice.sources import Files, Nexmark
from sluice.store.open import StoreLocation
from tests.builders import ids_of
from tests.cli.conftest import Sluice
from tests.subtasks import a_savepoint, take_checkpoint

ONE = CheckpointId(1)


def test_without_a_name_it_is_the_latest_checkpoint(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    take_checkpoint(job)

    answer = sluice("restore", "auctions")

    assert (answer.code, answer.err) == (0, "")
    assert answer.out == "auctions is RUNNING from checkpoint 2, generation 2\n"
    assert (job.state().base, job.state().generation) == (2, 2)


def test_a_job_without_a_checkpoint_starts_from_empty(sluice: Sluice) -> None:
    assert sluice("restore", "auctions").out.startswith("auctions is RUNNING from the empty state")


def test_a_checkpoint_is_restored_by_its_id(job: Job, sluice: Sluice) -> None:
    for _ in range(3):
        take_checkpoint(job)

    answer = sluice("restore", "auctions", "--checkpoint", 1, "--json")

    rolls_back = {"can_roll_back": True, "rolls_back_by_itself": True}
    assert answer.json == {
        "pipeline": "auctions",
        "checkpoint": 1,
        "origin": None,
        "generation": 2,
        "status": "RUNNING",
        "tables_ahead": [{"sink": "results", "checkpoints": [2, 3], **rolls_back}],
        "warnings": [],
        "changed_options": [],
    }
    take_checkpoint(job)
    assert published_records(job) == list(range(20))


def test_a_savepoint_is_restored_by_its_name_and_claimed_if_asked(job: Job, sluice: Sluice) -> None:
    a_savepoint(job)
    take_checkpoint(job)

    answer = sluice("restore", "auctions", "--savepoint", "mine")
    assert answer.out == (
        "auctions is RUNNING from savepoint mine, generation 2\n"
        "table 'results' is ahead by 1 checkpoint (2); its next commit rolls it back, rolling "
        "tables back does so at once\n"
    )
    assert job.state().claim_mode is ClaimMode.NO_CLAIM

    sluice("restore", "auctions", "--savepoint=mine", "--claim-mode", "claim")
    assert job.state().claim_mode is ClaimMode.CLAIM
    assert [one.name for one in job.state().claimed_savepoints] == ["mine"]


def test_a_snapshot_is_restored_by_its_path(job: Job, new_job: Job, sluice: Sluice) -> None:
    a_savepoint(job)
    take_checkpoint(job)
    place = f"{job.store.root}/auctions/savepoints/mine"

    answer = sluice("restore", "auctions", "--from", f"{place}/_metadata", "--dry-run")
    elsewhere = sluice("restore", "auctions", "--from", place, "--root", new_job.store.root)
    twice = sluice("restore", "auctions", "--from", place, "--savepoint", "mine")
    wrong = sluice("restore", "auctions", "--from", f"{job.store.root}/mine")

    assert answer.out.splitlines()[-2].startswith("would restore savepoint mine: ")
    assert elsewhere.out.startswith(f"auctions is RUNNING from savepoint mine of {job.store.root}")
    assert twice.error.endswith("names the snapshot to restore already; leave out savepoint 'mine'")
    assert "is not the path of a snapshot; write ROOT/" in wrong.error


def test_a_job_begins_in_a_new_root_from_a_checkpoint_of_another(
    job: Job, new_job: Job, sluice: Sluice
) -> None:
    take_checkpoint(job)
    command = ("restore", "auctions", "--root", new_job.store.root)

    answer = sluice(*command, "--from-root", job.store.root, "--parallelism", 3)

    assert answer.out.startswith(f"auctions is RUNNING from checkpoint 1 of {job.store.root}")
    assert new_job.state().configuration.parallelism == 3
    take_checkpoint(new_job)
    assert published_records(new_job) == list(range(10, 20))


def test_a_savepoint_of_another_pipeline_in_another_root(
    job: Job, new_job: Job, sluice: Sluice
) -> None:
    a_savepoint(job)
    command = ("restore", "auctions", "--root", new_job.store.root, "--savepoint", "mine")

    answer = sluice(*command, "--from-root", job.store.root, "--from-pipeline", "bids")

    assert "there is no savepoint 'mine' of job 'bids' in" in answer.error
    assert keys_of(new_job) == []


def test_the_jobs_own_root_is_not_another_one(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)

    answer = sluice("restore", "auctions", "--from-root", f"{job.store.root}/")

    assert answer.out == "auctions is RUNNING from checkpoint 1, generation 2\n"
    assert job.state().origin is None


def test_parallelism_and_parameters_replace_what_the_job_had_and_the_rest_stays(
    job: Job, sluice: Sluice
) -> None:
    take_checkpoint(job)
    before = job.state().configuration

    sluice("restore", "auctions", "--parallelism", 5)

    after = job.state().configuration
    assert after.parallelism == 5
    assert after.params == before.params
    assert after.max_records_per_epoch == before.max_records_per_epoch == 10
    sluice("restore", "auctions")
    assert job.state().configuration == after


def test_data_in_flight_is_dropped_only_when_its_checkpoint_is_named(
    job: Job, sluice: Sluice
) -> None:
    take_checkpoint(job)

    plain = sluice("restore", "auctions", "--dry-run", "--json")
    dropping = sluice("restore", "auctions", "--ignore-in-flight-of", 1, "--dry-run", "--json")

    assert not plain.json["ignores_in_flight"]
    assert dropping.json["ignores_in_flight"]
    printed = sluice("restore", "auctions", "--ignore-in-flight-of=1", "--dry-run")
    assert "its data in flight is dropped, and those rows are lost" in printed.out


def test_state_of_a_stage_that_is_gone_is_dropped_only_if_allowed(sluice: Sluice) -> None:
    stages = (*STAGES, "gone")
    job = open_job(a_pipeline(stages=stages), StoreLocation(root="memory://with-more-stages"))
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    command = ("restore", "auctions", "--root", job.store.root)

    assert "stage 'gone' has state but is not in the pipeline any more" in sluice(*command).error
    told = sluice(*command, "--allow-non-restored-state").error
    assert "stage 'gone' is not declared any more, and sink 'results': its rows were gone" in told
    assert "restore with --keep results" in told
    dry = sluice(*command, "--allow-non-restored-state", "--keep", "results", "--dry-run")
    assert "the state of gone is dropped" in dry.out
    assert sluice(*command, "--allow-non-restored-state", "--keep", "results").code == 0


def counting(column: agg.Aggregate) -> Pipeline:
    pipeline = Pipeline("auctions", checkpointing=Checkpointing(max_records_per_epoch=10))
    keyed = pipeline.source("events", Nexmark(0)).key_by(record="bid_auction")
    keyed.aggregate("totals", n=column).sink("results", FilesTable(upsert_key=("record",)))
    return pipeline


def test_state_that_means_something_else_is_told_by_every_command(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = open_job(counting(agg.sum("price")), StoreLocation(root="memory://another-meaning"))
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    declared = {"auctions": counting(agg.max("price"))}
    monkeypatch.setattr("sluice.cli.options.load_pipeline", declared.__getitem__)
    before = keys_of(job)
    root = ("--root", job.store.root)
    said = (
        "stage 'totals': column 'n' was sum(price) and is now max(price); put it back, or begin it "
        "anew: restore with --begin totals.n"
    )

    assert said in sluice("check", "auctions", *root).error
    assert sluice("restore", "auctions", *root, "--dry-run").out.startswith(f"{said}\n")
    assert said in sluice("restore", "auctions", *root).error
    assert "computes n" in sluice("restore", "auctions", *root, "--begin", "totals.x").error
    assert keys_of(job) == before

    dry = sluice("restore", "auctions", *root, "--begin", "totals.n", "--dry-run")
    assert "'totals.n' begins anew, with the rows from here on" in dry.out
    assert sluice("restore", "auctions", *root, "--begin", "totals.n").code == 0
    assert job.state().consent.begun == ("totals.n",)


def test_state_may_be_kept_though_rows_are_read_otherwise(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = open_job(counting(agg.count()), StoreLocation(root="memory://kept"))
    submit(job, configure(job.pipeline, {}))
    take_checkpoint(job)
    changed = counting(agg.count())
    (stream,) = changed.stages["totals"].inputs
    filtered = replace(stream, steps=(Filter("price > 1"),))
    changed.stages["totals"] = replace(changed.stages["totals"], inputs=(filtered,))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": changed}.__getitem__)
    command = ("restore", "auctions", "--root", job.store.root)

    assert "its input was events and is now events.where(price > 1)" in sluice(*command).error
    assert "kept with consent" in sluice(*command, "--keep", "totals", "--dry-run").out
    assert sluice(*command, "--keep", "totals").code == 0
    checked = sluice("check", "auctions", "--root", job.store.root)
    assert "its input was events and is now events.where(price > 1): kept with" in checked.err


def test_a_dry_run_lists_every_file_with_its_size_and_changes_nothing(
    job: Job, sluice: Sluice
) -> None:
    take_checkpoint(job)
    take_checkpoint(job)
    before = keys_of(job)
    files = job.metadata(CheckpointId(2)).files

    printed = sluice("restore", "auctions", "--dry-run")
    as_json = sluice("restore", "auctions", "--dry-run", "--json")

    assert keys_of(job) == before
    assert printed.code == as_json.code == 0
    assert all(file.key in printed.out for file in files)
    assert f"would restore checkpoint 2: {len(files)} files" in printed.out
    planned = as_json.json
    assert planned["can_restore"]
    assert planned["total_bytes"] == sum(file.size_bytes for file in files)
    sizes = [(file.key, file.size_bytes) for file in files]
    assert [(file["key"], file["size_bytes"]) for file in planned["files"]] == sizes
    assert {file["written_by"] for file in planned["files"]} == {1, 2}


def test_a_table_that_lacks_rows_is_named_and_taken_as_it_is_only_if_asked(
    job: Job, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows were rolled back, and cannot come again."""
    pipeline = a_pipeline(sink=NotedTable())
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)
    noted = open_job(pipeline, StoreLocation(root="memory://with-a-noted-table"))
    submit(noted, configure(pipeline, {}))
    for _ in range(2):
        take_checkpoint(noted)
    command = ("restore", "auctions", "--root", noted.store.root)
    sluice(*command, "--checkpoint", 1, "--roll-back-tables")

    dry = sluice(*command, "--checkpoint", 2, "--dry-run")
    refused = sluice(*command, "--checkpoint", 2)
    accepted = sluice(*command, "--checkpoint", 2, "--accept-tables")

    assert dry.out.startswith("table 'results' lacks checkpoint 2, which the job would continue")
    assert "table 'results' lacks checkpoint 2" in refused.error
    assert accepted.out == "auctions is RUNNING from checkpoint 2, generation 3\n"
    both = sluice(*command, "--accept-tables", "--roll-back-tables")
    assert "choose one" in both.error


def test_a_dry_run_names_everything_that_is_missing(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    gone = [file.key for file in job.metadata(ONE).files][:2]
    job.store.delete(gone)

    printed = sluice("restore", "auctions", "--dry-run")
    as_json = sluice("restore", "auctions", "--dry-run", "--json")

    assert printed.error == "error: the job cannot be restored for the 2 problems above"
    assert [line.partition(" ")[0] for line in printed.out.splitlines()] == gone
    assert (as_json.code, as_json.err) == (1, "")
    assert (as_json.json["can_restore"], len(as_json.json["problems"])) == (False, 2)
    assert gone[0] in sluice("restore", "auctions").error


def test_mistakes_are_refused_in_one_sentence(job: Job, new_job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    before = keys_of(job)

    def error(*arguments: object) -> str:
        return sluice("restore", "auctions", *arguments).error

    assert "exclude one another" in error("--checkpoint", 1, "--savepoint", "mine")
    assert "pipeline 'bids' needs the root where" in error("--from-pipeline", "bids")
    assert "checkpoint 9 is not retained; retained are: 1" in error("--checkpoint", 9)
    assert "there is no savepoint 'mine' of job 'auctions' in" in error("--savepoint", "mine")
    assert "has no completed checkpoint in memory://else" in error("--from-root", "memory://else")
    assert "only a savepoint can be claimed" in error("--from-root=memory://else", "--checkpoint=1",
                                        "--claim-mode=CLAIM")  # fmt: skip
    assert "has no parameter 'dryrun'" in error("--dryrun", "yes")
    assert "write s3://" in error("--from-root", "nowhere")
    assert "parallelism" in error("--parallelism", 10_000)
    assert "was never submitted" in error("--root", new_job.store.root)
    assert "was never submitted" in error("--root", new_job.store.root, "--checkpoint", 1)
    assert keys_of(job) == before


def test_cancelling_ends_the_job_and_tells_what_is_left(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    trigger_one(job)

    answer = sluice("cancel", "auctions", "--json")

    assert answer.json == {
        "pipeline": "auctions",
        "status": "CANCELED",
        "aborted": [2],
        "retained": [1],
    }
    assert (job.state().status, ids_of(job.state().completed)) == (JobStatus.CANCELED, [1])
    again = sluice("cancel", "auctions")
    assert (again.code, again.out) == (0, "auctions is CANCELED; retained checkpoints: 1\n")


def test_what_has_ended_or_never_began_is_not_cancelled(
    job: Job, new_job: Job, sluice: Sluice
) -> None:
    a_savepoint(job, type=CheckpointType.SAVEPOINT_TERMINATE)
    assert job.state().status is JobStatus.FINISHED

    assert "job 'auctions' is FINISHED" in sluice("cancel", "auctions").error
    never = sluice("cancel", "auctions", "--root", new_job.store.root)
    assert "was never submitted" in never.error
    assert keys_of(new_job) == []


def test_a_cancelled_job_is_restored(job: Job, sluice: Sluice) -> None:
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)

    assert sluice("restore", "auctions").out.startswith("auctions is RUNNING from checkpoint 1")


def test_a_restore_behind_a_drain_warns_of_late_rows(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text('{"k": "a", "at": "2026-01-01T00:00:00"}\n')
    pipeline = Pipeline("auctions")
    files = Files(str(tmp_path), format="json", schema="k string, at timestamp", bounded=False)
    rows = pipeline.source("rows", files, event_time="at")
    rows.key_by("k").window("counted", Tumbling(timedelta(minutes=1)), n=agg.count()).sink(
        "out", FilesTable()
    )
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)
    job = a_running_job(pipeline)
    monkeypatch.setenv("SLUICE_ROOT", job.store.root)
    a_savepoint(job, "drained", type=CheckpointType.SAVEPOINT_TERMINATE)

    dry = sluice("restore", "auctions", "--savepoint", "drained", "--dry-run")
    done = sluice("restore", "auctions", "--savepoint", "drained")

    expected = "warning: stage 'counted' saw the end of event time in checkpoint 1, as the job was"
    assert expected in " ".join(dry.out.split())
    assert expected in " ".join(done.out.split())
