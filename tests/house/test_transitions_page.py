"""The page of transitions has the rows of the table that decides."""

from __future__ import annotations

from tests.house.transitions_page import PAGE, shown, written


def test_the_page_has_every_row_of_the_table_and_no_other() -> None:
    assert shown(PAGE.read_text()) == written()
