"""Checks of input are no ``assert``, and no test patches what all threads of a process share."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.test_repository import REPOSITORY

SLUICE = REPOSITORY / "include/sluice"
PLUGINS = REPOSITORY / "plugins"
OF_A_PROJECT = SLUICE / "cli" / "project"  # What `sluice init` writes, its tests among it.

# What comes out of the bucket, out of a form or off a command line comes through these.
GUARDED = [
    SLUICE / "core",
    SLUICE / "protocol",
    SLUICE / "store",
    SLUICE / "job",
    SLUICE / "coordinator",
    SLUICE / "surface",
    SLUICE / "cli",
    PLUGINS,
]


@pytest.mark.parametrize("folder", GUARDED, ids=lambda path: path.name)
def test_no_assert_guards_what_comes_from_outside(folder: Path) -> None:
    """So ``python -O`` runs the same code there, and no test has to be run by it, too."""
    assert folder.is_dir()
    found = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        if not path.is_relative_to(OF_A_PROJECT)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "__debug__")
    ]

    assert found == []


def test_an_event_is_journaled_and_carried_out_in_one_call() -> None:
    """An append to the journal outside of ``record`` would not carry out the event's commands."""
    found = [
        str(path.relative_to(SLUICE))
        for path in sorted(SLUICE.rglob("*.py"))
        if "journal.append(" in path.read_text()
    ]

    assert found == ["coordinator/record.py"]


TESTS = Path(__file__).resolve().parents[1]
FOR_EVERY_THREAD = {  # What is meant for the whole process, and each with its reason.
    "sys.path",  # There is one, and what is tested is that it stays as it was.
    "os",  # tests/unit/conftest.py: no process is started, whoever asks.
}


def libraries(tree: ast.Module) -> set[str]:
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
    }
    return imported & sys.stdlib_module_names


def replaced(path: Path) -> Iterator[str]:
    """Names of the standard library that ``setattr`` of a monkeypatch replaces in ``path``."""
    tree = ast.parse(path.read_text())
    of_file = libraries(tree)
    for call in ast.walk(tree):
        match call:
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Constant(value=str() as name), *_]
            ):
                *_, library, function = ["", *name.split(".")]
                if library in sys.stdlib_module_names:
                    yield f"{library}.{function}"
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Name(id=library), name, *_]
            ) if library in of_file:
                yield f"{library}.{name.value!s}" if isinstance(name, ast.Constant) else library


def test_what_a_test_replaces_is_replaced_for_one_module() -> None:
    found = {
        f"{path.relative_to(TESTS)}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in replaced(path)
        if name not in FOR_EVERY_THREAD
    }

    assert not found, f"use tests.patching.replace_in: {sorted(found)}"


def test_a_patch_of_the_whole_process_would_be_noticed(tmp_path: Path) -> None:
    patching = tmp_path / "test_it.py"
    patching.write_text(
        "import time\n"
        "monkeypatch.setattr('sluice_airflow.operators.time.sleep', print)\n"
        "monkeypatch.setattr(time, 'monotonic', print)\n"
        "monkeypatch.setattr('sluice.job.job.open_store', print)\n"
    )

    assert [*replaced(patching)] == ["time.sleep", "time.monotonic"]
