"""The project's own copy of the cases, and those we derived, through the same adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.run import agrees, answer, cases, main

CASES = cases(sorted((Path(__file__).parent / "cases").glob("*.jsonl")))


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_core_follows_flinks_rule(case: dict[str, Any]) -> None:
    actual = answer(case)

    assert agrees(case["then"], actual), f"expected {case['then']}, got {actual}"


def test_every_id_is_unique() -> None:
    ids = [case["id"] for case in CASES]

    assert len(ids) == len(set(ids))


def test_the_runner_counts_and_names_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = {"id": "good", "area": "id-counter", "given": {}, "when": ["get"], "then": [1]}
    wrong = good | {"id": "wrong", "then": [2]}
    unknown = good | {"id": "unknown", "area": "tea"}
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(map(json.dumps, (good, wrong, unknown))) + "\n\n")

    status = main([str(file)])

    printed = capsys.readouterr().out
    assert status == 1
    assert "wrong\n  expected [2]\n  got      [1]\n" in printed
    assert "unknown" in printed
    assert "the core has no area 'tea'" in printed
    assert printed.endswith("1 passed, 2 failed\n")


@pytest.mark.parametrize(
    ("expected", "actual", "holds"),
    [
        ({"run": None}, {"run": None, "events": []}, True),
        ({"run": None, "events": []}, {"run": None}, False),
        ([{"run": "a"}], [{"run": "a"}, {"run": "b"}], False),
        ({"fails": "IO_EXCEPTION"}, {"fails": "CHECKPOINT_EXPIRED"}, False),
        ({"fails": "illegal argument"}, {"fails": "retain at least 1"}, True),
        ({"fails": "illegal argument"}, {"kept": []}, False),
        ({"kept": []}, {"fails": "retain at least 1"}, False),
    ],
)
def test_only_what_a_case_names_is_compared(expected: object, actual: object, holds: bool) -> None:
    assert agrees(expected, actual) is holds
