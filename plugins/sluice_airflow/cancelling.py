"""The task of the cancel DAG: end the job; what becomes of its checkpoints, the retention says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowSkipException

from sluice.core.properties import JobStatus
from sluice_airflow.notes import note
from sluice_airflow.operators import CheckpointOperator, Summary

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.runner.job import Job


class CancelOperator(CheckpointOperator):
    """Pending checkpoints are aborted and their runs end by themselves; a repeat finds it done."""

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.runner.recovery import stop

        before = job.state()
        if before.status is JobStatus.CREATED:
            raise AirflowSkipException(f"job {self.pipeline.uid!r} was never submitted")
        if before.status.is_globally_terminal:
            reason = f"the job is {before.status.value} already"
            note(context, reason)
            raise AirflowSkipException(reason)
        after = stop(job, JobStatus.CANCELED)
        retained = ", ".join(str(done.checkpoint_id) for done in after.completed) or "none"
        note(context, f"the job is {after.status.value}; retained checkpoints: {retained}")
        return {
            "status": after.status.value,
            "aborted": ", ".join(str(one.checkpoint_id) for one in before.pending) or None,
            "retained": retained,
        }
