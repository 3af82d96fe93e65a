"""Parts that several commands share: options, output, and the name of who is at the command line.

A command that acts on a job is rendered from its act (``command_of``).  Output is one JSON document
on stdout, or lines for people.
"""

from __future__ import annotations

import getpass
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from sluice.core.event_time import MAX_WATERMARK, MIN_WATERMARK
from sluice.core.units import size
from sluice.declaration.project import load_declarations, load_pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice.surface.acts import Act, Face, Field, Given, Kind
from sluice.surface.snapshots import FileDetails

ROOT_VARIABLE = "SLUICE_ROOT"
LEAST_COLUMN = 9  # Letters of a table's column, with its border: most words fit.
DEFAULT_FOLDER = ".sluice/jobs"  # Below the current folder; .gitignore names it.

Word = TypeVar("Word", str, int)

# The flags for what a person may consent to, by the words of the refusals.
_CHOICES = {
    r"allow non-restored state": "--allow-non-restored-state",
    r"take table '([^']+)' over": r"--take-over \1",
    r"accept(?: the)? tables as they are": "--accept-tables",
    r"roll(?: the)? tables back": "--roll-back-tables",
}


def declared_uids(incomplete: str) -> list[str]:
    """The uids that a shell offers for *incomplete*; none where the project cannot be read."""
    try:
        declared = load_declarations().pipelines
    except ConfigurationError:
        return []
    return [uid for uid in declared if uid.startswith(incomplete)]


