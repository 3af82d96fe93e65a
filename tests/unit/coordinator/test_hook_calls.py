"""A hook has a bounded time; one that hangs does not hold up what called it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import timedelta

import pytest

from harness.jobs import a_pipeline, a_running_job
from sluice.coordinator.notifications import call_hook
from sluice.coordinator.trigger import NotTriggered, trigger
from sluice.core.failures import CheckpointFailureReason as Reason
from sluice.errors import ConfigurationError
from tests.subtasks import take_checkpoint

SOON, LATE = timedelta(milliseconds=20), timedelta(minutes=1)
WHO = ContextVar("WHO", default="")


@pytest.fixture(name="never")
def _never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()  # Who waits for it goes.


def test_what_a_hook_returns_or_raises_is_passed_on() -> None:
    def breaks() -> None:
        raise LookupError("no such flag")

    WHO.set("ada")
    assert call_hook(WHO.get, LATE) == "ada"
    with pytest.raises(LookupError, match="no such flag"):
        call_hook(breaks, LATE)


def test_one_that_hangs_has_failed(never: threading.Event) -> None:
    with pytest.raises(TimeoutError, match=r"it did not return within 0\.02 s"):
        call_hook(never.wait, SOON)


def test_a_hook_that_hangs_fails_the_request_and_a_listener_that_does_changes_nothing(
    never: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def hears(checkpoint_id: int) -> None:
        never.wait()

    hangs = {1: True}
    pipeline = a_pipeline()
    pipeline.hook(
        "flags",
        trigger=lambda checkpoint_id, timestamp_ms: str(hangs.pop(1, None) and never.wait()),
        restore=lambda checkpoint_id, state: None,
        notify_checkpoint_complete=hears,
        timeout=SOON,
    )
    job = a_running_job(pipeline)

    outcome = trigger(job)
    taken = take_checkpoint(job)

    assert outcome == NotTriggered(
        reason=Reason.TRIGGER_CHECKPOINT_FAILURE,
        message="master hook 'flags' failed: it did not return within 0.02 s",
    )
    latest = job.state().latest_completed
    assert latest is not None
    assert (latest.checkpoint_id, latest.is_committed) == (taken, True)
    assert "uid=flags: it did not return within 0.02 s" in caplog.text


def test_a_hook_without_any_time_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hook 'flags' has timeout 0:00:00; give it some"):
        a_pipeline().hook(
            "flags",
            trigger=lambda checkpoint_id, timestamp_ms: None,
            restore=lambda checkpoint_id, state: None,
            timeout=timedelta(0),
        )
