"""No file of the product is above 300 lines, and no function above 50."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("include", "plugins", "dags", "spark_jobs")
MOST_LINES_OF_A_FILE = 300
MOST_LINES_OF_A_FUNCTION = 50


def _files() -> Iterator[tuple[str, str]]:
    for folder in PRODUCT:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            yield str(path.relative_to(REPOSITORY)), path.read_text()


def test_no_file_is_longer_than_one_can_keep_in_mind() -> None:
    lines = {name: text.count("\n") for name, text in _files()}

    assert {name: many for name, many in lines.items() if many > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{name}: {node.name}": lines
        for name, text in _files()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    }

    assert long == {}, "split by noun what is new"
