"""Flink's rules as cases: ``python -m tests.conformance.run FILE.jsonl...``

Runs any file of these areas through the real core and ends with ``N passed, N failed``.  A case
that the core cannot answer fails, and says why.  Only what a case's ``then`` names is compared.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from sluice.errors import SluiceError
from tests.conformance.areas import AREAS, Case
from tests.conformance.reasons import is_a_reason

BREAKAGES = (NotImplementedError, AssertionError, LookupError, TypeError, ValueError)


def cases(paths: Iterable[Path]) -> list[Case]:
    lines = (line for path in paths for line in path.read_text().splitlines())
    return [json.loads(line) for line in lines if line.strip()]


def answer(case: Case) -> object:
    """The core's answer to a case; NotImplementedError for a feature that it does not have."""
    if case["area"] not in AREAS:
        raise NotImplementedError(f"the core has no area {case['area']!r}")
    return AREAS[case["area"]](case)


def agrees(expected: object, actual: object) -> bool:
    """Whether *actual* says all that *expected* does.  A failure is compared by its reason if that
    is one of Flink's, else only by the fact.
    """
    match expected, actual:
        case {"fails": wanted}, {"fails": got}:
            return wanted == got or not is_a_reason(wanted)
        case dict(), dict():
            return all(
                name in actual and agrees(value, actual[name]) for name, value in expected.items()
            )
        case list(), list():
            return len(expected) == len(actual) and all(map(agrees, expected, actual))
        case _:
            return expected == actual


def main(arguments: list[str]) -> int:
    failed = 0
    everything = cases(Path(argument) for argument in arguments)
    for case in everything:
        try:
            actual = answer(case)
        except (*BREAKAGES, SluiceError) as error:
            actual = f"{type(error).__name__}: {error}"
        if not agrees(case["then"], actual):
            failed += 1
            print(f"{case['id']}\n  expected {case['then']}\n  got      {actual}")  # noqa: T201
    print(f"{len(everything) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
