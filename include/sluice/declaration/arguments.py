"""The border: arguments of the public API, checked against its type hints where a user writes them.

    @checked_arguments
    def window(self, uid: str, window: Window, *, allowed_lateness: Duration = ...) -> Stream: ...

    window('hourly'): window is '1 hour' (a str); write Tumbling(timedelta(hours=1))

Every public function and method is checked: so every mistake that a type checker would have found
is one sentence at the user's own line, which names the argument, its value, what may be there, and
the nearest right spelling.  The hints are all there is: what is narrower than a Python type is
written into the hint, ``Annotated[int, NumberLimits(1)]`` or one of the types of ``durations``.

Not a library for this: what they say ends with the type, and the sentence begins there.  Hints that
only type checkers can resolve (Polars' frames, Spark's) are not checked, as nothing here may import
what they name; nor are the values inside of what can be iterated once.
"""

from __future__ import annotations

import builtins
import collections.abc
import difflib
import inspect
import operator
import re
import reprlib
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from functools import wraps
from pathlib import PurePath
from typing import Annotated, Any, Literal, SupportsIndex, TypeVar, Union, get_args, get_origin

from sluice.declaration.durations import DurationLimits, in_words, what_to_use
from sluice.declaration.functions import CHECKS_ONLY
from sluice.errors import ConfigurationError
from sluice.store.redaction import redacted

C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[..., Any])

LONGEST_SHOWN = 60  # Letters of a value in a message.


@dataclass(frozen=True, slots=True)
class NumberLimits:
    """The limits of a number; None is no limit, and *instead* says more than the limits do.  NaN is
    never within them.
    """

    least: float | None = None
    most: float | None = None
    instead: str = ""

    def fix(self) -> str:
        if self.instead:
            return self.instead
        if self.least is not None and self.most is not None:
            return f"use {self.least} to {self.most}"
        return f"use {self.least} or more" if self.most is None else f"use {self.most} or less"


class _Unresolved(type):
    """A name that only type checkers know, and all that is looked up in it."""

    def __getattr__(cls, name: str) -> _Unresolved:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, of: object) -> _Unresolved:
        return cls


class _Anything(metaclass=_Unresolved):
    """Every value fits it."""


