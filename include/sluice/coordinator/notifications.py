"""Notifications: hooks, sources, sinks and keyed functions are told how each checkpoint ended.

Best effort, as Flink's CheckpointListener: what a listener raises is logged.  A completion is told
before *committed* is journaled, so a coordinator that dies in between has it told again; an abort
is told once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import TypeAlias

from sluice.connectors.contracts.listener import CheckpointListener
from sluice.connectors.contracts.sink import Sink
from sluice.coordinator.hook_calls import call_hook
from sluice.core.ids import CheckpointId
from sluice.declaration.checkpointed_function import CheckpointedFunction
from sluice.declaration.hooks import NotificationHook
from sluice.declaration.operations import ProcessKeyed
from sluice.job.job import Job
from sluice.job.places import Sources

log = logging.getLogger(__name__)

Listener: TypeAlias = CheckpointListener | CheckpointedFunction

LISTENER_TIMEOUT = timedelta(minutes=1)  # It is a hint: the commit behind it does not wait longer.


def notify_checkpoint_complete(
    job: Job, checkpoint_id: CheckpointId, sources: Sources, sinks: Mapping[str, Sink]
) -> None:
    """The checkpoint is published at each of *sinks*, which are all that the job has."""
    for uid, hook in job.pipeline.hooks.items():
        _tell(uid, hook.notify_checkpoint_complete, checkpoint_id, hook.timeout)
    for uid, listener in _listeners(job, sources, sinks):
        _tell(uid, listener.notify_checkpoint_complete, checkpoint_id)


def notify_checkpoint_aborted(
    job: Job, checkpoint_id: CheckpointId, sources: Sources, sinks: Mapping[str, Sink]
) -> None:
    """The checkpoint was aborted, and everything that it wrote is deleted."""
    for uid, hook in job.pipeline.hooks.items():
        _tell(uid, hook.notify_checkpoint_aborted, checkpoint_id, hook.timeout)
    for uid, listener in _listeners(job, sources, sinks):
        _tell(uid, listener.notify_checkpoint_aborted, checkpoint_id)


def _listeners(
    job: Job, sources: Sources, sinks: Mapping[str, Sink]
) -> Iterator[tuple[str, Listener]]:
    for uid in job.pipeline.sources:
        source = sources[uid]
        if isinstance(source, CheckpointListener):
            yield uid, source
    for uid, stage in job.pipeline.stages.items():
        if isinstance(stage.operation, ProcessKeyed) and _listens(stage.operation.function):
            yield uid, stage.operation.function
    for uid, sink in sinks.items():
        if isinstance(sink, CheckpointListener):
            yield uid, sink


def _listens(function: CheckpointedFunction) -> bool:
    """Whether it does more than nothing when it is told: else no thread is started for it."""
    own, none = type(function), CheckpointedFunction
    return (
        own.notify_checkpoint_complete is not none.notify_checkpoint_complete
        or own.notify_checkpoint_aborted is not none.notify_checkpoint_aborted
    )


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
