r"""Regular expressions of Java, which are Spark's, as Rust has them, which Polars computes with.

    searched(tree of "regexp_extract(line, 'port (\\d+)$', 1)")

Taken are those that find the same in the same places in both.  Signs and classes are written
out, as ``\d`` has 10 signs in Java and 760 in Rust; repetitions of what may be nothing, lookaround,
``\b`` and the like are refused, because Rust has them otherwise, or not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from sluice.declaration.sql_tree import Call, Expression, Literal

Range: TypeAlias = tuple[str, str]  # The first sign and the last.

# What ends a line in Java.
_ENDS = ("\n", "\r", "\x85", "\u2028", "\u2029")
_END = r"[\n\r\x{85}\x{2028}\x{2029}]"
_NO_END = r"[^\n\r\x{85}\x{2028}\x{2029}]"
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_CLASSES: Mapping[str, Sequence[Range]] = {
    "d": [("0", "9")],
    "w": [("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")],
    "s": [("\t", "\r"), (" ", " ")],
}
_MOST = "\U0010ffff"
_COUNT = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}", re.ASCII)
_REPLACED = re.compile(r"\\(.)|\$(\d)(?!\d)|([^\\$]+)", re.DOTALL | re.ASCII)
_REPLACEMENT = re.compile(rf"(?:{_REPLACED.pattern})*", re.DOTALL | re.ASCII)
_FLAGS = re.compile(r"\(\?([is]+)\)")
MOST_SIGNS = 1000  # Of a pattern that is written out: Rust compiles it to 10 MiB at most.


class RegexError(Exception):
    """A part of a pattern may mean something else; the message begins with ``its pattern``."""


@dataclass(frozen=True, slots=True)
class Regex:
    """A pattern as Rust has it: ``body``, and behind it the end of the text if it ``has_end``.

    Of its ``groups`` only those that were asked for are in the body, in their order.  ``literal``
    is the text that is all that it matches.
    """

    body: str
    groups: int
    has_end: bool
    may_be_empty: bool
    may_end_lines: bool
    literal: str | None

    def ways(self, *, is_kept: bool = False) -> tuple[str, ...]:
        r"""The pattern for all texts; or that for others, and that for those that end in ``\r\n``.

        In Java ``$`` is also before the last end of a line, which is a group if ``is_kept``.
        """
        if not self.has_end:
            return (self.body,)
        mark = "" if is_kept else "?:"
        # It is not between \r and \n, where a pattern may lead that has \r itself.
        ends = (_END, r"\r\n") if self.may_end_lines else (rf"\r\n|{_END}",)
        return tuple(rf"{self.body}({mark}{end})?\z" for end in ends)


@dataclass(frozen=True, slots=True)
class Search:
    """The pattern that a function looks for, the ``group`` it takes, and its replacement."""

    regex: Regex
    group: int = 0
    by: tuple[str | int, ...] = ()  # Texts and groups.


SEARCHING = frozenset({"regexp_extract", "regexp_replace", "rlike", "split"})


def searched(call: Call) -> Search:
    """The search of *call*, which is of one of ``SEARCHING``.

    Raises:
        RegexError: only Java is known to find the same, or it is no literal.
    """
    _, pattern, *others = call.arguments
    given = _literal(pattern, str)
    match call.function:
        case "regexp_extract":
            group = _literal(others[0], int) if others else 1
            return Search(regex(given, {group}), group)
        case "regexp_replace":
            return _replaced(given, _literal(others[0], str))
        case "split":
            found = regex(given)
            if found.may_be_empty or found.has_end:
                raise RegexError("may be nothing" if found.may_be_empty else "has $")
            return Search(found)
        case _:
            return Search(regex(given))


T = TypeVar("T", str, int)


def _literal(of: Expression, wanted: type[T]) -> T:
    if not isinstance(of, Literal) or type(of.value) is not wanted:
        raise RegexError("is no literal")
    return of.value


def _replaced(pattern: str, by: str) -> Search:
    if _REPLACEMENT.fullmatch(by) is None:
        raise RegexError("is replaced by more than texts, $0 to $9")
    parts = [int(one[2]) if one[2] else one[1] or one[3] for one in _REPLACED.finditer(by)]
    found = regex(pattern, {one for one in parts if isinstance(one, int)})
    if found.may_be_empty:
        raise RegexError("may be nothing")
    if found.has_end and found.may_end_lines:
        # In Java the end of a line, of which $ is in front, may be found for itself.
        raise RegexError("has $, and something that may end a line")
    return Search(found, by=tuple(parts))


def regex(pattern: str, groups: Collection[int] = ()) -> Regex:
    """*pattern* with its *groups*; 0 is all of it.

    Raises:
        RegexError: it is none, or only Java is known to find the same with it.
    """
    reader = _Reader(pattern, {*groups})
    found = reader.whole()
    body = f"({found.text})" if 0 in groups else found.text
    if any(not 0 <= group <= reader.groups for group in groups):
        raise RegexError(f"has {reader.groups} groups")
    is_text = not (reader.is_pattern or reader.has_end or groups)
    literal = reader.literal if is_text else None
    return Regex(body, reader.groups, reader.has_end, found.is_empty, found.ends_lines, literal)


@dataclass(frozen=True, slots=True)
class _Part:
    text: str
    is_empty: bool  # It may match nothing.
    ends_lines: bool  # It may match what ends a line.
    signs: int = 1
    has_groups: bool = False  # That were asked for.


class _Reader:
    def __init__(self, pattern: str, wanted: set[int]) -> None:
        self._rest = pattern
        self._wanted = wanted
        self._flags: set[str] = set()
        self.groups = 0
        self.has_end = False
        self.is_pattern = False
        self.literal = ""

    def whole(self) -> _Part:
        flags = _FLAGS.match(self._rest)
        if flags is not None:
            self._flags = {*flags[1]}
            self._rest = self._rest[flags.end() :]
            self.is_pattern = True
        if not self._rest:
            raise RegexError("is empty")
        found = self._alternatives(depth=0)
        if self._rest:
            raise RegexError("closes a group that is not open")
        if found.signs > MOST_SIGNS:
            raise RegexError(f"repeats more than {MOST_SIGNS} signs")
        return found

    def _alternatives(self, depth: int) -> _Part:
        found = [self._sequence(depth)]
        while self._takes("|"):
            self.is_pattern = True
            found.append(self._sequence(depth))
        if len(found) == 1:
            return found[0]
        if self.has_end:
            raise RegexError("has $ in one of several; write (?:…|…)$")
        return replace(
            _sequence_of(found),
            text="(?:" + "|".join(one.text for one in found) + ")",
            is_empty=any(one.is_empty for one in found),
        )

    def _sequence(self, depth: int) -> _Part:
        found: list[_Part] = []
        while self._rest and self._rest[0] not in "|)":
            if not self._takes("$"):
                found.append(self._repeated(self._one(depth)))
            elif self._rest or depth:
                raise RegexError("has $ before its end")
            else:
                self.has_end = True
        return _sequence_of(found)

    def _one(self, depth: int) -> _Part:
        sign = self._next()
        if sign not in "\\.[(^*+?{":
            return self._signs(sign)
        if sign == "\\":
            return self._escaped()
        self.is_pattern = True
        match sign:
            case ".":
                is_any = "s" in self._flags
                return _Part("(?s:.)" if is_any else _NO_END, is_empty=False, ends_lines=is_any)
            case "[":
                return self._class()
            case "(":
                return self._group(depth)
            case "^":
                return _Part(r"\A", is_empty=True, ends_lines=False)
            case _:
                raise RegexError(f"repeats nothing with {sign}")

    def _signs(self, sign: str) -> _Part:
        self.literal += sign
        return _set([(sign, sign)], self._flags)

    def _escaped(self) -> _Part:
        sign = self._next("has nothing behind its last backslash")
        if sign.lower() in _CLASSES:
            self.is_pattern = True
            return _set(_class_of(sign), set())
        return self._signs(_sign_of(sign))

    def _group(self, depth: int) -> _Part:
        number = -1
        if not self._takes("?:"):
            if self._rest[:1] == "?":
                raise RegexError(f"has {'(' + self._rest[:2]!r}")
            self.groups += 1
            number = self.groups
        found = self._alternatives(depth + 1)
        if not self._takes(")"):
            raise RegexError("does not close a group")
        if number not in self._wanted:
            return replace(found, text=f"(?:{found.text})")
        return replace(found, text=f"({found.text})", has_groups=True)

    def _repeated(self, one: _Part) -> _Part:
        sign = self._rest[:1]
        if sign not in {"*", "+", "?", "{"}:
            return one
        self.is_pattern = True
        count = _COUNT.match(self._rest) if sign == "{" else None
        least, most, times = (1 if sign == "+" else 0), 1, sign
        if sign == "{":
            if count is None:
                raise RegexError(r"has { without a count; write \{")
            least, times = int(count[1]), count[0]
            most = int(count[3] or least)
        if one.is_empty or most < least:
            raise RegexError(f"repeats with {times} what may be nothing")
        if one.has_groups and sign != "?":
            raise RegexError(f"repeats with {times} the group that is asked for")
        self._rest = self._rest[len(times) :]
        lazy = "?" if self._takes("?") else ""
        if self._rest[:1] in {"*", "+", "?", "{"}:
            raise RegexError(f"has {times}{lazy}{self._rest[0]}")
        signs = one.signs * max(most, 1)
        if signs > MOST_SIGNS:
            raise RegexError(f"repeats more than {MOST_SIGNS} signs")
        return replace(one, text=f"{one.text}{times}{lazy}", is_empty=not least, signs=signs)

    def _class(self) -> _Part:
        is_negated = self._takes("^")
        ranges: list[Range] = []
        while not self._takes("]"):
            ranges += self._item()
        if not ranges:
            raise RegexError("has an empty class")
        return _set(ranges, self._flags, is_negated=is_negated)

    def _item(self) -> list[Range]:
        """A sign, a range or a class in a class."""
        first = self._sign_in_class()
        if not isinstance(first, str):
            self._no_dash_behind("a class")
            return first
        if first == "-" or self._rest[:1] != "-" or self._rest[:2] == "-]":
            if first == "-":
                self._no_dash_behind("-")
            return [(first, first)]
        self._next()
        last = self._sign_in_class()
        if not isinstance(last, str) or last == "-" or last < first:
            raise RegexError(f"has no range behind {first}-")
        self._no_dash_behind("a range")
        return [(first, last)]

    def _sign_in_class(self) -> str | list[Range]:
        sign = self._next("does not close a class")
        if sign == "[" or (sign == "&" and self._rest[:1] == "&"):
            raise RegexError(f"has {sign} in a class")
        if sign != "\\":
            return sign
        escaped = self._next("does not close a class")
        return _class_of(escaped) if escaped.lower() in _CLASSES else _sign_of(escaped)

    def _no_dash_behind(self, what: str) -> None:
        if self._rest[:1] == "-" and self._rest[:2] != "-]":
            raise RegexError(f"has - behind {what} in a class")

    def _takes(self, text: str) -> bool:
        found = self._rest.startswith(text)
        if found:
            self._rest = self._rest[len(text) :]
        return found

    def _next(self, without: str = "ends too soon") -> str:
        if not self._rest:
            raise RegexError(without)
        sign, self._rest = self._rest[0], self._rest[1:]
        return sign


def _sign_of(escaped: str) -> str:
    if escaped in _LETTERS:
        return _LETTERS[escaped]
    if escaped.isalnum() or not escaped.isascii():
        raise RegexError(rf"has \{escaped}")
    return escaped


def _sequence_of(parts: Sequence[_Part]) -> _Part:
    return _Part(
        "".join(one.text for one in parts),
        is_empty=all(one.is_empty for one in parts),
        ends_lines=any(one.ends_lines for one in parts),
        signs=sum(one.signs for one in parts),
        has_groups=any(one.has_groups for one in parts),
    )


def _class_of(letter: str) -> list[Range]:
    ranges = _CLASSES[letter.lower()]
    if letter.islower():
        return [*ranges]
    starts = ["\0", *(chr(ord(last) + 1) for _, last in ranges)]
    ends = [*(chr(ord(first) - 1) for first, _ in ranges), _MOST]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start <= end]


def _set(ranges: list[Range], flags: set[str], *, is_negated: bool = False) -> _Part:
    """One sign of *ranges*, or of all others; in Java only ASCII is compared without case."""
    if "i" in flags:
        ranges = ranges + [other for one in ranges for other in _other_case(one)]
    listed = [any(first <= end <= last for first, last in ranges) for end in _ENDS]
    ends_lines = not all(listed) if is_negated else any(listed)
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and not is_negated:
        return _Part(_written(ranges[0][0]), is_empty=False, ends_lines=ends_lines)
    text = "".join(
        _written(first) if first == last else f"{_written(first)}-{_written(last)}"
        for first, last in ranges
    )
    return _Part(f"[{'^' * is_negated}{text}]", is_empty=False, ends_lines=ends_lines)


def _other_case(one: Range) -> Iterator[Range]:
    for first, last, away in (("a", "z", -32), ("A", "Z", 32)):
        low, high = max(first, one[0]), min(last, one[1])
        if low <= high:
            yield chr(ord(low) + away), chr(ord(high) + away)


def _written(sign: str) -> str:
    return sign if sign.isascii() and sign.isalnum() else rf"\x{{{ord(sign):x}}}"
