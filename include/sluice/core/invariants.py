"""What has to hold of a value, whoever made it: also under ``python -O``, which drops ``assert``.

Much of the core comes out of the bucket.  Whoever decodes it turns the ``ValueError`` into a
``ProtocolViolation`` that names the object.
"""

from __future__ import annotations


def require(holds: bool, what: str) -> None:  # noqa: FBT001 - it reads as an assertion
    """Raises ValueError unless *what*, said of the value, holds."""
    if not holds:
        raise ValueError(what)
