"""What is in the wheel, and what it does with its own requirements alone."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from tests.package.conftest import REPOSITORY, Environment


def test_the_wheel_has_sluice_and_its_airflow_layer_and_no_pipelines(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    tops = {name.partition("/")[0] for name in names}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops == {"sluice", "sluice_airflow", info}
    assert {
        "sluice/py.typed",
        "sluice/spark/log4j2.properties",
        "sluice/spark/application/run_stage.py",
        "sluice/cli/project/include/pipelines/orders.py",
        "sluice_airflow/py.typed",
        f"{info}/licenses/LICENSE",
    } <= {*names}
    sources = {
        str(path.relative_to(REPOSITORY / "include"))
        for path in (REPOSITORY / "include" / "sluice").rglob("*.py")
    }
    assert sources - {*names} == set()
    plugins = REPOSITORY / "plugins"
    pages = {
        str(path.relative_to(plugins))
        for path in (plugins / "sluice_airflow" / "pages").rglob("*")
        if path.is_file()
    }
    assert pages - {*names} == set()


def test_the_wheel_was_built_from_the_sdist_alone(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"LICENSE", "README.md", "pyproject.toml", "plugins/sluice_airflow/plugin.py"} <= names
    assert not any(name.startswith(("tests/", "include/pipelines")) for name in names)


def test_the_core_alone_begins_a_project_and_checks_its_pipeline(
    core: Environment, tmp_path: Path
) -> None:
    core.run("sluice", "init", "shop", cwd=tmp_path)

    checked = core.run(
        "sluice", "check", "orders", "--input", "input/orders", cwd=tmp_path / "shop"
    )
    listed = core.run("sluice", "pipelines", "--json", cwd=tmp_path / "shop" / "tests")

    assert "cents" in checked.stdout
    assert '"pipeline": "orders"' in listed.stdout


def test_the_core_alone_names_the_extra_that_a_run_needs(core: Environment, tmp_path: Path) -> None:
    core.run("sluice", "init", "shop", cwd=tmp_path)

    ran = core.run(
        "sluice", "run", "orders", "--input", "input/orders", cwd=tmp_path / "shop", check=False
    )

    assert ran.returncode == 1
    assert ran.stderr == (
        "error: sluice run needs the library pyspark, which is not installed; run: "
        "pip install 'sluice[spark]'\n"
    )


def test_the_core_alone_names_the_extra_that_dags_need(core: Environment, tmp_path: Path) -> None:
    core.run("sluice", "init", "shop", cwd=tmp_path)

    ran = core.run("python", "dags/sluice_dags.py", cwd=tmp_path / "shop", check=False)

    assert ran.stderr.endswith(
        "ConfigurationError: sluice_airflow needs the library airflow, which is not installed; "
        "run: pip install 'sluice[airflow]'\n"
    )
