"""The common parts of all routes: answers as JSON, without secrets; problems; and who may ask.

A view's schema is on the OpenAPI page.  A problem is RFC 9457's problem+json, and names the thing
and the fix.  Who may ask is decided by Airflow's own authentication, and by its permissions on a
pipeline's DAGs: each route has one of the dependencies below; tests/airflow walks the routes and
finds one without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import msgspec
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from sluice.errors import (
    ConfigurationError,
    FencedError,
    ProtocolViolation,
    RestoreError,
    SluiceError,
    StoreRefuses,
    StoreUnavailable,
    TableMismatch,
)
from sluice.protocol.keys import UID
from sluice.store.redaction import masked, redacted
from sluice.surface.acts import ACTS, SAVEPOINT, Act, dag_ids

if TYPE_CHECKING:
    from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

log = logging.getLogger(__name__)

REFERENCES = "#/components/schemas/{name}"
MEDIA_TYPE = "application/problem+json"
MAX_DETAIL = 2_000
LARGEST = 2**63 - 1
_MAY_NOT = "You may not start the runs that this takes; an admin of Airflow can let you"

Uid = Annotated[str, Path(pattern=f"^{UID}$", description="The uid of a pipeline")]
Id = Annotated[int, Path(ge=1, le=LARGEST, description="A checkpoint's id")]

_answered_types: dict[str, Any] = {}  # Of all routes, by name.


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457.  ``detail`` says what is wrong, and what to do; ``errors`` are of single fields."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: tuple[str, ...] = ()


# The first that fits.  A path that names nothing is a ConfigurationError.
_STATUS: tuple[tuple[type[SluiceError], HTTPStatus], ...] = (
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (StoreRefuses, HTTPStatus.SERVICE_UNAVAILABLE),
    (ProtocolViolation, HTTPStatus.INTERNAL_SERVER_ERROR),
    (FencedError, HTTPStatus.CONFLICT),
    (TableMismatch, HTTPStatus.CONFLICT),
    (RestoreError, HTTPStatus.NOT_FOUND),
    (ConfigurationError, HTTPStatus.NOT_FOUND),
    (SluiceError, HTTPStatus.INTERNAL_SERVER_ERROR),
)


def answer(view: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """*view* as JSON.  Whatever text in it looks like a secret, or is one, is masked."""
    raw = msgspec.json.encode(view)
    text = raw.decode()
    if redacted(text) != text:  # The whole of it at once, as most answers have no secret.
        raw = msgspec.json.encode(masked(msgspec.json.decode(raw)))
    return Response(
        raw,
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def describe_responses(
    view: type, *, status: int = 200, problems: Iterable[int] = ()
) -> dict[int | str, Any]:
    """The ``responses`` of a route: the schema of *view*, and the problems it may answer."""
    _answered_types[view.__name__] = view
    _answered_types[Problem.__name__] = Problem
    responses: dict[int | str, Any] = {
        status: {
            "description": (view.__doc__ or view.__name__).split("\n")[0],
            "content": {"application/json": {"schema": _reference(view)}},
        }
    }
    for code in (401, 403, 404, 422, 500, 503, *problems):
        responses[code] = {
            "description": "A problem, in words",
            "content": {MEDIA_TYPE: {"schema": _reference(Problem)}},
        }
    return responses


def _reference(view: type) -> dict[str, str]:
    return {"$ref": REFERENCES.format(name=view.__name__)}


def schemas() -> dict[str, Any]:
    """The JSON schemas of everything that routes answer with, by name."""
    _, components = msgspec.json.schema_components(
        _answered_types.values(), ref_template=REFERENCES
    )
    return components


class VisiblePipelines:
    """The pipelines, by uid, that a user may see, and whether broken modules are shown."""

    def __init__(self, uids: frozenset[str], *, sees_problems: bool) -> None:
        self.uids = uids
        self.sees_problems = sees_problems


class RequestRefused(Exception):
    """A request that is answered with a problem; after ``again_s`` seconds it may be sent again."""

    def __init__(self, status: HTTPStatus, detail: str, *, again_s: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = {} if again_s is None else {"Retry-After": str(again_s)}


def may_read(request: Request, user: GetUserDep, uid: Uid) -> None:
    """Runs of the checkpoint DAG: a user who sees them may see the checkpoints they took."""
    _require(request, user, "GET", DagAccessEntity.RUN, uid)


def may_read_data(request: Request, user: GetUserDep, uid: Uid) -> None:
    """Keyed state is rows, as an XCom is: it takes the right to see what tasks hand on."""
    _require(request, user, "GET", DagAccessEntity.RUN, uid)
    _require(request, user, "GET", DagAccessEntity.XCOM, uid)


def sees_data(request: Request, user: GetUserDep, uid: Uid) -> bool:
    try:
        may_read_data(request, user, uid)
    except HTTPException:
        return False
    return True


SeesDataDep = Annotated[bool, Depends(sees_data)]


def may_read_savepoints(request: Request, user: GetUserDep, uid: Uid) -> None:
    """The runs of the savepoint DAG, too."""
    _require(request, user, "GET", DagAccessEntity.RUN, uid)
    _require(request, user, "GET", DagAccessEntity.RUN, SAVEPOINT.dag_id(uid))


def visible_pipelines(user: GetUserDep) -> VisiblePipelines:
    """The pipelines whose DAG the user may read."""
    manager = get_auth_manager()
    return VisiblePipelines(
        frozenset(manager.get_authorized_dag_ids(user=user, method="GET")),
        sees_problems=manager.is_authorized_view(access_view=AccessView.IMPORT_ERRORS, user=user),
    )


@cache
def may_do(act: Act) -> Callable[[Request, BaseUser, str], None]:
    """A check that the user may run the DAG of *act* by hand, and so may do the act here."""

    def may(request: Request, user: GetUserDep, uid: Uid) -> None:
        require_own_intent(request)
        _require(request, user, "GET", DagAccessEntity.RUN, uid)
        _require(request, user, "POST", DagAccessEntity.RUN, act.dag_id(uid))

    return may


def require_own_intent(request: Request) -> None:
    """Refuses a request that a page of another site can make a browser send with the user's cookie.

    No such page can send JSON, or a header, unless Airflow's CORS settings let it; and a browser
    says whose page it was.  A token in the header is proof enough.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestRefused(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body is {kind or 'of no type'}; send JSON, with Content-Type: application/json",
        )
    has_token = request.headers.get("authorization", "").lower().startswith("bearer ")
    if not has_token and _is_of_another_site(request):
        raise RequestRefused(
            HTTPStatus.FORBIDDEN,
            "the request comes from a page of another site, with this browser's cookie; send a "
            "token in the header Authorization",
        )


