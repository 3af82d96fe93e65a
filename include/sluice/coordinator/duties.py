"""The duties of a job from before, done before anything new is triggered.

The duties are read from the journal, not remembered: the next coordinator does what one that died
left undone.
"""

from __future__ import annotations

import logging
from functools import partial

from sluice.coordinator.notifications import call_hook
from sluice.coordinator.publication import commit_owed
from sluice.coordinator.record import clean_up, record
from sluice.coordinator.restore_plan import fail_over_if_damaged
from sluice.coordinator.tables import recover_tables
from sluice.core.configuration import JobStatus
from sluice.core.events import HooksRestored, JobFailed
from sluice.core.state import CoordinatorState
from sluice.errors import ProtocolViolation, RestoreError
from sluice.job.job import Job, require_at_home
from sluice.store.journal import Head

log = logging.getLogger(__name__)


def resume_duties(job: Job, head: Head) -> Head:
    """Recover the tables, replay the commit of the latest completed checkpoint, delete what was
    subsumed and not deleted yet, and restore the master hooks.

    In this order: the tables have to know which late commit is the one that is owed.

    Raises:
        RestoreError: a hook failed, or what the job continues is damaged; the job fails over.
        ProtocolViolation: what the job continues, or owes to a table, is damaged; as above.
        TableMismatch: a table does not show what the job continues; a person decides.
        ConfigurationError: the root is a copy of the job's.
    """
    require_at_home(job, head.state)
    try:
        return _resumed(job, head)
    except (RestoreError, ProtocolViolation):
        fail_over_if_damaged(job, head.state)
        raise


def _resumed(job: Job, head: Head) -> Head:
    head = recover_tables(job, head)
    head = commit_owed(job, head)
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
            call_hook(partial(hook.restore, state.base, answers.get(hook.uid)), hook.timeout)
        except Exception as error:
            message = f"master hook {hook.uid!r} could not be restored: {error}"
            _fail_over(job, state, message)
            raise RestoreError(message) from error
    record(job, lambda _: HooksRestored(generation=state.generation))


def _fail_over(job: Job, state: CoordinatorState, message: str) -> None:
    failed = JobFailed(generation=state.generation, at_ms=job.now_ms(), message=message)
    record(job, lambda _: failed)
