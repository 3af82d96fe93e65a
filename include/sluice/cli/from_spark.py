"""``sluice init --from-spark``: a script of PySpark, read as text, becomes the draft of a pipeline.

What the script says is taken over: what it reads and writes, and its function.  What it does not
say is left open as ``...``, which no declaration accepts, beside a sentence that says what to
decide: a key is never guessed.  The script is not run, and nothing of it is imported.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlglot import exp

PREVIOUS = "previous"
_FILES = ("avro", "csv", "json", "orc", "parquet", "text")
_OF_READER = (*_FILES, "jdbc", "load", "table")
_NAMED = ("path", "source", "table", "tableName", "name")
_OF_WRITER = (*_FILES, "insertInto", "jdbc", "save", "saveAsTable")
_SESSIONS = ("session", "spark", "spark_session", "sparkSession")  # The names of one, in scripts.
_OF_VIEWS = re.compile(r"create(OrReplace)?(Global)?TempView|registerTempTable")


@dataclass(frozen=True, slots=True)
class _Place:
    """A place that a script reads or writes: *format* of *path*, by the call at *line*. *name* is
    the variable that has it, and *options* are the calls of its reader or writer.
    """

    path: str
    format: str
    line: int
    name: str = ""
    options: dict[str, ast.Call] = field(default_factory=dict[str, ast.Call])


def draft_of(script: Path) -> str:
    """The text of a pipeline that does what *script* does.

    Raises:
        ConfigurationError: there is none, it is no Python, or it reads nothing by Spark.
    """
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{script} cannot be read: {error}; name a script") from None
    except SyntaxError as error:
        raise ConfigurationError(
            f"{script} is not Python that can be read: {error.msg} at line {error.lineno}; name a "
            "script of PySpark"
        ) from None
    known = _texts(tree)
    writes = _places(tree, known, "write", _OF_WRITER)
    own = {place.path for place in writes} | _moved_to(tree, known) | _views(tree, known)
    tables = {one.lower() for one in own}  # Whose names have no case.
    reads = [
        one
        for one in _places(tree, known, "read", _OF_READER)
        if one.path not in own and not (one.format == "table" and one.path.lower() in tables)
    ]
    if not reads:
        raise ConfigurationError(
            f"{script} reads nothing by spark.read, spark.table or spark.sql of which a source "
            "could be made; write the sources by hand"
        )
    return "\n".join(_lines(tree, script, reads, writes)) + "\n"


def _lines(
    tree: ast.Module, script: Path, reads: list[_Place], writes: list[_Place]
) -> Iterator[str]:
    uid = _uid(script.stem, "job")
    uids = _uids(reads)
    sources = {uids[place.path]: place for place in reversed(reads)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    call = _call_of_function(tree, functions, reads)
    yield f'"""A draft of what {script.name} does: decide what is ..., and read each remark."""'
    yield ""
    module = _module(script)
    if call is not None and not all(map(str.isidentifier, module.split("."))):
        yield f"# {script.name} is no module by its name, so it cannot be imported: rename it."
    elif call is not None:
        yield f"from {module} import {_name(call.func)}"
    yield "from sluice import Append, Pipeline, Replace, ReplacePartitions, Upsert"
    yield "from sluice.sinks import FilesTable"
    yield "from sluice.sources import Files, SparkRead"
    yield ""
    yield f'pipeline = Pipeline("{uid}")'
    for name, place in sources.items():
        yield ""
        yield from _source(name, place)
    for line, condition in _watermarks(tree):
        yield f"# line {line}: {condition}"
        yield "# An epoch reads what is new: if this is a watermark, leave it out, with its table."
    yield ""
    given = _given(call, functions, reads, uids)
    pairs = [f"{json.dumps(name)}: {source}" for name, source in given.items()]
    if call is None:
        yield f"# There is no function in {script.name}: put what it does between reading and"
        yield f"# writing into one, def {uid}({', '.join(given)}), and name it here."
    yield f"{uid} = pipeline.spark("
    yield f'    "{uid}",'
    yield f"    {'...' if call is None else _name(call.func)},"
    yield f"    reads={{{', '.join(pairs)}}},"
    yield "    # The columns of the answer, in Spark's DDL."
    yield "    schema=...,"
    yield f"    # {_result(writes)}."
    yield "    result=...,"
    yield ")"
    for place in writes:
        yield f"# line {place.line}: written to {place.path}"
    yield "# The key of result; a result without one has a table without one: FilesTable()."
    yield f'{uid}.sink("{uid}_out", FilesTable(upsert_key=...))'


def _module(script: Path) -> str:
    """The module of *script*; what is in ``include`` can be imported from there."""
    parts = script.with_suffix("").parts
    inside = parts[parts.index("include") + 1 :] if "include" in parts else parts[-1:]
    return ".".join(inside)


def _source(name: str, place: _Place) -> Iterator[str]:
    yield f"# line {place.line}: {place.format} {place.path}"
    if place.format in ("avro", "csv", "json", "parquet"):
        schema = place.options.get("schema")
        folder = _folder(place.path)
        arguments = ["..." if "{" in folder else json.dumps(folder), json.dumps(place.format)]
        said = "" if schema is None or not schema.args else ast.unparse(schema.args[0])
        if place.format in ("avro", "parquet"):
            if said:
                yield f"# The files have their columns: select() those of the script's {said}."
        elif said:
            arguments.append(said)
            yield f"# The schema is the script's {said}; import it, or write it here."
        else:
            yield "# The schema is inferred there; write it: Files(..., schema='id bigint, ...')."
        arguments.append("bounded=False")
        if "=" in place.path:
            yield "# The script reads one folder of it; here each new file is read once."
        yield "# Folders such as dt=2026-03-01: partitions='dt string'. Are they delivered again?"
        yield "# replaced='by partition' takes the old rows back; without it, that is refused."
        yield f'{name} = pipeline.source("{name}", Files({", ".join(arguments)}))'
    else:
        yield "# Only Spark reads it. by=: Snapshot(key), or Column('updated_at', key, lag=...)."
        yield "# A Delta or Iceberg table has a source of its own, which reads changes only."
        yield f'{name} = pipeline.source("{name}", SparkRead(..., schema=..., by=..., every=...))'


def _result(writes: list[_Place]) -> str:
    """The ``result`` that the script's way of writing means, in a sentence; else all of them."""
    merged = next((place for place in writes if place.format == "merge"), None)
    if merged is not None:
        return f"It merges at line {merged.line}: Upsert(key), by the columns of its condition"
    modes = {value for place in writes for value in _values(place, "mode")}
    partitions = [value for place in writes for value in _values(place, "partitionBy")]
    if modes == {"overwrite"} and partitions:
        return (
            f'It overwrites by {", ".join(partitions)}: ReplacePartitions("{partitions[0]}"), or '
            "no stage, if it only copies what came"
        )
    if modes == {"overwrite"}:
        return "It overwrites all: Replace(key); or Upsert(key), if the answer is what changed"
    if modes == {"append"}:
        return "It appends: Append()"
    return "Append(), Upsert(key), Replace(key) or ReplacePartitions(column)"


