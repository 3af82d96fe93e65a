"""The REST API answers what its OpenAPI document says, whatever it is asked (schemathesis)."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from harness.jobs import trigger_one
from tests.airflow.rest import Api, auctions_in, take
from tests.airflow.test_rest_access import routes

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
    for found in document.get_all_operations():
        operation = found.ok()

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
