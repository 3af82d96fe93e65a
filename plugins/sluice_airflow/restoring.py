"""The tasks of the restore DAG: verify says what will be restored, restore does it."""

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
from sluice.units import size
from sluice_airflow.checking import check_declaration
from sluice_airflow.notes import note
from sluice_airflow.operators import CheckpointOperator, Summary
from sluice_airflow.ownership import cause_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.core.configuration import JobConfiguration
    from sluice.core.restoring import Restore, RestoreTarget
    from sluice.core.state import CoordinatorState
    from sluice.pipeline import Pipeline
    from sluice.runner.job import Job

log = logging.getLogger(__name__)

RESUME, STAY_SUSPENDED = "resume", "stay suspended"


class VerifyOperator(CheckpointOperator):
    """Changes nothing: names the checkpoint, or everything that is missing to restore it."""

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.core.restoring import Latest, Stop
        from sluice.runner.restarting import plan_restart
        from sluice.runner.restore_plan import plan_restore

        params = context["params"]
        check_form(params)
        state = job.state()
        _check_generation(state, params)
        configuration = configuration_of(self.pipeline, state, params)
        if params["only_generation"] is None:  # A person asks, perhaps with other code.
            check_declaration(self.pipeline, (configuration or state.configuration).params)
        target, options = target_of(job, params), options_of(params)
        if params["only_generation"] is not None and isinstance(target, Latest):
            restart = plan_restart(job, state, options, configuration=configuration)
            decision = restart.decision
            if isinstance(decision, Stop) and restart.message:
                note(context, f"stops the job: {restart.message}")
                return {"checkpoint_id": None, "bytes": 0}
        else:
            decision = plan_restore(job, target, options, configuration=configuration)
        if isinstance(decision, Stop):
            raise RestoreError("; ".join(decision.problems))
        rolls_back = bool(params.get("roll_back_tables"))
        told = [ahead.told(rolls_back=rolls_back) for ahead in decision.tables_ahead]
        note(context, "; ".join([f"would restore {_described(decision)}", *told]))
        return {
            "checkpoint_id": decision.choice.checkpoint_id,
            "bytes": sum(handle.size_bytes for handle in decision.files),
        }

    def told(self, error: Exception) -> str:
        return str(error) if isinstance(error, FencedError) else f"cannot restore: {error}"


class RestoreOperator(CheckpointOperator):
    """Wait out the restart strategy's pause, then continue the job under the next generation."""

    def act(self, job: Job, context: Context) -> Summary:
        from sluice.runner.recovery import restore, stop

        params = context["params"]
        if params.get("dry_run"):
            raise AirflowSkipException("a dry run: verify's log says what would be restored")
        state = job.state()
        cause = cause_of(context["ti"])
        is_done = state.restored_by == cause  # By a try that died before it could say so.
        if not is_done:
            _check_generation(state, params)
        configuration = configuration_of(self.pipeline, state, params)
        if state.status is JobStatus.RESTARTING and params["only_generation"] is not None:
            pause_s = max(0.0, ((state.restart_at_ms or 0) - job.clock()) / 1_000)
            log.info("restart strategy pauses pause_s=%.1f", pause_s)
            time.sleep(pause_s)
        restored = restore(
            job,
            target_of(job, params),
            options_of(params),
            configuration=configuration,
            only_generation=params["only_generation"],
            cause=cause,
        )
        after = restored.state
        if params.get("then") == STAY_SUSPENDED:
            after = stop(job, JobStatus.SUSPENDED)
        told = [ahead.told(rolls_back=False) for ahead in restored.tables_ahead]
        done = f"restored {restored.named}, generation {after.generation}; {after.status.value}"
        note(context, "; ".join([done, *told]))
        return {
            "checkpoint_id": restored.checkpoint_id,
            "savepoint": restored.origin.savepoint if restored.origin is not None else None,
            "generation": after.generation,
            "status": after.status.value,
        }


