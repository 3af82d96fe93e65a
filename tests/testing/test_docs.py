"""docs/testing.md, to the letter: its blocks are one module, whose tests pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"


def test_the_page_s_examples_run_and_its_tests_pass() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    module: dict[str, Any] = {"__name__": "docs_testing"}

    exec(compile("\n".join(blocks), str(PAGE), "exec"), module)  # noqa: S102 - our own page
    tests = [name for name in module if name.startswith("test_")]
    for name in tests:
        module[name]()

    assert len(tests) == 4
    assert module["takings"].height == 12
    assert [number for number, _, _ in module["progress"]] == [1, 2, 3]
