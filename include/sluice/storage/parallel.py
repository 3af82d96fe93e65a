"""Requests to a store side by side: they wait for the network, so threads are enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def in_parallel(call: Callable[[A], B], items: Iterable[A], threads: int) -> list[B]:
    """The results of *call*, in the order of *items*; at most *threads* calls at a time.

    A single item, as most small jobs have, costs no thread.  The first error is raised once the
    calls that had begun are over.
    """
    wanted = [*items]
    if len(wanted) < 2:
        return [call(item) for item in wanted]
    with ThreadPoolExecutor(min(threads, len(wanted))) as pool:
        return [*pool.map(call, wanted)]
