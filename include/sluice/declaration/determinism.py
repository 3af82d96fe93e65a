"""The expressions that answer otherwise when they are asked again, and where they are refused.

An expression such as ``rand()`` or ``current_timestamp()`` is fine where each row is asked once,
and the answer kept: in what one stage reads of a source, in a transform, in aggregates over
appended rows.  It is refused where an answer is needed twice: in a key, by which state is found
again; over rows that are taken back, which have to be what was sent; in a table that is looked up;
in a stream that two readers compute, each for itself.  What tells how Spark cut an epoch is refused
everywhere.

Read off the tree of an expression, so neither a column called ``rand`` nor the text ``'now()'`` is
a call.  The texts ``'now'``, ``'today'`` and their like are the clock where Spark makes a day or an
instant of them: in a cast they are found here, beside a column once its type is known.  Spark's
names of clocks mean the column, where there is one: with and without backticks
they are found once the columns are known.  Of functions in Python, registered or not, Catalyst
knows whether they were declared with ``asNondeterministic()``: ``spark/checking.py`` asks it.

A table, a file or a clock that Spark code reads is as it is when the function is called, and behind
a restore another one.  The answer is kept as it was, so this is allowed, and ``sluice check`` names
what is ``Unpinned``: found in the source of the function, and of the functions of its package that
it names, but not in a library.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, takewhile
from types import FunctionType
from typing import NamedTuple, NoReturn

from sluice.declaration.changelog import Append
from sluice.declaration.expressions import (
    Filter,
    Projection,
    Step,
    check_one_value,
    computing,
    result_name,
    written,
)
from sluice.declaration.functions import content
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import (
    KeyedAggregate,
    KeyedLookup,
    Lookup,
    SparkCode,
    WindowAggregate,
)
from sluice.declaration.spark_sql import answer_of_text, tables_of_text
from sluice.declaration.sql import parsed
from sluice.declaration.sql_tree import (
    Call,
    Cast,
    Column,
    Expression,
    Literal,
    Star,
    names_the_clock,
    parts_of,
    spelled,
    tokens,
)
from sluice.errors import ConfigurationError

# Spark's functions that draw, or read the clock, with any arguments.
DRAWS = frozenset(
    {"aes_encrypt", "java_method", "rand", "randn", "random", "randstr", "reflect", "shuffle"}
    | {"try_reflect", "uniform", "uuid"}
)
CLOCKS = frozenset(
    {"curdate", "current_date", "current_time", "current_timestamp", "localtime", "now"}
    | {"localtimestamp"}
)
_CLOCKS_OF_NOTHING = frozenset({"unix_timestamp"})  # They read the clock if nothing is passed.
# Of a partition of Spark's, or of a file as Spark reads it.
PLACES = frozenset(
    {"input_file_block_length", "input_file_block_start", "input_file_name"}
    | {"monotonically_increasing_id", "spark_partition_id"}
)
# The clocks that need no parentheses, unless there is a column of that name.
_BARE = frozenset({"current_date", "current_time", "current_timestamp", "localtime"})

# Functions whose result may be another text than the words of the expression.
TEXTS = frozenset(
    {"btrim", "concat", "concat_ws", "initcap", "lcase", "left", "lower", "lpad", "ltrim", "repeat"}
    | {"replace", "reverse", "right", "rpad", "rtrim", "substr", "substring", "translate", "trim"}
    | {"ucase", "upper"}
)

_INSTANTS = frozenset({"date", "timestamp", "timestamp_ltz", "timestamp_ntz"})

WHY_TAKEN_BACK = "answers otherwise when a row is taken back, and that would not be the row it sent"


@dataclass(frozen=True, slots=True)
class Reader:
    """A stage or sink, and the steps that it applies to a stream itself."""

    name: str
    steps: tuple[Step, ...]


def nondeterministic(sql: str, columns: Collection[str] | None = None) -> str | None:
    """The part of *sql* that draws or reads the clock; None if there is none.

    ``current_date`` and the like without parentheses mean the column, where there is one: they are
    found only if the *columns* are known.
    """
    return _found(sql, DRAWS) or _clock(sql, columns)


def of_spark(sql: str) -> str | None:
    """The part of *sql* that tells how Spark cut the rows; None if there is none."""
    return _found(sql, PLACES)


def check_places(owner: str, sql: str) -> None:
    """Raises ConfigurationError if *sql* tells how Spark cut the rows."""
    found = of_spark(sql)
    if found is not None:
        raise ConfigurationError(f"{owner} has {found} in {sql!r}, {why_of_spark(found)}")


def why_of_spark(found: str) -> str:
    """The reason why *found* is refused, and what to use."""
    if found.startswith("input_file"):
        return (
            "which is empty, as Spark does not read the files; in a transform() the column "
            "_source.partition says what a row was read from"
        )
    return (
        "which tells how Spark cut an epoch, and begins anew with the next; number rows by a "
        "column of theirs, or name each with uuid()"
    )


def check_key_expressions(
    owner: str, expressions: Mapping[str, str], columns: Collection[str] | None = None
) -> None:
    """Raises ConfigurationError if one of the *expressions* of keys answers otherwise next time, or
    reads other rows than its own, or makes rows.
    """
    for name, sql in expressions.items():
        check_one_value(owner, sql)
        check_places(owner, sql)
        found = nondeterministic(sql, columns)
        if found is not None:
            refuse_key(owner, name, sql, found)


def refuse_key(owner: str, name: str, sql: str, found: str) -> NoReturn:
    raise ConfigurationError(
        f"{owner} computes the key {name!r} with {found} in {sql!r}, which answers otherwise each "
        "time, so no row would find the state of its key; key by what the rows have, such as "
        f"{name}='hash(id) % 8'"
    )


def check_step(
    owner: str,
    producer: str,
    step: Step,
    *,
    is_append: bool,
    columns: Collection[str] | None = None,
) -> None:
    """Raises ConfigurationError if *step* behind *producer* cannot be answered for."""
    for sql in _texts(step):
        check_places(owner, sql)
        found = nondeterministic(sql, columns)
        if found is not None and not is_append:
            refuse_over_updates(owner, producer, f"{found} in {sql!r}")


def refuse_over_updates(owner: str, producer: str, found: str) -> NoReturn:
    raise ConfigurationError(
        f"{owner} has {found}, which {WHY_TAKEN_BACK}: {producer!r} takes rows back; "
        "compute it before, of appended rows, such as in a select() of the source"
    )


def check_stage(stage: StageNode, event_times: Mapping[str, str | None]) -> None:
    """Check what *stage* computes of its inputs; *event_times* are those of the sources it reads.

    Raises:
        ConfigurationError: an answer is needed twice.
    """
    check_arguments(stage)
    for given in stage.inputs:
        time = event_times.get(given.producer)
        if time is not None:
            _check_event_time(stage.uid, given, time)
    match stage.operation:
        case (Lookup() as lookup) | KeyedLookup(lookup=lookup):
            check_lookup(stage.uid, lookup)
        case _:
            pass


def check_arguments(stage: StageNode, columns: Collection[str] | None = None) -> None:
    """Raises ConfigurationError if an argument of the aggregates of *stage* reads other rows than
    its own, makes rows, or is taken back, and answers otherwise then.
    """
    updating = next((given for given in stage.inputs if given.kind != Append()), None)
    for name, sql in arguments_of(stage):
        owner = f"{name!r} of stage {stage.uid!r}"
        check_one_value(owner, sql)
        check_places(owner, sql)
        found = nondeterministic(sql, columns)
        if found is not None and updating is not None:
            refuse_over_updates(owner, updating.producer, f"{found} in {sql!r}")


def check_readers(
    producer: str, readers: Sequence[Reader], columns: Collection[str] | None = None
) -> None:
    """Raises ConfigurationError if two *readers* of *producer* compute one stream, each for itself,
    and would get different rows.
    """
    for one, other in combinations(readers, 2):
        shared = shared_steps(one.steps, other.steps)
        for number, step in enumerate(shared, start=1):
            asked = (nondeterministic(sql, columns) for sql in _texts(step))
            found = next(filter(None, asked), None)
            if found is not None:
                refuse_two_readers(producer, (one, other), shared[:number], found)


def columns_named_by(steps: Iterable[Step]) -> set[str]:
    """The names that the projections among *steps* give."""
    chosen = (step.columns for step in steps if isinstance(step, Projection))
    named = (result_name(text) for texts in chosen for text in texts)
    return {name for name in named if name is not None}


def shared_steps(one: Sequence[Step], other: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with which both begin."""
    both = zip(one, other, strict=False)
    return tuple(step for step, _ in takewhile(lambda pair: pair[0] == pair[1], both))


