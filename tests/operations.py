"""How much work a piece of code does, counted and not timed: calls of functions, Python's and C's.

Comparisons and moves inside one C call are not seen; a loop that is quadratic in Python is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


def calls_of(act: Callable[[], object]) -> int:
    """The number of functions called while *act* runs, in this thread."""
    count = 0

    def counted(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        act()
    finally:
        sys.setprofile(before)
    return count
