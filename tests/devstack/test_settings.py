"""What the stack hands on to its processes."""

from __future__ import annotations

import pytest

from sluice.devstack.demo import dag_selection
from sluice.devstack.stack import Ports, StackOptions, service_environment

PORTS = Ports(s3=1, spark=2, spark_ui=3, airflow=4, worker_log=5, trigger_log=6, postgres=7)


@pytest.mark.parametrize(("said", "handed_on"), [({}, "1"), ({"SLUICE_DRILLS": "0"}, "0")])
def test_forms_of_the_local_stack_have_the_field_fault_unless_a_person_says_otherwise(
    said: dict[str, str], handed_on: str
) -> None:
    options = StackOptions.from_environment(said)

    env = service_environment(PORTS, options, stack_id="a", extra_env={})

    assert env["SLUICE_DRILLS"] == handed_on


def test_a_demo_of_a_pipeline_that_the_project_does_not_select_makes_it_a_dag(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLUICE_DAGS", raising=False)
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)

    assert dag_selection("auctions") == {}
    assert dag_selection("nexmark_q4") == {
        "SLUICE_DAGS": "!nexmark_* !auctions_submitted nexmark_q4"
    }
