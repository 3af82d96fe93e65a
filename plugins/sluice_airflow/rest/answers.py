"""Answers: a view as JSON, without secrets, and its schema for the OpenAPI page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from fastapi import Response

from sluice.storage.redaction import redacted
from sluice_airflow.rest.problems import MEDIA_TYPE, Problem

REFERENCES = "#/components/schemas/{name}"
_shown: dict[str, Any] = {}  # Every type that a route says it answers with, by name.


def answer(view: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """*view* as JSON.  Whatever text in it looks like a secret, or is one, is masked."""
    raw = msgspec.json.encode(view)
    if _holds_secret(raw):
        raw = msgspec.json.encode(_masked(msgspec.json.decode(raw)))
    return Response(
        raw,
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def shows(view: type, *, status: int = 200, problems: Iterable[int] = ()) -> dict[int | str, Any]:
    """What a route's ``responses`` say: the schema of *view*, and the problems it may answer."""
    _shown[view.__name__] = view
    _shown[Problem.__name__] = Problem
    said: dict[int | str, Any] = {
        status: {
            "description": (view.__doc__ or view.__name__).split("\n")[0],
            "content": {"application/json": {"schema": _reference(view)}},
        }
    }
    for code in (401, 403, 404, 422, 500, 503, *problems):
        said[code] = {
            "description": "A problem, in words",
            "content": {MEDIA_TYPE: {"schema": _reference(Problem)}},
        }
    return said


def schemas() -> dict[str, Any]:
    """The JSON schemas of everything that routes answer with, by name."""
    _, components = msgspec.json.schema_components(_shown.values(), ref_template=REFERENCES)
    return components


def _reference(view: type) -> dict[str, str]:
    return {"$ref": REFERENCES.format(name=view.__name__)}


def _holds_secret(raw: bytes) -> bool:
    """Whether masking would change anything: the whole of it at once, as most have nothing."""
    text = raw.decode()
    return redacted(text) != text


def _masked(value: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    match value:
        case str():
            return redacted(value)
        case list():
            return [_masked(one) for one in value]
        case dict():
            return {name: _masked(one) for name, one in value.items()}
        case _:
            return value
