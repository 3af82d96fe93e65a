"""Asking a sink's place, before a checkpoint completes, whether it can take what is staged.

What is refused here aborts the checkpoint, and its rows are read again.  After *completed* the
commit is owed, and the error has to tell a person what to change in the place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluice.connectors.contracts.sink import Sink
from sluice.core.acks import Ack, Committable
from sluice.core.completed import CheckpointMetadata
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState
from sluice.declaration.side_outputs import side_outputs
from sluice.errors import ConfigurationError
from sluice.job.job import Job
from sluice.job.places import open_side_table, open_sinks


def check_sinks(
    job: Job, state: CoordinatorState, metadata: CheckpointMetadata, pending: PendingCheckpoint
) -> None:
    """Ask every declared sink that has rows staged, and the table of every such side output.

    Raises:
        ConfigurationError: one cannot take them.
        ProtocolViolation: what was staged is gone, or is damaged.
    """
    before = metadata.previous_tables if state.tables is None else state.tables
    staged = {committable.sink for committable in metadata.committables}
    sinks = open_sinks(job, state.configuration.params)
    for uid in sorted(staged & job.pipeline.sinks.keys()):
        stage = job.pipeline.sinks[uid].input
        acks = [ack for ack in pending.acks.values() if ack.subtask.stage == stage]
        mine = of_sink(uid, metadata.committables)
        check_sink(job, uid, sinks[uid], before.get(uid), acks, mine)
    for uid in sorted(staged & {*side_outputs(job.pipeline)}):
        _check_side_output(job, uid, before.get(uid), of_sink(uid, metadata.committables))


def _check_side_output(
    job: Job, uid: str, parent: int | None, staged: Sequence[Committable]
) -> None:
    """Its columns are those of what the stage read, which a table of before may have otherwise."""
    try:
        open_side_table(job, uid).check(parent, None, staged)
    except ConfigurationError as error:
        raise ConfigurationError(f"side output {uid!r} cannot be published: {error}") from None


def check_sink(
    job: Job,
    uid: str,
    sink: Sink,
    parent: int | None,
    acks: Iterable[Ack],
    staged: Sequence[Committable],
) -> None:
    """The columns are those of the stage's *acks*; without any there are no rows either."""
    from sluice.subtask.change_rows import sink_schema

    schema = next((ack.schema for ack in acks if ack.schema), None)
    if schema is not None:
        changelog = job.pipeline.sinks[uid].spec.changelog
        sink.check(parent, sink_schema(schema, changelog), staged)


def of_sink(uid: str, committables: Iterable[Committable]) -> tuple[Committable, ...]:
    return tuple(one for one in committables if one.sink == uid)
