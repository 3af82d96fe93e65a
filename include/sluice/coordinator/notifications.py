"""Notifications: hooks, sources and sinks are told how each checkpoint ended (CheckpointListener).

Best effort, as Flink's: what a listener raises is logged.  A completion is told before *committed*
is journaled, so a coordinator that dies in between has it told again; an abort is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial

from sluice.connectors.contracts.listener import CheckpointListener
from sluice.connectors.contracts.sink import Sink
from sluice.coordinator.hook_calls import call_hook
from sluice.core.ids import CheckpointId
from sluice.core.state import CoordinatorState
from sluice.declaration.hooks import NotificationHook
from sluice.job.job import Job
from sluice.job.places import open_source

log = logging.getLogger(__name__)

LISTENER_TIMEOUT = timedelta(minutes=1)  # It is a hint: the commit behind it does not wait longer.


def notify_checkpoint_complete(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId, sinks: Mapping[str, Sink]
) -> None:
    """The checkpoint is published at each of *sinks*, which are all that the job has."""
    for uid, hook in job.pipeline.hooks.items():
        _tell(uid, hook.notify_checkpoint_complete, checkpoint_id, hook.timeout)
    for uid, listener in _listeners(job, state, sinks):
        _tell(uid, listener.notify_checkpoint_complete, checkpoint_id)


def notify_checkpoint_aborted(
    job: Job, state: CoordinatorState, checkpoint_id: CheckpointId, sinks: Mapping[str, Sink]
) -> None:
    """The checkpoint was aborted, and everything that it wrote is deleted."""
    for uid, hook in job.pipeline.hooks.items():
        _tell(uid, hook.notify_checkpoint_aborted, checkpoint_id, hook.timeout)
    for uid, listener in _listeners(job, state, sinks):
        _tell(uid, listener.notify_checkpoint_aborted, checkpoint_id)


def _listeners(
    job: Job, state: CoordinatorState, sinks: Mapping[str, Sink]
) -> Iterator[tuple[str, CheckpointListener]]:
    for uid in job.pipeline.sources:
        source = open_source(job, uid, state.configuration.params)
        if isinstance(source, CheckpointListener):
            yield uid, source
    for uid, sink in sinks.items():
        if isinstance(sink, CheckpointListener):
            yield uid, sink


def _tell(
    uid: str,
    notify: NotificationHook | Callable[[int], None] | None,
    checkpoint_id: CheckpointId,
    limit: timedelta = LISTENER_TIMEOUT,
) -> None:
    if notify is None:
        return
    try:
        call_hook(partial(notify, checkpoint_id), limit)
    except Exception as error:  # noqa: BLE001 - a user's code may raise anything
        log.warning("not told of its end checkpoint_id=%d uid=%s: %s", checkpoint_id, uid, error)
