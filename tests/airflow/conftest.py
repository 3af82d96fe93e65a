"""An Airflow of its own for this folder: home, database and DAGs in a temporary folder.

Airflow reads its configuration when it is imported, and the test modules import it while they are
collected; so the environment is set here, at import, and not in a fixture.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from tests.airflow.rest import Api

HOME = Path(tempfile.mkdtemp(prefix="sluice-airflow-tests-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
REPOSITORY = Path(__file__).parents[2]
DAGS = HOME / "dags"

assert "airflow" not in sys.modules, "Airflow was imported before its home was set"
os.environ |= {
    "AIRFLOW_HOME": str(HOME),
    "AIRFLOW__CORE__DAGS_FOLDER": str(DAGS),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPOSITORY / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "vera:viewer,uwe:user",
    "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-the-tests-of-this-folder-" + "0" * 64,
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{HOME / 'airflow.db'}",
    "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(HOME / "logs"),
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
}
DAGS.mkdir()

# Airflow and what it brings warn while they are imported (SyntaxWarning, DeprecationWarning); our
# own modules are imported by the tests, where every warning is an error.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import airflow.sdk
    import airflow.triggers.base  # noqa: F401

from tests.airflow.stand_in import StandInSpark  # noqa: E402 - its home must be set first

# Airflow's own, at run time; none of them can be answered from here.
_AIRFLOWS_WARNINGS = (
    "ignore::DeprecationWarning:airflow",
    "ignore::DeprecationWarning:pathspec",
)
_BUILDS_AIRFLOWS_API = {"api_server", "dags"}  # Fixtures: dozens of imports and queries warn.


def run_python(script: str, argument: Path, **env: str) -> str:
    """The output of *script* in a process of its own, with our code alone."""
    code = {"PYTHONPATH": f"{REPOSITORY}/include:{REPOSITORY}/plugins", "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(argument)],
        check=False,
        env=code | env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/airflow/"):
            item.add_marker(pytest.mark.airflow)
            for warning in _AIRFLOWS_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))
            if _BUILDS_AIRFLOWS_API.intersection(getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(name="root")
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root of this test, where the operators find it."""
    root = f"file://{tmp_path / 'root'}"
    monkeypatch.setenv("SLUICE_ROOT", root)
    monkeypatch.setenv("SLUICE_SPARK_REMOTE", "sc://127.0.0.1:1")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("SLUICE_FAULT", raising=False)
    monkeypatch.delenv("SLUICE_DRILLS", raising=False)
    return root


@pytest.fixture(name="spark", autouse=True)
def _spark(monkeypatch: pytest.MonkeyPatch) -> StandInSpark:
    spark = StandInSpark()
    spark.install(monkeypatch)
    return spark


@pytest.fixture(scope="session", name="api_server")
def _api_server() -> Iterator[Api]:
    """Airflow's own API with ours in it, over a database that has the DAGs."""
    from tests.airflow.rest import an_api

    with an_api() as api:
        yield api


@pytest.fixture(name="everybody")
def _everybody(api_server: Api, root: str, monkeypatch: pytest.MonkeyPatch) -> Api:
    """The REST API for who has no token, over an empty root; ``.by(name)`` has one."""
    monkeypatch.setenv("SLUICE_PIPELINES", str(HOME / "rest_pipelines"))
    monkeypatch.setattr("sluice.declaration.project._imported", {})  # What this process has loaded.
    return api_server


@pytest.fixture(name="viewer")
def _viewer(everybody: Api) -> Api:
    return everybody.by("vera")


@pytest.fixture(name="editor")
def _editor(everybody: Api) -> Api:
    return everybody.by("uwe")


@pytest.fixture(name="only_demo")
def _only_demo(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and no user may read any DAG but that of ``demo``."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    def is_demo(_: object, *, details: Any = None, **__: object) -> bool:
        return details is not None and details.id == "demo"

    return lambda: monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", is_demo)


@pytest.fixture(scope="module", name="dags")
def _dags() -> Iterator[dict[str, DAG]]:
    from tests.airflow.demo_dags import demo_dags

    with demo_dags() as dags:
        yield dags
