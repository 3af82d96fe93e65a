"""What the house promises about its own files."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sluice.extras import AIRFLOW, DISTRIBUTION, SPARK

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", *patterns], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return [REPOSITORY / line for line in listing.stdout.splitlines()]


def pins(name: str) -> dict[str, str]:
    text = (REPOSITORY / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)(?:\[[a-z0-9,-]+\])?==([^ ;\n]+)", text, re.MULTILINE))


def test_the_lock_files_agree_with_what_was_asked_for() -> None:
    asked, locked, locked_dev = (
        pins(name) for name in ("requirements.in", "requirements.txt", "requirements-dev.txt")
    )

    assert asked
    assert asked.items() <= locked.items()
    assert {name: locked_dev[name] for name in locked} == locked


def test_the_client_that_overwrites_pyspark_stays_out() -> None:
    for line in (REPOSITORY / "requirements.txt").read_text().splitlines():
        assert not line.startswith("pyspark-client") or 'sys_platform == "never"' in line.replace(
            "'", '"'
        )


def test_no_file_names_a_package_registry() -> None:
    registry = re.compile(
        r"(pypi\.(org|python)|pythonhosted|npmjs|deb\.debian|--(extra-)?index-url)"
    )
    offenders = [
        str(path)
        for path in tracked()
        if path != Path(__file__) and registry.search(path.read_text(errors="replace"))
    ]

    assert offenders == []


def test_every_dependency_of_the_distribution_is_in_the_lock_and_allowed() -> None:
    """What is tested, our image included, is what a team may install: the ranges hold it."""
    locked = pins("requirements-dev.txt")
    extras = PROJECT["optional-dependencies"]
    asked = [
        Requirement(text)
        for texts in (PROJECT["dependencies"], *extras.values())
        for text in texts
        if not text.startswith("sluice[")
    ]

    refused = [
        str(one) for one in asked if not one.specifier.contains(locked.get(one.name, "none"))
    ]

    assert asked
    assert refused == []


def test_all_installs_every_extra_but_those_that_change_what_others_do() -> None:
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])

    assert everything.extras == extras.keys() - {"all", "openlineage", "submit"}


def test_the_versions_that_are_checked_are_those_that_are_asked_for() -> None:
    extras = PROJECT["optional-dependencies"]
    asked = {
        one.name: one.specifier
        for one in map(Requirement, extras["airflow"] + extras["spark"])
        if one.name in {"apache-airflow", "pyspark"}
    }

    assert asked == {
        name: SpecifierSet(f">={checked.first},<{checked.end}")
        for name, checked in {"apache-airflow": AIRFLOW, "pyspark": SPARK}.items()
    }
    page = (REPOSITORY / "docs" / "own-airflow.md").read_text()
    for checked in (AIRFLOW, SPARK):
        assert f"{checked.name} {checked.first} or newer, below {checked.end}" in page


def test_the_distribution_is_called_what_messages_and_airflow_call_it() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_the_version_is_stated_once() -> None:
    """Where another file has to name it, it does so without the number."""
    version = re.escape(PROJECT["version"])
    naming = re.compile(rf"sluice(?:\[[a-z,]+\])?\s*(?:==|:|-|version\s+)\s*{version}\b")

    found = [
        str(path.relative_to(REPOSITORY))
        for path in tracked()
        if naming.search(path.read_text(errors="replace"))
    ]

    assert found == []
    assert f"\n## {PROJECT['version']}" in (REPOSITORY / "CHANGELOG.md").read_text()


def test_a_missing_input_stops_the_demo_before_anything_is_started(tmp_path: Path) -> None:
    allowlist = tmp_path / "allow.txt"
    allowlist.write_text("")
    command = [sys.executable, "-m", "sluice.devstack", "demo", "ssh_threats"]
    command += ["--root", str(tmp_path), "--param", f"input={tmp_path / 'nowhere'}"]

    result = subprocess.run(
        [*command, "--param", f"allowlist={allowlist}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert result.returncode == 1
    assert f"there is no file and no folder at file://{tmp_path / 'nowhere'}" in result.stderr
    assert not (tmp_path / ".sluice").exists()