class _Names(dict[str, Any]):
    """The names that a hint may use; one that is not imported is ``_Anything``."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__({**vars(builtins), **known})

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - any class
        if name.startswith("__"):
            raise KeyError(name)
        return _Anything


@dataclass(frozen=True, slots=True)
class _Called:
    """The names for a sentence about a call: the function, its uid, and the names it takes."""

    name: str
    hints: Mapping[str, Any]
    signature: inspect.Signature
    hidden: frozenset[str]  # Arguments whose values may be secret.
    is_method: bool
    made: type | None = None  # The class that is called.

    @property
    def parameters(self) -> list[inspect.Parameter]:
        return [*self.signature.parameters.values()][int(self.is_method) :]

    def subject(self, given: Mapping[str, object]) -> str:
        """``window('hourly')``: the call by its first argument, if that is a text."""
        first = next(iter(self.parameters), None)
        name = "" if first is None or first.kind is first.VAR_POSITIONAL else first.name
        value = None if name in self.hidden else given.get(name)
        return f"{self.name}({_shown(value) if isinstance(value, str) else ''})"


def user_line() -> str:
    """A field of what is declared: the line on which a user declares it, ``pipelines/shop.py:12``,
    which is no part of what it means.  Of a call over several lines it is that of its name.
    """
    of_user: Any = field(
        default_factory=_user_line, compare=False, repr=False, kw_only=True, metadata=CHECKS_ONLY
    )
    return typing.cast("str", of_user)


def _user_line() -> str:
    frame: types.FrameType | None = sys._getframe(1)  # noqa: SLF001 - as ``inspect`` does
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if not f"{module}.".startswith("sluice."):
            file = PurePath(frame.f_code.co_filename)
            depth = module.count(".") + (2 if file.stem == "__init__" else 1)
            return f"{'/'.join(file.parts[-depth:])}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def checked_arguments(function: F) -> F:
    """*function*, which refuses arguments that do not fit its hints.

    Raises:
        ConfigurationError: by what is returned, for an argument that does not fit.
    """
    return _checking(function, None)


def checked_methods(*names: str) -> Callable[[C], C]:
    """A class of which the initializer and the methods *names* refuse such arguments; without
    names, all of its public methods.
    """

    def checked(target: C) -> C:
        for name, method in [*vars(target).items()]:
            if name.startswith("_") or (names and name not in names):
                continue
            if inspect.isfunction(method):
                setattr(target, name, _checking(method, target))
            elif isinstance(method, classmethod):
                setattr(target, name, classmethod(_checking(method.__func__, target)))
        return checked_initializer(target)

    return checked


def checked_initializer(target: C) -> C:
    """A class whose initializer refuses arguments that do not fit its hints.  Its methods are not
    checked: they are called for each row, or by the runtime.
    """
    if "__init__" in vars(target):
        target.__init__ = _checking(target.__init__, target)
    return target


def _checking(function: F, owner: type | None) -> F:
    called: _Called | None = None
    is_init = owner is not None and function.__name__ == "__init__"

    @wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the function's
        nonlocal called
        called = called or _called(function, owner)
        by = replace(called, name=type(args[0]).__name__, made=type(args[0])) if is_init else called
        taken = _taken(by, args, kwargs)
        return function(*taken.args, **taken.kwargs)

    return typing.cast("F", checking)


def _called(function: Callable[..., Any], owner: type | None) -> _Called:
    module = sys.modules[function.__module__] if owner is None else sys.modules[owner.__module__]
    names = _Names({**vars(module), **({} if owner is None else vars(owner))})
    hints = typing.get_type_hints(function, names, names, include_extras=True)
    is_init = owner is not None and function.__name__ == "__init__"
    return _Called(
        name=function.__name__,
        hints=hints,
        signature=inspect.signature(function),
        hidden=frozenset(
            field.name
            for field in (fields(owner) if is_init and owner and is_dataclass(owner) else ())
            if not field.repr
        ),
        is_method=owner is not None,
    )


def _taken(
    called: _Called, args: Sequence[object], kwargs: Mapping[str, object]
) -> inspect.BoundArguments:
    """The arguments as the function takes them.

    Raises:
        ConfigurationError: one does not fit its hint.
    """
    given = args[int(called.is_method) :]
    _check_uid_is_there(called, given, kwargs)
    try:
        bound = called.signature.bind(*args, **kwargs)
    except TypeError:
        raise _not_taken(called, given, kwargs) from None
    subject = called.subject(bound.arguments)
    for parameter in called.parameters:
        if parameter.name not in bound.arguments or parameter.name not in called.hints:
            continue
        hint, value = called.hints[parameter.name], bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            for item in value:
                _check_value(called, subject, parameter, item, hint)
        elif parameter.kind is parameter.VAR_KEYWORD:
            for name, item in value.items():
                _check_value(called, subject, parameter.replace(name=name), item, hint)
        else:
            value = _in_its_form(value, hint)
            _check_value(called, subject, parameter, value, hint)
            bound.arguments[parameter.name] = value
    return bound


def _in_its_form(value: object, hint: object) -> object:
    """*value* as *hint* has it, where that can mean nothing else: a list as a tuple, a path as a
    text, an integer of NumPy's as one of Python's.
    """
    if fits(value, hint):
        return value
    for arm in _arms(hint):
        kind = get_args(arm)[0] if get_origin(arm) is Annotated else arm
        form = value
        if isinstance(value, list) and get_origin(kind) is tuple:
            form = tuple(value)
        elif isinstance(value, PurePath) and kind is str:
            form = str(value)
        elif kind is int and not isinstance(value, bool) and isinstance(value, SupportsIndex):
            form = operator.index(value)
        if fits(form, kind):
            return form
    return value


def _check_uid_is_there(
    called: _Called, given: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    """Python's own message would name the argument that is then missing, or it would take a
    function for the uid.
    """
    parameters = called.parameters
    if (
        not parameters
        or parameters[0].name != "uid"
        or parameters[0].default is not parameters[0].empty
    ):
        return
    if isinstance(given[0] if given else kwargs.get("uid"), str):
        return
    others = parameters[1:]
    needed = [p.name for p in others if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    rest = [] if len(needed) == len(others) else ["..."]
    arguments = ", ".join([f'"my_{called.name.lower()}"', *needed, *rest])
    dot = "" if called.name[0].isupper() else "."
    raise ConfigurationError(
        f"{called.name} needs a uid first: {dot}{called.name}({arguments}); state is recovered by "
        "it"
    )


def _not_taken(
    called: _Called, given: Sequence[object], kwargs: Mapping[str, object]
) -> ConfigurationError:
    """The error for arguments that do not fit the parameters, whatever their values."""
    names = [parameter.name for parameter in called.parameters]
    subject = called.subject({**kwargs, **dict(zip(names, given, strict=False))})
    if unknown := [name for name in kwargs if name not in names]:
        near = nearest_word(unknown[0], names)
        hint = f"did you mean {near}?" if near else f"it takes {', '.join(names) or 'nothing'}"
        hint = _namesake(called.made) or hint
        return ConfigurationError(f"{subject} has no argument {unknown[0]!r}; {hint}")
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    positional = [p for p in called.parameters if p.kind not in by_name]
    by_place = names[: len(given)]
    if twice := [name for name in kwargs if name in by_place]:
        return ConfigurationError(f"{subject} is given {twice[0]!r} twice; write it once")
    if len(given) > len(positional):
        more = _shown(given[len(positional)])
        of_names = [p.name for p in called.parameters if p.kind in by_name]
        fix = f"write {of_names[0]}=..." if len(of_names) == 1 else "give it by its name"
        last = called.parameters[-1]
        if last.kind is last.VAR_KEYWORD and fits(given[len(positional)], called.hints[last.name]):
            fix = "give the result a name: n=..."
        takes = ", ".join(p.name for p in positional) or "nothing"
        also = f", and by name {', '.join(of_names)}" if of_names else ""
        return ConfigurationError(
            f"{subject} is given {more}, and takes {takes}{also}; "
            f"{fix if of_names else 'leave it out'}"
        )
    missing = [
        p.name
        for p in called.parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in kwargs
        and p.name not in by_place
    ]
    wanted = allowed(called.hints.get(missing[0], Any))
    also = _namesake(called.made)
    return ConfigurationError(
        f"{subject} lacks {missing[0]}; add {missing[0]}=..., {wanted}{also and f'; or {also}'}"
    )


def _namesake(of: type | None) -> str:
    """The advice to import the other class, where a source and a sink have one name."""
    for here, names, there, others in (
        ("declared_source", "sluice.sources", "declared_sink", "sluice.sinks"),
        ("declared_sink", "sluice.sinks", "declared_source", "sluice.sources"),
    ):
        module = "" if of is None else of.__module__
        other = sys.modules.get(module.replace(f".{here}", f".{there}"))
        if of is not None and module.endswith(f".{here}") and hasattr(other, of.__name__):
            kind = others.removeprefix("sluice.").removesuffix("s")
            return f"import that of {others} for a {kind}; this is {names}.{of.__name__}"
    return ""


def check_argument(
    subject: str,
    name: str,
    value: object,
    hint: object,
    *,
    is_secret: bool = False,
    fix: Callable[[], str | None] = lambda: None,
) -> None:
    """Raises ConfigurationError unless *value* fits *hint*, and its limits; *fix* knows a better
    spelling than the hint alone.
    """
    if not fits(value, hint):
        shown = _kind_of(value) if is_secret else _described(value, hint)
        raise ConfigurationError(f"{subject} {name} is {shown}; {fix() or _spelling(value, hint)}")
    instead = _out_of_limits(value, hint)
    if instead is not None:
        shown = in_words(value) if isinstance(value, timedelta) else repr(value)
        raise ConfigurationError(f"{subject} {name} is {shown}; {instead}")


def _check_value(
    called: _Called, subject: str, parameter: inspect.Parameter, value: object, hint: object
) -> None:
    check_argument(
        f"{subject}:",
        parameter.name,
        value,
        hint,
        is_secret=parameter.name in called.hidden,
        fix=lambda: _better(called, parameter, value, hint),
    )


def _spelling(value: object, hint: object) -> str:
    near = nearest(value, hint)
    return f"write {near}" if near else f"use {allowed(hint)}"


def _better(
    called: _Called, parameter: inspect.Parameter, value: object, hint: object
) -> str | None:
    """The user's intent, as far as the signature, beside the hint, tells it."""
    if getattr(hint, "_is_protocol", False) and (namesake := _namesake(type(value))):
        return namesake
    if parameter.kind is parameter.VAR_KEYWORD:
        near = nearest_word(parameter.name, [p.name for p in called.parameters])
        if near and not isinstance(value, str) and not callable(value):
            return f"did you mean {near}? A result is {allowed(hint)}"
        options = [p.name for p in called.parameters if p.kind is p.KEYWORD_ONLY]
        is_result = getattr(hint, "__name__", "") == "Aggregate"
        if is_result and not callable(value) and nearest(value, hint) is None:
            return (
                f"{called.name}() has no such option, but {' and '.join(options)}; a result is "
                f"{allowed(hint)}"
            )
    if (
        parameter.kind is not parameter.VAR_KEYWORD
        and type(value).__name__ == "Aggregate"
        and any(p.kind is p.VAR_KEYWORD for p in called.parameters)
    ):
        return (
            f"{parameter.name} is an option of {called.name}(), {allowed(hint)}, so no result "
            f"can have its name; call it {parameter.name}_ or the like"
        )
    items = [*value] if isinstance(value, list | tuple | set) else []
    is_of_items = parameter.kind is parameter.VAR_POSITIONAL and bool(items)
    if is_of_items and all(fits(item, hint) for item in items):
        if not all(isinstance(item, str) for item in items):
            return f"put a * before the {type(value).__name__}"
        return f"write {called.name}({', '.join(map(repr, items))})"
    return None


