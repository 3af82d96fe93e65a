"""Asking a sink's place, before a checkpoint completes, whether it can take what is staged.

What is refused here aborts the checkpoint, and its rows are read again.  After *completed* the
commit is owed, and whoever changes the place has to be told what to do there.
"""

from __future__ import annotations

from collections.abc import Iterable

from sluice.connectors.sink import Sink
from sluice.core.acks import Ack, Committable
from sluice.core.completed import CheckpointMetadata
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState
from sluice.runner.job import Job


def check_sinks(
    job: Job, state: CoordinatorState, metadata: CheckpointMetadata, pending: PendingCheckpoint
) -> None:
    """Ask every declared sink that has rows staged.

    Raises:
        ConfigurationError: one cannot take them.
    """
    before = metadata.previous_tables if state.tables is None else state.tables
    staged = {committable.sink for committable in metadata.committables}
    sinks = job.sinks(state.configuration.params)
    for uid in sorted(staged & job.pipeline.sinks.keys()):
        stage = job.pipeline.sinks[uid].input
        acks = [ack for ack in pending.acks.values() if ack.subtask.stage == stage]
        check_sink(job, uid, sinks[uid], before.get(uid), acks)


def check_sink(job: Job, uid: str, sink: Sink, parent: int | None, acks: Iterable[Ack]) -> None:
    """The columns are those of the stage's *acks*; without any there are no rows either."""
    from sluice.runtime.changes import sink_schema

    schema = next((ack.schema for ack in acks if ack.schema), None)
    if schema is not None:
        sink.check(parent, sink_schema(schema, job.pipeline.sinks[uid].spec.changelog))


def of_sink(uid: str, committables: Iterable[Committable]) -> tuple[Committable, ...]:
    return tuple(one for one in committables if one.sink == uid)
