"""The entry points that Airflow loads, and the refusal of an Airflow that is too old."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers_manager import _create_provider_info_schema_validator

import airflow
from sluice.errors import ConfigurationError
from sluice_airflow import dags as dag_files
from sluice_airflow import get_provider_info, plugin
from tests.airflow.conftest import REPOSITORY

TOO_OLD = r"Airflow 3\.0\.6 is not supported; Sluice runs on Airflow 3\.1 or newer, below 4"


def test_the_provider_is_what_airflows_schema_asks_for() -> None:
    _create_provider_info_schema_validator().validate(get_provider_info())


def test_an_airflow_that_is_too_old_does_not_load_the_plugin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin.SluicePlugin.on_load()
    monkeypatch.setattr(plugin, "__version__", "3.0.6")

    with pytest.raises(ConfigurationError, match=TOO_OLD):
        plugin.SluicePlugin.on_load()


@pytest.mark.parametrize("asked", [dag_files.dags, dag_files.require_sound_pipelines])
def test_an_airflow_that_is_too_old_is_an_import_error_of_the_dag_files(
    monkeypatch: pytest.MonkeyPatch, asked: Any
) -> None:
    monkeypatch.setattr(airflow, "__version__", "3.0.6")

    with pytest.raises(ConfigurationError, match=TOO_OLD):
        asked()


def test_nothing_in_the_folder_of_plugins_is_scanned() -> None:
    """The entry point registers the plugin; a file that did so, too, would be an error."""
    plugins_manager = pytest.importorskip(
        "airflow._shared.plugins_manager.plugins_manager", reason="Airflow 3.1"
    )
    loaded, problems = plugins_manager._load_plugins_from_plugin_directory(  # noqa: SLF001 - Airflow has no public face for it
        str(REPOSITORY / "plugins")
    )

    assert (loaded, problems) == ([], {})


def test_a_dag_file_may_name_the_pipelines_from_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    (tmp_path / "flows_of_a_dag_file").mkdir()
    (tmp_path / "flows_of_a_dag_file" / "one.py").write_text("x = 1 / 0\n")
    file = tmp_path / "dags" / "problems.py"
    calling = compile("require_sound_pipelines('../flows_of_a_dag_file')", str(file), "exec")

    with pytest.raises(ConfigurationError, match=r"flows_of_a_dag_file/one.py: line 1: ZeroDiv"):
        exec(  # noqa: S102 - as Airflow runs a file
            calling,
            {"__file__": str(file), "require_sound_pipelines": dag_files.require_sound_pipelines},
        )
