"""``sluice init``: a project in a new folder, and never in one that has something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.cli.main import main


def init(folder: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["init", str(folder)])
    return int(ended.value.code or 0)


def test_a_project_has_the_layout_of_the_repository(tmp_path: Path) -> None:
    assert init(tmp_path / "shop") == 0

    found = {str(path.relative_to(tmp_path / "shop")) for path in (tmp_path / "shop").rglob("*")}
    assert found == {
        ".gitignore",
        "README.md",
        "dags",
        "dags/declarations.py",
        "dags/sluice_dags.py",
        "include",
        "include/pipelines",
        "include/pipelines/__init__.py",
        "include/pipelines/orders.py",
        "input",
        "input/orders",
        "input/orders/2026-01-01.jsonl",
        "pyproject.toml",
        "requirements.txt",
        "tests",
        "tests/test_orders.py",
    }
    written = "".join(p.read_text() for p in (tmp_path / "shop").rglob("*") if p.is_file())
    assert "PROJECT_NAME" not in written
    assert "SLUICE_VERSION" not in written
    assert "# shop\n" in written


def test_our_own_dags_are_those_of_a_project(tmp_path: Path) -> None:
    init(tmp_path / "shop")
    ours = Path(__file__).resolve().parents[2] / "dags"

    assert {path.name: path.read_text() for path in ours.glob("*.py")} == {
        path.name: path.read_text() for path in (tmp_path / "shop" / "dags").iterdir()
    }


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert init(tmp_path) == 0
    assert (tmp_path / "pyproject.toml").is_file()


@pytest.mark.parametrize("occupied", ["shop/notes.txt", "shop"])
def test_a_folder_that_has_something_is_refused_and_left_as_it_is(
    tmp_path: Path, occupied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / occupied
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")

    assert init(tmp_path / "shop") == 1

    said = capsys.readouterr().err
    assert str(tmp_path / "shop") in said
    assert ("it has notes.txt; name a new one" in said) or ("is a file; name a folder" in said)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_the_pipeline_of_a_project_is_sound(tmp_path: Path) -> None:
    init(tmp_path / "shop")

    checked = subprocess.run(
        [sys.executable, "-c", "from sluice.cli.main import main; main()",
         "check", "orders", "--input", "input/orders", "--json"],
        check=False, cwd=tmp_path / "shop",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stderr
    assert '"cents": "Int64"' in checked.stdout