def fits(value: object, hint: object) -> bool:
    """Whether *value* is what *hint* says, limits apart."""
    if hint is _Anything or hint is Any or hint is object or isinstance(hint, TypeVar):
        return True
    if hint is None or hint is types.NoneType:
        return value is None
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return fits(value, args[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, arm) for arm in args)
    if origin is Literal:
        return any(value == known and type(value) is type(known) for known in args)
    if isinstance(hint, type) and getattr(hint, "_is_protocol", False):
        return _follows(value, hint)
    if origin is None:
        return _is_instance(value, hint)
    return _holds(value, origin, args)


def _is_instance(value: object, hint: object) -> bool:
    if not isinstance(hint, type):
        return True
    if isinstance(value, bool) and hint in (int, float):
        return False  # To Python it is an int.
    if hint is float:
        return isinstance(value, int | float)
    return isinstance(value, hint)


def _holds(value: object, origin: object, args: tuple[Any, ...]) -> bool:
    """Whether a container has elements that fit; a callable is only one that can be called."""
    if origin is type or not isinstance(origin, type):
        return True
    if not isinstance(value, origin):
        return False
    if isinstance(value, Mapping) and len(args) == 2:
        return all(fits(key, args[0]) and fits(item, args[1]) for key, item in value.items())
    if isinstance(value, str | bytes):
        return False  # A text where several belong: its letters are not meant.
    if isinstance(value, tuple) and origin is tuple and args[-1:] != (...,):
        return len(value) == len(args) and all(map(fits, value, args))
    if isinstance(value, Collection) and args:
        return all(fits(item, args[0]) for item in value)
    return True


