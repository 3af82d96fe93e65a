"""The task of the cancel DAG: it ends the job, and keeps checkpoints as the retention says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowSkipException

from sluice.core.properties import JobStatus
from sluice_airflow.notes import note
from sluice_airflow.operators import CheckpointOperator, Summary

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.job.job import Job


class CancelOperator(CheckpointOperator):
    """Cancels the job and aborts its pending checkpoints, whose runs then end.  Idempotent."""

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.coordinator.recovery import stop

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
