"""The trigger: what Airflow stores of it, and how it ends its task without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from airflow.triggers.base import TaskFailedEvent, TaskSuccessEvent

from sluice.coordinator.failure import fail_checkpoint
from sluice.core.failures import CheckpointFailureReason
from sluice.core.ids import CheckpointId
from sluice.errors import StoreUnavailable
from sluice.store.object_store import Listed, ObjectStore
from sluice_airflow.answers import AwaitAcksTrigger
from tests.airflow.stand_in import CAUSE, a_pending_checkpoint, acknowledge, decline


@dataclass
class ATaskInstance:
    """The task instance that the triggerer sets on a trigger, with the fields that ours reads."""

    dag_id: str = "demo"
    run_id: str = "run-1"
    task_id: str = "bids.await_acks"


@dataclass
class Outage:
    """A store that does not answer the first *requests*."""

    store: ObjectStore
    requests: int

    @property
    def root(self) -> str:
        return self.store.root

    def get(self, key: str) -> bytes | None:
        self._fail()
        return self.store.get(key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        self._fail()
        return self.store.list(prefix, start_after=start_after)

    def _fail(self) -> None:
        if self.requests:
            self.requests -= 1
            raise StoreUnavailable("no route to the bucket")


def a_trigger() -> AwaitAcksTrigger:
    found = AwaitAcksTrigger(pipeline="demo", stage="bids", poll_s=0.01)
    found.task_instance = ATaskInstance()
    return found


async def first_event(waiting: AwaitAcksTrigger) -> TaskSuccessEvent | TaskFailedEvent:
    return await asyncio.wait_for(anext(waiting.run()), timeout=60)


async def event_after(act: Callable[[], object]) -> TaskSuccessEvent | TaskFailedEvent:
    """Start the trigger, let it poll a few times, then *act*."""
    running = asyncio.create_task(first_event(a_trigger()))
    await asyncio.sleep(0.1)
    assert not running.done()
    act()
    return await running


def test_the_wire_format_does_not_change() -> None:
    path, kwargs = AwaitAcksTrigger(pipeline="demo", stage="bids").serialize()

    assert path == "sluice_airflow.answers.AwaitAcksTrigger"
    assert kwargs == {
        "pipeline": "demo",
        "stage": "bids",
        "cause": None,
        "root": None,
        "endpoint_url": None,
        "poll_s": 0.5,
    }


def test_it_survives_the_database() -> None:
    before = AwaitAcksTrigger(
        pipeline="demo", stage="bids", cause=CAUSE, root="memory://x", endpoint_url="http://y:1"
    )

    after = AwaitAcksTrigger(**before.serialize()[1])

    assert after.serialize() == before.serialize()


def test_it_succeeds_once_all_acknowledged(root: str) -> None:
    job = a_pending_checkpoint(root)

    event = asyncio.run(event_after(lambda: acknowledge(job, 1, "bids")))

    assert isinstance(event, TaskSuccessEvent)


def test_it_fails_on_a_decline(root: str) -> None:
    job = a_pending_checkpoint(root)

    event = asyncio.run(event_after(lambda: decline(job, 1, "bids", 1)))

    assert isinstance(event, TaskFailedEvent)
    assert event.xcoms == {"reason": "subtask bids/1 declined checkpoint 1"}


def test_it_fails_when_the_checkpoint_is_aborted(root: str) -> None:
    job = a_pending_checkpoint(root)
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED

    event = asyncio.run(
        event_after(lambda: fail_checkpoint(job, CheckpointId(1), reason, "by the watchdog"))
    )

    assert isinstance(event, TaskFailedEvent)


def test_it_outlasts_a_store_that_does_not_answer(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = a_pending_checkpoint(root)
    acknowledge(job, 1, "bids")
    outage = Outage(job.store, requests=5)
    monkeypatch.setattr("sluice_airflow.polls.shared_store", lambda location: outage)

    event = asyncio.run(first_event(a_trigger()))

    assert isinstance(event, TaskSuccessEvent)
    assert outage.requests == 0


def test_a_journal_that_cannot_be_read_fails_the_task_here(root: str) -> None:
    job = a_pending_checkpoint(root)
    job.store.put(job.paths.journal_entry(99), b"not an entry")

    event = asyncio.run(first_event(a_trigger()))

    assert isinstance(event, TaskFailedEvent)
    assert event.xcoms is not None
    assert "cannot be read" in str(event.xcoms["reason"])


def test_a_missing_root_is_named(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_ROOT")

    event = asyncio.run(first_event(a_trigger()))

    assert isinstance(event, TaskFailedEvent)
    assert str((event.xcoms or {})["reason"]).startswith("SLUICE_ROOT is not set")