def _values(place: _Place, call: str) -> list[str]:
    """The texts that *call* is given on the way to a place."""
    arguments = place.options[call].args if call in place.options else []
    return [str(one.value) for one in arguments if isinstance(one, ast.Constant)]


def _call_of_function(
    tree: ast.Module, functions: dict[str, ast.FunctionDef], reads: list[_Place]
) -> ast.Call | None:
    """The call of the function of rows: one that is given what was read, before any other; none
    that is given nothing, or reads by itself.
    """
    own = {place.line for place in reads}
    called = [
        call
        for call in _calls(tree)
        if (function := functions.get(_name(call.func))) is not None
        and function.args.args
        and own.isdisjoint(range(function.lineno, (function.end_lineno or function.lineno) + 1))
    ]
    read = {place.name for place in reads}
    is_given = [
        call
        for call in called
        if read & {_name(one) for one in (*call.args, *(of.value for of in call.keywords))}
    ]
    return next(iter([*is_given, *called]), None)


def _given(
    call: ast.Call | None,
    functions: dict[str, ast.FunctionDef],
    reads: list[_Place],
    uids: dict[str, str],
) -> dict[str, str]:
    """The parameters of the function, and the sources that they get."""
    if call is None:
        return {uids[place.path]: uids[place.path] for place in reads}
    parameters = [one.arg for one in functions[_name(call.func)].args.args]
    by_variable = {place.name: uids[place.path] for place in reads}
    given = dict(zip(parameters, map(ast.unparse, call.args), strict=False))
    given |= {one.arg: ast.unparse(one.value) for one in call.keywords if one.arg}
    return {
        parameter: by_variable.get(argument, "...")
        for parameter, argument in given.items()
        if parameter != PREVIOUS
    }


