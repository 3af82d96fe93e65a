"""Savepoints: copies that a person owns, and what is restored from them, here or from another root.

CLAIM gives a savepoint to the job, which deletes it when no checkpoint reads it any more.  A person
may dispose of one, unless the job needs it.  The table of docs/explanation/semantics.md, what each
kind of snapshot can do, holds cell by cell.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.hooked import Crash, crashing, hooked
from harness.jobs import (
    COUNT,
    ONE,
    RANK,
    STAGES,
    a_job,
    a_pipeline,
    a_running_job,
    keys_of,
    published_records,
    trigger_one,
)
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import fail_checkpoint
from sluice.coordinator.garbage import Orphans, collect_garbage
from sluice.coordinator.publication import commit
from sluice.coordinator.record import discard_claimed
from sluice.coordinator.restore import (
    RestoreRequest,
    foreign_target,
    resolve,
    restore,
    savepoint_target,
    stop,
)
from sluice.coordinator.savepoints import (
    copied_metadata,
    copy_files,
    copy_savepoint,
    dispose,
    publish,
    savepoint_names,
)
from sluice.coordinator.submission import adopt, configure, submit
from sluice.coordinator.trigger import trigger
from sluice.core.completed import CheckpointMetadata
from sluice.core.configuration import CheckpointType, ClaimMode, JobStatus, Retention
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.core.ids import CheckpointId, SavepointId
from sluice.core.plan import SnapshotOrigin
from sluice.core.restoring import Choice, Latest, RestoreOptions
from sluice.core.transitions import Consent
from sluice.declaration import aggregates as agg
from sluice.declaration.params import param
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError, ProtocolViolation, RestoreError, TableMismatch
from sluice.job.job import Job
from sluice.protocol.keys import check_savepoint_name
from sluice.sinks import FilesTable
from sluice.sources import Files, Nexmark
from sluice.store.journal import Journal
from tests.begun import begun, copied
from tests.planted import Caught, assert_is_caught
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    complete_one,
    finish,
    in_flight_records,
    savepoint_key,
    state_records,
    take_checkpoint,
    take_checkpoints,
)

EXPIRED, TASK_FAILURE = Reason.CHECKPOINT_EXPIRED, Reason.TASK_FAILURE
SAVEPOINT = CheckpointType.SAVEPOINT


def read_from(job: Job, checkpoint_id: CheckpointId) -> list[int]:
    return state_records(job, job.metadata(checkpoint_id), STAGES[0])


def test_a_savepoint_is_self_contained() -> None:
    root = "memory://a-savepoint-alone"
    outside = a_pipeline(location="memory://a-table-elsewhere")
    job = a_job(outside, root=root)
    submit(job, configure(outside, {}))
    take_checkpoint(job)
    taken = a_savepoint(job)
    job.store.delete([key for key in keys_of(job) if "/savepoints/" not in key])
    job = job.anew()

    mine, accept = savepoint_target(job, "mine"), RestoreOptions(accept_tables=True)
    restored = restore(job, mine, accept, configuration=configure(outside, {}))

    assert (restored.checkpoint_id, restored.origin and restored.origin.savepoint) == (
        taken,
        "mine",
    )
    assert savepoint_names(job) == ["mine"]
    after = take_checkpoint(job)
    assert after == taken + 2  # One id is left out behind what another life knows.
    assert read_from(job, after) == list(range(30))
    assert published_records(job) == list(range(30))


def test_a_savepoint_shares_no_file_with_the_job() -> None:
    job = a_running_job()
    take_checkpoint(job)
    taken = a_savepoint(job)

    copied = {handle.key for handle in job.savepoint_metadata("mine").files}

    assert copied
    assert all(key.startswith("auctions/savepoints/mine/") for key in copied)
    assert not copied & {handle.key for handle in job.metadata(taken).files}
    assert job.savepoint_metadata("mine").checkpoint_id == taken


def test_a_subsumed_savepoint_and_one_restored_from_keep_every_byte() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    a_savepoint(job)
    before = {key: job.store.get(key) for key in keys_of(job, "auctions/savepoints/")}
    restore(job, savepoint_target(job, "mine"))
    take_checkpoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finish(job, plan.checkpoint_id)
    stop(job, JobStatus.CANCELED)

    assert {key: job.store.get(key) for key in keys_of(job, "auctions/savepoints/")} == before


def test_after_its_first_checkpoint_the_job_needs_the_savepoint_no_more() -> None:
    job = a_running_job()
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"))

    first = take_checkpoint(job)

    named = [handle.key for handle in job.metadata(first).files]
    assert not [key for key in named if "/savepoints/" in key]


def test_until_then_a_failure_recovers_from_the_savepoint_again() -> None:
    job = a_running_job()
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"))
    plan = trigger_one(job)
    fail_checkpoint(job, plan.checkpoint_id, TASK_FAILURE, "lost", is_task_failure=True)

    restored = restore(job, Latest())

    assert restored.origin == job.savepoint_origin("mine")
    assert restored.origin.checkpoint_id == ONE
    assert read_from(job, take_checkpoint(job)) == list(range(20))


def test_a_restore_elsewhere_is_verified_with_the_parameters_it_is_given() -> None:
    pipeline = Pipeline("auctions")
    events = pipeline.source("events", Nexmark(param("events")))
    stream = events.key_by("bid_auction").aggregate("count_bids", bids=agg.count())
    stream.sink("results", FilesTable("memory://results-of-a-moved-job", changelog=True))
    job = a_job(pipeline)
    submit(job, configure(pipeline, {"events": "30"}, max_records_per_epoch=10))
    a_savepoint(job)
    job.store.delete([key for key in keys_of(job) if "/savepoints/" not in key])
    job = job.anew()

    restored = restore(
        job,
        savepoint_target(job, "mine"),
        RestoreOptions(accept_tables=True),  # They are of the life that is lost.
        configuration=configure(pipeline, {"events": "40"}),
    )

    assert restored.state.configuration.params == {"events": "40"}


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "a b", "x" * 129])
def test_a_savepoint_name_that_is_no_key_is_refused(name: str) -> None:
    assert check_savepoint_name("2024-01-01_before.upgrade") == "2024-01-01_before.upgrade"

    with pytest.raises(ConfigurationError, match=r"savepoint name .* is not usable; use up to 128"):
        check_savepoint_name(name)


def test_stopping_with_a_savepoint_suspends_and_draining_finishes() -> None:
    suspended, drained = a_running_job(), a_running_job()

    a_savepoint(suspended, type=CheckpointType.SAVEPOINT_SUSPEND)
    a_savepoint(drained, type=CheckpointType.SAVEPOINT_TERMINATE)

    assert suspended.state().status is JobStatus.SUSPENDED
    assert drained.state().status is JobStatus.FINISHED
    assert drained.metadata(ONE).drains
    assert restore(suspended, Latest()).state.status is JobStatus.RUNNING


def test_restoring_a_suspending_savepoint_whose_commit_died_resumes_the_job() -> None:
    job = a_running_job()
    complete_one(job, type=CheckpointType.SAVEPOINT_SUSPEND, savepoint_name="mine")

    assert restore(job, Latest()).state.status is JobStatus.RUNNING


CLAIM = RestoreOptions(claim_mode=ClaimMode.CLAIM)


def a_claiming_job(**checkpointing: Any) -> Job:
    job = a_running_job(a_pipeline(**{"num_retained": 1, **checkpointing}))
    take_checkpoint(job)
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"), CLAIM)
    return job


def take_compacting_checkpoint(job: Job) -> None:
    """Take a checkpoint whose state shares no file with the one before."""
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finish(job, plan.checkpoint_id)


def files_of(job: Job, name: str = "mine") -> list[str]:
    """The files of all incarnations of the name."""
    pointers = job.paths.savepoint_pointers(name)
    return [key for key in keys_of(job, job.paths.savepoint(name)) if not key.startswith(pointers)]


def claimed_by(job: Job) -> list[str]:
    return [savepoint.name for savepoint in job.state().claimed_savepoints]


def test_it_stays_whole_as_long_as_a_retained_checkpoint_reads_a_file_of_it() -> None:
    job = a_claiming_job()
    before = files_of(job)

    take_checkpoints(job, 3)

    assert files_of(job) == before
    assert claimed_by(job) == ["mine"]
    newest = job.state().completed[-1].checkpoint_id
    assert state_records(job, job.metadata(newest), STAGES[0]) == list(range(50))


def test_it_goes_with_the_last_checkpoint_that_reads_it_and_the_journal_says_so() -> None:
    job = a_claiming_job(num_retained=2)
    take_checkpoint(job)
    take_compacting_checkpoint(job)
    assert files_of(job) != []

    take_compacting_checkpoint(job)

    assert files_of(job) == []
    assert job.state().claimed_savepoints == ()
    newest = job.state().completed[-1].checkpoint_id
    assert state_records(job, job.metadata(newest), STAGES[0]) == list(range(50))


def test_it_stays_until_the_first_checkpoint_for_a_failure_goes_back_to_it() -> None:
    job = a_claiming_job()

    assert discard_claimed(job) == ()
    collect_garbage(job, grace_ms=0)
    restore(job, Latest())
    take_compacting_checkpoint(job)

    assert files_of(job) == []


def test_one_that_was_not_claimed_is_never_deleted() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoint(job)
    a_savepoint(job)
    a_savepoint(job, "other")
    before = files_of(job)
    restore(job, savepoint_target(job, "mine"))
    take_checkpoint(job)
    restore(job, savepoint_target(job, "other"), CLAIM)
    take_compacting_checkpoint(job)
    take_compacting_checkpoint(job)

    assert files_of(job) == before
    assert savepoint_names(job) == ["mine"]


def test_going_back_to_a_checkpoint_of_its_own_frees_the_job_of_it() -> None:
    job = a_claiming_job(num_retained=3)
    first = job.state().completed[0].checkpoint_id
    restore(job, Choice(first))

    take_checkpoint(job)

    assert (files_of(job), job.state().claimed_savepoints) == ([], ())
    assert job.state().status is JobStatus.RUNNING


@pytest.mark.parametrize("writes", range(9))
def test_a_crash_never_leaves_one_that_looks_complete_and_is_not(writes: int) -> None:
    job = a_claiming_job()
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finish_without_cleaning(job, plan.checkpoint_id)
    whole = files_of(job)

    with pytest.raises(Crash):
        discard_claimed(crashing(job, writes))

    deletes = max(0, writes - 4)  # The first write journals the release, the second frees the name.
    assert savepoint_names(job) == ([] if writes > 1 else ["mine"])
    assert len(files_of(job)) == max(0, len(whole) - deletes)
    assert claimed_by(job) == ["mine"]
    assert collect_garbage(job, grace_ms=0) == Orphans(), "neither garbage nor incomplete"
    assert (files_of(job), job.state().claimed_savepoints) == ([], ())


def finish_without_cleaning(job: Job, checkpoint_id: CheckpointId) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.coordinator.publication.discard_claimed", lambda job: ())
        finish(job, checkpoint_id)


def test_an_unreadable_checkpoint_keeps_it_and_does_not_hold_up_the_job() -> None:
    job = a_claiming_job()
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finish_without_cleaning(job, plan.checkpoint_id)
    job.store.put(job.paths.metadata(plan.checkpoint_id), b"{}")

    assert discard_claimed(job) == ()
    assert files_of(job) != []


def test_its_name_is_not_free_until_it_is_gone() -> None:
    job = a_claiming_job()
    plan = trigger_one(job)
    acknowledge(job, plan, compacts=True)
    finish_without_cleaning(job, plan.checkpoint_id)
    with pytest.raises(Crash):
        discard_claimed(crashing(job, 3))  # The release and the name; no file yet.

    with pytest.raises(ConfigurationError, match="was claimed by the job and is not deleted yet"):
        trigger(job, savepoint_name="mine", is_periodic=False)


def test_a_new_life_of_the_job_deletes_it_when_the_old_one_is_over() -> None:
    job = a_claiming_job()
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)
    submit(job, job.state().configuration)
    assert files_of(job) != []

    take_checkpoint(job)

    assert files_of(job) == []


MINE = "auctions/savepoints/mine/"


@begun
def a_job_with_two_savepoints() -> Job:
    """``mine`` and ``mine-2``, whose name begins as that of the other one."""
    job = a_running_job()
    a_savepoint(job, "mine")
    a_savepoint(job, "mine-2")
    return job


def beside(keys: list[str]) -> list[str]:
    return [key for key in keys if not key.startswith(MINE) and "/journal/" not in key]


def dispose_again(job: Job) -> None:
    assert dispose(job, "mine")


def collect(job: Job) -> None:
    collect_garbage(job, grace_ms=0)


def die_at(number: int, seen: list[str]) -> Callable[[str, str], None]:
    def before(verb: str, key: str) -> None:
        if len(seen) == number:
            raise Crash
        seen.append(f"{verb} {key}")

    return before


def test_what_belongs_to_it_goes_and_nothing_else() -> None:
    job = a_job_with_two_savepoints()
    before = keys_of(job)

    assert dispose(job, "mine")

    assert beside(keys_of(job)) == beside(before)
    assert files_of(job) == []
    assert len(keys_of(job, MINE)) == 1, "the name's last pointer stays"
    assert savepoint_names(job) == ["mine-2"]
    assert (job.state().claimed_savepoints, job.state().releasing_savepoints) == ((), ())
    restore(job, Latest())
    take_checkpoint(job)
    assert published_records(job) == list(range(30))
    a_savepoint(job, "mine")  # The name is free again.


def test_it_may_be_repeated_and_is_no_error_where_nothing_is() -> None:
    job = a_job_with_two_savepoints()
    dispose(job, "mine")
    before = keys_of(job)

    assert not dispose(job, "mine")
    assert not dispose(job, "never-taken")
    assert keys_of(job) == before
    with pytest.raises(ConfigurationError, match="is not usable"):
        dispose(job, "../checkpoints")


def test_it_is_refused_while_the_job_has_begun_from_it_and_completed_nothing() -> None:
    job = a_job_with_two_savepoints()
    restore(job, savepoint_target(job, "mine"))
    before = keys_of(job)

    with pytest.raises(ConfigurationError, match="was restored from it, and has completed no"):
        dispose(job, "mine")
    trigger_one(job)
    with pytest.raises(ConfigurationError, match="was restored from it, and has completed no"):
        dispose(job, "mine")
    assert [key for key in before if "/savepoints/" in key] == keys_of(job, "auctions/savepoints/")
    fail_checkpoint(job, job.state().pending[0].checkpoint_id, Reason.CHECKPOINT_EXPIRED, "slow")
    restore(job, Latest())
    take_checkpoint(job)

    assert dispose(job, "mine")
    restore(job, Latest())
    take_checkpoint(job)
    assert published_records(job) == list(range(30))


def test_a_claimed_one_is_the_jobs_to_delete() -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    a_savepoint(job, "mine")
    restore(job, savepoint_target(job, "mine"), CLAIM)
    take_checkpoint(job)

    with pytest.raises(ConfigurationError, match="claimed it, and deletes it when no retained"):
        dispose(job, "mine")


def test_one_that_is_being_taken_is_left_alone() -> None:
    job = a_running_job()
    plan = complete_one(
        job, type=CheckpointType.SAVEPOINT, savepoint_name="mine", is_periodic=False
    )

    with pytest.raises(ConfigurationError, match="it is being taken; wait for its end"):
        dispose(job, "mine")
    commit(job, plan.checkpoint_id)
    assert savepoint_names(job) == ["mine"]


def test_nothing_goes_while_a_retained_checkpoint_cannot_be_read_or_reads_it() -> None:
    """The second is a root that a hand left so."""
    job = a_job_with_two_savepoints()
    files = keys_of(job, MINE)
    key = job.paths.metadata(2)
    whole = job.store.get(key)
    assert whole is not None
    job.store.delete([key])

    with pytest.raises(RestoreError):
        dispose(job, "mine")
    theirs = job.store.get(savepoint_key(job))
    assert theirs is not None
    job.store.put(key, theirs)
    with pytest.raises(ConfigurationError, match="checkpoint 2 reads its files, and is retained"):
        dispose(job, "mine")
    job.store.put(key, whole)

    assert keys_of(job, MINE) == files
    assert dispose(job, "mine")


@pytest.mark.parametrize("ends", [dispose_again, collect], ids=["again", "garbage collector"])
def test_a_crash_at_any_request_is_finished_later(ends: Callable[[Job], None]) -> None:
    """Until all of it is gone it cannot be restored, and its name is not free."""
    for requests in range(100):
        job = a_job_with_two_savepoints()
        seen: list[str] = []
        try:
            dispose(hooked(job, die_at(requests, seen)), "mine")
        except Crash:
            released = [one.name for one in job.state().releasing_savepoints] == ["mine"]
            whole, files = "mine" in savepoint_names(job), files_of(job)
            assert released or whole or not files
            if released:
                with pytest.raises(ConfigurationError, match="choose another name"):
                    a_savepoint(job, "mine")
                ends(job)
                assert files_of(job) == []
            assert job.state().claimed_savepoints == ()
        else:
            break
    assert 5 < requests < 100


def test_a_job_that_ended_or_was_never_submitted_here_loses_its_savepoints_as_asked() -> None:
    ended = a_job_with_two_savepoints()
    stop(ended, JobStatus.CANCELED)
    assert dispose(ended, "mine")
    other = a_job(root="memory://copies-of-savepoints")
    copy_savepoint(ended, "mine-2", other.store.root)

    assert dispose(other, "mine-2")

    assert savepoint_names(other) == []
    submit(other, configure(other.pipeline, {}))
    take_checkpoint(other)
    assert discard_claimed(other) == ()
    assert other.metadata(CheckpointId(1)).checkpoint_id == 1


def retaken(job: Job, name: str = "nightly") -> None:
    """The name is free, and taken anew behind another epoch."""
    assert dispose(job, name)
    a_savepoint(job, name)


def test_a_restore_of_a_name_that_is_taken_anew_meanwhile_is_refused() -> None:
    """It was verified, and its tables decided, for another one."""
    job = a_running_job(a_pipeline(num_retained=9))
    take_checkpoint(job)
    a_savepoint(job, "nightly")
    take_checkpoint(job)
    target, is_first = savepoint_target(job, "nightly"), True

    def before(verb: str, key: str) -> None:
        nonlocal is_first
        if is_first and verb == "create" and "/journal/" in key:
            is_first = False
            retaken(job)

    with pytest.raises(RestoreError, match=r"a snapshot was disposed of .*; restore the job again"):
        restore(hooked(job, before), target, ROLL_BACK)

    assert (job.state().generation, job.state().base) == (1, 4)
    taken_anew = r"savepoint 'nightly' .* is another one now: it was disposed of"
    with pytest.raises(RestoreError, match=taken_anew):
        restore(job, target, ROLL_BACK)
    restore(job, savepoint_target(job, "nightly"), ROLL_BACK)
    take_checkpoint(job)
    assert published_records(job) == list(range(50))


@pytest.mark.parametrize("snapshot", ["savepoint", "checkpoint"])
def test_a_job_of_another_root_never_continues_another_snapshot_of_that_name(
    snapshot: str,
) -> None:
    """Its own restart says so, before its first checkpoint completes."""
    there, here = a_running_job(), a_job()
    take_checkpoint(there)
    a_savepoint(there, "nightly")
    if snapshot == "savepoint":
        moved(here, there, savepoint="nightly")
        retaken(there)
    else:
        moved(here, there, checkpoint_id=ONE)
        there.store.delete(keys_of(there))
        submit(there.anew(), configure(there.pipeline, {}))
        take_checkpoint(there.anew())

    with pytest.raises(RestoreError, match="was chosen"):
        restore(here, Latest(), only_generation=1)

    with pytest.raises(RestoreError, match="was chosen"):
        here.base_metadata(here.state())


@dataclass
class Late:
    """Its first *verb* of a key that *matches* is on its way for long, and the sender dies."""

    store: Any
    verb: str
    matches: Callable[[str], bool]
    held: list[Callable[[], object]]

    @property
    def root(self) -> str:
        return str(self.store.root)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def delete(self, keys: Any) -> None:
        keys = list(keys)
        if self.verb == "delete" and not self.held and any(map(self.matches, keys)):
            self.held.append(lambda: self.store.delete(keys))
            raise Crash
        self.store.delete(keys)

    def create(self, key: str, body: bytes) -> Any:
        if self.verb == "create" and not self.held and self.matches(key):
            self.held.append(lambda: self.store.create(key, body))
            raise Crash
        return self.store.create(key, body)


def is_file(key: str) -> bool:
    return "/savepoints/nightly/" in key and key.endswith((".arrow", "_metadata"))


def is_pointer(key: str) -> bool:
    return "/savepoints/nightly/pointers/" in key


@pytest.mark.parametrize("verb", ["delete", "create"])
@pytest.mark.parametrize("matches", [is_file, is_pointer])
@pytest.mark.parametrize("claims", [False, True])
def test_a_disposal_that_arrives_late_touches_no_later_savepoint_of_the_name(
    verb: str, matches: Callable[[str], bool], claims: bool
) -> None:
    job = a_running_job(a_pipeline(num_retained=1))
    take_checkpoint(job)
    a_savepoint(job, "nightly")
    take_checkpoints(job, 2)
    held: list[Callable[[], object]] = []
    slow = Late(job.store, verb, matches, held)
    died = False
    try:
        dispose(replace(job, store=slow, journal=Journal(slow, job.names)), "nightly")
    except Crash:
        died = True
    assert died == (verb == "delete" or matches is is_pointer)
    dispose(job, "nightly")
    a_savepoint(job, "nightly")
    whole = {key: job.store.get(key) for key in files_of(job, "nightly")}
    if claims:
        restore(job, savepoint_target(job, "nightly"), CLAIM)
        take_checkpoints(job, 2)

    for arrives in held:
        arrives()

    assert {key: job.store.get(key) for key in files_of(job, "nightly")} == whole
    if claims:
        restore(job, Latest())
    else:
        restore(job, savepoint_target(job, "nightly"))
    take_checkpoint(job)
    assert savepoint_names(job) == ["nightly"]


def test_who_has_freed_the_name_and_sleeps_deletes_nothing_of_the_next_savepoint() -> None:
    job = a_running_job()
    take_checkpoint(job)
    a_savepoint(job, "nightly")

    def before(verb: str, key: str) -> None:
        if verb == "list" and key.startswith(NIGHTLY) and not savepoint_names(job):
            dispose(job, "nightly")  # Another one finishes it.
            a_savepoint(job, "nightly")

    dispose(hooked(job, before), "nightly")

    assert savepoint_names(job) == ["nightly"]
    restore(job, savepoint_target(job, "nightly"))
    take_checkpoint(job)


def test_what_is_written_late_brings_no_half_of_a_savepoint_back() -> None:
    """Every object of it, and every pointer, is written once more after it was disposed of."""
    job = a_running_job()
    take_checkpoint(job)
    plan = trigger_one(job, type=SAVEPOINT, savepoint_name="nightly", is_periodic=False)
    written: dict[str, bytes] = {}

    def before(verb: str, key: str) -> None:
        written.update({one: job.store.get(one) or b"" for one in keys_of(job, NIGHTLY)})

    acknowledge(job, plan)
    finish(hooked(job, before), plan.checkpoint_id)
    before("", "")
    dispose(job, "nightly")
    gone = savepoint_target_or_none(job)
    for key, body in written.items():
        job.store.create(key, body)

    assert gone is savepoint_target_or_none(job) is None
    assert savepoint_names(job) == []
    assert not dispose(job, "nightly")
    taken = a_savepoint(job, "nightly")
    assert job.savepoint_metadata("nightly").checkpoint_id == taken
    collect_garbage(job, grace_ms=0)
    assert {job.paths.savepoint_of(key) for key in files_of(job, "nightly")} == {
        job.state().completed[-1].savepoint
    }
    restore(job, savepoint_target(job, "nightly"))


NIGHTLY = "auctions/savepoints/nightly/"


def savepoint_target_or_none(job: Job) -> object:
    try:
        return savepoint_target(job, "nightly")
    except RestoreError:
        return None


def test_a_savepoint_whose_name_another_writer_took_fails_before_it_is_true() -> None:
    """The job is not FINISHED with a savepoint that holds something else."""
    job = a_running_job(a_pipeline(num_retained=9))
    take_checkpoint(job)
    plan = trigger_one(
        job, type=CheckpointType.SAVEPOINT_TERMINATE, savepoint_name="final", is_periodic=False
    )
    acknowledge(job, plan)
    theirs = SavepointId("final", "theirs")
    job.savepoints.reserve(theirs, ONE)
    copy_files(job, job.metadata(ONE), theirs)
    publish(job, copied_metadata(job, job.metadata(ONE), theirs), theirs)

    with pytest.raises(ConfigurationError, match=r"savepoint 'final' exists in .*; choose another"):
        finalize(job, plan.checkpoint_id)

    assert job.state().status is JobStatus.RUNNING
    assert job.savepoint_metadata("final").checkpoint_id == ONE
    fail_checkpoint(job, plan.checkpoint_id, EXPIRED, "slow")
    assert job.savepoint_metadata("final").checkpoint_id == ONE


@pytest.mark.parametrize("life", ["", "theirs"])
def test_a_commit_completes_its_own_savepoint_and_no_other(life: str) -> None:
    """The pointers of its name were lost with a root that was copied in part."""
    job = a_running_job()
    complete_one(job, type=SAVEPOINT, savepoint_name="mine", is_periodic=False)
    job.store.delete(keys_of(job, job.paths.savepoint_pointers("mine")))
    if life:
        job.savepoints.reserve(SavepointId("mine", "theirs"), ONE, life=life)
        with pytest.raises(ConfigurationError, match="savepoint 'mine' is being written"):
            commit(job, ONE)
        assert dispose(job, "mine")  # Theirs: a person decides, and the job goes on.

    commit(job, ONE)

    assert savepoint_names(job) == ([] if life else ["mine"])
    assert job.state().completed[-1].is_committed


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_commit_that_slept_through_a_disposal_does_not_bring_it_back(is_taken: bool) -> None:
    job = a_running_job()
    plan = complete_one(job, type=SAVEPOINT, savepoint_name="mine", is_periodic=False)
    is_first = True

    def before(verb: str, key: str) -> None:
        nonlocal is_first
        if is_first and (verb, key) == ("list", job.paths.savepoint_pointers("mine")):
            is_first = False
            commit(job, plan.checkpoint_id)
            dispose(job, "mine")
            a_savepoint(job, "mine")
            if not is_taken:
                dispose(job, "mine")

    commit(hooked(job, before), plan.checkpoint_id)

    assert not is_first
    assert savepoint_names(job) == ["mine"] * is_taken
    assert len({job.paths.savepoint_of(key) for key in files_of(job)}) == is_taken


def test_a_disposed_savepoint_is_not_restored_where_its_metadata_arrives_late() -> None:
    """The restore that was asked for before: its task is tried again."""
    job = a_running_job()
    a_savepoint(job, "mine")
    chosen = savepoint_target(job, "mine")
    assert chosen.origin is not None
    assert chosen.origin.incarnation is not None
    key = job.names.savepoint_metadata(chosen.origin.incarnation)
    body = job.store.get(key)
    assert body is not None
    dispose(job, "mine")
    job.store.create(key, body)

    with pytest.raises(RestoreError, match="there is no savepoint 'mine'"):
        restore(job, chosen)


def test_what_is_written_of_an_aborted_savepoint_goes_and_its_name_is_free() -> None:
    job = a_running_job()
    plan = trigger_one(job, type=SAVEPOINT, savepoint_name="mine", is_periodic=False)
    acknowledge(job, plan)
    with pytest.raises(Crash):
        finalize(hooked(job, die_before_completed), plan.checkpoint_id)
    assert files_of(job)

    fail_checkpoint(job, plan.checkpoint_id, EXPIRED, "slow")

    assert files_of(job) == []
    a_savepoint(job, "mine")


def test_or_the_garbage_collector_does_it() -> None:
    job = a_running_job()
    plan = trigger_one(job, type=SAVEPOINT, savepoint_name="mine", is_periodic=False)
    acknowledge(job, plan)
    with pytest.raises(Crash):
        finalize(hooked(job, die_before_completed), plan.checkpoint_id)
    assert collect_garbage(job, grace_ms=0) == Orphans(), "it may yet be completed"
    with pytest.raises(Crash):
        fail_checkpoint(crashing(job, 1), plan.checkpoint_id, EXPIRED, "slow")

    collect_garbage(job, grace_ms=0)

    assert files_of(job) == []
    a_savepoint(job, "mine")


def test_a_collection_beside_the_commit_of_a_savepoint_takes_nothing_of_it() -> None:
    """It listed the name while it was written, and loads the journal once all is committed."""
    job = a_running_job()
    plan = complete_one(job, type=SAVEPOINT, savepoint_name="mine", is_periodic=False)
    is_first = True

    def before(verb: str, key: str) -> None:
        nonlocal is_first
        if is_first and (verb, key) == ("list", job.paths.journal()):
            is_first = False
            commit(job, plan.checkpoint_id)

    collect_garbage(hooked(job, before), grace_ms=0)

    assert not is_first
    restore(job, savepoint_target(job, "mine"))


def test_a_copy_that_was_disposed_of_and_made_again_is_another_one() -> None:
    job, root = a_running_job(), "memory://backups-made-again"
    a_savepoint(job, "mine")
    there = a_job(root=root)

    def copy() -> SnapshotOrigin:
        copy_savepoint(job, "mine", root)
        copy_savepoint(job, "mine", root)  # A task that is tried again.
        return there.savepoint_origin("mine")

    first = copy()
    assert dispose(there, "mine")
    second = copy()

    assert first.token != second.token
    assert first.checkpoint_id == second.checkpoint_id == ONE
    a_running = moved(a_job(), there, savepoint="mine")
    assert read_from(a_running, take_checkpoint(a_running)) == list(range(20))


def test_a_savepoint_of_an_older_format_is_refused_by_name() -> None:
    job = a_running_job()
    a_savepoint(job, "mine")
    raw = job.store.get(savepoint_key(job))
    job.store.put("auctions/savepoints/old/_metadata", raw or b"")

    with pytest.raises(ProtocolViolation, match=r"old/_metadata is of a format version before 7"):
        savepoint_target(job, "old")


NO_OPTIONS = RestoreOptions()
ROLL_BACK = RestoreOptions(roll_back_tables=True)
ACCEPT = RestoreOptions(accept_tables=True)


@pytest.fixture(params=["memory", "file"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    """A cancelled job of another root: checkpoints 1 and 3, and savepoint "mine", which is 2."""
    root = None if request.param == "memory" else f"file://{tmp_path}/elsewhere"
    job = a_job(root=root)
    restore(job, Latest(), configuration=configure(job.pipeline, {}))
    take_checkpoint(job)
    a_savepoint(job)
    take_checkpoint(job)
    stop(job, JobStatus.CANCELED)
    return job


def moved(job: Job, elsewhere: Job, *, options: RestoreOptions = NO_OPTIONS, **target: Any) -> Job:
    """*job* restored from the root of the other."""
    found = foreign_target(job, elsewhere.location.root, **target)
    restore(job, found, options, configuration=configure(job.pipeline, {}))
    return job


def absorbed(job: Job, checkpoint_id: CheckpointId) -> list[list[int]]:
    return [state_records(job, job.metadata(checkpoint_id), stage) for stage in STAGES]


@pytest.mark.parametrize(
    ("target", "continued"),
    [({}, 3), ({"checkpoint_id": ONE}, 1), ({"savepoint": "mine"}, 2)],
    ids=["latest", "numbered", "savepoint"],
)
def test_a_job_goes_on_in_another_root(
    elsewhere: Job, target: dict[str, Any], continued: int
) -> None:
    bytes_before = {key: elsewhere.store.get(key) for key in keys_of(elsewhere)}

    job = moved(a_job(), elsewhere, **target)
    first = take_checkpoint(job)
    second = take_checkpoint(job)

    assert (first, job.metadata(first).parent) == (continued + 1, continued)
    origin = job.metadata(first).origin
    assert origin is not None
    assert replace(origin, token="", digest="") == SnapshotOrigin(
        checkpoint_id=CheckpointId(continued),
        savepoint=target.get("savepoint"),
        root=elsewhere.location.root,
        pipeline="auctions",
    )
    assert (bool(origin.token), bool(origin.digest)) == (True, True)
    assert all(handle.root == "" for handle in job.metadata(first).files)
    assert job.metadata(second).origin is None
    assert absorbed(job, second) == [list(range(10 * continued + 20))] * 2
    # The rows before are in the other root's table; this one's begins with the restore.
    assert published_records(job) == list(range(10 * continued, 10 * continued + 20))
    assert {key: elsewhere.store.get(key) for key in keys_of(elsewhere)} == bytes_before


def test_the_other_root_is_not_needed_after_the_first_checkpoint(elsewhere: Job) -> None:
    job = moved(a_job(), elsewhere)
    take_checkpoint(job)
    elsewhere.store.delete(keys_of(elsewhere))

    restore(job, Latest())

    assert absorbed(job, take_checkpoint(job)) == [list(range(50))] * 2
    assert published_records(job) == list(range(30, 50))


def test_until_then_a_failure_starts_from_the_other_root_again(elsewhere: Job) -> None:
    job = moved(a_job(), elsewhere)
    acknowledge(job, trigger_one(job))
    fail_checkpoint(job, CheckpointId(4), Reason.TASK_FAILURE, "lost", is_task_failure=True)

    restored = restore(job, Latest())

    assert restored.origin is not None
    assert restored.origin.root == elsewhere.location.root
    assert absorbed(job, take_checkpoint(job)) == [list(range(40))] * 2


def test_a_savepoint_taken_first_after_the_move_is_self_contained(elsewhere: Job) -> None:
    job = moved(a_job(), elsewhere)

    a_savepoint(job, "here")

    files = job.savepoint_metadata("here").files
    assert files
    assert {handle.root for handle in files} == {""}
    assert all(handle.key.startswith("auctions/savepoints/here/") for handle in files)


def test_a_table_that_is_kept_outside_of_both_roots_goes_on(elsewhere: Job) -> None:
    outside = a_pipeline(location=f"memory://{secrets.token_hex(6)}")
    there = moved(a_job(outside), elsewhere, checkpoint_id=ONE)
    take_checkpoint(there)
    stop(there, JobStatus.CANCELED)

    with pytest.raises(RestoreError, match=r"'results' shows checkpoint 2, which life '"):
        moved(a_job(outside), there)
    here = moved(a_job(outside), there, options=ACCEPT)
    take_checkpoint(here)

    assert published_records(here) == list(range(10, 30))
    there_again = restore(there, Latest()).state
    with pytest.raises(TableMismatch, match=f"belongs to life {here.state().life!r}"):
        take_checkpoint(there)
    assert there_again.base == 2


def test_a_pipeline_may_go_on_under_another_name(elsewhere: Job) -> None:
    renamed = a_pipeline()
    renamed.uid = "auctions_two"

    job = moved(a_job(renamed), elsewhere, pipeline="auctions")

    assert absorbed(job, take_checkpoint(job)) == [list(range(40))] * 2


def test_all_tables_begin_anew_whatever_generation_the_other_job_had(elsewhere: Job) -> None:
    """Both are of generation 1: it says nothing about whose lineage this is."""
    job = moved(a_job(), elsewhere)

    first = job.metadata(take_checkpoint(job))

    assert first.generation == elsewhere.metadata(CheckpointId(3)).generation
    assert set(first.tables.values()) == {4}


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ({"savepoint": "nobodys"}, "there is no savepoint 'nobodys' of job 'auctions' in "),
        ({"checkpoint_id": CheckpointId(7)}, r"has not completed checkpoint 7, or .* are: 1, 2, 3"),
        ({"pipeline": "bids"}, r"job 'bids' has no completed checkpoint in "),
    ],
)
def test_what_is_not_there_is_named(elsewhere: Job, target: dict[str, Any], problem: str) -> None:
    job = a_job()

    with pytest.raises(RestoreError, match=problem):
        moved(job, elsewhere, **target)
    assert keys_of(job) == []


def die_before_completed(verb: str, key: str) -> None:
    if verb == "create" and "/journal/" in key:
        raise Crash


@pytest.mark.parametrize("form", ["number", "path"])
@pytest.mark.parametrize("is_aborted", [False, True])
def test_only_the_other_roots_journal_says_what_is_completed_there(
    form: str, is_aborted: bool
) -> None:
    """Its ``_metadata`` is written before, and stays a while if the checkpoint is aborted."""
    there, job = a_running_job(), a_job()
    take_checkpoint(there)
    plan = trigger_one(there)
    acknowledge(there, plan)
    with pytest.raises(Crash):
        finalize(hooked(there, die_before_completed), plan.checkpoint_id)
    if is_aborted:
        with pytest.raises(Crash):  # So far, and it dies before it deletes anything.
            fail_checkpoint(crashing(there, 1), plan.checkpoint_id, EXPIRED, "slow")
    assert there.store.get(there.paths.metadata(plan.checkpoint_id))
    root = there.location.root
    request = (
        RestoreRequest(root=root, checkpoint=plan.checkpoint_id)
        if form == "number"
        else RestoreRequest(pointer=f"{root}/{there.paths.checkpoint(plan.checkpoint_id)}")
    )

    with pytest.raises(RestoreError, match=r"has not completed checkpoint 2, or .* there are: 1$"):
        resolve(job, job.state(), request)
    assert keys_of(job) == []


def test_a_file_that_is_missing_there_is_named(elsewhere: Job) -> None:
    lost = elsewhere.metadata(ONE).files[0].key
    elsewhere.store.delete([lost])

    with pytest.raises(RestoreError, match=f"{lost} is missing"):
        moved(a_job(), elsewhere)


def test_what_lies_in_another_root_cannot_be_claimed(elsewhere: Job) -> None:
    job = a_job()
    target = foreign_target(job, elsewhere.location.root)

    with pytest.raises(RestoreError, match=r"checkpoint 3 of .* cannot be claimed; restore it w"):
        restore(job, target, CLAIM, configuration=configure(job.pipeline, {}))


def test_several_jobs_go_on_from_one_savepoint() -> None:
    first = a_running_job()
    take_checkpoint(first)
    a_savepoint(first)
    before = {key: first.store.get(key) for key in keys_of(first, "auctions/savepoints/")}

    others = [moved(a_job(), first, savepoint="mine") for _ in range(2)]
    for job in (first, *others):
        if job is first:
            restore(job, savepoint_target(job, "mine"))
        take_checkpoint(job)
        assert absorbed(job, take_checkpoint(job)) == [list(range(40))] * 2
        assert not [
            handle
            for completed in job.state().completed[-2:]
            for handle in job.metadata(completed.checkpoint_id).files
            if "/savepoints/" in handle.key or handle.root
        ]

    assert {key: first.store.get(key) for key in keys_of(first, "auctions/savepoints/")} == before


def test_the_first_checkpoint_is_taken_even_without_new_records(tmp_path: Path) -> None:
    """Only then can the owner of the savepoint delete it."""
    (tmp_path / "names.txt").write_text("ann\nbob\n")
    pipeline = Pipeline("auctions")
    lines = pipeline.source("lines", Files(str(tmp_path / "names.txt"), bounded=False))
    lines.key_by("line").aggregate("count_bids", n=agg.count()).sink(
        "results", FilesTable(changelog=True)
    )
    job = a_running_job(pipeline)
    a_savepoint(job)
    restore(job, savepoint_target(job, "mine"))

    first = trigger_one(job)

    assert (first.records, first.is_full) == (0, True)


def test_a_claimed_savepoint_is_shared_in_place() -> None:
    job = a_running_job()
    a_savepoint(job)

    restore(job, savepoint_target(job, "mine"), CLAIM)
    plan = trigger_one(job)
    acknowledge(job, plan)
    restore(job, Latest())  # Nothing has completed: it is still claimed.
    taken = take_checkpoint(job)

    assert not plan.is_full
    assert claimed_by(job) == ["mine"]
    assert [h for h in job.metadata(taken).files if h.key.startswith("auctions/savepoints/mine/")]
    assert absorbed(job, taken) == [list(range(20))] * 2


def a_table(job: Job, checkpoint_id: CheckpointId) -> Any:
    cut = job.metadata(checkpoint_id).source("names")
    assert cut is not None
    return cut.table


@pytest.fixture
def pinning_job(tmp_path: Path) -> Job:
    (tmp_path / "names.txt").write_text("ann\nbob\n")
    pipeline = a_pipeline()
    pipeline.source("names", Files(str(tmp_path / "names.txt")), table=True)
    return a_running_job(pipeline)


def append_to(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ann\nbob\ncid\n")


def test_a_table_source_is_pinned_at_every_barrier_and_kept_while_it_does_not_change(
    pinning_job: Job, tmp_path: Path
) -> None:
    one, two = take_checkpoint(pinning_job), take_checkpoint(pinning_job)
    append_to(tmp_path)
    three = take_checkpoint(pinning_job)

    tables = [a_table(pinning_job, taken) for taken in (one, two, three)]
    assert tables[0] == tables[1]
    assert [table.rows for table in tables] == [2, 2, 3]


@pytest.mark.parametrize("options", [RestoreOptions(), CLAIM], ids=["NO_CLAIM", "CLAIM"])
def test_a_pinned_table_is_written_anew_unless_the_savepoint_is_claimed(
    pinning_job: Job, options: RestoreOptions
) -> None:
    a_savepoint(pinning_job)
    restore(pinning_job, savepoint_target(pinning_job, "mine"), options)

    table = a_table(pinning_job, take_checkpoint(pinning_job))

    is_claimed = options.claim_mode is ClaimMode.CLAIM
    assert table.key.startswith("auctions/savepoints/") == is_claimed
    assert table.rows == 2


PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "semantics.md"
HEADING = "## What each kind of snapshot can do"
DROP = RestoreOptions(allow_non_restored_state=True)
RECORDS = 30  # Before the snapshot, which is the third checkpoint; ten come with the next one.

KINDS: dict[str, dict[str, bool]] = {
    "aligned checkpoint": {},
    "unaligned checkpoint": {"unaligned": True},
    "native savepoint": {"is_canonical": False},
    "canonical savepoint": {"is_canonical": True},
}


@dataclass(frozen=True)
class Taken:
    """A snapshot of a job that goes on; ``name`` is that of a savepoint."""

    job: Job
    checkpoint_id: CheckpointId
    name: str | None
    checkpointing: dict[str, Any]

    @property
    def metadata(self) -> CheckpointMetadata:
        if self.name is None:
            return self.job.metadata(self.checkpoint_id)
        return self.job.savepoint_metadata(self.name)

    @property
    def folder(self) -> str:
        paths = self.job.paths
        return paths.checkpoint(self.checkpoint_id) if not self.name else paths.savepoint(self.name)

    def changed(self, *stages: str) -> Job:
        """The job, as a process sees it whose declaration has other stages."""
        pipeline = a_pipeline(stages=stages, appends=True, **self.checkpointing)
        return replace(self.job, pipeline=pipeline)

    def request(self, **given: Any) -> RestoreRequest:
        named = {"savepoint": self.name} if self.name else {"checkpoint": self.checkpoint_id}
        return RestoreRequest(**named | given)


def taken(kind: str, **checkpointing: Any) -> Taken:
    form = KINDS[kind]
    checkpointing |= {name: value for name, value in form.items() if name == "unaligned"}
    name = "mine" if "is_canonical" in form else None
    return Taken(after_three(kind=kind, **checkpointing), CheckpointId(3), name, checkpointing)


@begun
def after_three(*, kind: str, **checkpointing: Any) -> Job:
    job = a_running_job(a_pipeline(appends=True, **checkpointing))
    take_checkpoints(job, 2)
    if "is_canonical" in KINDS[kind]:
        a_savepoint(job, "mine", **KINDS[kind])
    else:
        take_checkpoint(job)
    return job


def goes_on(job: Job, request: RestoreRequest, *stages: str) -> bool:
    """Whether the job is restored as asked, and has each record once in the state of *stages*, or
    in flight to them, behind its next checkpoint.
    """
    resolved = resolve(job, job.state(), request)
    restore(job, resolved.target, resolved.options, configuration=resolved.configuration)
    metadata = job.metadata(take_checkpoint(job))
    for stage in stages or STAGES:
        records = state_records(job, metadata, stage) + in_flight_records(job, metadata, stage)
        assert sorted(records) == list(range(RECORDS + 10)), stage
    return True


def goes_on_elsewhere(snapshot: Taken, root: str) -> bool:
    """Whether a job of a new root goes on from the snapshot where it lies below *root*."""
    job = a_job(snapshot.job.pipeline)
    where = {"savepoint": snapshot.name} if snapshot.name else {}
    here = foreign_target(job, root, checkpoint_id=snapshot.checkpoint_id, **where)
    restore(job, here, configuration=configure(job.pipeline, {}))
    return job.metadata(take_checkpoint(job)).origin is not None


def in_its_own_root(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.job, snapshot.request())


def in_another_root(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on_elsewhere(snapshot, snapshot.job.location.root)


def by_its_path(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.job, RestoreRequest(pointer=f"{snapshot.folder}_metadata"))


def with_another_parallelism(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.job, snapshot.request(parallelism=("3",)))


def with_a_stage_behind(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on(snapshot.changed(COUNT, RANK, "more"), snapshot.request())


def with_a_stage_between(kind: str) -> bool:
    snapshot = taken(kind)
    kept = RestoreOptions(consent=Consent(kept=(RANK,)))
    return goes_on(snapshot.changed(COUNT, "between", RANK), snapshot.request(options=kept))


def without_a_stage(kind: str) -> bool:
    snapshot = taken(kind)
    with pytest.raises(RestoreError, match="'rank_bids' has state"):
        goes_on(snapshot.changed(COUNT), snapshot.request(), COUNT)
    return goes_on(snapshot.changed(COUNT), snapshot.request(options=DROP), COUNT)


def as_its_folder_alone(kind: str) -> bool:
    snapshot = taken(kind)
    return goes_on_elsewhere(snapshot, copied(snapshot.job, snapshot.folder).location.root)


def with_its_whole_root(kind: str) -> bool:
    snapshot = taken(kind)
    moved = copied(snapshot.job)
    adopt(moved)
    return goes_on(moved, snapshot.request())


def claimed(kind: str) -> bool:
    snapshot = taken(kind)
    goes_on(snapshot.job, snapshot.request(options=CLAIM))
    return claimed_by(snapshot.job) == [snapshot.name]


def after_newer_ones_and_the_end(kind: str) -> bool:
    """Each alone would end a checkpoint, so each is asked."""
    newer = taken(kind, num_retained=1)
    take_checkpoint(newer.job)
    ended = taken(kind, externalized_checkpoint_retention=Retention.NEVER_RETAIN_AFTER_TERMINATION)
    stop(ended.job, JobStatus.CANCELED)
    stays = [happens(partial(goes_on, one.job, one.request()), GONE) for one in (newer, ended)]
    assert len({*stays}) == 1
    return all(stays)


def incrementally(kind: str) -> bool:
    snapshot = taken(kind)
    before = {one.key for one in snapshot.job.metadata(CheckpointId(2)).files}
    return any(one.key in before for one in snapshot.metadata.files)


PLAYS: dict[str, Callable[[str], bool]] = {
    "Restored in its own root": in_its_own_root,
    "Restored in another root, read where it lies": in_another_root,
    "Restored by its path": by_its_path,
    "Restored with another parallelism": with_another_parallelism,
    "A new stage behind the others": with_a_stage_behind,
    "A new stage between two others": with_a_stage_between,
    "State of a stage that is gone is dropped, if asked": without_a_stage,
    "Self-contained: its folder alone, copied elsewhere": as_its_folder_alone,
    "Relocatable with its whole root": with_its_whole_root,
    "Given to the job (CLAIM)": claimed,
    "Stays when newer ones come, and when the job ends": after_newer_ones_and_the_end,
    "Incremental: shares files with the one before": incrementally,
}

GONE = "is not retained"
REFUSALS = {
    "A new stage between two others": "'rank_bids' has rows in flight",
    "Self-contained: its folder alone, copied elsewhere": "has not completed checkpoint 3",
    "Given to the job (CLAIM)": "only a savepoint can be claimed",
}


def happens(play: Callable[[], bool], refusal: str | None) -> bool:
    """Whether it is done; only its own *refusal* says that it cannot be."""
    try:
        return play()
    except (ConfigurationError, RestoreError) as error:
        if refusal is None or refusal not in str(error):
            raise
        return False


def the_table() -> dict[str, dict[str, str]]:
    """The page's cells, by row and kind."""
    lines = PAGE.read_text().split(HEADING)[1].split("\n## ")[0].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    (_, *kinds), _, *cells = rows
    return {name: dict(zip(kinds, row, strict=True)) for name, *row in cells}


