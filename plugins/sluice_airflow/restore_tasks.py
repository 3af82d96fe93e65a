"""The tasks of the restore DAG: ``verify`` names what will be restored, ``restore`` does it."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from sluice.core.ids import CheckpointId
from sluice.core.properties import ClaimMode, JobStatus
from sluice.core.restoring import RestoreOptions
from sluice.errors import ConfigurationError, FencedError, RestoreError
from sluice.views.units import size
from sluice_airflow.dag_switch import switch_on
from sluice_airflow.declaration_check import check_declaration
from sluice_airflow.given_params import given_params
from sluice_airflow.notes import note
from sluice_airflow.operators import CheckpointOperator, Summary
from sluice_airflow.ownership import cause_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.coordinator.restore_request import RestoreRequest
    from sluice.core.restoring import Restore
    from sluice.declaration.pipeline import Pipeline
    from sluice.job.job import Job

log = logging.getLogger(__name__)

# The form's field that says which one, for each target.
_NAMED_IN = {
    "latest": None,
    "checkpoint": "checkpoint_id",
    "savepoint": "savepoint",
    "path": "path",
}
RESUME, STAY_SUSPENDED = "resume", "stay suspended"


class VerifyOperator(CheckpointOperator):
    """Names the checkpoint to restore, or everything that is missing for it; changes nothing."""

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.coordinator.restore_request import plan, require_generation, resolve
        from sluice.core.restoring import Stop
        from sluice.views.options import options_after

        request = request_of(context["params"], self.pipeline)
        state = job.state()
        require_generation(job, state, request.only_generation)
        resolved = resolve(job, state, request)
        if request.only_generation is None:  # A person's run, perhaps with other code.
            continued = resolved.configuration or state.configuration
            check_declaration(self.pipeline, continued.params)
        planned = plan(job, state, resolved)
        decision = planned.decision
        if isinstance(decision, Stop) and planned.message:
            note(context, f"stops the job: {planned.message}")
            return {"checkpoint_id": None, "bytes": 0}
        if isinstance(decision, Stop):
            raise RestoreError("; ".join(decision.problems))
        rolls_back = request.options.roll_back_tables
        told = [ahead.told(rolls_back=rolls_back) for ahead in decision.tables_ahead]
        options = [change.made for change in options_after(state, resolved.configuration)]
        note(context, "; ".join([f"would restore {_described(decision)}", *options, *told]))
        return {
            "checkpoint_id": decision.choice.checkpoint_id,
            "bytes": sum(handle.size_bytes for handle in decision.files),
        }

    def told(self, error: Exception) -> str:
        return str(error) if isinstance(error, FencedError) else f"cannot restore: {error}"


class RestoreOperator(CheckpointOperator):
    """Waits for the restart strategy's pause, then restores the job under the next generation."""

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.coordinator.recovery import restore, stop
        from sluice.coordinator.restore_request import require_generation, resolve
        from sluice.views.options import options_after

        params = context["params"]
        if params.get("dry_run"):
            raise AirflowSkipException("a dry run: verify's log says what would be restored")
        request, state = request_of(params, self.pipeline), job.state()
        cause = cause_of(context["ti"])
        is_done = state.restored_by == cause  # By an earlier try, which died afterwards.
        if not is_done:
            require_generation(job, state, request.only_generation)
        resolved = resolve(job, state, request)
        if state.status is JobStatus.RESTARTING and request.only_generation is not None:
            pause_s = max(0.0, ((state.restart_at_ms or 0) - job.clock()) / 1_000)
            log.info("restart strategy pauses pause_s=%.1f", pause_s)
            time.sleep(pause_s)
        restored = restore(
            job,
            resolved.target,
            resolved.options,
            configuration=resolved.configuration,
            only_generation=resolved.only_generation,
            cause=cause,
        )
        after = restored.state
        if params.get("then") == STAY_SUSPENDED:
            after = stop(job, JobStatus.SUSPENDED)
        elif request.only_generation is None and (is_done or state.status.is_terminal):
            switch_on(context, self.pipeline)
        told = [ahead.told(rolls_back=False) for ahead in restored.tables_ahead]
        done = f"restored {restored.named}, generation {after.generation}; {after.status.value}"
        with_params = [f"{name}={value}" for name, value in request.params.items()]
        options = [change.made for change in options_after(state, resolved.configuration)]
        note(context, "; ".join([done, *with_params, *options, *told]))
        return {
            "checkpoint_id": restored.checkpoint_id,
            "savepoint": restored.origin.savepoint if restored.origin is not None else None,
            "generation": after.generation,
            "status": after.status.value,
        }


