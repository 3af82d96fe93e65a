"""What went wrong, as RFC 9457 says it: problem+json that names the thing and the fix."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from sluice.errors import (
    ConfigurationError,
    FencedError,
    ProtocolViolation,
    RestoreError,
    SluiceError,
    StoreUnavailable,
    TableMismatch,
)
from sluice.storage.redaction import redacted

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
MAX_DETAIL = 2_000

# The first that fits.  What a path names and what is not there is a ConfigurationError.
_STATUS: tuple[tuple[type[SluiceError], HTTPStatus], ...] = (
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (ProtocolViolation, HTTPStatus.INTERNAL_SERVER_ERROR),
    (FencedError, HTTPStatus.CONFLICT),
    (TableMismatch, HTTPStatus.CONFLICT),
    (RestoreError, HTTPStatus.NOT_FOUND),
    (ConfigurationError, HTTPStatus.NOT_FOUND),
    (SluiceError, HTTPStatus.INTERNAL_SERVER_ERROR),
)


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457.  ``detail`` says what is wrong, and what to do; ``errors`` are of single fields."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: tuple[str, ...] = ()


class Refused(Exception):
    """A request that is answered with a problem."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def handle_problems(app: FastAPI) -> None:
    """Have every error of *app* answered as a problem."""
    handlers: Mapping[type[Exception], Any] = {
        Refused: _refused,
        SluiceError: _ours,
        HTTPException: _http,
        RequestValidationError: _invalid,
        Exception: _unexpected,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def problem(
    request: Request,
    status: int,
    detail: str,
    *,
    errors: tuple[str, ...] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer to *request*, without secrets."""
    title = HTTPStatus(status).phrase
    body = Problem(
        type="about:blank",
        title=title,
        status=status,
        detail=redacted(detail)[:MAX_DETAIL],
        instance=redacted(request.url.path),
        errors=tuple(redacted(one)[:MAX_DETAIL] for one in errors),
    )
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def status_of(error: SluiceError) -> HTTPStatus:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def _refused(request: Request, error: Refused) -> Response:
    return problem(request, error.status, str(error))


def _ours(request: Request, error: SluiceError) -> Response:
    status = status_of(error)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("request failed path=%s: %s", request.url.path, redacted(str(error)))
    return problem(request, status, str(error))


def _http(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.UNAUTHORIZED:
        headers.setdefault("WWW-Authenticate", "Bearer")
    return problem(request, error.status_code, _words(request, error), headers=headers)


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
    found = tuple(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    detail = f"the request is not understood: {'; '.join(found)}"
    return problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors=found)


def _unexpected(request: Request, error: Exception) -> Response:
    log.error("request failed path=%s", request.url.path, exc_info=error)
    return problem(
        request,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        f"{type(error).__name__} in sluice; the log of the API server has the rest",
    )