def check_form(params: Mapping[str, Any]) -> None:
    """Refuse a form whose fields contradict each other, before anything is looked at.

    Raises:
        ConfigurationError: the chosen target is not named, or another one is; or a field says what
            nothing else in the form has a use for.
    """
    chosen = params["target"]
    named = {field: params[field] for field in ("checkpoint_id", "savepoint") if params[field]}
    wanted = {"latest": None, "checkpoint": "checkpoint_id", "savepoint": "savepoint"}
    if chosen not in wanted:
        raise ConfigurationError(f"target is {chosen!r}; choose latest, checkpoint or savepoint")
    field = wanted[chosen]
    if field is not None and field not in named:
        raise ConfigurationError(f"target is {chosen!r}, but {field} is empty; give one")
    for other, value in named.items():
        if other != field:
            raise ConfigurationError(
                f"target is {chosen!r}, but {other} is {value!r}; empty it, or choose the target "
                f"{other.removesuffix('_id')!r}"
            )
    if params.get("root_pipeline") and not params.get("root"):
        raise ConfigurationError("root_pipeline needs root, where that pipeline's checkpoints are")
    if params.get("claim_mode") == ClaimMode.CLAIM.value and chosen != "savepoint":
        raise ConfigurationError(
            f"claim_mode is CLAIM, but target is {chosen!r}; only a savepoint can be claimed"
        )
    if params.get("dry_run") and params.get("then") == STAY_SUSPENDED:
        raise ConfigurationError(
            "a dry run changes nothing, so the job cannot stay suspended after it; choose one"
        )


def target_of(job: Job, params: Mapping[str, Any]) -> RestoreTarget:
    """What the form asks for; with ``root`` it lies in another root.

    Raises:
        RestoreError: there is no such savepoint, or nothing to restore in the other root.
    """
    from sluice.core.restoring import FromCheckpoint, Latest
    from sluice.runner.restore_targets import foreign_target, savepoint_target

    chosen, checkpoint_id, savepoint = (
        params["target"],
        params["checkpoint_id"],
        params["savepoint"],
    )
    if params.get("root"):
        return foreign_target(
            job,
            params["root"],
            pipeline=params.get("root_pipeline") or None,
            checkpoint_id=CheckpointId(checkpoint_id) if chosen == "checkpoint" else None,
            savepoint=savepoint if chosen == "savepoint" else None,
        )
    match chosen:
        case "checkpoint":
            return FromCheckpoint(CheckpointId(checkpoint_id))
        case "savepoint":
            return savepoint_target(job, savepoint)
        case _:
            return Latest()


def options_of(params: Mapping[str, Any]) -> RestoreOptions:
    """The rest of the form; a run that a failure started gives only some of it."""
    ignored = params.get("ignore_in_flight_of")
    return RestoreOptions(
        allow_non_restored_state=bool(params["allow_non_restored_state"]),
        claim_mode=ClaimMode[params.get("claim_mode") or ClaimMode.NO_CLAIM.value],
        ignore_in_flight_of=None if ignored is None else CheckpointId(ignored),
        roll_back_tables=bool(params.get("roll_back_tables")),
        accept_tables=bool(params.get("accept_tables")),
        compare_checksums=bool(params.get("compare_checksums", True)),
    )


def configuration_of(
    pipeline: Pipeline, state: CoordinatorState, params: Mapping[str, Any]
) -> JobConfiguration | None:
    """None keeps the job's; one that was never submitted gets its first.

    Raises:
        ConfigurationError: the parallelism cannot be read, or is out of its limits.
    """
    from sluice.runner.submission import configure, parse_parallelism, reconfigure

    given = [word for word in re.split(r"[\s,]+", params.get("parallelism") or "") if word]
    of_all, of_stages = parse_parallelism(given)
    if state.status is JobStatus.CREATED:
        return configure(pipeline, {}, parallelism=of_all, stage_parallelism=of_stages)
    if not given:
        return None
    return reconfigure(
        pipeline, state.configuration, {}, parallelism=of_all, stage_parallelism=of_stages
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


def _check_generation(state: CoordinatorState, params: Mapping[str, Any]) -> None:
    only = params["only_generation"]
    if only is not None and state.generation != only:
        raise FencedError(
            f"the job is of generation {state.generation} already; "
            f"this restore was for generation {only}"
        )
