"""Whether each row that a user's function yields depends on one row of its epoch, and on no other.

An epoch is the rows between two barriers, so the result of a function that compares, numbers or
counts its rows would depend on the barriers, and change with a restore or another interval.

Spark's analysed plan is a tree, in which the function's rows are known by an alias.  What reads
them alone is followed from there, through joins, unions, common table expressions and subqueries:
of *these* rows no operator may see many.  A table beside them may be aggregated as one likes, and
joined, as long as no row of it is yielded without one of the epoch's.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

from sluice.declaration.places import MALFORMED_COLUMN, RAW
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS = "_rows_of_the_epoch"

# By the operators that see many rows: what a user calls them, and what to use instead.
_BY_KEY = "key_by().process()"
_INSTEAD = {
    "Window": ("a window function (OVER)", "top_n(), latest() or window()"),
    "Aggregate": ("an aggregate (groupBy)", "key_by().aggregate() or window()"),
    "Deduplicate": ("dropDuplicates()", "key_by().deduplicate()"),
    "DeduplicateWithinWatermark": ("dropDuplicates()", "key_by().deduplicate()"),
    "Distinct": ("distinct()", "key_by().deduplicate()"),
    "Except": ("except()", "lookup() or key_by().join(..., how='anti')"),
    "Intersect": ("intersect()", "lookup() or key_by().join(..., how='semi')"),
    "GlobalLimit": ("limit()", "top_n()"),
    "Offset": ("offset()", "top_n()"),
    "Tail": ("tail()", "top_n()"),
    "Sample": ("sample()", "where() with a hash of a column"),
    "WindowInPandas": ("a window function (OVER)", "top_n(), latest() or window()"),
    "AggregateInPandas": ("an aggregate (groupBy)", "key_by().aggregate() or window()"),
    "FlatMapGroupsInPandas": ("a function of groups (applyInPandas)", _BY_KEY),
    "FlatMapGroupsInArrow": ("a function of groups (applyInArrow)", _BY_KEY),
    "FlatMapCoGroupsInPandas": ("a function of groups (applyInPandas)", _BY_KEY),
    "FlatMapCoGroupsInArrow": ("a function of groups (applyInArrow)", _BY_KEY),
}

_MOVES = dict.fromkeys(
    ("Repartition", "RepartitionByExpression"), ("repartition() or coalesce()", "")
)

# The joins that yield, or leave out, a row of one side by what the other side has.
_YIELDS_LEFT = frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti", "ExistenceJoin"})
_YIELDS_RIGHT = frozenset({"Inner", "Cross", "RightOuter"})

# A node of the plan: the lines that draw the tree, its name, and the rest.  A child begins three
# characters behind its parent, a subquery of one of its expressions six.
_NODE = re.compile(r"^(?P<lines>[ :|+-]*)'?(?P<name>[A-Z]\w+)\b ?(?P<text>[^\n]*)$", re.MULTILINE)
_SUBQUERY = 6
_COLUMNS_SHOWN = "spark.sql.debug.maxToStringFields"  # A plan leaves out what there is more of.
_SHOWING = Lock()


@dataclass(slots=True)
class _Node:
    name: str
    text: str
    column: int
    children: list[_Node] = field(default_factory=list["_Node"])
    subqueries: list[_Node] = field(default_factory=list["_Node"])


def marked(rows: DataFrame) -> DataFrame:
    """*rows*, known in every plan that is made of them."""
    return rows.alias(_ROWS)


def check_row_wise_plan(uid: str, rows: DataFrame) -> None:
    """Refuse a result of which a row depends on other rows of its epoch.

    *rows* are what the function of stage *uid* made of ``marked`` rows.

    Raises:
        ConfigurationError: the function has such an operator, or moves its rows; the message says
            what to use instead.
    """
    found = _of_many(analysed_plan(rows))
    if found is not None:
        what, instead = found
        if not instead:
            raise ConfigurationError(
                f"the function of stage {uid!r} has {what}, and each of its rows stays with the "
                "subtask that has read it; leave that out, and set the stage's parallelism"
            )
        raise ConfigurationError(
            f"the function of stage {uid!r} has {what}, whose result depends on where the "
            f"barriers fall; a transform sees one row at a time: to see several, use {instead}"
        )


def keeps_every_row(rows: DataFrame) -> bool:
    """Whether a function made *rows* of ``marked`` rows by computing columns, and left none out.

    One that says itself which rows are malformed would leave out those that could not be read.
    """
    node = _tree(analysed_plan(rows))
    while node is not None and (node.name, node.text) != ("SubqueryAlias", _ROWS):
        is_plain = node.name in ("Project", "SubqueryAlias") and len(node.children) == 1
        is_plain = is_plain and _OF_MALFORMED.isdisjoint(map(str.lower, _computed(node.text)))
        node = node.children[0] if is_plain else None
    return node is not None


_OF_MALFORMED = frozenset({MALFORMED_COLUMN, RAW})
_ANEW = re.compile(
    rf"(?P<value>[^\s,\[(]+) AS (?P<name>_source|_weight|{MALFORMED_COLUMN}|{RAW})#\d+",
    re.IGNORECASE,
)


def _computed(plan: str) -> Iterator[str]:
    """The columns of ours that *plan* has anew, and not as they were, as it spells them."""
    for found in _ANEW.finditer(plan):
        name = found["name"]
        if re.fullmatch(rf"{name}#\d+L?", found["value"], re.IGNORECASE) is None:
            yield name


def check_kept(uid: str, rows: DataFrame) -> None:
    """Refuse a result of which the function computed a column that says what a row is.

    Raises:
        ConfigurationError: it has a ``_source`` or a ``_weight`` of its own.
    """
    for name in _computed(analysed_plan(rows)):
        if name.lower() not in _OF_MALFORMED:
            raise ConfigurationError(
                f"the function of stage {uid!r} computes the column {name!r}, which is sluice's "
                "own: it says where a row came from, or whether it is taken back; keep it as it "
                "is, and give yours another name"
            )


def _of_many(plan: str) -> tuple[str, str] | None:
    """The first operation of *plan* over many of the epoch's rows, and what to use instead."""
    root = _tree(plan)
    return None if root is None else _Search(root).first(root)


