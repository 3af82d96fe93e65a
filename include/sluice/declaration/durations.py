"""Lengths of time that a person gives: positive where they must be, and kept to the last unit.

A duration is a ``timedelta`` in Python, ``90s`` or ``30m`` as a text, and milliseconds in JSON and
in the bucket.  Its type says what it may be, and whoever takes it has it checked: the public
functions by ``declaration.arguments``, a text by ``duration_of``, a number by ``duration_from_ms``.
Sluice keeps milliseconds.  A duration of half a one is refused, not floored: a bound of an interval
that is another than the one declared makes other pairs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, TypeAlias

from sluice.errors import ConfigurationError

MS = timedelta(milliseconds=1)
US = timedelta(microseconds=1)
LONGEST = timedelta(days=365_000)  # A thousand years: with any event time it fits 64 bits of µs.
LEAST_WAIT = timedelta(seconds=1)  # Of a request for somebody who takes it up.

_UNITS = {
    "ms": MS,
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


@dataclass(frozen=True, slots=True)
class DurationLimits:
    """The limits of a duration; ``unit`` is the one that is kept."""

    least: timedelta
    most: timedelta = LONGEST
    unit: timedelta = MS


Duration: TypeAlias = Annotated[timedelta, DurationLimits(timedelta(0))]
PositiveDuration: TypeAlias = Annotated[timedelta, DurationLimits(MS)]
SignedDuration: TypeAlias = Annotated[timedelta, DurationLimits(-LONGEST)]
# Of a time that a database compares, to the microsecond.
PositiveMicroseconds: TypeAlias = Annotated[timedelta, DurationLimits(US, unit=US)]


def what_to_use(duration: timedelta, limits: DurationLimits) -> str | None:
    """The fix for *duration*, such as "use 1 s or more"; None if it is within the limits."""
    least, most, unit = limits.least, limits.most, limits.unit
    if duration < least:
        return f"use {in_words(least)} or more"
    if duration > most:
        return f"use {in_words(most)} or less"
    if duration % unit:
        whole = duration // unit * unit
        kept = "whole milliseconds" if unit == MS else "whole microseconds"
        between = f"{in_words(whole)} or {in_words(whole + unit)}" if whole >= least else ""
        return f"use {kept}" + (f", such as {between}" if between else "")
    return None


def duration_of(name: str, text: str, *, least: timedelta = timedelta(0)) -> timedelta:
    """The duration that ``90s``, ``30m``, ``1h`` or ``2d`` means; *name* is the option's.

    Raises:
        ConfigurationError: it is no such text, or out of the limits.
    """
    found = re.fullmatch(r"([0-9]+)(ms|[smhd])", text, re.ASCII)
    if found is None:
        raise ConfigurationError(f"{name} {text!r} is not understood; write 90s, 30m, 1h or 2d")
    unit = _UNITS[found[2]]
    if len(found[1]) > len(str(LONGEST // MS)) or int(found[1]) > LONGEST // unit:
        raise ConfigurationError(f"{name} is {text}; use {in_words(LONGEST)} or less")
    duration = int(found[1]) * unit
    fix = what_to_use(duration, DurationLimits(least))
    if fix is not None:
        raise ConfigurationError(f"{name} is {text}; {fix}")
    return duration


def milliseconds(duration: timedelta) -> int:
    """*duration* in milliseconds, exactly: what is kept in records and shown in JSON."""
    whole, rest = divmod(duration, MS)
    if rest:
        raise ConfigurationError(f"a duration is {in_words(duration)}; use whole milliseconds")
    return whole


def from_words(words: str) -> timedelta:
    """The positive duration, of whole milliseconds, of which ``in_words`` made *words*."""
    number, unit = words.replace(",", "").split(" ")
    return int(number) * _UNITS[{"min": "m"}.get(unit, unit)]


def in_words(duration: timedelta) -> str:
    """``-1 h``, ``90 s``, ``0.5 ms``: in the largest unit that has a whole number of it."""
    size, sign = abs(duration), "-" if duration < timedelta(0) else ""
    if not size:
        return "0"
    for name, unit in (("d", _UNITS["d"]), ("h", _UNITS["h"]), ("min", _UNITS["m"])):
        if not size % unit:
            return f"{sign}{size // unit:,} {name}"
    for name, unit in (("s", _UNITS["s"]), ("ms", MS)):
        if not size % unit:
            return f"{sign}{size // unit} {name}"
    return f"{sign}{size / MS:g} ms" if size < _UNITS["s"] else f"{sign}{size / _UNITS['s']:.6f} s"
