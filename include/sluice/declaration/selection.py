"""The pipelines that become DAGs: all, or those whose uids a project's patterns select.

``dags`` of ``[tool.sluice]`` has the patterns, and ``SLUICE_DAGS`` comes before it:

    auctions ssh_*       these alone
    !nexmark_* !draft    all but these
    orders_* !orders_v1  those, without this one

The last pattern that fits a uid decides.  The command line knows every pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

DAGS_VARIABLE = "SLUICE_DAGS"
_EXCEPT = "!"


def patterns_in(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """Those of the environment; None where it says nothing."""
    return tuple(env.get(DAGS_VARIABLE, "").replace(",", " ").split()) or None


def is_selected(uid: str, patterns: tuple[str, ...]) -> bool:
    """Whether the pipeline becomes DAGs; without patterns each one does."""
    verdict = not patterns or patterns[0].startswith(_EXCEPT)
    for pattern in patterns:
        if fnmatchcase(uid, pattern.removeprefix(_EXCEPT)):
            verdict = not pattern.startswith(_EXCEPT)
    return verdict


def idle_patterns(patterns: tuple[str, ...], uids: Iterable[str]) -> tuple[str, ...]:
    """The patterns that fit none of *uids*, such as misspelt ones."""
    known = tuple(uids)
    return tuple(
        pattern
        for pattern in patterns
        if not any(fnmatchcase(uid, pattern.removeprefix(_EXCEPT)) for uid in known)
    )
