"""The app: every route, with the OpenAPI page of them."""

from __future__ import annotations

from typing import Any

from airflow.configuration import conf
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

from sluice.store.redaction import redact_logs
from sluice_airflow.rest import acts, checkpoints, jobs
from sluice_airflow.rest.answers import handle_problems, schemas
from sluice_airflow.settings import PREFIX, VERSION

TITLE = "Sluice"
DESCRIPTION = """Checkpoints of the pipelines that this Airflow runs, with the resources and field
names of Flink's REST API where it has them. Moments are milliseconds since 1970, periods
milliseconds, sizes bytes. A field that is missing or null was not measured. Errors are
`application/problem+json` (RFC 9457).

A request needs a token of Airflow, in the header `Authorization: Bearer …` or in the cookie of the
web UI, and sees the pipelines whose DAG its user may read."""


def create_app() -> FastAPI:
    """The app that Airflow mounts at ``/sluice``."""
    redact_logs()
    has_pages = conf.getboolean("api", "enable_swagger_ui")
    app = FastAPI(
        title=TITLE,
        version=VERSION,
        description=DESCRIPTION,
        docs_url="/docs" if has_pages else None,
        redoc_url=None,
    )
    versioned = APIRouter(prefix=f"/api/{VERSION}")
    for router in (
        jobs.pipelines_router,
        jobs.drivers_router,
        checkpoints.notices_router,
        checkpoints.checkpoints_router,
        checkpoints.inspection_router,
        checkpoints.differences_router,
        acts.offered_router,
        acts.acts_router,
    ):
        versioned.include_router(router)
    app.include_router(versioned)
    app.include_router(checkpoints.metrics_router)
    handle_problems(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the schemas of our own records."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        document["components"].setdefault("schemas", {}).update(schemas())
        document["servers"] = [{"url": app.root_path or PREFIX}]
        app.openapi_schema = document
    return app.openapi_schema
