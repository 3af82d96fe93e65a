"""Routes that pause a running job's checkpointing, resume it, and change its times.

Each is one journal entry, as for the command line, and no DAG run: a change is in force at once,
for every coordinator, also where no worker is free.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, Response

from sluice.coordinator import timing
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError
from sluice.views.configuration import CheckpointConfig, checkpoint_config
from sluice_airflow.rest import access
from sluice_airflow.rest.answers import answer, shows
from sluice_airflow.rest.bodies import EmptyBody, TimesBody, new_times
from sluice_airflow.rest.jobs import JobDep
from sluice_airflow.rest.problems import Refused

router = APIRouter(prefix="/pipelines/{uid}", tags=["acts"])

_CHANGES: dict[str, Any] = {
    "responses": shows(CheckpointConfig, problems=(409, 415)),
    "dependencies": [Depends(access.may_checkpoint)],
}


@router.post("/pause", **_CHANGES)
def pause_checkpointing(job: JobDep, user: GetUserDep, body: EmptyBody) -> Response:  # noqa: ARG001
    """Take no periodic checkpoint until a person resumes; what is pending completes, and what a
    person asks for is taken.
    """
    _carry_out(lambda: timing.pause(job, by=_person(user)))
    return answer(checkpoint_config(job))


@router.post("/resume", **_CHANGES)
def resume_checkpointing(job: JobDep, user: GetUserDep, body: EmptyBody) -> Response:  # noqa: ARG001
    """Take periodic checkpoints again."""
    _carry_out(lambda: timing.resume(job, by=_person(user)))
    return answer(checkpoint_config(job))


@router.post("/checkpoints/config", **_CHANGES)
def change_times(job: JobDep, user: GetUserDep, body: TimesBody) -> Response:
    """Change the times from the next checkpoint on; `reset` takes back what was changed before."""
    times = new_times(body)
    _carry_out(lambda: timing.retime(job, times, by=_person(user)))
    return answer(checkpoint_config(job))


def _person(user: Any) -> str:  # noqa: ANN401 - whatever user Airflow's auth manager has
    return f"airflow:{user.get_name()}"


def _carry_out(change: Callable[[], CoordinatorState]) -> None:
    """A job that takes no change is no missing one: its status conflicts."""
    try:
        change()
    except ConfigurationError as error:
        raise Refused(HTTPStatus.CONFLICT, str(error)) from error
