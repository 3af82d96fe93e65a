"""Python's collector of garbage, kept away from large trees."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def uncollected(work: Callable[P, R]) -> Callable[P, R]:
    """*work* builds trees of handles, none of which is in a circle: references alone free them.
    The collector would walk through all of them whenever they have grown by a quarter, which is a
    quarter of the work at 10,000 subtasks.
    """

    @wraps(work)
    def done(*args: P.args, **kwargs: P.kwargs) -> R:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return work(*args, **kwargs)
        finally:
            if was_enabled:
                gc.enable()

    return done
