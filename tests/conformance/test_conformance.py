"""The project's own copy of the cases, through the same adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.run import answer, cases

CASES = cases(sorted((Path(__file__).parent / "cases").glob("*.jsonl")))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_core_follows_flinks_rule(case: dict[str, Any]) -> None:
    assert answer(case) == case["then"]
