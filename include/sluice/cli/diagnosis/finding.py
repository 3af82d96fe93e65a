"""``Finding``, the outcome of one check: good, a warning or a problem, and what to do."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from sluice.errors import SluiceError


class Status(StrEnum):
    OK = "ok"
    WARNING = "warning"  # It works, but not all of it, or not as one would expect.
    PROBLEM = "problem"  # Sluice does not work here until it is mended.


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``message`` is one sentence: what was found, and unless that is good, what to do."""

    check: str
    status: Status
    message: str


def good(check: str, message: str) -> Finding:
    return Finding(check=check, status=Status.OK, message=message)


def warning(check: str, message: str) -> Finding:
    return Finding(check=check, status=Status.WARNING, message=message)


def problem(check: str, message: str | SluiceError) -> Finding:
    return Finding(check=check, status=Status.PROBLEM, message=str(message))