def _follows(value: object, protocol: type) -> bool:
    """Whether *value* has the members of *protocol*; a class is not one of its instances."""
    members = {
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name in (*vars(base), *getattr(base, "__annotations__", {}))
        if name == "__call__" or not name.startswith("_")
    }
    if members == {"__call__"}:
        return callable(value)
    return not isinstance(value, type) and all(hasattr(value, name) for name in members)


def _out_of_limits(value: object, hint: object) -> str | None:
    """The fix for a *value* of the right type that is beyond the limits; None if it is within."""
    if get_origin(hint) is Annotated:
        inner, *limits = get_args(hint)
        for limit in limits:
            fix = _limited(value, limit)
            if fix is not None:
                return fix
        return _out_of_limits(value, inner)
    for arm in _arms(hint):
        if arm is not hint and fits(value, arm):
            return _out_of_limits(value, arm)
    return None


def _limited(value: object, limit: object) -> str | None:
    if isinstance(limit, DurationLimits) and isinstance(value, timedelta):
        return what_to_use(value, limit)
    if isinstance(limit, NumberLimits) and isinstance(value, int | float):
        is_least = limit.least is None or value >= limit.least
        is_most = limit.most is None or value <= limit.most
        return None if is_least and is_most and value == value else limit.fix()
    return None


