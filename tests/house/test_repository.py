"""What the house promises about its own files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


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


def test_the_compose_file_builds_the_version_that_is_declared() -> None:
    version = re.search(r'^version = "(.+)"', (REPOSITORY / "pyproject.toml").read_text(), re.M)
    assert version is not None

    assert f"image: sluice:{version[1]}" in (REPOSITORY / "docker-compose.yaml").read_text()


def test_a_missing_input_stops_the_demo_before_anything_is_started(tmp_path: Path) -> None:
    allowlist = tmp_path / "allow.txt"
    allowlist.write_text("")
    command = [sys.executable, "-m", "sluice.devstack", "demo", "ssh_threats"]
    command += ["--root", str(tmp_path), "--param", f"input={tmp_path / 'nowhere'}"]

    result = subprocess.run(
        [*command, "--param", f"allowlist={allowlist}"], capture_output=True, text=True, timeout=60
    )

    assert result.returncode == 1
    assert f"there is no file and no folder at file://{tmp_path / 'nowhere'}" in result.stderr
    assert not (tmp_path / ".sluice").exists()