def _is_of_another_site(request: Request) -> bool:
    """Whether another site asks, as the browser says; without TLS only the origin tells."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("cross-site", "same-site")
    origin = urlsplit(request.headers.get("origin", "")).netloc
    own = (
        request.headers.get("host"),
        request.headers.get("x-forwarded-host"),
        urlsplit(conf.get("api", "base_url", fallback="")).netloc,
    )
    return bool(origin) and origin not in own


def _require(
    request: Request,
    user: GetUserDep,
    method: ResourceMethod,
    entity: DagAccessEntity,
    dag_id: str,
) -> None:
    requires_access_dag(method, entity, param_dag_id=dag_id)(request, user)


def acts_refused(request: Request, user: GetUserDep, uid: Uid) -> dict[str, str]:
    """The acts on the pipeline that the user may not do, and why, so that none is offered."""
    allowed = set()
    for dag_id in dag_ids(uid):
        with suppress(HTTPException):
            _require(request, user, "POST", DagAccessEntity.RUN, dag_id)
            allowed.add(dag_id)
    return {act.name: _MAY_NOT for act in ACTS if act.dag_id(uid) not in allowed}


def handle_problems(app: FastAPI) -> None:
    """Have every error of *app* answered as a problem."""
    handlers: Mapping[type[Exception], Any] = {
        RequestRefused: _refused,
        SluiceError: _sluice_error_response,
        HTTPException: _http,
        RequestValidationError: _invalid,
        Exception: _unexpected,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _refused(request: Request, error: RequestRefused) -> Response:
    return problem_response(request, error.status, str(error), headers=error.headers)


def _sluice_error_response(request: Request, error: SluiceError) -> Response:
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request failed path=%s: %s", request.url.path, redacted(str(error)))
    return problem_response(request, status, str(error))


def status_of(error: SluiceError) -> HTTPStatus:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def _http(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.UNAUTHORIZED:
        headers.setdefault("WWW-Authenticate", "Bearer")
    return problem_response(request, error.status_code, _words(request, error), headers=headers)


def _words(request: Request, error: HTTPException) -> str:
    """Airflow's own words, with the fix where they have none."""
    match error.status_code:
        case HTTPStatus.UNAUTHORIZED:
            return f"{error.detail}; log in to Airflow, or send a token of POST /auth/token"
        case HTTPStatus.FORBIDDEN:
            needed = "read" if request.method in ("GET", "HEAD") else "run"
            return f"{error.detail}; an admin of Airflow can let you {needed} the DAG"
        case HTTPStatus.NOT_FOUND if error.detail == HTTPStatus.NOT_FOUND.phrase:
            return f"nothing is at {request.url.path}; /sluice/docs lists what is there"
        case _:
            return str(error.detail)


def _invalid(request: Request, error: RequestValidationError) -> Response:
    errors = tuple(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
    detail = f"the request is not understood: {'; '.join(errors)}"
    return problem_response(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors=errors)


def _unexpected(request: Request, error: Exception) -> Response:
    log.error("request failed path=%s", request.url.path, exc_info=error)
    return problem_response(
        request,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        f"{type(error).__name__} in sluice; the log of the API server has the rest",
    )


def problem_response(
    request: Request,
    status: int,
    detail: str,
    *,
    errors: tuple[str, ...] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer to *request*, without secrets."""
    body = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=redacted(detail)[:MAX_DETAIL],
        instance=redacted(request.url.path),
        errors=tuple(redacted(error)[:MAX_DETAIL] for error in errors),
    )
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", **(headers or {})},
    )