def _arms(hint: object) -> Iterator[Any]:
    """The alternatives of *hint*, itself if it has none."""
    if get_origin(hint) is Annotated:
        yield from _arms(get_args(hint)[0])
    elif get_origin(hint) in (Union, types.UnionType):
        for arm in get_args(hint):
            yield from [arm] if get_origin(arm) is Annotated else _arms(arm)
    else:
        yield hint


# How values of our classes are written; of a class with subclasses of its users', an instance.
_WRITTEN = {
    "Aggregate": "an aggregate, such as agg.count() or agg.sum('price')",
    "Attached": "Attached()",
    "Avro": "Avro(...)",
    "AvroValue": "AvroValue(...)",
    "Checkpointing": "Checkpointing(...)",
    "CheckpointingMode": "a CheckpointingMode, e.g. CheckpointingMode.EXACTLY_ONCE",
    "Continuous": "Continuous()",
    "Cron": "Cron('0 * * * *')",
    "DamagedCheckpoint": "a DamagedCheckpoint, e.g. DamagedCheckpoint.STOP",
    "Env": "env('NAME')",
    "Hopping": "Hopping(timedelta(minutes=10), timedelta(minutes=1))",
    "Json": "Json('id bigint')",
    "KeyedStream": "a keyed stream: stream.key_by('column')",
    "OnAsset": "OnAsset(uri=...)",
    "Param": "param('name')",
    "Protobuf": "Protobuf(...)",
    "Raw": "Raw()",
    "RestartStrategy": "a RestartStrategy, e.g. fixed_delay(attempts=3)",
    "Retention": "a Retention, e.g. Retention.RETAIN_ON_CANCELLATION",
    "Session": "Session(timedelta(minutes=30))",
    "SinkSpec": "a sink, such as FilesTable()",
    "SourceSpec": "a source, such as Files('/folder')",
    "SparkColumn": "a column of pyspark.sql.connect.functions",
    "Stream": "a stream, as source() and the stages return it",
    "Submit": "Submit(...)",
    "Tumbling": "Tumbling(timedelta(hours=1))",
}
_IN_WORDS = {
    str: "a text",
    bytes: "bytes",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    timedelta: "a timedelta, e.g. timedelta(seconds=30)",
    datetime: "a datetime with a time zone",
    types.NoneType: "None",
    object: "anything",
}


def allowed(hint: object) -> str:
    """The values that *hint* allows, in words."""
    words = [*dict.fromkeys(word for arm in _arms(hint) for word in _words(arm))]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _words(hint: object) -> list[str]:
    is_choice = get_origin(hint) is Literal
    return [*map(repr, get_args(hint))] if is_choice else [_allowed(hint)]


def _allowed(hint: Any) -> str:  # noqa: ANN401 - any form of a hint
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return allowed(args[0])
    if hint in _IN_WORDS:
        return _IN_WORDS[hint]
    if origin is tuple:
        return "a tuple of texts, such as ('a', 'b')" if args[:1] == (str,) else "a tuple"
    if origin is not None and issubclass(origin, Mapping):
        of = {"a text": " of texts", "a function": " of functions"}
        return f"a dict{of.get(allowed(args[1]), '') if args[1:] else ''}"
    if _is_callable(hint):
        return "a function"
    if origin is not None and issubclass(origin, Collection):
        return "a list"
    if isinstance(hint, type) and getattr(hint, "_is_protocol", False) and callable(hint):
        return _WRITTEN.get(hint.__name__, "a function")
    name = getattr(hint, "__name__", str(hint))
    if isinstance(hint, type) and issubclass(hint, Enum) and name not in _WRITTEN:
        return " or ".join(f"{hint.__qualname__}.{member.name}" for member in hint)
    return _WRITTEN.get(name, _with_article(name))


