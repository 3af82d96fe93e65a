"""The check that a user's function is row-wise: each result row depends on one row of its epoch.

An epoch is the rows between two barriers.  A function that compares, numbers or counts its rows
would depend on the barriers, and a restore or another interval would change its result.
"""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_INSTEAD = {
    "Window": ("a window function (OVER)", "top_n(), latest() or window()"),
    "Aggregate": ("an aggregate (groupBy)", "key_by().aggregate() or window()"),
    "Deduplicate": ("dropDuplicates()", "key_by().deduplicate()"),
    "Distinct": ("distinct()", "key_by().deduplicate()"),
    "GlobalLimit": ("limit()", "top_n()"),
}
# A node of Spark's plan, behind the lines that draw the tree.
_NODE = re.compile(r"^[\s:+|-]*(?P<name>[A-Z]\w+)\b", re.MULTILINE)


def check_row_wise_plan(uid: str, rows: DataFrame) -> None:
    """Refuse a result of which a row depends on other rows of its epoch.

    Everything below a join is allowed: it is the other table, which the function joins to its rows.

    Raises:
        ConfigurationError: the function of stage *uid* has such an operator; the message says what
            to use instead.
    """
    for node in _NODE.finditer(_analysed_plan(rows)):
        if node["name"] == "Join":
            return
        if node["name"] in _INSTEAD:
            what, instead = _INSTEAD[node["name"]]
            raise ConfigurationError(
                f"the function of stage {uid!r} has {what}, whose result depends on where the "
                f"barriers fall; it may look at one row at a time: use {instead} for what is of "
                "many"
            )


def _analysed_plan(rows: DataFrame) -> str:
    """The analysed plan: the parsed one has no types, and the optimized one may hide a mistake."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):  # Connect has no other way.
        rows.explain(extended=True)
    analysed = printed.getvalue().partition("== Analyzed Logical Plan ==")[2]
    return analysed.partition("== Optimized")[0]
