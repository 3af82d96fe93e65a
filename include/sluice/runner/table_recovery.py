"""The sinks' tables become what a restore or a submission has decided of them."""

from __future__ import annotations

import logging

from sluice.core.messages import TablesRecovered
from sluice.core.state import CoordinatorState
from sluice.core.timeline import Recovery, Writer
from sluice.core.transition import Verdict
from sluice.errors import FencedError
from sluice.runner.job import Job
from sluice.storage.journal import Head

log = logging.getLogger(__name__)


def writer_of(state: CoordinatorState) -> Writer:
    """In whose name a coordinator acts that has loaded *state*."""
    return Writer(life=state.life, generation=state.generation)


def recover_tables(job: Job, head: Head) -> Head:
    """Do what is owed to the tables, if it is due; the head behind it.

    Raises:
        FencedError: a later restore was here, or another life owns a table.
        TableMismatch: a table changed since it was asked, and lacks what the job continues.
    """
    state, owed = head.state, head.state.table_recovery
    if owed is None or not state.must_recover_tables:
        return head
    versions = state.tables or {}
    for uid, sink in job.sinks(state.configuration.params).items():
        version, continues = versions.get(uid), owed.continues
        if continues is not None and sink.is_published(continues):
            version, continues = continues, None  # Its commit was under way, and is done.
        recovery = Recovery(
            version=version,
            through=owed.through,
            continues=continues,
            roll_back=owed.roll_back,
            accepts=owed.accepts,
            replaces=owed.replaces.get(uid, ()),
        )
        sink.recover(writer_of(state), recovery)
    transition = job.journal.append(lambda _: TablesRecovered(generation=state.generation))
    if transition.verdict is Verdict.FENCED:
        raise FencedError(f"another coordinator restored job {job.pipeline.uid!r} meanwhile")
    log.info(
        "tables recovered generation=%d through=%d rolled_back=%s",
        state.generation, owed.through, owed.roll_back,
    )  # fmt: skip
    return job.journal.load()
