"""Invariants of values that may come from outside: checked also under ``python -O``, which drops
``assert``.

Much of the core's state is read from the bucket.  The decoder turns the ``ValueError`` into a
``ProtocolViolation`` that names the object.
"""

from __future__ import annotations


def require(holds: bool, what: str) -> None:  # noqa: FBT001 - it reads as an assertion
    """Raises ValueError unless *what*, said of the value, holds."""
    if not holds:
        raise ValueError(what)
