"""The table of options in docs/reference/configuration.md, written from what the options declare.

To write it: ``python -m tests.house.configuration_page``.
"""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from sluice.declaration.checkpointing import OPTIONS, Checkpointing, exponential_delay, limits_of
from sluice.declaration.durations import LONGEST, DurationLimits, in_words
from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "configuration.md"
_HEAD = """| option | Flink option | type | default here | default in Flink | limits | meaning |
|---|---|---|---|---|---|---|
"""


def written() -> str:
    """The page with its table as the options declare it."""
    before, _, rest = PAGE.read_text().partition(_HEAD)
    _, _, after = rest.partition("\n\n")
    return before + _HEAD + "\n".join(map(_row, OPTIONS)) + "\n\n" + after


def _row(name: str) -> str:
    option, default = OPTIONS[name], getattr(Checkpointing(), name)
    hint = get_type_hints(Checkpointing, include_extras=True)[name]
    types = ", ".join(dict.fromkeys(f"`{one}`" for one in _types(hint)))
    limits = "; ".join(filter(None, (_limits(name), option.needs))).removeprefix("0 or more; ")
    meaning = f"{option.says} See {option.see}." if option.see else option.says
    cells = (
        f"`{name}`",
        f"`{option.flink}`" if option.flink else "",
        f"{types}, {option.unit}" if option.unit else types,
        f"`{_expression(default)}`",
        option.default_in_flink,
        limits,
        meaning,
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _types(hint: Any) -> list[str]:
    if get_origin(hint) is Annotated:
        return _types(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [name for arm in get_args(hint) for name in _types(arm)]
    return ["None" if hint is type(None) else hint.__name__]


def _limits(name: str) -> str:
    limits = limits_of(name)
    if limits is None:
        return ""
    if isinstance(limits, DurationLimits):
        least = in_words(limits.least)
        most = None if limits.most == LONGEST else in_words(limits.most)
    else:
        least, most = f"{limits.least:,}", None if limits.most is None else f"{limits.most:,}"
    return f"{least} or more" if most is None else f"{least} to {most}"


def _expression(value: object) -> str:
    """How the default is written in Python."""
    match value:
        case bool() | str() | None:
            return repr(value)
        case int():
            return f"{value:_}"
        case timedelta():
            minutes, rest = divmod(value, timedelta(minutes=1))
            assert not rest
            return f"timedelta(minutes={minutes})" if minutes else "timedelta(0)"
        case Enum():
            return f"{type(value).__name__}.{value.name}"
        case _:
            assert value == exponential_delay()
            return "exponential_delay()"


if __name__ == "__main__":
    PAGE.write_text(written())
