"""The tasks of the restore DAG: verify says what will be restored, restore does it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.core.ids import CheckpointId
from sluice.core.properties import ClaimMode, JobStatus
from sluice.core.restoring import RestoreOptions
from sluice.errors import ConfigurationError, FencedError, RestoreError
from sluice_airflow.checking import check_declaration
from sluice_airflow.failures import airflow_failures
from sluice_airflow.operators import CheckpointOperator, Summary

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.core.restoring import RestoreTarget
    from sluice.core.state import CoordinatorState
    from sluice.runner.job import Job

log = logging.getLogger(__name__)


class VerifyOperator(CheckpointOperator):
    """Changes nothing: names the checkpoint, or everything that is missing to restore it."""

    def execute(self, context: Context) -> Summary:
        from sluice.core.restoring import Stop
        from sluice.runner.recovery import plan_restore
        from sluice.runner.submission import configure

        params = context["params"]
        with airflow_failures():
            job = self.open_job()
            state = job.state()
            _check_generation(state, params)
            is_new = state.status is JobStatus.CREATED
            if params["only_generation"] is None:  # A person asks, perhaps with other code.
                configuration = configure(self.pipeline, {}) if is_new else state.configuration
                check_declaration(self.pipeline, configuration.params)
            decision = plan_restore(
                job,
                target_of(job, params),
                options_of(params),
                configuration=configure(self.pipeline, {}) if is_new else None,
            )
            if isinstance(decision, Stop):
                raise RestoreError("; ".join(decision.problems))
        size_bytes = sum(handle.size_bytes for handle in decision.files)
        checkpoint_id = decision.choice.checkpoint_id
        if checkpoint_id is None:
            log.info("will restore: the empty state; no checkpoint was completed yet")
        else:
            log.info(
                "will restore: %s files=%d bytes=%d replays_commit=%s dropped_stages=%s",
                decision.choice.origin or f"checkpoint {checkpoint_id}", len(decision.files),
                size_bytes, decision.replays_commit, ",".join(decision.dropped_stages),
            )  # fmt: skip
        return {"checkpoint_id": checkpoint_id, "bytes": size_bytes}


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
                target_of(job, params),
                options_of(params),
                only_generation=params["only_generation"],
            )
        return {
            "checkpoint_id": restored.checkpoint_id,
            "savepoint": restored.origin.savepoint if restored.origin is not None else None,
            "generation": restored.state.generation,
        }


def target_of(job: Job, params: Mapping[str, Any]) -> RestoreTarget:
    """What the form asks for.

    Raises:
        ConfigurationError: the chosen target is not named.
        RestoreError: there is no such savepoint.
    """
    from sluice.core.restoring import FromCheckpoint, Latest
    from sluice.runner.recovery import savepoint_target

    match params["target"]:
        case "latest":
            return Latest()
        case "checkpoint" if params["checkpoint_id"] is not None:
            return FromCheckpoint(CheckpointId(params["checkpoint_id"]))
        case "savepoint" if params["savepoint"]:
            return savepoint_target(job, params["savepoint"])
        case "checkpoint":
            raise ConfigurationError("target is 'checkpoint', but checkpoint_id is empty; give one")
        case "savepoint":
            raise ConfigurationError("target is 'savepoint', but savepoint is empty; name one")
        case unknown:
            raise ConfigurationError(
                f"target is {unknown!r}; choose latest, checkpoint or savepoint"
            )


def options_of(params: Mapping[str, Any]) -> RestoreOptions:
    """The rest of the form; a run that a failure started gives only some of it."""
    ignored = params.get("ignore_in_flight_of")
    return RestoreOptions(
        allow_non_restored_state=bool(params["allow_non_restored_state"]),
        claim_mode=ClaimMode[params.get("claim_mode") or ClaimMode.NO_CLAIM.value],
        ignore_in_flight_of=None if ignored is None else CheckpointId(ignored),
    )


def _check_generation(state: CoordinatorState, params: Mapping[str, Any]) -> None:
    only = params["only_generation"]
    if only is not None and state.generation != only:
        raise FencedError(
            f"the job is of generation {state.generation} already; "
            f"this restore was for generation {only}"
        )
