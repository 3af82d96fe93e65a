"""The pipelines of a project are found and loaded, and its patterns select which become DAGs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.declaration.project import (
    PipelinesPackage,
    find_pipelines,
    idle_patterns,
    is_selected,
    load_declarations,
    load_pipeline,
    loaded_package,
)
from sluice.errors import ConfigurationError

PIPELINE = """
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Nexmark
from {package}.helpers import filtered

pipeline = Pipeline("{uid}")
events = pipeline.source("events", Nexmark(10)).transform("parse", filtered)
events.sink("results", FilesTable())
"""
UIDS = ("auctions", "nexmark_q4", "orders", "orders_v1")
HELPERS = """
def filtered(rows):
    return rows.where("auction > 0")
"""


@pytest.fixture(autouse=True)
def _own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the modules that a test imports as pipelines."""
    before = {*sys.modules}
    monkeypatch.delenv("SLUICE_PIPELINES", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("sluice.declaration.project._imported", {})
    yield
    for name in {*sys.modules} - before:
        if name.partition(".")[0].startswith(("flows", "acme")):
            del sys.modules[name]


def declare(folder: Path, uid: str = "demo") -> Path:
    folder.mkdir(parents=True)
    (folder / "helpers.py").write_text(HELPERS)
    (folder / "one.py").write_text(PIPELINE.format(package=folder.name, uid=uid))
    return folder


def a_project(folder: Path, settings: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f"[tool.sluice]\n{settings}\n")
    return folder


def test_the_environment_names_a_folder_wherever_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = declare(tmp_path / "include" / "flows")
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))

    assert load_pipeline("demo").uid == "demo"
    assert loaded_package() == PipelinesPackage(name="flows", folder=folder)


def test_the_environment_names_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(tmp_path / "acme" / "flows")
    (tmp_path / "acme" / "flows" / "one.py").write_text(
        "from sluice.declaration.pipeline import Pipeline\np = Pipeline('demo')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SLUICE_PIPELINES", "acme.flows")

    assert list(load_declarations().pipelines) == ["demo"]


