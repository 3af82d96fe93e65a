"""No test replaces a function of the standard library for every thread of its process."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

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
