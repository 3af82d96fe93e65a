"""Who may: anonymous nothing, a viewer reads, and of a list one sees what one may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.core_api.security import get_user
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from harness.jobs import trigger_one
from sluice.core.answers import HotGroup, SubtaskMetrics
from sluice.surface import acts
from sluice_airflow.rest import answers
from sluice_airflow.rest.app import create_app
from tests.airflow.database import set_paused
from tests.airflow.rest import BASE, Api, auctions_in, found, refused, take
from tests.subtasks import measure

READS = (
    answers.may_read,
    answers.may_read_data,
    answers.may_read_savepoints,
    answers.visible_pipelines,
)
ACTS = tuple(map(answers.may_do, acts.ACTS))
DESCRIPTIONS = {"/openapi.json", "/docs", "/docs/oauth2-redirect"}  # Public, as Airflow's own are.


def routes() -> list[APIRoute]:
    return [route for route in create_app().routes if isinstance(route, APIRoute)]


def calls(dependant: Dependant) -> Iterator[Any]:
    for one in dependant.dependencies:
        yield one.call
        yield from calls(one)


def test_every_route_asks_airflow_who_it_is_and_whether_they_may() -> None:
    without = [
        route.path
        for route in routes()
        if get_user not in calls(route.dependant)
        or not any(
            call in (READS if route.methods <= {"GET"} else ACTS) for call in calls(route.dependant)
        )
    ]

    assert routes()
    assert without == []


def test_nothing_else_is_served_but_the_description_of_the_routes() -> None:
    others = [route for route in create_app().routes if not isinstance(route, APIRoute)]

    assert {route.path for route in others if isinstance(route, Route)} == DESCRIPTIONS
    assert len(others) == len(DESCRIPTIONS)


@pytest.mark.parametrize("route", routes(), ids=lambda route: f"{[*route.methods]} {route.path}")
def test_without_a_token_every_route_answers_401(everybody: Api, route: Any) -> None:
    path = route.path_format.format(uid="auctions", checkpoint_id=1, stage="s", request_id="r")
    method = next(iter(route.methods))

    answer = everybody.client.request(method, "/sluice" + path, json={})

    assert "log in to Airflow" in refused(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_that_airflow_did_not_give_is_no_token(everybody: Api) -> None:
    url = BASE + "/pipelines"
    forged = everybody.client.get(url, headers={"Authorization": "Bearer e30.e30.e30"})

    assert refused(forged, 403)


def test_the_web_uis_cookie_is_as_good_as_a_token(everybody: Api) -> None:
    everybody.client.cookies.set("_token", everybody.tokens["vera"])
    try:
        assert everybody.get("/pipelines").status_code == 200
    finally:
        everybody.client.cookies.clear()


def test_one_sees_the_pipelines_whose_dag_one_may_read(
    viewer: Api, only_demo: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    only_demo()
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_view", lambda *_, **__: False)

    listed = viewer.get("/pipelines").json()
    other = viewer.get("/pipelines/auctions/journal")

    assert [one["uid"] for one in listed["pipelines"]] == ["demo"]
    assert listed["broken"] == []
    assert viewer.get("/pipelines/demo").status_code == 200
    assert "an admin of Airflow can let you read the DAG" in refused(other, 403)


def test_hot_keys_are_rows_values_so_they_take_the_right_to_see_xcoms(
    viewer: Api, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = SubtaskMetrics(rows_in=9, hot_groups=(HotGroup(group=7, rows=8, keys=("k=secret",)),))
    checkpoint = measure(auctions_in(root), hot, hot)
    may = SimpleAuthManager.is_authorized_dag

    def but_xcoms(self: SimpleAuthManager, **asked: Any) -> bool:
        is_xcom = asked.get("access_entity") is DagAccessEntity.XCOM
        return not is_xcom and may(self, **asked)

    def hot_keys() -> list[list[str]]:
        stage = found(viewer.get("/pipelines/auctions/skew"))["stages"][0]
        return [group["keys"] for group in stage["hot_groups"]]

    assert hot_keys() == [["k=secret"]]
    shown = f"/checkpoints/{checkpoint}"
    for path in ("", shown, f"{shown}/subtasks/count_bids"):
        assert "secret" not in viewer.get(f"/pipelines/auctions{path}").text
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", but_xcoms)
    assert hot_keys() == [[]]


def test_a_pipeline_says_which_acts_are_refused_and_why(everybody: Api, root: str) -> None:
    auctions_in(root)
    set_paused("auctions", paused=False)
    set_paused("auctions__restore", paused=True)

    def refusals(name: str) -> dict[str, str]:
        told = found(everybody.by(name).get("/pipelines/auctions"))["refused"]
        return {act: why.partition(";")[0] for act, why in told.items()}

    try:
        of_viewer, of_editor = refusals("vera"), refusals("uwe")
    finally:
        set_paused("auctions__restore", paused=False)

    may_not = "You may not start the runs that this takes"
    assert of_viewer == {act.name: may_not for act in acts.ACTS}
    assert of_editor == {
        "restore": "DAG 'auctions__restore' is paused, so that no run starts",
        "backfill": "no source of 'auctions' declares input that is replaced, so input cannot be "
        "read again without counting it twice",
    }


EXAMPLES = 5  # Of each route; the examples are drawn, and the same each time.
PROMISES = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(name="document")
def _document(everybody: Api, root: str) -> Any:
    job = auctions_in(root)
    take(job, trigger_one(job))
    return schemathesis.openapi.from_asgi("/sluice/openapi.json", everybody.client.app)


def test_every_answer_is_one_that_the_document_knows(document: Any, everybody: Api) -> None:
    headers, asked = everybody.by("uwe").headers, set()
    for each in document.get_all_operations():
        operation = each.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
        )
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if "uid" in case.path_parameters:  # Any other is a pipeline that is not declared.
                case.path_parameters["uid"] = "auctions"
            if "from" in (case.query or {}):  # Any other is a savepoint that is not there.
                case.query["from"] = "1"
            if "checkpoint_id" in case.path_parameters:
                case.path_parameters["checkpoint_id"] %= 3
            case.call_and_validate(checks=PROMISES, headers=headers)
            asked.add(case.operation.label)

        ask()

    assert len(asked) == len(routes())
