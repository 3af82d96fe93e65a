"""The workloads: the input of each epoch, and the expected result.

A *keyed* workload computes count, sum and largest value per key.  Its first epoch brings every key
once, so that the state has its size before anything is measured.  A *nexmark* one answers a query
of the benchmark of that name.  A *restore* one builds the state of a keyed one and stops; then, in
a new process, measures from a ready session to the first output after the restore.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["keyed", "nexmark", "restore"]

# A row of state, a key and three numbers: the least that a checkpoint writes for a changed key.
KEYED_ROW_BYTES = 4 * 8
TEXT_KEY_BYTES = 36  # A UUID as text, in ASCII.

KEYED_RESULT = ("key", "count", "sum", "max")

NEXMARK_RATE = 10_000  # Events per second of event time, as in the reference.
OUT_OF_ORDER_GROUP = 100  # Events within so many come in disorder: 10 ms.


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """*events* is what a measured figure stands for, and *measured* epochs are what it is taken
    from, after *warm_up* ones; the first one of all seeds the state of a keyed workload.
    """

    name: str
    kind: Kind
    events: int
    events_per_epoch: int
    warm_up: int
    measured: int
    result: tuple[str, ...]
    keys: int = 0
    query: str = ""  # Of Nexmark: q4, ...
    is_growth: bool = False  # It shows how Sluice's own cost grows with the state, or the change.
    text_keys: bool = False  # Keys are UUIDs as text, otherwise 64-bit integers.

    @property
    def has_seed(self) -> bool:
        return self.kind != "nexmark"

    @property
    def row_bytes(self) -> int:
        """The least that a checkpoint writes for a changed key."""
        return KEYED_ROW_BYTES - 8 + TEXT_KEY_BYTES if self.text_keys else KEYED_ROW_BYTES


def _keyed(
    name: str,
    keys: int,
    events: int,
    warm_up: int,
    measured: int,
    *,
    is_growth: bool = False,
    text_keys: bool = False,
) -> Workload:
    return Workload(
        name=name,
        kind="keyed",
        keys=keys,
        events=events,
        events_per_epoch=events,
        warm_up=warm_up,
        measured=measured,
        result=KEYED_RESULT,
        is_growth=is_growth,
        text_keys=text_keys,
    )


def _nexmark(query: str, *result: str) -> Workload:
    return Workload(
        name=f"nexmark_{query}",
        kind="nexmark",
        query=query,
        events=5_000_000,
        events_per_epoch=1_000_000,
        warm_up=1,
        measured=5,
        result=result,
    )


def _restore(name: str, keys: int, *, is_growth: bool = False) -> Workload:
    return Workload(
        name=name,
        kind="restore",
        keys=keys,
        events=100_000,
        events_per_epoch=100_000,
        warm_up=1,
        measured=1,
        result=KEYED_RESULT,
        is_growth=is_growth,
    )


WORKLOADS = {
    workload.name: workload
    for workload in (
        _keyed("keyed_5m_100k", 100_000, 5_000_000, warm_up=1, measured=2),
        _keyed("keyed_5m_1m", 1_000_000, 5_000_000, warm_up=1, measured=2),
        _keyed("keyed_5m_5m", 5_000_000, 5_000_000, warm_up=1, measured=2),
        _keyed("keyed_5m_1m_text", 1_000_000, 5_000_000, warm_up=1, measured=2, text_keys=True),
        _keyed("small_delta", 5_000_000, 100_000, warm_up=10, measured=5),
        _keyed("small_delta_1m", 1_000_000, 100_000, warm_up=10, measured=5, is_growth=True),
        _keyed("small_delta_50m", 50_000_000, 100_000, warm_up=10, measured=5, is_growth=True),
        # The change grows, the state does not: small_delta is between them.
        _keyed("delta_10k", 5_000_000, 10_000, warm_up=10, measured=5, is_growth=True),
        _keyed("delta_1m", 5_000_000, 1_000_000, warm_up=10, measured=5, is_growth=True),
        # Definitions where the public query leaves room: q4 sum and number of the final prices of
        # auctions, bids within [dateTime, expires]; q5 windows of 10 s every 2 s, ties kept; q11
        # sessions with a gap of 10 s; q18 ties by price, descending.
        _nexmark("q4", "category", "sum_final", "auctions"),
        _nexmark("q5", "auction", "num", "starttime"),
        _nexmark("q11", "bidder", "bid_count", "starttime", "endtime"),
        _nexmark("q18", "auction", "bidder", "price", "dateTime"),
        _restore("restore_1m", 1_000_000),
        _restore("restore_5m", 5_000_000),
        _restore("restore_50m", 50_000_000, is_growth=True),
    )
}
