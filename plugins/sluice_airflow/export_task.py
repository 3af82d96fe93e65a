"""The last task of a savepoint's run, which copies it to another root if the form names one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowSkipException

from sluice_airflow.notes import note
from sluice_airflow.operators import CheckpointOperator
from sluice_airflow.trigger_task import savepoint_name

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.job.job import Job


class ExportOperator(CheckpointOperator):
    """Copies the savepoint; repeating it copies the same bytes to the same place."""

    def act(self, job: Job, context: Context) -> str:
        from sluice.coordinator.savepoints import copy_savepoint

        root = context["params"].get("target")
        if not root:
            raise AirflowSkipException("the savepoint stays in the job's own root")
        place = copy_savepoint(job, savepoint_name(context), root)
        note(context, f"savepoint {savepoint_name(context)} copied to {place}")
        return place

    def told(self, error: Exception) -> str:
        return f"the savepoint is complete in the job's own root, but was not copied: {error}"
