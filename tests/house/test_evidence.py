"""The page of which test holds which rule names tests that there are."""

from __future__ import annotations

import re

from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "explanation" / "evidence.md"
ROW = re.compile(r"^\| (?P<rule>[^|]+) \| (?P<where>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
ROWS = [row for row in ROW.finditer(PAGE.read_text()) if row["rule"] != "rule"]
NAMED = re.findall(r"`(tests/[^`]+)`", PAGE.read_text())


def test_the_tests_that_the_page_names_are_there() -> None:
    named = [one.partition("::") for one in NAMED if "::" in one]

    assert len(named) > 80
    assert [
        f"{path}::{name}"
        for path, _, name in named
        if f"\ndef {name}(" not in (REPOSITORY / path).read_text()
    ] == []


def test_a_rule_has_its_tests_or_is_refused_with_its_reason() -> None:
    without = [row for row in ROWS if "tests/" not in row["tests"]]

    assert len(ROWS) > 40
    assert all(row["where"].startswith("refused by design, ") for row in without)
