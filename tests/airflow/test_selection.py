"""The pipelines that this Airflow runs, of those that the project declares."""

from __future__ import annotations

import pytest

from sluice.declaration.project import load_pipeline
from sluice.errors import ConfigurationError
from sluice_airflow import dags as dag_files
from sluice_airflow.dags import load_watched
from tests.airflow.conftest import REPOSITORY

OURS = str(REPOSITORY / "include" / "pipelines")


def pipelines_with_dags() -> set[str]:
    return {uid.partition("__")[0] for uid in dag_files.dags(OURS)}


@pytest.mark.usefixtures("root")
def test_only_the_selected_pipelines_are_dags_and_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_DAGS", "auctions nexmark_q4")

    assert pipelines_with_dags() == {"auctions", "nexmark_q4", "sluice"}
    assert sorted(load_watched()) == ["auctions", "nexmark_q4"]
    dag_files.require_sound_pipelines(OURS)


def test_of_the_examples_the_nexmark_queries_are_no_dags_and_can_be_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLUICE_DAGS", raising=False)
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    monkeypatch.chdir(REPOSITORY / "dags")

    assert sorted(load_watched()) == ["auctions", "ssh_threats"]
    assert load_pipeline("nexmark_q4").uid == "nexmark_q4"


@pytest.mark.usefixtures("root")
def test_a_pattern_that_fits_no_pipeline_is_an_import_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLUICE_DAGS", "auctions ssh_treats")

    with pytest.raises(ConfigurationError) as refused:
        dag_files.require_sound_pipelines(OURS)

    assert str(refused.value).startswith(
        "'ssh_treats' in dags, or in SLUICE_DAGS, fits no pipeline; declared are auctions, "
        "auctions_submitted, nexmark_"
    )