def test_the_page_has_the_kinds_and_the_rows_that_are_played() -> None:
    table = the_table()

    assert [*table] == [*PLAYS]
    assert all([*row] == [*KINDS] for row in table.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", PLAYS)
def test_a_cell_says_what_happens(what: str, kind: str) -> None:
    happened = happens(partial(PLAYS[what], kind), REFUSALS.get(what))

    assert the_table()[what][kind] == ("yes" if happened else "no")


def test_a_stage_goes_between_where_rows_in_flight_may_be_lost() -> None:
    snapshot = taken("unaligned checkpoint")
    assert in_flight_records(snapshot.job, snapshot.metadata, RANK)

    with pytest.raises(RestoreError, match="'rank_bids' has rows in flight"):
        with_a_stage_between("unaligned checkpoint")
    changed = snapshot.changed(COUNT, "between", RANK)
    lossy = replace(DROP, consent=Consent(kept=(RANK,)))
    assert goes_on(changed, snapshot.request(options=lossy), COUNT)


FAULTS = [
    Caught(
        "savepoints of one name share a folder", "protocol.keys:PipelinePaths.incarnation",
        "{savepoint.token}/", "0123456789abcdef/",
        test_a_disposal_that_arrives_late_touches_no_later_savepoint_of_the_name,
        {"verb": "delete", "matches": is_file, "claims": False}, (RestoreError,),
    ),
    Caught(
        "what lies under a savepoint's name is deleted with it",
        "coordinator.record:delete_savepoint",
        "job.names.incarnation(savepoint)", "job.names.savepoint(savepoint.name)",
        test_who_has_freed_the_name_and_sleeps_deletes_nothing_of_the_next_savepoint,
        raises=(RestoreError,),
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
