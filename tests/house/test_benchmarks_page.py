"""The figures of the page of benchmarks are those of the newest commit that was measured."""

from __future__ import annotations

from bench.history import read_history
from bench.page import PAGE, figures, with_figures


def test_the_figures_are_the_newest_record() -> None:
    page = PAGE.read_text()

    assert with_figures(page, read_history()) == page, "write them with `python -m bench.page`"
    assert figures(read_history()) in page
