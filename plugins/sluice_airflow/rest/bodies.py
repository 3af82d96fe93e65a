"""What acts are given, with Flink's names, and the same as fields of the DAGs' forms."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sluice.coordinator.timing import NewTimes
from sluice.core.properties import ClaimMode
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.protocol.names import SAVEPOINT_NAME
from sluice_airflow.rest.problems import Refused
from sluice_airflow.restore_tasks import request_of

MOST_MS = 1_000 * 365 * 86_400_000  # A thousand years; what is more does not fit a timedelta.

Name = Annotated[str, Field(pattern=f"^{SAVEPOINT_NAME}$")]
Id = Annotated[int, Field(ge=1, le=2**63 - 1)]
Period = Annotated[int, Field(ge=0, le=MOST_MS, description="Milliseconds")]


def _hyphened(name: str) -> str:
    return name.replace("_", "-")


class Body(BaseModel):
    """What it does not know it refuses, so that nothing misspelt is passed over."""

    model_config = ConfigDict(extra="forbid", alias_generator=_hyphened, frozen=True, strict=True)


class EmptyBody(Body):
    """An object without fields."""


class CheckpointBody(Body):
    """Flink's: what is written of the state that did not change."""

    checkpoint_type: Annotated[
        Literal["CONFIGURED", "FULL", "INCREMENTAL"], Field(alias="checkpointType")
    ] = "CONFIGURED"


class StopBody(Body):
    savepoint_name: Name | None = None
    format_type: Literal["native", "canonical"] = "native"
    drain: bool = False
    forced: bool = False


class SavepointBody(StopBody):
    stop: bool = False


class DisposalBody(Body):
    savepoint_name: Name


class RestoreBody(Body):
    """As the form of the restore DAG, but for other roots, which that alone takes."""

    target: Literal["latest", "checkpoint", "savepoint"] = "latest"
    checkpoint_id: Id | None = None
    savepoint: Name | None = None
    parallelism: Annotated[str, Field(max_length=1_000)] | None = None
    allow_non_restored_state: bool = False
    roll_back_tables: bool = False
    accept_tables: bool = False
    compare_checksums: bool = True
    claim_mode: Literal["NO_CLAIM", "CLAIM"] = ClaimMode.NO_CLAIM.value
    then: Literal["resume", "stay suspended"] = "resume"
    ignore_in_flight_of: Id | None = None
    dry_run: bool = False


class TimesBody(Body):
    """As the options of `sluice checkpoints config`; what is left out stays as it is."""

    interval: Period | None = None
    min_pause: Period | None = None
    timeout: Period | None = None
    tolerable_failed_checkpoints: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    reset: bool = False


def new_times(body: TimesBody) -> NewTimes:
    """What is to change, within the limits of a declaration."""
    if body == TimesBody():
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "nothing is to change; give an interval, min-pause, timeout or "
            "tolerable-failed-checkpoints, or reset",
        )
    try:
        return NewTimes(
            interval=_period(body.interval),
            min_pause=_period(body.min_pause),
            timeout=_period(body.timeout),
            tolerable_failed_checkpoints=body.tolerable_failed_checkpoints,
            resets=body.reset,
        )
    except ConfigurationError as error:
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error


def _period(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)


def savepoint_conf(body: StopBody) -> dict[str, Any]:
    """The savepoint DAG's form, filled in."""
    stops = not isinstance(body, SavepointBody) or body.stop
    if body.drain and not stops:
        raise Refused(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "drain ends the job for good, and stop is false; set stop, too, or leave drain out",
        )
    stop = "drain" if body.drain else "suspend" if stops else "none"
    return {
        "name": body.savepoint_name,
        "stop": stop,
        "format": body.format_type,
        "forced": body.forced,
        "target": None,
    }


def restore_conf(body: RestoreBody, pipeline: Pipeline) -> dict[str, Any]:
    """The restore DAG's form, filled in; what its first task would refuse is refused now."""
    conf = body.model_dump(by_alias=False) | {"only_generation": None}
    try:
        request_of(conf, pipeline)
    except ConfigurationError as error:
        raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    return conf