class _Search:
    def __init__(self, root: _Node) -> None:
        self._of_rows: dict[int, bool] = {}  # By the node's id.
        self._expressions: dict[str, bool] = {}  # Common table expressions, by their numbers.
        self._has_rows(root)  # They are defined before they are read.

    def first(self, node: _Node) -> tuple[str, str] | None:
        """The operator nearest to the rows; of two branches the first."""
        for child in (*node.children, *node.subqueries):
            found = self.first(child)
            if found is not None:
                return found
        if any(map(self._has_rows, node.subqueries)):
            return "a subquery over its rows", "key_by().join()"
        has_rows = [self._has_rows(child) for child in node.children]
        if not any(has_rows):
            return None
        match node.name:
            case "Join" | "AsOfJoin" | "LateralJoin":
                return _of_join(node, has_rows)
            case "Union" if not all(has_rows):
                return "a union with a table, all of whose rows come with each epoch", "union()"
            case name:
                return _INSTEAD.get(name) or _MOVES.get(name)

    def _has_rows(self, node: _Node) -> bool:
        known = self._of_rows.get(id(node))
        if known is None:
            known = self._of_rows[id(node)] = self._looks(node)
        return known

    def _looks(self, node: _Node) -> bool:
        within = [self._has_rows(child) for child in (*node.children, *node.subqueries)]
        number = node.text.partition(",")[0]
        match node.name:
            case "SubqueryAlias" if node.text == _ROWS:
                return True
            case "CTERelationDef":
                self._expressions[number] = any(within)
            case "CTERelationRef":
                return self._expressions.get(number, False)
            case _:
                pass
        return any(within)


def _of_join(node: _Node, has_rows: list[bool]) -> tuple[str, str] | None:
    if all(has_rows) and len(has_rows) > 1:
        return "a join of its rows with themselves", "key_by().aggregate() or key_by().join()"
    kind = re.split(r"\W", node.text, maxsplit=1)[0]
    yields = _YIELDS_LEFT if has_rows[0] else _YIELDS_RIGHT
    if node.name == "Join" and kind not in yields:
        side = "left" if has_rows[0] else "right"
        return (
            f"a join ({kind}) that yields rows of a table by what the epoch has",
            f"its rows as the {side} side of an inner or {side} join, or key_by().join()",
        )
    return None


def _tree(plan: str) -> _Node | None:
    root: _Node | None = None
    path: list[_Node] = []
    for found in _NODE.finditer(plan):
        node = _Node(found["name"], found["text"].strip(), len(found["lines"]))
        while path and path[-1].column >= node.column:
            path.pop()
        if not path:
            root = root or node
        elif node.column - path[-1].column >= _SUBQUERY:
            path[-1].subqueries.append(node)
        else:
            path[-1].children.append(node)
        path.append(node)
    return root


@contextlib.contextmanager
def all_columns_shown(rows: DataFrame) -> Iterator[None]:
    """Plans of the session of *rows* are printed with each of their columns, in a stage at a time:
    those that run at once share the session's settings, and what they print.
    """
    conf = rows.sparkSession.conf
    with _SHOWING:
        shown = conf.get(_COLUMNS_SHOWN)
        conf.set(_COLUMNS_SHOWN, str(2**31 - 1))
        try:
            yield
        finally:
            conf.set(_COLUMNS_SHOWN, str(shown))


def analysed_plan(rows: DataFrame) -> str:
    """The analysed plan: the parsed one has no types, and the optimized one may hide a mistake."""
    printed = io.StringIO()
    with all_columns_shown(rows), contextlib.redirect_stdout(printed):
        rows.explain(extended=True)  # Spark Connect has no other way.
    analysed = printed.getvalue().partition("== Analyzed Logical Plan ==\n")[2]
    _, _, tree = analysed.partition("\n")  # The first line has the columns.
    return tree.partition("== Optimized")[0]