def _is_callable(hint: object) -> bool:
    return get_origin(hint) is collections.abc.Callable


def nearest(value: object, hint: object) -> str | None:
    """The value that the user probably meant, spelled so that it fits *hint*; None if unknown."""
    for arm in _arms(hint):
        found = _nearest(value, arm)
        if found is not None:
            return found
    return None


def _nearest(value: object, hint: Any) -> str | None:  # noqa: ANN401 - of each form
    origin, args = get_origin(hint), get_args(hint)
    kind = type(value)
    if origin is Annotated:
        return nearest(value, args[0])
    if origin is Literal:
        return _as_choice(value, args)
    if _is_callable(hint):
        is_keyed = any(base.__name__ == "KeyedProcessFunction" for base in kind.__mro__)
        name = f"process_keyed(..., {kind.__name__}(), ...)"
        return f"{name}: it sees a row at a time" if is_keyed else None
    if origin is tuple:
        return _as_tuple(value, args)
    hint = origin or hint  # Of a generic class, the class.
    if not isinstance(hint, type) or isinstance(hint, _Unresolved):
        return None
    if isinstance(value, type):
        is_meant = _follows_class(value, hint)
        return f"an instance of it, {value.__name__}(...)" if is_meant else None
    if issubclass(hint, Enum):
        return _as_member(value, hint)
    spell = _SPELLED.get(hint.__name__)
    return None if spell is None else spell(value)


def _as_choice(value: object, known: tuple[object, ...]) -> str | None:
    if not isinstance(value, str):
        return None
    near = nearest_word(value, [choice for choice in known if isinstance(choice, str)])
    if near is None:
        return None
    others = ", ".join(repr(choice) for choice in known if choice != near)
    return f"{near!r}, or {others}" if others else repr(near)


def _as_tuple(value: object, args: tuple[Any, ...]) -> str | None:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, list | set | tuple | frozenset) or args[-1:] != (...,):
        return None
    return repr(tuple(items)) if all(fits(item, args[0]) for item in items) else None


def _as_member(value: object, kind: type[Enum]) -> str | None:
    if not isinstance(value, str):
        return None
    near = nearest_word(value, [member.name for member in kind])
    return None if near is None else f"{kind.__qualname__}.{near}"


def _follows_class(value: type, hint: type) -> bool:
    if getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if not name.startswith("_"))
    return issubclass(value, hint)


def _as_int(value: object) -> str | None:
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))
    return value.strip() if isinstance(value, str) and value.strip().isdecimal() else None


