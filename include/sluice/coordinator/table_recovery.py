"""The sinks' tables become what a restore or a submission has decided of them."""

from __future__ import annotations

import logging
from dataclasses import replace

from sluice.connectors.contracts.sink import Sink
from sluice.coordinator.commands import record
from sluice.core.messages import TablesRecovered
from sluice.core.state import CoordinatorState
from sluice.core.timeline import Recovery, Writer
from sluice.core.transition import Verdict
from sluice.errors import FencedError
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.storage.journal import Head

log = logging.getLogger(__name__)


def writer_of(state: CoordinatorState) -> Writer:
    """The life and generation in whose name a coordinator that loaded *state* writes to tables."""
    return Writer(
        life=state.life, generation=state.generation, recovered_by=state.tables_recovered_by
    )


def recover_tables(job: Job, head: Head) -> Head:
    """Carry out the recovery that tables are owed, if it is due; return the head after it.

    Raises:
        FencedError: a later restore was here, or another life owns a table.
        TableMismatch: a table changed since it was asked, and lacks what the job continues.
    """
    state, owed = head.state, head.state.table_recovery
    if owed is None or not state.must_recover_tables:
        return head
    versions = state.tables or {}
    base = None if owed.continues is None else job.base_metadata(state)
    pinned = {} if base is None else base.tables
    for uid, sink in open_sinks(job, state.configuration.params).items():
        recovery = Recovery(
            version=versions.get(uid),
            through=owed.through,
            continues=owed.continues if pinned.get(uid) == owed.continues else None,
            roll_back=owed.roll_back,
            accepts=owed.accepts,
            replaces=owed.replaces.get(uid, ()),
        )
        _recover(sink, writer_of(state), recovery)
    transition = record(job, lambda _: TablesRecovered(generation=state.generation))
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} meanwhile")
    log.info(
        "tables recovered generation=%d through=%d rolled_back=%s",
        state.generation, owed.through, owed.roll_back,
    )  # fmt: skip
    return job.journal.load()


def _recover(sink: Sink, writer: Writer, recovery: Recovery) -> None:
    """The commit that is owed may be under way: once it is done, it is what the job continues."""
    owed = recovery.continues
    done = replace(recovery, version=owed, continues=None)
    is_done = owed is not None and sink.is_published(owed)
    try:
        sink.recover(writer, done if is_done else recovery)
    except FencedError:
        if owed is None or is_done or not sink.is_published(owed):
            raise
        sink.recover(writer, done)
