"""What is known to be wrong, and so is not drawn yet; each goes when its mending is in."""

from __future__ import annotations

KNOWN = frozenset({"D1", "D2", "D3", "D5", "D6", "D8", "D10", "D11", "D13", "F2", "F3"})


def is_drawn(finding: str) -> bool:
    return finding not in KNOWN
