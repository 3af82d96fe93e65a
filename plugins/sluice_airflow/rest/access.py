"""Who may: Airflow's own authentication, and its permissions on a pipeline's DAGs.

Each route has one of these dependencies; tests/airflow walks the routes and finds one without.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Path, Request

from sluice.protocol.names import UID
from sluice_airflow.rest.problems import Refused

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

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


def _may_run(suffix: str) -> Callable[[Request, BaseUser, str], None]:
    """Who may start the DAG by hand may have it started here."""

    def may_run(request: Request, user: GetUserDep, uid: Uid) -> None:
        require_own_intent(request)
        _require(request, user, "GET", DagAccessEntity.RUN, uid)
        _require(request, user, "POST", DagAccessEntity.RUN, uid + suffix)

    return may_run


may_checkpoint = _may_run("")
may_save = _may_run("__savepoint")
may_restore = _may_run("__restore")
may_cancel = _may_run("__cancel")


def may_read_savepoints(request: Request, user: GetUserDep, uid: Uid) -> None:
    """The runs of the savepoint DAG, too."""
    _require(request, user, "GET", DagAccessEntity.RUN, uid)
    _require(request, user, "GET", DagAccessEntity.RUN, f"{uid}__savepoint")


def require_own_intent(request: Request) -> None:
    """Refuses what a page of another site can have a browser send with the user's cookie.

    No such page can send JSON, or a header, unless Airflow's CORS settings let it; and a browser
    says whose page it was.  A token in the header is proof enough.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body is {kind or 'of no type'}; send JSON, with Content-Type: application/json",
        )
    has_token = request.headers.get("authorization", "").lower().startswith("bearer ")
    if not has_token and request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "the request comes from a page of another site, with this browser's cookie; send a "
            "token in the header Authorization",
        )