def _places(
    tree: ast.Module, known: dict[str, str], verb: str, methods: tuple[str, ...]
) -> list[_Place]:
    """The calls of *tree* that end a reader or a writer, in the order of their lines."""
    values = dict(_assigned(tree))
    variables: dict[ast.AST, str] = {}
    for variable, value in _assigned(tree):
        for inner in ast.walk(value):
            variables.setdefault(inner, variable)
    found: list[_Place] = []
    for node in _calls(tree):
        if not isinstance(node.func, ast.Attribute):
            continue
        name = variables.get(node, "")
        kind, is_of_session = node.func.attr, _name(node.func.value) in _SESSIONS
        if is_of_session and kind == "sql":
            found += _places_of_sql(node, known, verb, name)
            continue
        if verb == "write" and kind == "merge":
            table = _merged_into(node, known, values)
            found += [] if table is None else [_Place(table, kind, node.lineno)]
            continue
        is_table = is_of_session and kind == "table" and verb == "read"
        calls = {} if is_table else _chain(node.func.value, verb, values)
        if kind not in methods or calls is None:
            continue
        if kind in ("load", "save"):
            kind = _first_of(calls["format"], known) if "format" in calls else "parquet"
        # Of JDBC the URL is first, and behind it the table.
        call = node if kind != "jdbc" else ast.Call(node.func, node.args[1:], node.keywords)
        found.append(_Place(_first_of(call, known), kind, node.lineno, name, calls))
    return sorted(found, key=lambda place: place.line)


def _places_of_sql(call: ast.Call, known: dict[str, str], verb: str, name: str) -> Iterator[_Place]:
    """The tables that the text of ``spark.sql`` reads, or writes, by name."""
    from sqlglot import exp

    found: dict[str, _Place] = {}
    statements = _statements(call, known)
    if not statements and verb == "read":  # Some table, as far as anybody can tell.
        yield _Place("{spark.sql}", "table", call.lineno, name)
    for statement in statements:
        made, kind = _made(statement), "merge" if isinstance(statement, exp.Merge) else "table"
        if verb == "write":
            is_written = isinstance(statement, exp.DML) or statement.args.get("kind") == "TABLE"
            tables = [made] if made is not None and is_written else []
        else:
            kind, tables = "table", _read(statement, made)
        for path in map(_path, tables):
            found.setdefault(path, _Place(path, kind, call.lineno, name))
    yield from found.values()


def _statements(call: ast.Call, known: dict[str, str]) -> list[exp.Expr]:
    """The statements of the text of ``spark.sql``, none if it cannot be read; names in them have
    what only a run knows in braces.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    in_braces: list[str] = []

    def numbered(found: re.Match[str]) -> str:
        in_braces.append(found[0])
        return f"only_a_run_knows_{len(in_braces) - 1}_"

    text = re.sub(r"\{[^{}]*\}", numbered, _first_of(call, known))
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # It warns of each OPTIMIZE or SHOW.
    try:
        statements = [one for one in sqlglot.parse(text, read="spark") if one is not None]
    except SqlglotError:
        return []
    if any(isinstance(one, exp.Alias | exp.Condition) for one in statements):
        return []  # Only a run knows the statement.
    for name in (name for one in statements for name in one.find_all(exp.Identifier)):
        whole = re.sub(
            r"only_a_run_knows_(\d+)_", lambda found: in_braces[int(found[1])], name.name
        )
        name.set("this", whole)
    return statements


def _made(statement: exp.Expr) -> exp.Table | None:
    """The table that *statement* writes, or the view or whatever else that it makes."""
    from sqlglot import exp

    if not isinstance(statement, exp.Cache | exp.Create | exp.DML):
        return None
    target: exp.Expr = statement.this
    return target.find(exp.Table)  # In brackets behind it are its columns.


def _read(statement: exp.Expr, made: exp.Table | None) -> list[exp.Table]:
    """The tables of which *statement* reads rows: none of a DROP, a USE or an ALTER."""
    from sqlglot import exp

    if not isinstance(statement, exp.Cache | exp.Create | exp.DML | exp.Query):
        return []
    return [
        table
        for table in statement.find_all(exp.Table)
        # A function is no identifier.
        if table is not made and isinstance(table.this, exp.Identifier) and not _is_inner(table)
    ]


def _is_inner(table: exp.Table) -> bool:
    """Whether the name is that of a WITH around it, which in its own definition means a table."""
    from sqlglot import exp

    node: exp.Expr = table
    while not table.db and (parent := node.parent) is not None:
        inner: list[exp.Expr] = []
        if isinstance(parent, exp.With):
            inner = parent.expressions[: None if parent.args.get("recursive") else node.index]
        elif node.arg_key != "with_" and (around := parent.args.get("with_")) is not None:
            inner = around.expressions
        if table.name.lower() in (one.alias.lower() for one in inner):
            return True
        node = parent
    return False


def _path(table: exp.Table) -> str:
    """The name of a table, or a path such as that of ``delta.`/lake/orders```."""
    return table.name if "/" in table.name else ".".join(part.name for part in table.parts)


def _views(tree: ast.Module, known: dict[str, str]) -> set[str]:
    """The views that a script makes of what it has read."""
    from sqlglot import exp

    found: set[str] = set()
    for node in _calls(tree):
        if not isinstance(node.func, ast.Attribute):
            continue
        if of_view := _OF_VIEWS.fullmatch(node.func.attr):
            found.add(("global_temp." if of_view[2] else "") + _first_of(node, known))
        elif node.func.attr == "sql" and _name(node.func.value) in _SESSIONS:
            for statement in _statements(node, known):
                made = _made(statement)
                is_view = isinstance(statement, exp.Cache) or statement.args.get("kind") == "VIEW"
                if made is not None and is_view and statement.expression:
                    found.add(_path(made))
    return found


def _merged_into(node: ast.expr, known: dict[str, str], values: dict[str, ast.expr]) -> str | None:
    """The table into which a chain of calls merges; None if it is no table of a lake."""
    while True:
        match node:
            case ast.Call(func=ast.Attribute(attr="forPath" | "forName"), args=[_, table, *_]):
                return _text_of(table, known) or f"{{{ast.unparse(table)}}}"
            case ast.Call(func=ast.Attribute(attr="mergeInto"), args=[table, *_]):
                return _text_of(table, known) or f"{{{ast.unparse(table)}}}"
            case ast.Call(func=ast.Attribute(value=inner)):
                node = inner
            case ast.Name(id=name) if name in values:
                node, values = values[name], {k: v for k, v in values.items() if k != name}
            case _:
                return None


def _first_of(call: ast.Call, known: dict[str, str]) -> str:
    """The text that *call* is given first; what only a run knows is in braces."""
    given = [*call.args, *(one.value for one in call.keywords if one.arg in _NAMED)]
    return "" if not given else _text_of(given[0], known) or f"{{{ast.unparse(given[0])}}}"


def _chain(node: ast.expr, verb: str, values: dict[str, ast.expr]) -> dict[str, ast.Call] | None:
    """The calls between ``.read`` or ``.write``, the *verb*, and *node*; None if it has none."""
    calls: dict[str, ast.Call] = {}
    while True:
        match node:
            case ast.Call(func=ast.Attribute(attr=name) as called):
                calls.setdefault(name, node)
                node = called.value
            case ast.Attribute(attr=name) if name == verb:
                return calls
            case ast.Name(id=name) if name in values:
                node, values = values[name], {k: v for k, v in values.items() if k != name}
            case _:
                return None


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                yield from zip(map(_name, names), values, strict=False)
            case _:
                pass


def _texts(tree: ast.Module) -> dict[str, str]:
    """The variables that are texts, or paths."""
    texts: dict[str, str] = {}
    for name, value in _assigned(tree):
        text = _text_of(value, texts)
        if text:
            texts[name] = text
    return texts


def _text_of(node: ast.expr, known: dict[str, str]) -> str:
    """A text, or a path, in which a value that only a run knows is in braces; '' if it is none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text_of(part, known) for part in parts)
        case ast.FormattedValue(value=value):
            return known.get(_name(value), f"{{{ast.unparse(value)}}}")
        case ast.Name(id=name):
            return known.get(name, "")
        case ast.Call(func=ast.Name(id="str" | "Path"), args=[value]):
            return _text_of(value, known)
        case _:
            return ""


