"""``sluice check`` and ``sluice init``: a project begun, and what its pipelines' stages yield.

The check reads no row.  The project has a pipeline, its test and its input.

``sluice init --from-spark`` makes the draft of a pipeline of a script of PySpark, read as text.
What the script says is taken over: what it reads and writes, and its function.  What it does not
say is left open as ``...``, which no declaration accepts, beside a sentence that says what to
decide: a key is never guessed.  The script is not run, and nothing of it is imported.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import count
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sluice.cli.options import (
    AsJson,
    Params,
    parameters,
    print_json,
    print_table,
)
from sluice.cli.run import run_log
from sluice.declaration.determinism import unpinned
from sluice.declaration.operations import KeyedLookup, Lookup, SparkCode
from sluice.declaration.params import resolve_params
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import load_declarations
from sluice.errors import ConfigurationError
from sluice.extras import DISTRIBUTION
from sluice.job.job import Job
from sluice.spark.jvm import find_java
from sluice.spark.session import local_session, require_pyspark
from sluice.surface.options import awaited_changes

if TYPE_CHECKING:
    from sqlglot import exp

    from sluice.job.analysis import Result


IS_ORDER_SENSITIVE = (
    "computes with floats, whose sums depend on the order of the rows, so Spark sorts them, at "
    "several times the CPU; integers and decimals need no order"
)


def check(
    job: Job,
    context: typer.Context,
    param: Params = None,
    as_json: AsJson = False,
) -> None:
    """Analyse types and columns of all stages of PIPELINE; show what each yields, and of what kind.

    Parameters of the pipeline are options, too, as the columns of files are read from the files.
    A note says which stage's rows Spark has to sort.
    A job that is there, and goes on, has to be able to read its state.  Spark is started only for
    what Spark alone knows: functions, and SQL beyond names and comparisons.  Named on stderr are
    modules that cannot be loaded, whatever PIPELINE is, and options of a running job that the
    declaration changed and that come into force with a restore, and sources and stages that nothing
    reads.
    """
    for name, problem in load_declarations().problems.items():
        typer.secho(f"warning: {name}: {problem}", err=True, fg="yellow")
    declared = job.pipeline
    params = resolve_params(declared.params, parameters(param or [], context.args), declared.uid)
    for what in _unread(declared):
        typer.secho(f"warning: {declared.uid}: nothing reads {what}", err=True, fg="yellow")
    for node in declared.stages.values():
        for found in unpinned(node.operation) if isinstance(node.operation, SparkCode) else ():
            where = f"{declared.uid}: in stage {node.uid!r}"
            typer.secho(f"warning: {where} {found}", err=True, fg="yellow")
    yields = _analysed(job, params)
    for uid in (uid for uid, result in yields.items() if result.is_order_sensitive):
        typer.secho(f"note: {declared.uid}: stage {uid!r} {IS_ORDER_SENSITIVE}", err=True)
    state = job.state()
    if not state.status.is_globally_terminal:
        for change in awaited_changes(declared, state):
            typer.secho(f"warning: {declared.uid}: {change.awaited}", err=True, fg="yellow")
    if as_json:
        print_json(
            {
                uid: {
                    "kind": str(result.kind),
                    "columns": {name: str(dtype) for name, dtype in result.columns.items()},
                }
                for uid, result in yields.items()
            }
        )
        return
    table = Table("stage", "kind", "column", "type")
    for uid, result in yields.items():
        for number, (name, dtype) in enumerate(result.columns.items()):
            stage = ("", "") if number else (uid, str(result.kind))
            table.add_row(*stage, name, str(dtype))
    print_table(table)


def _unread(declared: Pipeline) -> Iterator[str]:
    """The sources and stages that are read, or computed, at every barrier and for nothing."""
    read = {uid for stage in declared.stages.values() for uid in stage.producers}
    for stage in declared.stages.values():
        match stage.operation:
            case (Lookup() as lookup) | KeyedLookup(lookup=lookup):
                read.add(lookup.table)
            case SparkCode(tables=tables):
                read |= {table.uid for table in tables.values()}
            case _:
                pass
    yield from (f"source {uid!r}" for uid in declared.sources if uid not in read)
    yield from (f"stage {uid!r}" for uid in declared.stages if not declared.is_consumed(uid))


def _analysed(job: Job, params: Mapping[str, str]) -> Mapping[str, Result]:
    from sluice.job.analysis import analyse, check_state
    from sluice.job.places import check_tables

    for node in job.pipeline.sources.values():
        # Columns may be declared, and nothing be there to read.
        node.spec.open(params, job.location.endpoint_url).check_place()
    check_tables(job.pipeline, params, job.location)
    found = analyse(job.pipeline, params, job.location.endpoint_url)
    for note in check_state(job, found):
        typer.secho(f"warning: {job.pipeline.uid}: {note}", err=True, fg="yellow")
    known = {uid: result for uid, result in found.items() if result is not None}
    if len(known) == len(found):
        return known
    from sluice.spark.checking import check_pipeline

    require_pyspark("sluice check")
    find_java(os.environ)
    with run_log(f"{job.pipeline.uid}-check") as log, local_session(log_file=log) as spark:
        yields = check_pipeline(job.pipeline, spark, params, job.location.endpoint_url)
    check_state(job, {uid: result for uid, result in yields.items() if uid not in known})
    return yields


TEMPLATE = Path(__file__).with_name("project")
_DOT = "dot-"  # This prefix of a template's file becomes a dot in the project.


def init(
    folder: Annotated[
        Path | None, typer.Argument(help="It is created; one that is there must be empty.")
    ] = None,
    from_spark: Annotated[
        Path | None,
        typer.Option(
            help="A script of PySpark: print the draft of a pipeline that does what it does."
        ),
    ] = None,
) -> None:
    """Begin a project in FOLDER: a pipeline with its test and its input, and what Airflow needs."""
    if from_spark is not None and folder is None:
        typer.echo(draft_of(from_spark), nl=False)
        return
    if folder is None or from_spark is not None:
        raise ConfigurationError(
            "init begins a project in a FOLDER, or prints a draft with --from-spark SCRIPT; give "
            "one of the two"
        )
    place = folder.resolve()
    if place.exists() and not place.is_dir():
        raise ConfigurationError(f"{folder} is a file; name a folder for the project")
    if place.is_dir() and (found := sorted(path.name for path in place.iterdir())):
        raise ConfigurationError(
            f"the folder {folder} is not empty, it has {found[0]}; name a new one"
        )
    values = {"PROJECT_NAME": place.name, "SLUICE_VERSION": version(DISTRIBUTION)}
    for template in sorted(TEMPLATE.rglob("*")):
        if template.is_dir() or "__pycache__" in template.parts:
            continue
        to = place / template.relative_to(TEMPLATE)
        if to.name.startswith(_DOT):
            to = to.with_name("." + to.name.removeprefix(_DOT))
        text = template.read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(name, value)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(text, encoding="utf-8")
    typer.echo(
        f"{folder} has a pipeline, orders; its README.md tells of it. Next:\n"
        f"  cd {folder}\n"
        "  sluice check orders --input input/orders\n"
        "  sluice run orders --input input/orders"
    )


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