def test_the_nearest_pyproject_that_says_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_project(tmp_path, 'pipelines = "elsewhere"')
    project = a_project(tmp_path / "project", 'pipelines = "include/flows"')
    declare(project / "include" / "flows")
    inner = project / "dags" / "team"
    inner.mkdir(parents=True)
    (inner.parent / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(inner)

    assert find_pipelines() == PipelinesPackage(name="flows", folder=project / "include" / "flows")


def test_a_file_of_dags_comes_before_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = a_project(tmp_path / "project", 'pipelines = "flows"')
    declare(project / "flows")
    other = a_project(tmp_path / "other", 'pipelines = "acme"')
    (other / "acme").mkdir()
    monkeypatch.chdir(other)

    assert find_pipelines(project / "dags").name == "flows"
    assert find_pipelines().name == "acme"


def test_what_a_dag_file_says_begins_beside_it_and_counts_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = declare(tmp_path / "include" / "flows")
    (tmp_path / "dags").mkdir()
    monkeypatch.setenv("SLUICE_PIPELINES", "acme")

    found = find_pipelines(tmp_path / "dags", setting="../include/flows")

    assert found == PipelinesPackage(name="flows", folder=folder)


def test_without_a_word_it_is_the_package_pipelines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert find_pipelines() == PipelinesPackage(name="pipelines")


def test_dags_are_those_of_the_table_that_names_the_pipelines_or_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = a_project(tmp_path, 'pipelines = "flows"\ndags = ["!draft_*"]')
    folder = declare(project / "flows")
    monkeypatch.chdir(project)
    in_the_table = PipelinesPackage(name="flows", folder=folder, dags=("!draft_*",))

    assert find_pipelines(env={}) == in_the_table
    assert find_pipelines(env={"SLUICE_PIPELINES": "acme"}) == PipelinesPackage(name="acme")
    patterns = find_pipelines(env={"SLUICE_DAGS": "orders, !bids  !draft_*"}).dags
    assert patterns == ("orders", "!bids", "!draft_*")  # By spaces or commas.
    assert find_pipelines(env={"SLUICE_DAGS": " "}) == in_the_table


MISTAKES: dict[str, tuple[str, str]] = {
    "no folder": (
        'pipelines = "no/such"',
        "there is no folder {0}/no/such (in {0}/pyproject.toml)",
    ),
    "no word": ('pipeline = "flows"', "[tool.sluice] in {0}/pyproject.toml says no folder or pack"),
    "a list": ('pipelines = ["flows"]', "[tool.sluice] in {0}/pyproject.toml says no folder or p"),
    "more": ('pipelines = "flows"\nroot = "x"', "[tool.sluice] in {0}/pyproject.toml has root; it"),
    "no patterns": (
        'pipelines = "my_flows"\ndags = "orders"',
        "dags of [tool.sluice] in {0}/pyproject.toml is no list of patterns; write dags = ",
    ),
    "no TOML": ("pipelines = ", "{0}/pyproject.toml cannot be read: Invalid value"),
    "no name": ('pipelines = "my-flows"', "the folder {0}/my-flows (in {0}/pyproject.toml) cannot"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_the_file(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, expected = MISTAKES[mistake]
    (tmp_path / "my-flows").mkdir()
    monkeypatch.chdir(a_project(tmp_path, settings))

    with pytest.raises(ConfigurationError) as error:
        find_pipelines()

    assert str(error.value).startswith(expected.format(tmp_path))


@pytest.mark.parametrize(
    ("helper", "problem"),
    [
        ("\n1 / 0\n", "acme_flows/helpers.py, line 2: ZeroDivisionError: division by zero"),
        ("\ndef of(:\n", "acme_flows/helpers.py, line 2: invalid syntax"),
    ],
)
def test_a_mistake_in_a_file_that_others_import_is_told_with_that_file(
    helper: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = declare(tmp_path / "acme_flows")
    (folder / "helpers.py").write_text(helper)
    (folder / "two").mkdir()
    (folder / "two" / "__init__.py").write_text("from acme_flows import helpers\n")
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))

    found = load_declarations().problems

    assert found["acme_flows/one.py"] == found["acme_flows/two/__init__.py"] == problem


def test_a_package_that_is_nowhere_is_a_problem_that_says_how_to_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_PIPELINES", "acme_flows")

    problems = load_declarations().problems

    assert problems == {
        "acme_flows/__init__.py": "there is no folder and no package 'acme_flows' with pipelines; "
        "say where they are with SLUICE_PIPELINES, or in pyproject.toml with [tool.sluice] "
        'pipelines = "FOLDER"; sluice init FOLDER begins a project'
    }


def test_a_folder_of_a_name_that_is_taken_is_refused(tmp_path: Path) -> None:
    folder = declare(tmp_path / "json")

    problems = load_declarations(PipelinesPackage(name="json", folder=folder)).problems

    (problem,) = problems.values()
    assert problem.startswith(f"the folder {folder} with pipelines has the name of a module that")


def test_a_folder_is_found_before_a_package_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(tmp_path / "shadow" / "flows", "wrong")
    folder = declare(tmp_path / "right" / "flows", "right")
    monkeypatch.syspath_prepend(tmp_path / "shadow")

    found = load_declarations(PipelinesPackage(name="flows", folder=folder))

    assert (list(found.pipelines), found.problems) == (["right"], {})


def test_a_package_that_is_loaded_again_is_the_last_one(tmp_path: Path) -> None:
    flows, acme = declare(tmp_path / "flows"), declare(tmp_path / "acme", "other")
    for folder in (flows, acme, flows):
        find_pipelines(setting=str(folder)).load()

    assert loaded_package() == PipelinesPackage(name="flows", folder=flows)


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        ("", UIDS),
        ("auctions orders", ("auctions", "orders")),
        ("!nexmark_*", ("auctions", "orders", "orders_v1")),
        ("orders* !orders_v1", ("orders",)),
        ("!orders* orders_v1", ("auctions", "nexmark_q4", "orders_v1")),
        ("* !*", ()),
        ("Orders", ()),
    ],
)
def test_the_last_pattern_that_fits_decides(patterns: str, selected: tuple[str, ...]) -> None:
    assert tuple(uid for uid in UIDS if is_selected(uid, tuple(patterns.split()))) == selected


def test_patterns_that_fit_nothing_are_found() -> None:
    assert idle_patterns(("orders*", "!nexmrk_*", "bids"), UIDS) == ("!nexmrk_*", "bids")


def test_where_nothing_can_be_loaded_the_reason_is_told_and_no_empty_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = declare(tmp_path / "flows_broken")
    (folder / "one.py").write_text("raise ValueError('no such column')\n")
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))

    with pytest.raises(
        ConfigurationError, match=r"^pipeline 'demo' cannot be loaded: .*one\.py.*no such column"
    ):
        load_pipeline("demo")


@pytest.mark.parametrize("uid", ["demo", "demo.of_another", "../demo", ""])
def test_outside_of_a_project_it_is_said_how_one_is_begun(uid: str) -> None:
    with pytest.raises(ConfigurationError, match=r"sluice init FOLDER begins a project$"):
        load_pipeline(uid, PipelinesPackage(name="flows_of_nobody"))
