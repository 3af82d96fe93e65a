"""The tasks of the restore DAG: verify says what will be restored, restore does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, assert_never

from sluice.core.ids import CheckpointId
from sluice.core.properties import JobStatus
from sluice.errors import ConfigurationError, FencedError
from sluice.pipeline import Pipeline
from sluice_airflow.failures import airflow_failures
from sluice_airflow.operators import CheckpointOperator, Summary

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.core.completed import CheckpointMetadata
    from sluice.core.state import CoordinatorState
    from sluice.runner.job import Job
    from sluice.runner.recovery import RestoreTarget

log = logging.getLogger(__name__)


class VerifyOperator(CheckpointOperator):
    """Changes nothing: names the checkpoint, or everything that is missing to restore it."""

    def execute(self, context: Context) -> Summary:
        from sluice.runner.recovery import verify

        params = context["params"]
        with airflow_failures():
            job = self.open_job()
            state = _configured(job.state(), self.pipeline)
            _check_generation(state, params)
            metadata = _metadata(job, state, target_of(params))
            if metadata is None:
                log.info("will restore: the empty state; no checkpoint was completed yet")
                return {"checkpoint_id": None}
            allow = bool(params["allow_non_restored_state"])
            verify(job, metadata, state, allow_non_restored_state=allow)
        size_bytes = sum(handle.size_bytes for handle in metadata.files)
        log.info(
            "will restore: checkpoint_id=%d type=%s stages=%s files=%d bytes=%d",
            metadata.checkpoint_id, metadata.type.value,
            ",".join(stage.uid for stage in metadata.stages), len(metadata.files), size_bytes,
        )  # fmt: skip
        return {"checkpoint_id": metadata.checkpoint_id, "bytes": size_bytes}


class RestoreOperator(CheckpointOperator):
    """Wait out the restart strategy's pause, then continue the job under the next generation."""

    def execute(self, context: Context) -> Summary:
        from sluice.runner.recovery import restore
        from sluice.runner.submission import configure, submit

        params = context["params"]
        with airflow_failures():
            job = self.open_job()
            state = job.state()
            _check_generation(state, params)
            if state.status is JobStatus.CREATED:
                submit(job, configure(self.pipeline, {}))
            elif state.status is JobStatus.RESTARTING and params["only_generation"] is not None:
                pause_s = max(0.0, ((state.restart_at_ms or 0) - job.clock()) / 1_000)
                log.info("restart strategy pauses pause_s=%.1f", pause_s)
                time.sleep(pause_s)
            restored = restore(
                job,
                target_of(params),
                allow_non_restored_state=bool(params["allow_non_restored_state"]),
                only_generation=params["only_generation"],
            )
        return {
            "checkpoint_id": restored.checkpoint_id,
            "savepoint": restored.savepoint,
            "generation": restored.state.generation,
        }


def target_of(params: Mapping[str, Any]) -> RestoreTarget:
    """What the form asks for.

    Raises:
        ConfigurationError: the chosen target is not named.
    """
    from sluice.runner.recovery import FromCheckpoint, FromSavepoint, Latest

    match params["target"]:
        case "latest":
            return Latest()
        case "checkpoint" if params["checkpoint_id"] is not None:
            return FromCheckpoint(CheckpointId(params["checkpoint_id"]))
        case "savepoint" if params["savepoint"]:
            return FromSavepoint(params["savepoint"])
        case "checkpoint":
            raise ConfigurationError("target is 'checkpoint', but checkpoint_id is empty; give one")
        case "savepoint":
            raise ConfigurationError("target is 'savepoint', but savepoint is empty; name one")
        case unknown:
            raise ConfigurationError(
                f"target is {unknown!r}; choose latest, checkpoint or savepoint"
            )


def _check_generation(state: CoordinatorState, params: Mapping[str, Any]) -> None:
    only = params["only_generation"]
    if only is not None and state.generation != only:
        raise FencedError(
            f"the job is of generation {state.generation} already; "
            f"this restore was for generation {only}"
        )


def _configured(state: CoordinatorState, pipeline: Pipeline) -> CoordinatorState:
    """A job that was never submitted has no parameters yet: those that a submission would fix."""
    from sluice.runner.submission import configure

    if state.status is not JobStatus.CREATED:
        return state
    return replace(state, configuration=configure(pipeline, {}))


def _metadata(
    job: Job, state: CoordinatorState, target: RestoreTarget
) -> CheckpointMetadata | None:
    from sluice.runner.recovery import FromCheckpoint, FromSavepoint, Latest

    match target:
        case Latest():
            return job.base_metadata(state)
        case FromCheckpoint(checkpoint_id):
            return job.metadata(checkpoint_id)
        case FromSavepoint(name):
            return job.savepoint_metadata(name)
        case _:
            assert_never(target)
