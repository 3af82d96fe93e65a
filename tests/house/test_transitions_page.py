"""The page of transitions has the rows of the table that decides."""

from __future__ import annotations

import re

from tests.house.transitions_page import PAGE, written


def test_the_page_has_every_row_of_the_table_and_no_other() -> None:
    rows = re.findall(r"^\| .+ \|$", PAGE.read_text(), re.MULTILINE)

    assert rows[1:] == written()
