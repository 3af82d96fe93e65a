"""The patterns by which a project selects the pipelines that become DAGs."""

from __future__ import annotations

import pytest

from sluice.declaration.project import idle_patterns, is_selected, patterns_in

UIDS = ("auctions", "nexmark_q4", "orders", "orders_v1")


@pytest.mark.parametrize(
    ("patterns", "selected"),
    [
        ("", UIDS),
        ("auctions orders", ("auctions", "orders")),
        ("!nexmark_*", ("auctions", "orders", "orders_v1")),
        ("orders* !orders_v1", ("orders",)),
        ("!orders* orders_v1", ("auctions", "nexmark_q4", "orders_v1")),
        ("* !*", ()),
        ("Orders", ()),
    ],
)
def test_the_last_pattern_that_fits_decides(patterns: str, selected: tuple[str, ...]) -> None:
    said = tuple(patterns.split())

    assert tuple(uid for uid in UIDS if is_selected(uid, said)) == selected


def test_patterns_that_fit_nothing_are_found() -> None:
    assert idle_patterns(("orders*", "!nexmrk_*", "bids"), UIDS) == ("!nexmrk_*", "bids")


def test_the_environment_separates_them_by_spaces_or_commas() -> None:
    assert patterns_in({"SLUICE_DAGS": "orders, !bids  !draft_*"}) == (
        "orders",
        "!bids",
        "!draft_*",
    )
    assert patterns_in({"SLUICE_DAGS": " "}) is None
