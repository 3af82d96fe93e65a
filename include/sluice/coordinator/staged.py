"""Staged rows before their checkpoint is completed: whether a sink's place can take them, and with
AT_LEAST_ONCE which of them readers may see already.

A place that refuses rows here aborts the checkpoint, and its rows are read again.  After
*completed* the commit is owed, and the error has to say what a person must change in the place.

AT_LEAST_ONCE shows rows early.  An abort may come between, and so may another attempt of the stage,
whose rows need not be the same.

    who shows       notes what it shows; finds the checkpoint pending, its attempt current, and
                    nothing else named; shows
    who aborts      journals the abort; looks for notes; deletes what was staged
    who completes   writes what the checkpoint names; finds that every note names the same

Each writes before it reads, so one of two sees the other: either nothing is shown any more, or what
may be shown stays, and is what the checkpoint names.  No clock is involved, and any of them may
sleep for a day between two steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from sluice.core.answers import Ack, Committable
from sluice.core.completed import CheckpointMetadata
from sluice.core.events import DiscardPending
from sluice.core.ids import CheckpointId
from sluice.core.pending import PendingCheckpoint
from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import side_outputs
from sluice.declaration.places import Sink
from sluice.errors import ConfigurationError, StageFailed
from sluice.job.job import Job
from sluice.job.places import open_side_table, open_sinks
from sluice.protocol.records import decode_metadata
from sluice.store.object_store import AlreadyExists, without_foreign


def note_early_publish(
    job: Job, checkpoint_id: CheckpointId, sink: str, shown: Iterable[Committable]
) -> None:
    """Note that the rows of *shown* may be seen from now on.

    Raises:
        StageFailed: readers may see other rows, of another attempt, or the checkpoint names others.
    """
    mark = _mark(shown)
    noted = job.store.create(job.paths.early_publish(checkpoint_id, sink), mark)
    if isinstance(noted, AlreadyExists) and noted.body != mark:
        raise StageFailed(_shown_by_another(checkpoint_id, sink))
    key = job.paths.metadata(checkpoint_id)
    written = job.store.get(key)
    if written is not None:
        require_shown(job, decode_metadata(written, key))


def forget_early_publishes(job: Job, checkpoint_id: CheckpointId, sinks: Iterable[str]) -> None:
    """Delete the notes of a completed checkpoint, which nothing aborts any more."""
    job.store.delete([job.paths.early_publish(checkpoint_id, sink) for sink in sinks])


def require_shown(job: Job, metadata: CheckpointMetadata) -> None:
    """Require that readers may see no other rows of the checkpoint than its *metadata* names.

    Raises:
        StageFailed: another attempt of a stage has shown other rows; the checkpoint is to be
            aborted, and its rows come again.
    """
    for checkpoint_id, sink in early_publishes(job, metadata.checkpoint_id):
        noted = job.store.get(job.paths.early_publish(checkpoint_id, sink))
        named = of_sink(sink, metadata.committables)
        if noted not in (None, _mark(named)):  # No note: it was committed meanwhile.
            raise StageFailed(_shown_by_another(checkpoint_id, sink))


def abort_staged(job: Job, aborted: DiscardPending, sinks: dict[str, Sink]) -> None:
    """Delete what the *aborted* checkpoint staged, except for files that may be shown any moment.

    A sink's place is known by its name, which other jobs and another life of this one have, too:
    so the files are known by the checkpoint's token, beside its number.
    """
    checkpoint_id = aborted.checkpoint_id
    token = job.paths.checkpoint_token(aborted.plan)
    noted = {sink for _, sink in early_publishes(job, checkpoint_id)}
    for uid, sink in sinks.items():
        if uid not in noted or sink.is_published(checkpoint_id):  # It keeps what it published.
            sink.abort(checkpoint_id, token)


def early_publishes(
    job: Job, checkpoint_id: CheckpointId | None = None
) -> frozenset[tuple[CheckpointId, str]]:
    """The checkpoints, or only one, and sinks of which readers may see rows early, or soon will."""
    listed = job.store.list(job.paths.early_publishes(checkpoint_id))
    notes = without_foreign(listed, job.paths.is_early_publish, job.store.root)
    return frozenset(job.paths.early_publish_of(note.key) for note in notes)


def _mark(committables: Iterable[Committable]) -> bytes:
    """A digest of the files' names, which no other attempt gives to its files."""
    files = "\n".join(sorted(committable.file for committable in committables))
    return hashlib.sha256(files.encode()).hexdigest().encode()


def _shown_by_another(checkpoint_id: CheckpointId, sink: str) -> str:
    return (
        f"readers of {sink!r} may see what an earlier attempt wrote in checkpoint {checkpoint_id}, "
        "which cannot complete with the rows of another; its rows come again with the next one"
    )


def check_sinks(
    job: Job, state: CoordinatorState, metadata: CheckpointMetadata, pending: PendingCheckpoint
) -> None:
    """Ask every declared sink that has rows staged, and the table of every such side output.

    Raises:
        ConfigurationError: a sink cannot take them.
        ProtocolViolation: what was staged is gone, or is damaged.
    """
    before = metadata.previous_tables if state.tables is None else state.tables
    staged = {committable.sink for committable in metadata.committables}
    sinks = open_sinks(job, state.configuration.params)
    for uid in sorted(staged & job.pipeline.sinks.keys()):
        stage = job.pipeline.sinks[uid].input
        acks = [ack for ack in pending.acks.values() if ack.subtask.stage == stage]
        rows = of_sink(uid, metadata.committables)
        check_staged_rows(job, uid, sinks[uid], before.get(uid), acks, rows)
    for uid in sorted(staged & {*side_outputs(job.pipeline)}):
        rows = of_sink(uid, metadata.committables)
        try:  # Its columns are those that the stage read, and may differ from the table's.
            open_side_table(job, uid).check(before.get(uid), None, rows)
        except ConfigurationError as error:
            raise ConfigurationError(f"side output {uid!r} cannot be published: {error}") from None


def check_staged_rows(
    job: Job,
    uid: str,
    sink: Sink,
    parent: int | None,
    acks: Iterable[Ack],
    staged: Sequence[Committable],
) -> None:
    """Ask the sink whether it can take rows with the columns of *acks*, those of its stage; without
    an ack that has columns there are no rows either.
    """
    from sluice.operators.changes import sink_schema

    schema = next((ack.schema for ack in acks if ack.schema), None)
    if schema is not None:
        sink.check(parent, sink_schema(schema, job.pipeline.sinks[uid]), staged)


def of_sink(uid: str, committables: Iterable[Committable]) -> tuple[Committable, ...]:
    return tuple(committable for committable in committables if committable.sink == uid)
