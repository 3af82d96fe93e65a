"""Calls of a user's hook or listener, each for a bounded time.

The call is made in a thread of its own, for Python cannot end a function that hangs.  One that does
is left behind, and what asked for it goes on with an error: it must not hold up the job.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Generic, TypeVar

T = TypeVar("T")


def call_hook(act: Callable[[], T], limit: timedelta) -> T:
    """Call *act*, and return what it returns.

    Raises:
        TimeoutError: it did not return within *limit*; it may still be at work.
        Exception: what it raised.
    """
    call = _Call(act)
    # A daemon, so that a hook that hangs does not keep the process.
    thread = threading.Thread(target=call.run, name="hook", daemon=True)
    thread.start()
    thread.join(limit.total_seconds())
    if thread.is_alive():
        raise TimeoutError(f"it did not return within {limit.total_seconds():g} s")
    return call.result()


class _Call(Generic[T]):
    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._context = contextvars.copy_context()
        self._returned: list[T] = []
        self._raised: BaseException | None = None

    def run(self) -> None:
        try:
            self._returned.append(self._context.run(self._act))
        except BaseException as error:  # noqa: BLE001 - it is raised where the hook was called
            self._raised = error

    def result(self) -> T:
        if self._raised is not None:
            raise self._raised
        return self._returned[0]
