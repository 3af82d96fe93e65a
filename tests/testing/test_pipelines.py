"""The example pipelines, and the blocks of docs/testing.md, tested as their users would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pipelines import auctions, ssh_threats
from sluice.testing import assert_exactly_once, run_local


def an_auction(id_: int, category: int) -> dict[str, Any]:
    return {"auction_id": id_, "category": category}


def bids(auction: int, *prices: int) -> list[dict[str, Any]]:
    return [{"bid_auction": auction, "price": price} for price in prices]


def failure(second: int, ip: str, user: str = "root") -> str:
    return f"Mar  3 10:00:{second:02d} host sshd[7]: Failed password for {user} from {ip} port 22"


def test_the_busiest_three_auctions_of_a_category_are_ranked_and_overtake_each_other() -> None:
    first = [an_auction(id_, 10) for id_ in (1, 2, 3, 4)]
    first += [*bids(1, 5, 6), *bids(2, 7), *bids(3, 1, 2, 3)]
    second = [*bids(4, 9, 9, 9, 9), *bids(5, 8), an_auction(6, 11), *bids(6, 4)]

    result = run_local(auctions.pipeline, {"events": [first, second]})

    assert sorted(result.table("ranking").select("category", "rank", "auction", "bids").rows()) == [
        (10, 1, 4, 4),
        (10, 2, 3, 3),
        (10, 3, 1, 2),
        (11, 1, 6, 1),
    ]
    assert sorted(result.epochs[0].published("ranking").select("rank", "auction").rows()) == [
        (1, 3),
        (2, 1),
        (3, 2),
    ]


def test_the_ranking_does_not_depend_on_where_the_events_are_cut() -> None:
    events = [an_auction(id_, 10 + id_ % 2) for id_ in range(8)]
    events += [row for price in range(1, 5) for id_ in range(8) for row in bids(id_, price * id_)]

    assert_exactly_once(auctions.pipeline, {"events": events}, seed=5)


def test_who_guesses_passwords_is_told_of_unless_he_is_on_the_list() -> None:
    lines = [failure(second, "10.0.0.1", f"user{second}") for second in range(5)]
    lines += [failure(second, "10.0.0.2") for second in range(5)]
    lines += [failure(9, "10.0.0.3"), "what is this"]

    result = run_local(
        ssh_threats.pipeline,
        {"threat_log": lines, "allowlist": ["10.0.0.2"]},
        params={"since": "2026-03-01"},
    )

    alerts = result.table("alerts").select("source_ip", "failed", "users")
    assert alerts.rows() == [("10.0.0.1", 5, 5)]
    malformed = result.side_output("parse", "malformed")
    assert malformed.height == 1


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