def request_of(params: Mapping[str, Any], pipeline: Pipeline) -> RestoreRequest:
    """The request in a run's form; a run that was started by a failure has only some fields.

    Raises:
        ConfigurationError: the field of the chosen target is empty, or that of another one is not;
            or other fields contradict each other.
    """
    from sluice.coordinator.restore_request import RestoreRequest

    chosen = params["target"]
    if chosen not in _NAMED_IN:
        raise ConfigurationError(f"target is {chosen!r}; choose {', '.join(_NAMED_IN)}")
    _check_target(params, chosen, _NAMED_IN[chosen])
    if params.get("dry_run") and params.get("then") == STAY_SUSPENDED:
        raise ConfigurationError(
            "a dry run changes nothing, so the job cannot stay suspended after it; choose one"
        )
    ignored = params.get("ignore_in_flight_of")
    return RestoreRequest(
        checkpoint=CheckpointId(params["checkpoint_id"]) if chosen == "checkpoint" else None,
        savepoint=params["savepoint"] if chosen == "savepoint" else None,
        root=params.get("root") or None,
        pipeline=params.get("root_pipeline") or None,
        pointer=params["path"] if chosen == "path" else None,
        parallelism=tuple(re.findall(r"[^\s,]+", params.get("parallelism") or "")),
        params=given_params(pipeline, params),
        options=RestoreOptions(
            allow_non_restored_state=bool(params["allow_non_restored_state"]),
            claim_mode=ClaimMode[params.get("claim_mode") or ClaimMode.NO_CLAIM.value],
            ignore_in_flight_of=None if ignored is None else CheckpointId(ignored),
            roll_back_tables=bool(params.get("roll_back_tables")),
            accept_tables=bool(params.get("accept_tables")),
            compare_checksums=bool(params.get("compare_checksums", True)),
        ),
        only_generation=params["only_generation"],
        may_submit=True,
    )


def _check_target(params: Mapping[str, Any], chosen: str, field: str | None) -> None:
    named = {name: params[name] for name in _NAMED_IN.values() if name and params.get(name)}
    if field is not None and field not in named:
        raise ConfigurationError(f"target is {chosen!r}, but {field} is empty; give one")
    for other, value in named.items():
        if other != field:
            raise ConfigurationError(
                f"target is {chosen!r}, but {other} is {value!r}; empty it, or choose the target "
                f"{other.removesuffix('_id')!r}"
            )


def _described(decision: Restore) -> str:
    choice = decision.choice
    if choice.checkpoint_id is None:
        return "the empty state: no checkpoint was completed yet"
    bytes_ = sum(handle.size_bytes for handle in decision.files)
    parts = [
        str(choice.origin or f"checkpoint {choice.checkpoint_id}"),
        f"{len(decision.files)} files",
        size(bytes_),
    ]
    if decision.replays_commit:
        parts.append("its sinks publish first")
    if not decision.is_compared:
        parts.append("their bytes not compared with checksums")
    if decision.ignores_in_flight:
        parts.append("its data in flight is lost")
    if decision.dropped_stages:
        parts.append(f"the state of {', '.join(decision.dropped_stages)} is dropped")
    return ", ".join(parts)
