"""``sluice checkpoint``, ``savepoint`` and ``stop``, with a host that takes the request up."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from harness.jobs import a_pipeline, trigger_one
from sluice.cli.acts import _hint
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import abort_checkpoint
from sluice.coordinator.publication import commit
from sluice.coordinator.restore import stop
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import take_up
from sluice.core.configuration import JobStatus
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.job.job import Job, open_job
from sluice.store.object_store import machine_clock_ms
from sluice.store.open import StoreLocation
from tests.cli.conftest import Sluice
from tests.subtasks import acknowledge


@pytest.fixture
def job() -> Job:
    """On the wall clock, as the command line is."""
    job = open_job(a_pipeline(), StoreLocation(root=f"memory://{secrets.token_hex(6)}"))
    submit(job, configure(job.pipeline, {}))
    return job


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.cli.acts.POLL_S", 0.01)
    monkeypatch.setattr("sluice.cli.acts.HINT_AFTER_S", 0.0)


def completes(job: Job, plan: CheckpointPlan) -> None:
    acknowledge(job, plan)
    finalize(job, plan.checkpoint_id)
    commit(job, plan.checkpoint_id)


@contextmanager
def a_host(
    job: Job,
    act: Callable[[Job, CheckpointPlan], None] = completes,
    *,
    after: threading.Event | None = None,
) -> Iterator[None]:
    """A thread that takes up one request, once *after* has happened."""

    def drive() -> None:
        if after is not None:
            after.wait()
        taken = None
        while taken is None:
            taken = take_up(job, cause="sluice run")
        act(job, taken.plan)

    thread = threading.Thread(target=drive)
    thread.start()
    yield
    thread.join()


def test_a_checkpoint_is_taken_now(
    job: Job, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_told = threading.Event()

    def hint(job: Job) -> str:
        is_told.set()
        return _hint(job)

    monkeypatch.setattr("sluice.cli.acts._hint", hint)
    with a_host(job, after=is_told):
        answer = sluice("checkpoint", "auctions")

    assert (answer.code, answer.out) == (0, "checkpoint 1 completed\n")
    assert "what drives the job takes it up: 'sluice run auctions'" in answer.err


def test_a_full_and_forced_checkpoint_is_taken(job: Job, sluice: Sluice) -> None:
    before = trigger_one(job)
    taken = list[CheckpointPlan]()

    def completes_both(job: Job, plan: CheckpointPlan) -> None:
        taken.append(plan)
        completes(job, before)
        completes(job, plan)

    with a_host(job, completes_both):
        answer = sluice("checkpoint", "auctions", "--full", "--force")

    assert (answer.code, answer.out) == (0, "checkpoint 2 completed\n")
    assert [(plan.is_full, plan.parent) for plan in taken] == [(True, 1)]


def test_a_savepoint_is_taken_and_the_job_goes_on(job: Job, sluice: Sluice) -> None:
    with a_host(job):
        told = sluice("savepoint", "auctions", "mine", "--canonical", "--json").json

    assert (told["status"], told["checkpoint"], told["savepoint"]) == ("COMPLETED", 1, "mine")
    assert job.savepoint_metadata("mine").checkpoint_id == 1
    assert "savepoint 'mine' exists" in sluice("savepoint", "auctions", "mine").error


@pytest.mark.parametrize(("options", "status"), [((), "SUSPENDED"), (("--drain",), "FINISHED")])
def test_a_stop_ends_with_a_savepoint(
    job: Job, sluice: Sluice, options: tuple[str, ...], status: str
) -> None:
    with a_host(job):
        answer = sluice("stop", "auctions", "--savepoint", "last", *options)

    assert answer.out.startswith(f"auctions is {status}; savepoint 'last' is checkpoint 1, in mem")
    assert job.savepoint_metadata("last").checkpoint_id == 1


def test_a_checkpoint_that_is_aborted_is_told(job: Job, sluice: Sluice) -> None:
    def aborts(job: Job, plan: CheckpointPlan) -> None:
        abort_checkpoint(job, plan.checkpoint_id, by="ada")

    with a_host(job, aborts):
        answer = sluice("checkpoint", "auctions")

    assert answer.code == 1
    said = "error: checkpoint 1 was aborted, CHECKPOINT_ABORTED_BY_USER: aborted by ada"
    assert answer.err.splitlines()[-1] == said


def test_what_nothing_takes_up_is_dropped_and_says_what_to_do(job: Job, sluice: Sluice) -> None:
    trigger_one(job, cause="sluice run")
    abort_checkpoint(job, CheckpointId(1), by="ada")

    answer = sluice("checkpoint", "auctions", "--wait-for", "1s")

    assert answer.code == 1
    assert "the request was dropped, CHECKPOINT_EXPIRED: nothing that drives the job" in answer.err
    assert "if that process has ended, 'sluice run auctions' takes the request up" in answer.err


def test_a_request_is_left_behind_and_the_run_of_airflow_named(job: Job, sluice: Sluice) -> None:
    trigger_one(job, cause="airflow:auctions/scheduled__1")

    answer = sluice("stop", "auctions", "--no-wait")

    assert answer.code == 0
    assert "is queued; it waits until" in answer.out
    assert "its watchdog starts a run for the request within a minute" in answer.out
    assert job.state().queue[0].requested_at_ms <= machine_clock_ms()


def test_a_job_that_does_not_run_takes_no_request(job: Job, sluice: Sluice) -> None:
    stop(job, JobStatus.CANCELED)

    for command in (("checkpoint",), ("savepoint", "--", "auctions", "x"), ("stop",)):
        name = command if "--" in command else (*command, "auctions")
        assert "is CANCELED; 'sluice run auctions --fresh' begins anew" in sluice(*name).error
