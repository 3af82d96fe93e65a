"""SQL of one row, read once into a tree of ours: what an expression means, without its spelling.

    parsed("Price * 2 AS double")    Sql(Call("*", (Column(("Price",)), Literal(2, int))), "double")

The language is Spark SQL's, wherever the expression stands.  What we do not know is ``unread``:
Spark may know it, and whoever needs its meaning refuses it with its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sluice.declaration.sql_tree import (
    Column,
    Expression,
    Star,
    canonical,
    parts_of,
    parts_of_words,
    tokens,
)

PARSED_KEPT = 4096  # Expressions of the pipelines of one process.


@dataclass(frozen=True, slots=True)
class Sql:
    """A text of SQL as it was read.

    ``tree`` is None if it is ``unread``, which is then the piece of the text that we do not know.
    ``name`` is that of the column in a SELECT: behind AS, or the column's or field's own; None if
    Spark would make one up.
    """

    text: str
    tree: Expression | None
    name: str | None
    unread: str = ""

    @property
    def parts(self) -> tuple[Expression, ...]:
        """All that it consists of; of what is unread, what its words tell of that."""
        return tuple(parts_of_words(self.text) if self.tree is None else parts_of(self.tree))

    @property
    def columns(self) -> frozenset[str] | None:
        """The columns that it reads, in small letters; None if that may be any."""
        if self.tree is None:
            return None
        found = list(parts_of(self.tree))
        if any(isinstance(part, Star) for part in found):
            return None
        return frozenset(part.parts[0].lower() for part in found if isinstance(part, Column))

    @property
    def paths(self) -> tuple[Column, ...]:
        """The columns and fields that it reads, as they are spelt; none of what is unread."""
        found = () if self.tree is None else parts_of(self.tree)
        return tuple(dict.fromkeys(part for part in found if isinstance(part, Column)))

    @property
    def is_column(self) -> bool:
        """Whether it is one column as it is, perhaps under another name."""
        return isinstance(self.tree, Column) and len(self.tree.parts) == 1

    @property
    def is_star(self) -> bool:
        return isinstance(self.tree, Star)

    def canonical(self) -> str:
        """The meaning as a text: equal for two spellings of one tree; ``name`` is not in it."""
        if self.tree is None:
            return " ".join(_plain_word(t.kind, t.text) for t in tokens(self.text))
        return canonical(self.tree)


def _plain_word(kind: str, text: str) -> str:
    return text.lower() if kind in {"word", "number"} else text


@lru_cache(PARSED_KEPT)
def parsed(text: str) -> Sql:
    """*text*, an expression or an item of a SELECT, as it is read."""
    from sluice.declaration.sql_reader import UnreadError, read_sql  # sqlglot: where there is SQL.

    try:
        tree, name = read_sql(text)
    except UnreadError as error:
        return Sql(text, None, _last_word(text), str(error) or text.strip())
    return Sql(text, tree, tree.parts[-1] if name is None and isinstance(tree, Column) else name)


def _last_word(text: str) -> str | None:
    """The name that an unread item gives itself with AS, at its end."""
    words = list(tokens(text))
    if len(words) < 3 or words[-2].text.lower() != "as":
        return None
    return words[-1].text.strip("`").replace("``", "`")
