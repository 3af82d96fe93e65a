"""Routes of pipelines: all that a user may see, and one with its graph."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from airflow.api_fastapi.app import API_ROOT_PATH
from fastapi import APIRouter, Depends, Response

from sluice.views.pipelines import (
    PipelineDetails,
    PipelineLine,
    pipeline_details,
    pipeline_line,
    unread_line,
)
from sluice_airflow.rest.access import Readable, may_read, readable
from sluice_airflow.rest.answers import answer, shows
from sluice_airflow.rest.jobs import DeclaredDep, JobDep, read_each

router = APIRouter(tags=["pipelines"])


class ListedPipeline(PipelineLine, frozen=True, kw_only=True):
    """A pipeline in a line, with the path of its DAG in Airflow."""

    dag: str


class ShownPipeline(PipelineDetails, frozen=True, kw_only=True):
    """A pipeline with its graph, and the path of its DAG in Airflow."""

    dag: str


class BrokenModule(msgspec.Struct, frozen=True, kw_only=True):
    """A module of pipelines that cannot be imported, so that none of its uids is known."""

    module: str
    error: str


class Pipelines(msgspec.Struct, frozen=True, kw_only=True):
    """Those whose DAG the user may read, in the order of their uids."""

    pipelines: tuple[ListedPipeline, ...]
    broken: tuple[BrokenModule, ...]


@router.get("/pipelines", responses=shows(Pipelines))
def list_pipelines(
    declarations: DeclaredDep, allowed: Annotated[Readable, Depends(readable)]
) -> Response:
    """Every pipeline whose DAG you may read: its status, its last checkpoint, its watermark.

    One whose bucket does not answer has an `error`, and the others are shown.
    """
    shown = [one for uid, one in declarations.pipelines.items() if uid in allowed.uids]
    lines = read_each(shown, pipeline_line, unread_line)
    problems = declarations.problems if allowed.sees_problems else {}
    return answer(
        Pipelines(
            pipelines=tuple(
                ListedPipeline(**_fields(line), dag=dag_path(line.uid)) for line in lines
            ),
            broken=tuple(
                BrokenModule(module=name, error=error) for name, error in problems.items()
            ),
        )
    )


@router.get("/pipelines/{uid}", responses=shows(ShownPipeline), dependencies=[Depends(may_read)])
def show_pipeline(job: JobDep) -> Response:
    """One pipeline with its declared graph: sources, stages and sinks, who reads whom, and what is
    known of each of them.
    """
    found = pipeline_details(job)
    return answer(ShownPipeline(**_fields(found), dag=dag_path(found.uid)))


def dag_path(dag_id: str) -> str:
    """Where Airflow shows a DAG."""
    return f"{API_ROOT_PATH.rstrip('/')}/dags/{quote(dag_id, safe='')}"


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}
