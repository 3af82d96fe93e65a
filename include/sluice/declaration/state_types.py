"""The types of values that a keyed function's state holds, and the check of each value.

What was read back in another epoch must equal what was written, so a value has exactly the type
that was declared; a tuple, Flink's Tuple2 and its like, is declared with the types of its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypeVar, get_args, get_origin

from sluice.errors import ConfigurationError

V = TypeVar("V")

_INT64 = range(-(2**63), 2**63)
_VALUE_TYPES = (bool, int, float, str, bytes, date, datetime, timedelta)
_MAP_KEY_TYPES = (bool, int, str, bytes, date, datetime)  # Not float: NaN is no key.


def value_type(declared: type[V]) -> type[V]:
    """*declared*, if a state can hold it.

    Raises:
        ConfigurationError: it cannot.
    """
    if declared in _VALUE_TYPES or is_tuple(declared):
        return declared
    names = ", ".join(one.__name__ for one in _VALUE_TYPES)
    raise ConfigurationError(
        f"state cannot hold {declared!r} here; use one of: {names}, or a tuple of them, such as "
        "tuple[int, float]"
    )


def map_key_type(declared: type[V]) -> type[V]:
    """*declared*, if it can be the key of a ``MapState``.

    Raises:
        ConfigurationError: it cannot.
    """
    if declared not in _MAP_KEY_TYPES:
        names = ", ".join(one.__name__ for one in _MAP_KEY_TYPES)
        raise ConfigurationError(f"state cannot hold {declared!r} here; use one of: {names}")
    return declared


def is_tuple(declared: object) -> bool:
    """Whether it is a tuple of fields that a state can hold, such as ``tuple[int, float]``."""
    fields = get_args(declared)
    return get_origin(declared) is tuple and bool(fields) and all(f in _VALUE_TYPES for f in fields)


def checked(state: str, declared: type[V], value: V) -> V:
    """*value* as it will be read back in another epoch; *state* is the name, for messages.

    Raises:
        ConfigurationError: it is not of the type that the state was declared with.
    """
    if type(declared) is type:  # It is called for every value; tuple[int, int] is no class.
        return _checked_field(state, declared, value)  # type: ignore[return-value]
    fields = get_args(declared)
    if not isinstance(value, tuple) or len(value) != len(fields):
        raise _refused(state, declared, value)
    pairs = zip(fields, value, strict=True)
    return tuple(_checked_field(state, of, one) for of, one in pairs)  # type: ignore[return-value]


def checked_migrations(
    state: str, declared: object, migrations: Mapping[Any, Callable[[Any], V]] | None
) -> Mapping[object, Callable[[Any], V]]:
    """*migrations* of a *state* to the type *declared*: the type that was -> a function of a value.

    Raises:
        ConfigurationError: a type is none that a state could have had, or there is no function.
    """
    for before, migrate in (migrations or {}).items():
        value_type(before)
        if before == declared:
            raise ConfigurationError(
                f"{state} migrates from {said(before)}, which is its type; name the type that it "
                "had before"
            )
        if not callable(migrate):
            raise ConfigurationError(
                f"{state} migrates from {said(before)} by {migrate!r}, which cannot be called; "
                "give it a function of one value"
            )
    return dict(migrations or {})


def said(declared: object) -> str:
    """The type as it is written."""
    return repr(declared) if get_args(declared) else getattr(declared, "__name__", repr(declared))


def _checked_field(state: str, declared: object, value: object) -> object:
    if declared is float and type(value) in (float, int):
        assert isinstance(value, float | int)
        return float(value) + 0.0  # -0.0 equals what is stored, so it would not be written.
    if type(value) is not declared or (isinstance(value, int) and value not in _INT64):
        raise _refused(state, declared, value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(
                f"state {state!r} was given {value}, which has no time zone; use UTC"
            )
        return value.astimezone(UTC)
    return value


def _refused(state: str, declared: object, value: object) -> ConfigurationError:
    return ConfigurationError(
        f"state {state!r} holds {said(declared)}, not {value!r} of type {type(value).__name__}; "
        "convert it, or declare what it is"
    )
