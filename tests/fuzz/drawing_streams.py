"""A stream in a drawing, and the conditions and keys that can be drawn of its columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from tests.fuzz.plans import InputPlan

KEYABLE = ("int", "text", "bool", "date", "long")
ORDERED = ("int", "long", "huge", "double", "text", "bool", "date", "decimal", "time")
NESTED = ("struct", "list")


@dataclass(slots=True)
class Stream:
    """``updates``: the key by which rows replace earlier ones; ``unique``: columns that no two rows
    share.  ``is_filtered``: rows were left out before event time was measured.
    """

    uid: str
    columns: dict[str, str]
    event_time: str | None = None
    is_source: bool = False
    updates: tuple[str, ...] = ()
    unique: tuple[str, ...] = ()
    is_filtered: bool = False
    is_retract: bool = False
    tags: set[str] = field(default_factory=set)

    @property
    def is_append(self) -> bool:
        return not self.updates and not self.is_retract

    def of(self, kinds: Iterable[str]) -> list[str]:
        wanted = set(kinds)
        return [name for name, kind in self.columns.items() if kind in wanted]

    @property
    def has_nested(self) -> bool:
        return bool(self.of(NESTED))


def plain_condition(random: Random, stream: Stream) -> str | None:
    """A condition in plain SQL, which needs no JVM."""
    parts = []
    for name in random.sample([*stream.columns], min(len(stream.columns), 4)):
        kind = stream.columns[name]
        if kind in ("int", "long"):
            operator = random.choice((">=", "<", "=", "!=", ">", "<="))
            parts.append(f"{name} {operator} {random.randrange(-2, 4)}")
        elif kind == "text" and "fsum" not in name:
            parts.append(f"{name} {random.choice(('=', '!=', '>'))} '{random.choice('abä')}'")
        elif random.random() < 0.3:
            parts.append(f"{name} IS {random.choice(('', 'NOT '))}NULL")
    if not parts:
        return None
    return " AND ".join(parts[: random.choice((1, 1, 2))])


def rich_condition(random: Random, stream: Stream) -> str | None:
    """A condition in SQL that needs the JVM, and means the same in DuckDB."""
    choices = []
    for name, kind in stream.columns.items():
        if kind in ("int", "long"):
            choices += [f"{name} % 2 = 0", f"coalesce({name}, 1) > 0", f"{name} BETWEEN 0 AND 3"]
        elif kind == "double" and "fsum" not in name:
            choices += [f"{name} > 1.0", f"{name} <= 0.0", f"NOT ({name} = 1.5)"]
        elif kind == "text":
            choices += [f"{name} IN ('a', 'b', '')", f"{name} LIKE 'a%'", f"length({name}) > 1"]
        elif kind == "bool":
            choices += [name, f"NOT {name}"]
        elif kind == "struct":
            choices += [f"{name}.a = 1"]
    return random.choice(choices) if choices else None


def condition(random: Random, stream: Stream) -> str | None:
    draw = plain_condition if random.random() < 0.5 else rich_condition
    return draw(random, stream)


def result_condition(random: Random, stream: Stream) -> str | None:
    """Over a stage's result: what Polars reads."""
    choices = []
    for name, kind in stream.columns.items():
        if kind in ("int", "long"):
            choices += [f"{name} >= {random.randrange(0, 3)}", f"{name} IS NOT NULL"]
        elif kind == "text":
            choices += [f"{name} = 'a'", f"{name} <> 'b'"]
        elif kind == "bool":
            choices += [name]
    return random.choice(choices) if choices else None


def keys(random: Random, stream: Stream, kinds: Iterable[str] = KEYABLE) -> tuple[str, ...]:
    found = [n for n in stream.of(kinds) if n != "id" and "fsum" not in n]
    if not found:
        return ()
    return tuple(random.sample(found, min(len(found), random.choice((1, 1, 1, 2)))))


def keyed(
    random: Random, given: InputPlan, stream: Stream
) -> tuple[InputPlan, Stream, tuple[str, ...]]:
    """Keyed by some columns, at times by one that is computed, or of a type that few key by."""
    more = ("double", "decimal") if random.random() < 0.1 else ()
    key = keys(random, stream, (*("int", "text", "bool", "date", "long"), *more))
    if random.random() < 0.12 and "xk" not in stream.columns:
        numbers = [n for n in stream.of(["int", "long"]) if "fsum" not in n]
        if numbers:
            expression = f"coalesce({random.choice(numbers)}, 0) % 3"
            stream = replace(stream, columns={**stream.columns, "xk": "key"})
            key = (*key[:1], "xk")
            return replace(given, keys=key, key_expressions=(("xk", expression),)), stream, key
    return replace(given, keys=key), stream, key
