"""What is known to be wrong, and so is not drawn yet; each goes when its mending is in."""

from __future__ import annotations

KNOWN: frozenset[str] = frozenset()


def is_drawn(finding: str) -> bool:
    return finding not in KNOWN