def _as_float(value: object) -> str | None:
    try:
        return repr(float(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def _as_bool(value: object) -> str | None:
    is_word = isinstance(value, str) and value.lower() in ("true", "false")
    return str(value).capitalize() if is_word else None


_OF_TIME = re.compile(r"\s*(?P<many>\d+)?\s*(?P<unit>[a-z]+)\s*", re.IGNORECASE)
_UNIT_WORDS = {
    "milliseconds": ("ms", "milli", "millis", "millisecond", "milliseconds"),
    "seconds": ("s", "sec", "secs", "second", "seconds"),
    "minutes": ("m", "min", "mins", "minute", "minutes"),
    "hours": ("h", "hr", "hrs", "hour", "hours"),
    "days": ("d", "day", "days"),
    "weeks": ("w", "week", "weeks"),
}


def _as_timedelta(value: object) -> str | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"timedelta(seconds={value})"
    found = _OF_TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    for unit, words in _UNIT_WORDS.items():
        if found["unit"].lower() in words:
            return f"timedelta({unit}={int(found['many'] or 1)})"
    return None


def _as_window(value: object) -> str | None:
    size = _written(value) if isinstance(value, timedelta) else _as_timedelta(value)
    return None if size is None else f"Tumbling({size})"


def _as_keyed(value: object) -> str | None:
    return "stream.key_by('column') of it" if type(value).__name__ == "Stream" else None


def _as_stream(value: object) -> str | None:
    return "the stream before its key_by()" if type(value).__name__ == "KeyedStream" else None


def _written(duration: timedelta) -> str:
    """The source text of a duration: ``timedelta(hours=1)``."""
    for unit in ("days", "hours", "minutes", "seconds", "milliseconds"):
        many, rest = divmod(duration, timedelta(**{unit: 1}))
        if not rest:
            return f"timedelta({unit}={many})"
    return f"timedelta(microseconds={duration // timedelta(microseconds=1)})"


_CALL = re.compile(r"\s*(?P<name>\w+)\s*\(\s*(?P<of>.*?)\s*\)\s*", re.DOTALL)


def _as_aggregate(value: object) -> str | None:
    module = sys.modules.get("sluice.declaration.aggregates")
    name = getattr(value, "__name__", "")
    if inspect.isfunction(value) and getattr(value, "__module__", "") == getattr(
        module, "__name__", None
    ):
        return "agg.count()" if name == "count" else f"agg.{name}('column')"
    found = _CALL.fullmatch(value) if isinstance(value, str) else None
    if found is None or not inspect.isfunction(getattr(module, found["name"].lower(), None)):
        return None
    of = "" if found["of"] in ("*", "1") else repr(found["of"]) if found["of"] else ""
    return f"agg.{found['name'].lower()}({of})"


_OF_SPARK = re.compile(r"Column<'(?P<sql>.*)'>", re.DOTALL)


def _as_text(value: object) -> str | None:
    if type(value).__name__ == "Column":
        found = _OF_SPARK.fullmatch(repr(value))
        return f"SQL as a text: {found['sql']!r}" if found else "SQL as a text: 'price > 3'"
    if inspect.isfunction(value) and value.__name__ == "<lambda>":
        return "SQL as a text, such as 'price > 3'"
    if isinstance(value, Mapping) and value and all(isinstance(v, str) for v in value.values()):
        return repr(", ".join(f"{key} {kind}" for key, kind in value.items()))
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
        return repr(value[0])
    return None


# By the name of a class: what spells a value of another type as one of that class.
_SPELLED: Mapping[str, Callable[[object], str | None]] = {
    "Aggregate": _as_aggregate,
    "KeyedStream": _as_keyed,
    "Stream": _as_stream,
    "Tumbling": _as_window,
    "bool": _as_bool,
    "float": _as_float,
    "int": _as_int,
    "str": _as_text,
    "timedelta": _as_timedelta,
}


def nearest_word(word: str, known: Sequence[str]) -> str | None:
    """The one of *known* that *word* probably is, in whatever case, or in part."""
    lower = {name.lower(): name for name in known}
    if word.lower() in lower:
        return lower[word.lower()]
    close = difflib.get_close_matches(word.lower(), lower, n=1)
    if close:
        return lower[close[0]]
    parts = [name for name in known if len(word) > 3 and word.lower() in name.lower()]
    return parts[0] if len(parts) == 1 else None


def _described(value: object, hint: object) -> str:
    """*value* with its type; of an object of ours the type says more than its fields."""
    if is_dataclass(value) and not isinstance(value, type):
        return _kind_of(value)
    is_choice = isinstance(value, str) and any(get_origin(arm) is Literal for arm in _arms(hint))
    return _shown(value) if is_choice else f"{_shown(value)} ({type(value).__name__})"


def _kind_of(value: object) -> str:
    return _with_article(type(value).__name__)


def _with_article(name: str) -> str:
    return f"an {name}" if name[0] in "AEIOUaeiou" else f"a {name}"


def _shown(value: object) -> str:
    short = reprlib.Repr()
    short.maxstring = short.maxother = LONGEST_SHOWN
    if inspect.isroutine(value) or isinstance(value, type):
        return getattr(value, "__qualname__", repr(value)).rpartition("<locals>.")[2]
    return redacted(" ".join(short.repr(value).split()))
