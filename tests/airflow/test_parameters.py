"""Parameters in forms: a first run journals them, a restore changes them, others are refused."""

from __future__ import annotations

import pytest

from sluice_airflow.compat import AirflowFailException
from sluice_airflow.dag_factory import dags_of
from sluice_airflow.forms import checkpoint_form, restore_form
from tests.airflow.acts import PIPELINE, a_checkpoint, restore, trigger
from tests.airflow.stand_in import StandInSpark, a_job


def journaled(root: str) -> dict[str, str]:
    return dict(a_job(root).state().configuration.params)


def test_the_first_run_submits_the_job_with_the_parameters_of_its_form(root: str) -> None:
    trigger(run_type="manual", params={"param_events": "700"})

    assert journaled(root) == {"events": "700"}


def test_empty_fields_are_the_defaults(root: str) -> None:
    trigger(run_type="manual", params={"param_events": None})

    assert journaled(root) == {"events": "0"}


def test_a_later_run_that_asks_for_others_is_refused_with_the_way_to_change_them(
    root: str, spark: StandInSpark
) -> None:
    a_checkpoint("run-1")

    with pytest.raises(AirflowFailException, match=r"events is '0' and not '700'; .*demo__restore"):
        trigger(run_id="run-2", run_type="manual", params={"param_events": "700"})

    again = trigger(run_id="run-3", run_type="manual", params={"param_events": "0"})
    assert again["checkpoint_id"] == 2


def test_a_restore_changes_them_and_says_so(root: str, spark: StandInSpark) -> None:
    a_checkpoint("run-1")

    _, changed = restore("restore-1", param_events="9000")
    _, kept = restore("restore-2")

    assert changed == "restored checkpoint 1, generation 2; RUNNING; events=9000"
    assert kept == "restored checkpoint 1, generation 3; RUNNING"
    assert journaled(root) == {"events": "9000"}


def test_the_forms_name_each_parameter_and_what_an_empty_field_means() -> None:
    first, again = checkpoint_form(PIPELINE), restore_form(PIPELINE)

    assert first["param_events"].description == "how many; empty: 0"
    assert again["param_events"].description == "how many; empty: as before"
    forms = {dag.dag_id: "param_events" in dag.params for dag in dags_of(PIPELINE)}
    assert forms == {
        "demo": True, "demo__savepoint": False, "demo__restore": True, "demo__cancel": False,
    }  # fmt: skip
