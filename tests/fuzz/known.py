"""Known bugs, which are not drawn yet; each is removed with its fix."""

from __future__ import annotations

KNOWN: frozenset[str] = frozenset()


def is_drawn(finding: str) -> bool:
    return finding not in KNOWN
