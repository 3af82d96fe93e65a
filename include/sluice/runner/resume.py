"""What a job owes from before: nothing new is triggered, and it is not running again, until then.

The duties are read from the journal, not remembered: whoever comes next does what a coordinator
that died left undone.
"""

from __future__ import annotations

import logging

from sluice.core.messages import HooksRestored, JobFailed
from sluice.core.properties import JobStatus
from sluice.core.state import CoordinatorState
from sluice.errors import RestoreError
from sluice.runner.commands import carry_out, clean_up
from sluice.runner.completion import commit
from sluice.runner.job import Job
from sluice.runner.table_recovery import recover_tables
from sluice.storage.journal import Head

log = logging.getLogger(__name__)


def resume(job: Job, head: Head) -> Head:
    """Recover the tables, replay the commit of the latest completed checkpoint, delete what left
    the store while nobody was there to delete it, put the master hooks' world back.

    In this order: the tables have to know which late commit is the one that is owed.

    Raises:
        RestoreError: a hook failed; the job fails over.
        TableMismatch: a table does not show what the job continues; a person decides.
    """
    head = recover_tables(job, head)
    latest = head.state.latest_completed
    if latest is not None and not latest.is_committed:
        commit(job, latest.checkpoint_id)
        head = job.journal.load()
    if head.state.discarding:
        clean_up(job, head.state)
        head = job.journal.load()
    if head.state.must_restore_hooks and head.state.status is JobStatus.RUNNING:
        _restore_hooks(job, head)
        head = job.journal.load()
    return head


def _restore_hooks(job: Job, head: Head) -> None:
    state = head.state
    metadata = job.base_metadata(state)
    answers = metadata.master_states if metadata is not None else {}
    for hook in job.pipeline.hooks.values():
        try:
            hook.restore(state.base, answers.get(hook.uid))
        except Exception as error:
            message = f"master hook {hook.uid!r} could not be restored: {error}"
            _fail_over(job, state, message)
            raise RestoreError(message) from error
    job.journal.append(lambda _: HooksRestored(generation=state.generation))


def _fail_over(job: Job, state: CoordinatorState, message: str) -> None:
    failed = JobFailed(generation=state.generation, at_ms=job.clock(), message=message)
    carry_out(job, job.journal.append(lambda _: failed))