def refuse_two_readers(
    producer: str, readers: tuple[Reader, Reader], steps: Sequence[Step], found: str
) -> NoReturn:
    one, other = (reader.name for reader in readers)
    who = f"{one} reads it twice" if one == other else f"{one} and {other} both read it"
    raise ConfigurationError(
        f"{producer!r} behind {written(steps)} has {found}, which answers otherwise for each "
        f"reader, and {who}; have a stage answer once for both: "
        ".transform('drawn', lambda rows: rows)"
    )


def arguments_of(stage: StageNode) -> list[tuple[str, str]]:
    """The SQL of a stage's aggregates, each with the aggregate's name."""
    match stage.operation:
        case KeyedAggregate(aggregates=aggregates) | WindowAggregate(aggregates=aggregates):
            return [
                (name, sql)
                for name, one in aggregates.items()
                for sql in (one.column, one.where, one.by)
                if sql is not None
            ]
        case _:
            return []


def check_lookup(uid: str, lookup: Lookup, columns: Collection[str] | None = None) -> None:
    """Raises ConfigurationError if the table would answer otherwise when it is asked again.

    The *columns* are those of the table, if they are known.
    """
    known = None if columns is None else {*columns, *columns_named_by(lookup.steps)}
    steps = (sql for step in lookup.steps for sql in _texts(step))
    for sql in (*(sql for _, sql, _ in lookup.compared), *steps):
        check_places(f"lookup {uid!r}", sql)
        found = nondeterministic(sql, known)
        if found is not None:
            raise ConfigurationError(
                f"lookup {uid!r} finds rows of {lookup.table!r} by {found} in {sql!r}, which "
                "answers otherwise each time; look rows up by what the table has, and compute the "
                "rest in the rows, such as in a select() of the source"
            )
    for sql in lookup.add.values():
        check_places(f"lookup {uid!r}", sql)