PipelineName: TypeAlias = Annotated[
    str, typer.Argument(help="The uid of a declared pipeline.", autocompletion=declared_uids)
]
Root: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--root",
        help=f"Where checkpoints live: s3://bucket/prefix or file:///folder. "
        f"[default: ${ROOT_VARIABLE}, or {DEFAULT_FOLDER} here]",
        show_default=False,
    ),
]
EndpointUrl: TypeAlias = Annotated[
    str | None,
    typer.Option("--endpoint-url", help="An S3 server other than AWS, e.g. http://127.0.0.1:4566."),
]
Params: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--param", help="A parameter as name=value; or simply --name value."),
]
OtherPipeline: TypeAlias = Annotated[
    str | None, typer.Option(metavar="UID", help="The pipeline there, if its uid is another.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]

_METAVARS = {
    Kind.NAME: "NAME", Kind.URI: "URI", Kind.ID: "ID", Kind.COUNT: "N", Kind.PERIOD: "PERIOD",
}  # fmt: skip

_REQUIRED = inspect.Parameter.empty
_OF = "of_"  # Before the name of an act's field, as ``root`` is one, too.

# The type of an option, for each kind of field that is not a text.
_TYPES: dict[Kind, Any] = {
    Kind.FLAG: bool,
    Kind.COUNT: int | None,
    Kind.LIST: list[str] | None,
    Kind.PARAMETERS: list[str] | None,
}


def command_of(act: Act, carry_out: Callable[[Job, Given, bool], None]) -> Callable[..., None]:
    """The command of *act*, for Typer: *carry_out* gets the job, what is given, and whether the
    output is JSON.
    """
    fields = act.on(Face.COMMAND)

    def command(job: Job, context: typer.Context, as_json: bool, **words: Any) -> None:  # noqa: ANN401 - as each is typed
        given = {
            field.name: _given(field, words[_OF + field.name], context.args) for field in fields
        }
        carry_out(job, act.given(given), as_json)

    of_fields = (
        _parameter(
            _OF + field.name, _hint(field), _REQUIRED if field.is_argument else _default(field)
        )
        for field in fields
    )
    last = _parameter("as_json", AsJson, default=False)
    own = [_parameter("job", Job), _parameter("context", typer.Context), *of_fields, last]
    command.__signature__ = inspect.Signature(sorted(own, key=_comes_last))  # type: ignore[attr-defined]
    command.__doc__ = f"{act.says}\n\n{act.details}".strip()
    return of_job(command)


def of_job(command: Callable[..., None]) -> Callable[..., None]:
    """*command*, whose first argument is a job, for Typer: PIPELINE, ``--root`` and
    ``--endpoint-url`` say which job it is.
    """

    def found(pipeline: str, root: str | None, endpoint_url: str | None, **words: Any) -> None:  # noqa: ANN401 - as each is typed
        command(declared_job(pipeline, root, endpoint_url), **words)

    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    shared = [_parameter("root", Root, None), _parameter("endpoint_url", EndpointUrl, None)]
    parameters = sorted([_parameter("pipeline", PipelineName), *own, *shared], key=_comes_last)
    found.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    found.__annotations__ = {one.name: one.annotation for one in parameters}
    found.__doc__ = command.__doc__
    return found


def _parameter(name: str, hint: Any, default: Any = _REQUIRED) -> inspect.Parameter:  # noqa: ANN401 - as each is typed
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Parameter(name, kind, annotation=hint, default=default)


def _comes_last(one: inspect.Parameter) -> tuple[bool, bool]:
    return one.default is not _REQUIRED, one.name == "as_json"


def option(field: Field) -> Any:  # noqa: ANN401 - Typer's OptionInfo or ArgumentInfo
    """The option that Typer makes of *field*, beside its type."""
    if field.is_argument:
        return typer.Argument(metavar=field.metavar or field.name.upper(), help=field.says)
    flag = field.command or f"--{field.name.replace('_', '-')}"
    says = field.flag_says or field.says
    if field.flag_for is not None or field.kind is Kind.FLAG:
        return typer.Option(flag, help=says)
    if field.choices:
        return typer.Option(flag, case_sensitive=False, help=says)
    repeatable = " Repeatable." if field.kind is Kind.LIST else ""
    metavar = field.metavar or _METAVARS.get(field.kind)
    return typer.Option(flag, metavar=metavar, help=says + repeatable)


def _hint(field: Field) -> Any:  # noqa: ANN401 - a type, annotated for Typer
    if field.is_argument:
        return Annotated[str, option(field)]
    if field.flag_for is not None:
        return Annotated[bool, option(field)]
    if field.choices:
        return Annotated[Literal[field.choices], option(field)]
    return Annotated[_TYPES.get(field.kind, str | None), option(field)]


def _default(field: Field) -> Any:  # noqa: ANN401 - of the option's type
    if field.flag_for is not None:
        return False
    return field.empty if field.kind in (Kind.FLAG, Kind.CHOICE) else None


def _given(field: Field, word: Any, extra: Sequence[str]) -> Any:  # noqa: ANN401 - as is
    if field.flag_for is not None:
        return field.flag_for if word else None
    return parameters(word or [], extra) if field.kind is Kind.PARAMETERS else word


def location(root: str | None, endpoint_url: str | None) -> StoreLocation:
    """The named *root*, the environment's, or a folder below the current one."""
    uri = root or os.environ.get(ROOT_VARIABLE)
    if uri is None:
        uri = f"file://{Path(DEFAULT_FOLDER).resolve()}"
    return StoreLocation(root=uri, endpoint_url=endpoint_url)


def declared_job(pipeline: str, root: str | None, endpoint_url: str | None) -> Job:
    """Raises ConfigurationError when there is no such pipeline; nothing is read yet."""
    return open_job(load_pipeline(pipeline), location(root, endpoint_url))


def apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments among *words*, and the ``parameters`` that stand before, between or behind."""
    arguments: list[str] = []
    given: list[str] = []
    rest = [*words]
    while rest:
        word = rest.pop(0)
        into = given if word.startswith("--") else arguments
        into.append(word)
        if into is given and "=" not in word:
            given += rest[:1]
            del rest[:1]
    return arguments, given


def parameters(pairs: Sequence[str], extra: Sequence[str]) -> dict[str, str]:
    """Parameters from ``--param name=value`` and from ``--name value`` or ``--name=value``.

    Raises:
        ConfigurationError: one of them is not of these forms, or there twice.
    """
    given: list[tuple[str, str]] = []
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ConfigurationError(f"--param {pair!r} lacks a value; write --param {pair}=VALUE")
        given.append((name, value))
    rest = list(extra)
    while rest:
        word = rest.pop(0)
        name, separator, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ConfigurationError(f"{word!r} is not understood; write --name VALUE")
        if not separator and not rest:
            raise ConfigurationError(f"--{name} lacks a value")
        given.append((name.replace("-", "_"), value if separator else rest.pop(0)))
    return distinct(given, "parameter")


def distinct(pairs: Iterable[tuple[str, Word]], what: str) -> dict[str, Word]:
    """The *pairs* of a name and what is given for it; raises ConfigurationError for one twice."""
    given: dict[str, Word] = {}
    for name, word in pairs:
        if name in given:
            raise ConfigurationError(
                f"{what} {name!r} is given twice, as {given[name]} and as {word}; give it once"
            )
        given[name] = word
    return given


def with_flags(sentence: str) -> str:
    """*sentence* with the flag behind each choice that it names, as the forms of Airflow do."""
    for choice, flag in _CHOICES.items():
        if flag.partition(" ")[0] not in sentence:
            sentence = re.sub(choice, rf"\g<0> with {flag}", sentence, count=1)
    return sentence


def moment(at_ms: int) -> str:
    """An instant in UTC, to the millisecond."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"


def watermark(at_ms: int) -> str:
    match at_ms:
        case _ if at_ms == MIN_WATERMARK:
            return "none"
        case _ if at_ms == MAX_WATERMARK:
            return "end of input"
        case _:
            return moment(at_ms)


def print_json(document: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def print_line(line: str) -> None:
    """Print *line* as it is, however narrow the terminal."""
    Console(soft_wrap=True).print(line, highlight=False, markup=False)


def print_table(table: Table) -> None:
    """Print *table* with nothing cut: a word that is longer than its column goes on below, and a
    table of many columns is wider than the terminal.
    """
    for column in table.columns:
        column.overflow = "fold"
    console = Console()
    console.width = max(console.width, LEAST_COLUMN * len(table.columns))
    console.print(table)


def print_files(files: Iterable[FileDetails]) -> None:
    """Print a line for each: a table would break the keys in a narrow terminal."""
    for file in files:
        place = f"{file.root}/{file.key}" if file.root else file.key
        print_line(f"{size(file.size_bytes):>9} {file.rows:>11,} rows  {place}")


def this_person(because: str = "") -> str:
    """The user of this machine, and *because*, in a few words."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        name = "a person"
    return f"{name}: {because}" if because else name
