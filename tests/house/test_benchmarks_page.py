"""The figures of the page of benchmarks are those of the newest commit that was measured."""

from __future__ import annotations

import msgspec

from bench.history import read_history
from bench.page import PAGE, PLACES, figures, with_figures


def test_the_figures_are_the_newest_record() -> None:
    page = PAGE.read_text()

    assert with_figures(page, read_history()) == page, "write them with `python -m bench.page`"
    assert figures(read_history()) in page


def test_places_that_were_measured_have_a_table_of_their_own() -> None:
    """A row is there if another place than a folder was measured."""
    history = read_history()
    [*_, own] = [one for one in history if (one.row, one.engine) == ("small_delta", "sluice")]
    history = [one for one in history if one.engine not in set(PLACES) - {"sluice"}]
    on_s3 = msgspec.structs.replace(own, engine="sluice_s3", cpu_min_s=3 * own.cpu_min_s)

    heading, _, *rows = figures([*history, on_s3]).rpartition("| workload ")[2].splitlines()

    wall_s, cpu_s, places = own.wall_min_s, own.cpu_min_s, list(PLACES.values())
    assert heading == f"| {places[0]} | {places[1]} | {places[1]} / {places[0]}, CPU |"
    figures_of_both = f"{wall_s:.2f} / {cpu_s:.2f} | {wall_s:.2f} / {3 * cpu_s:.2f}"
    assert rows == [f"| `small_delta` | {figures_of_both} | 3.0 |"]
