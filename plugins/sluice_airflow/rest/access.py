"""Who may: Airflow's own authentication, and its permissions on a pipeline's DAGs.

Each route has one of these dependencies; tests/airflow walks the routes and finds one without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Path, Request

from sluice.protocol.names import UID

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod

Uid = Annotated[str, Path(pattern=f"^{UID}$", description="The uid of a pipeline")]


class Readable:
    """What a user may see of the list: pipelines by uid, and whether broken modules are shown."""

    def __init__(self, uids: frozenset[str], *, sees_problems: bool) -> None:
        self.uids = uids
        self.sees_problems = sees_problems


def may_read(request: Request, user: GetUserDep, uid: Uid) -> None:
    """Runs of the checkpoint DAG: a user who sees them may see the checkpoints they took."""
    _require(request, user, "GET", DagAccessEntity.RUN, uid)


def may_read_data(request: Request, user: GetUserDep, uid: Uid) -> None:
    """Keyed state is rows, as an XCom is: it takes the right to see what tasks hand on."""
    _require(request, user, "GET", DagAccessEntity.RUN, uid)
    _require(request, user, "GET", DagAccessEntity.XCOM, uid)


def readable(user: GetUserDep) -> Readable:
    """The pipelines whose DAG the user may read."""
    manager = get_auth_manager()
    return Readable(
        frozenset(manager.get_authorized_dag_ids(user=user, method="GET")),
        sees_problems=manager.is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user),
    )


def _require(
    request: Request,
    user: GetUserDep,
    method: ResourceMethod,
    entity: DagAccessEntity,
    dag_id: str,
) -> None:
    requires_access_dag(method, entity, param_dag_id=dag_id)(request, user)
