"""What docs/own-airflow.md tells a team to do, done with the wheel: Spark, and Airflow's DAGs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.package.conftest import INSTALLED, REPOSITORY, Environment

pytestmark = [pytest.mark.spark, pytest.mark.airflow]

PARSED = """
import json, sys
from pathlib import Path
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager

folder = Path(sys.argv[1])
try:
    from airflow.dag_processing.dagbag import DagBag
    bag = DagBag(dag_folder=str(folder), bundle_name="dags-folder", bundle_path=folder)
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag
    bag = DagBag(dag_folder=str(folder), bundle_path=folder)
loaded, problems = plugins_manager._get_plugins()
provider = ProvidersManager().providers["sluice"]
print(json.dumps({
    "dags": {dag_id: Path(dag.fileloc).name for dag_id, dag in bag.dags.items()},
    "import_errors": {Path(path).name: said for path, said in bag.import_errors.items()},
    "plugins": [str(one.source) for one in loaded if one.name == "sluice"],
    "plugin_problems": problems,
    "provider": [provider.version, provider.data["name"]],
    "timetables": [name for name in plugins_manager.get_timetables_plugins() if "sluice" in name],
    "modules": [sys.modules[name].__file__ for name in ("sluice", "sluice_airflow")],
}))
"""


def parsed(environment: Environment, project: Path, home: Path, **env: Any) -> dict[str, Any]:
    """What an Airflow of its own finds in the project's ``dags/``."""
    ran = environment.run(
        "python", "-W", "ignore", "-c", PARSED, project / "dags",
        cwd=home,
        AIRFLOW_HOME=str(home),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        SLUICE_ROOT=f"file://{home / 'jobs'}",
        **env,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_the_page_followed_to_the_letter_gives_a_project_that_runs(project: Path) -> None:
    """``project`` is what its commands left behind, the project's own test among them."""
    rows = json.loads((project / "customers.json").read_text())

    assert {row["customer"]: (row["orders"], row["cents"]) for row in rows} == {
        "ada": (2, 1749),
        "grace": (1, 800),
        "edsger": (1, 12000),
    }


@pytest.mark.skipif(not INSTALLED, reason="starts Spark again; make package runs it")
def test_a_second_run_reads_the_new_file_alone(environment: Environment, project: Path) -> None:
    """As the project's README says."""
    (project / "input" / "orders" / "2026-01-02.jsonl").write_text(
        '{"id": 5, "customer": "ada", "cents": 1}\n'
    )

    ran = environment.run(
        "sluice", "run", "orders", "--input", "input/orders", "--json", cwd=project
    )

    (checkpoint,) = json.loads(ran.stdout)["checkpoints"]
    assert (checkpoint["status"], checkpoint["records"]) == ("COMPLETED", 1)


def test_airflow_finds_the_projects_dags_and_registers_everything_once(
    environment: Environment, project: Path, tmp_path: Path
) -> None:
    found = parsed(environment, project, tmp_path)

    file = "sluice_dags.py"
    names = ("orders", "orders__savepoint", "orders__restore", "orders__cancel", "sluice__watchdog")
    assert found["dags"] == dict.fromkeys(names, file)
    assert found["import_errors"] == {}
    version = environment.run("sluice", "--version", cwd=tmp_path).stdout.strip()
    (plugin,) = found["plugins"]
    assert plugin.startswith(f"sluice=={version}: ")
    assert found["plugin_problems"] == {}
    assert found["provider"] == [version, "Sluice"]
    timetables = ("CheckpointTimetable", "FirstTickTimetable")
    assert found["timetables"] == [f"sluice_airflow.timetable.{name}" for name in timetables]
    assert not any(str(REPOSITORY) in path for path in found["modules"])


def test_a_broken_declaration_is_an_import_error_and_takes_no_dag_away(
    environment: Environment, project: Path, tmp_path: Path
) -> None:
    """The folder of dags is elsewhere than the pipelines, which the environment names."""
    pipelines = tmp_path / "acme_pipelines"
    pipelines.mkdir()
    orders = (project / "include" / "pipelines" / "orders.py").read_text()
    (pipelines / "orders.py").write_text(orders)
    (pipelines / "broken.py").write_text("x = 1 / 0\n")
    (tmp_path / "dags").mkdir()
    for file in (project / "dags").glob("*.py"):
        (tmp_path / "dags" / file.name).write_text(file.read_text())

    found = parsed(environment, tmp_path, tmp_path, SLUICE_PIPELINES=str(pipelines))

    assert len(found["dags"]) == 5
    errors: dict[str, str] = found["import_errors"]
    assert list(errors) == ["declarations.py"]
    assert "acme_pipelines/broken.py: line 1: ZeroDivisionError" in errors["declarations.py"]
