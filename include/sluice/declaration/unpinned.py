"""The reads and the draws of Spark code that nothing pins.

A stage pins what its function is given.  A table, a file or a clock that it reads is as it is when
the function is called, and behind a restore another one.  The answer is kept as it was, so this is
allowed, and ``sluice check`` names it.  It is found in the source of the function, and of the
functions of its package that it names; what a library reads is not found.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection, Iterator
from functools import partial
from types import FunctionType
from typing import NamedTuple

from sluice.declaration.determinism import CLOCKS, DRAWS, PLACES
from sluice.declaration.operations import SparkCode
from sluice.declaration.spark_sql import answer_of_text, tables_of_text
from sluice.declaration.sql_tree import tokens


class Unpinned(NamedTuple):
    """Code that reads something unpinned: the code, what it is, and where it stands."""

    code: str
    what: str
    place: str

    def __str__(self) -> str:
        return f"{self.code} {self.what}, at {self.place}"


_READS = "reads what no checkpoint pins"
_DIFFERS = "answers otherwise each time"

# Of Spark's functions under the names of SQL; those of Python with their modules.
_OF_SPARK = DRAWS | CLOCKS | PLACES
_OF_PYTHON = {
    ("datetime", "now"): _DIFFERS,
    ("datetime", "today"): _DIFFERS,
    ("datetime", "utcnow"): _DIFFERS,
    ("date", "today"): _DIFFERS,
    ("time", "time"): _DIFFERS,
    ("time", "time_ns"): _DIFFERS,
    ("uuid", "uuid1"): _DIFFERS,
    ("uuid", "uuid4"): _DIFFERS,
    ("random", ""): _DIFFERS,
    ("secrets", ""): _DIFFERS,
    ("requests", ""): _READS,
    ("urllib", ""): _READS,
    ("boto3", ""): _READS,
    ("os", "environ"): _READS,
    ("os", "getenv"): _READS,
    ("pd", "read_csv"): _READS,
    ("pd", "read_parquet"): _READS,
    ("pd", "read_sql"): _READS,
}
_OF_SESSION = ("read", "readStream", "table", "catalog")  # Of a session of Spark's.
_TAKES_SQL = ("expr", "filter", "selectExpr", "sql", "where")


def unpinned(code: SparkCode) -> list[Unpinned]:
    """The unpinned reads and draws in the function of *code*, in the order of its source."""
    function = code.function
    if isinstance(function, partial) and function.func is answer_of_text:
        names = {*code.names, *code.tables, "previous"}
        return [*_in_query(str(function.args[0]), names, "its text")]
    function = function.func if isinstance(function, partial) else function
    return [*dict.fromkeys(_of_function(function, set()))]


def _of_function(function: object, seen: set[int]) -> Iterator[Unpinned]:
    function = inspect.unwrap(function) if callable(function) else function
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):  # No source, or a lambda amid other code.
        return
    file = function.__code__.co_filename.rpartition("/")[2]
    found = sorted(_in_tree(tree), key=lambda pair: pair[0])
    for line, code, what in found:
        yield Unpinned(code, what, f"{file} line {first + line - 1}")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    around = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name in sorted(names):
        value = around[name].cell_contents if name in around else function.__globals__.get(name)
        if isinstance(value, FunctionType) and _package(value) == _package(function):
            yield from _of_function(value, seen)


def _package(function: FunctionType) -> str:
    return function.__module__.partition(".")[0]


def _in_tree(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """The line in *tree*, the code and what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _OF_SESSION and _is_session(node.value):
            yield node.lineno, f"spark.{node.attr}", _READS
        elif isinstance(node, ast.Attribute):
            what = _of_python(node)
            if what is not None:
                yield node.lineno, ast.unparse(node), what
        elif isinstance(node, ast.Call):
            yield from _in_call(node)


def _in_call(node: ast.Call) -> Iterator[tuple[int, str, str]]:
    called = node.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name == "open" and isinstance(called, ast.Name):
        yield node.lineno, "open()", _READS
    is_of_python = isinstance(called, ast.Attribute) and _of_python(called) is not None
    if (name in _OF_SPARK and not is_of_python) or (name == "unix_timestamp" and not node.args):
        yield node.lineno, f"{name}()", _DIFFERS
    if name in _TAKES_SQL:
        for text in _texts(node):
            names = {one.arg for one in node.keywords if one.arg}
            found = _in_query(text, names, "") if name == "sql" else _in_sql(text, "")
            yield from ((node.lineno, one.code, one.what) for one in found)


def _texts(node: ast.Call) -> Iterator[str]:
    for given in node.args:
        if isinstance(given, ast.Constant) and isinstance(given.value, str):
            yield given.value


def _is_session(node: ast.expr) -> bool:
    """Whether *node* is a session by its name: ``spark``, or a DataFrame's ``sparkSession``."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name in ("spark", "sparkSession", "spark_session")


def _of_python(node: ast.Attribute) -> str | None:
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return _OF_PYTHON.get((name, node.attr)) or _OF_PYTHON.get((name, ""))


def _in_query(text: str, names: Collection[str], place: str) -> Iterator[Unpinned]:
    for table in tables_of_text(text):
        if table.lower() not in {name.lower() for name in names}:
            yield Unpinned(f"the table {table}", _READS, place)
    yield from _in_sql(text, place)


def _in_sql(text: str, place: str) -> Iterator[Unpinned]:
    words = [*tokens(text)]
    for token, following in zip(words, [*words[1:], None], strict=True):
        name = token.text.lower()
        is_call = following is not None and following.text == "("
        if token.kind == "word" and name in _OF_SPARK and (is_call or name in _BARE_CLOCKS):
            yield Unpinned(f"{name}()" if is_call else name, _DIFFERS, place)


_BARE_CLOCKS = ("current_date", "current_time", "current_timestamp")
