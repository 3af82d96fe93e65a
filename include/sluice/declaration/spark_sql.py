"""One text of Spark's SQL as Spark code: the tables that it names are what the stage is given.

Each becomes a common table expression before the text, so a name means it wherever the text has it,
and no view of the session is made that another stage could see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sluice.declaration.sql_tree import NO_TOKEN, Token, tokens
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read_by_text(uid: str, text: str, names: Sequence[str]) -> tuple[str, ...]:
    """The *names* that are words of *text*, in whatever case.

    Raises:
        ConfigurationError: it is no query.
    """
    words = [token.text.strip("`").lower() for token in tokens(text)]
    if not words or words[0] not in _BEGIN or ";" in words:
        raise ConfigurationError(
            f"stage {uid!r} has the text {text.strip()[:40]!r}, which is not one query; write one "
            "SELECT, which may begin WITH, without a semicolon"
        )
    return tuple(name for name in names if name.lower() in words)


def answer_of_text(text: str, /, **tables: DataFrame) -> DataFrame:
    """The rows of the query *text* over *tables*, which it calls by these names."""
    spark = next(iter(tables.values())).sparkSession
    given = [f"`{name}` AS (SELECT * FROM {{t{i}}})" for i, name in enumerate(tables)]  # noqa: S608 - names are quoted
    first, *others = tokens(text)
    begin, rest = "WITH", text[first.start :]
    if first.text.lower() == "with":
        is_recursive = others[0].text.lower() == "recursive"
        begin = "WITH RECURSIVE" if is_recursive else "WITH"
        rest = text[others[1 if is_recursive else 0].start :]
        given.append("")
    literal = rest.replace("{", "{{").replace("}", "}}")
    named: dict[str, Any] = {f"t{i}": rows for i, rows in enumerate(tables.values())}
    return spark.sql(f"{begin} {', '.join(given)} {literal}", **named)


_BEGIN = ("from", "select", "table", "values", "with")


def tables_of_text(text: str) -> list[str]:
    """The tables that a query reads, as it names them, without its own expressions."""
    words = [*tokens(text), NO_TOKEN, NO_TOKEN]
    lowered = [token.text.lower() for token in words]
    own = {
        lowered[place].strip("`")
        for place in range(len(words) - 2)
        if lowered[place + 1 : place + 3] == ["as", "("]
    }
    found: list[str | None] = []
    # What the open parentheses are of, and whether a comma in them is between tables.
    open_ones = [("", False)]
    for place, token in enumerate(words[:-2]):
        call, is_from = open_ones[-1]
        match lowered[place]:
            case "(":
                open_ones.append((lowered[place - 1] if place else "", False))
            case ")" if len(open_ones) > 1:
                open_ones.pop()
            case "from" | "join" if token.kind == "word":
                if call not in _WITH_FROM and lowered[place - 1] != "distinct":
                    open_ones[-1] = (call, True)
                    found.append(_dotted(words, place + 1))
            case "," if is_from:
                found.append(_dotted(words, place + 1))
            case word if token.kind == "word" and word in _BEHIND_FROM:
                open_ones[-1] = (call, False)
            case _:
                pass
    return [*dict.fromkeys(name for name in found if name and name.lower() not in own)]


_BEHIND_FROM = (
    *("aggregate", "cluster", "distribute", "except", "extend", "group", "having", "intersect"),
    *("limit", "minus", "order", "qualify", "select", "set", "sort", "union", "view", "where"),
    "window",
)
_WITH_FROM = ("extract", "overlay", "position", "substr", "substring", "trim")  # trim(BOTH FROM a)


def _dotted(words: Sequence[Token], place: int) -> str | None:
    """The name at *place*; None if there is a query in parentheses, or a function."""
    if words[place].text.lower() == "lateral" or words[place].kind not in ("word", "quoted"):
        return None
    parts = [words[place].text.strip("`")]
    while words[place + 1].text == ".":
        place += 2
        parts.append(words[place].text.strip("`"))
    return None if words[place + 1].text == "(" else ".".join(parts)
