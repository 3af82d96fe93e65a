"""The columns that a text of SQL speaks of, without a parser: by what stands around a word.

A word is a column where a value is expected, with an operator, a comma or an end behind it.  That
tells the column ``end`` from the END of a CASE, and ``day`` from the unit in ``INTERVAL 1 day``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import islice

from sluice.declaration.steps import NO_TOKEN, Token, tokens

# Behind the first a value begins; the second end one.
_BEFORE = re.compile(
    r"and|between|case|div|else|escape|from|i?like|in|not|or|regexp|rlike|then|when", re.IGNORECASE
)
_BEHIND = re.compile(
    r"and|as|asc|between|collate|desc|div|else|end|escape|i?like|in|is|not|or|regexp|rlike|then"
    r"|when",
    re.IGNORECASE,
)
_TAKES_A_UNIT = re.compile(r"date_?(add|diff)|timediff|timestamp(add|diff)", re.IGNORECASE)
# Values by themselves, where there is no column of that name.
_VALUE = re.compile(
    r"current_(catalog|database|date|schema|time|timestamp|user)|false|localtime(stamp)?|null"
    r"|session_user|true|user",
    re.IGNORECASE,
)
# Always values, whatever columns are called.
LITERAL = re.compile(r"false|null|true", re.IGNORECASE)


def columns_in(sql: str) -> Iterator[Token]:
    """The words of *sql* that stand where a column does; of ``bid.price`` the first."""
    words = [NO_TOKEN, NO_TOKEN, *tokens(sql), NO_TOKEN]
    for place, token in enumerate(islice(words, 2, len(words) - 1), start=2):
        two_before, before, behind = words[place - 2], words[place - 1], words[place + 1]
        if token.kind == "word" and _begins(two_before, before) and _ends(behind):
            yield token


def unknown_column(sql: str, names: Collection[str]) -> str | None:
    """A column that *sql* reads and that is none of *names*, whatever their case; None if unsure.

    Functions of functions (``x -> x + 1``) and named arguments have names of their own.
    """
    if "->" in sql or "=>" in sql:
        return None
    known = {name.lower() for name in names}
    strange = (word.text for word in columns_in(sql) if word.text.lower() not in known)
    keywords = (_VALUE, _BEFORE, _BEHIND)
    return next((text for text in strange if not any(k.fullmatch(text) for k in keywords)), None)


def _begins(two_before: Token, before: Token) -> bool:
    match before.kind:
        case "":
            return True
        case "sign":
            takes_a_unit = (
                before.text == "(" and _TAKES_A_UNIT.fullmatch(two_before.text) is not None
            )
            return before.text not in {")", "]", ".", ":"} and not takes_a_unit
        case "word":
            return _BEFORE.fullmatch(before.text) is not None
        case _:
            return False


def _ends(behind: Token) -> bool:
    match behind.kind:
        case "":
            return True
        case "sign":
            return behind.text != "("
        case "word":
            return _BEHIND.fullmatch(behind.text) is not None
        case _:
            return False