def _moved_to(tree: ast.Module, known: dict[str, str]) -> set[str]:
    """The paths to which a script moves what it wrote."""
    return {
        _text_of(node.args[-1], known)
        for node in _calls(tree)
        if _name(node.func) in ("rename", "replace", "move") and node.args
    }


def _watermarks(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The filters with a value that only a run knows."""
    for node in _calls(tree):
        if _name(node.func) in ("where", "filter"):
            yield from (
                (node.lineno, ast.unparse(one))
                for one in node.args
                if isinstance(one, ast.JoinedStr) and ">" in ast.unparse(one)
            )


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _folder(path: str) -> str:
    """*path* without folders of partitions, and without what only a run knows."""
    parts = path.split("/")
    kept = [part for part in parts if "=" not in part and "{" not in part and "*" not in part]
    return "/".join(kept) or path


def _uids(reads: list[_Place]) -> dict[str, str]:
    """The uid of each path: that of its folder, of which two may have one name."""
    of_folders: dict[str, str] = {}
    tables = {_folder(place.path) for place in reads if place.format == "table"}
    for folder in dict.fromkeys(_folder(place.path) for place in reads):
        last = folder.rstrip("/").rpartition("/")[2]
        stem = last.split(".")[-1 if folder in tables else 0]
        name = _uid(last if "{" in last else stem, "source")
        names = (name if number == 1 else f"{name}_{number}" for number in count(1))
        of_folders[folder] = next(one for one in names if one not in of_folders.values())
    return {place.path: of_folders[_folder(place.path)] for place in reads}


def _uid(name: str, other: str) -> str:
    """*name* as a uid and a variable, behind *other* if it cannot be one by itself."""
    uid = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return uid if uid[:1].isalpha() and not iskeyword(uid) else f"{other}_{uid}".rstrip("_")