def _check_event_time(uid: str, given: Input, column: str) -> None:
    """A watermark is measured apart from the rows; it may trail a clock, but no draw."""
    for sql in (sql for step in computing(given.steps, column) for sql in _texts(step)):
        found = _found(sql, DRAWS)
        if found is not None:
            raise ConfigurationError(
                f"stage {uid!r} goes by the event time {column!r} of {given.producer!r}, which is "
                f"drawn with {found} in {sql!r}; the watermark is measured apart from the rows, "
                "and would see other times: name a column of the rows"
            )


def _texts(step: Step) -> Iterable[str]:
    return (step.condition,) if isinstance(step, Filter) else step.columns


def _found(sql: str, names: frozenset[str]) -> str | None:
    """The first call of one of *names*."""
    calls = (part.function for part in parsed(sql).parts if isinstance(part, Call))
    return next((f"{name}()" for name in calls if name in names), None)


def _clock(sql: str, columns: Collection[str] | None) -> str | None:
    found = (part for part in parsed(sql).parts if _reads_the_clock(part, columns))
    first = next(found, None)
    if isinstance(first, Call) and not _reads_a_text(first):
        return f"{first.function}()"
    return None if first is None else spelled(first)


def _reads_the_clock(part: Expression, columns: Collection[str] | None) -> bool:
    match part:
        case Call(function=function, arguments=arguments):
            of_nothing = function in _CLOCKS_OF_NOTHING and not arguments
            return function in CLOCKS or of_nothing or _reads_a_text(part)
        case Cast(value=text, type=of):
            return of.name in _INSTANTS and _may_name_the_clock(text)
        case Column(parts=(name,)):
            is_bare = columns is not None and name.lower() in _BARE
            return is_bare and name.lower() not in map(str.lower, columns or ())
        case Literal(value=str(), type=of):
            return of.name != "string"
        case _:
            return False


def _reads_a_text(call: Call) -> bool:
    """Whether *call* makes a day or an instant of a text that Spark reads off the clock."""
    match call.arguments:
        case (text, *_):
            of = call.function.removeprefix("try_").removeprefix("to_")
            return of in _INSTANTS and _may_name_the_clock(text)
        case _:
            return False


def _may_name_the_clock(text: Expression) -> bool:
    """Whether *text* may be one that Spark reads off the clock: it computes a text without columns,
    such as ``lower('TODAY')`` or ``coalesce(NULL, 'today')``, before it makes a day or an instant
    of it.
    """
    parts = [*parts_of(text)]
    if any(isinstance(part, (Column, Star)) for part in parts):
        return False
    texts = [part.value for part in parts if isinstance(part, Literal)]
    if any(isinstance(part, Call) and part.function in TEXTS for part in parts):
        return any(isinstance(one, str) and re.search("[A-Za-z]", one) for one in texts)
    return any(isinstance(one, str) and names_the_clock(one) for one in texts)


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
        cell = around.get(name)
        value = function.__globals__.get(name) if cell is None else content(cell)
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
        for text in _constants(node):
            names = {one.arg for one in node.keywords if one.arg}
            found = _in_query(text, names, "") if name == "sql" else _in_sql(text, "")
            yield from ((node.lineno, one.code, one.what) for one in found)


def _constants(node: ast.Call) -> Iterator[str]:
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
