"""What several commands share: options, output, and the name of the person at the command line.

Output is one JSON document on stdout, or lines for people.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from sluice.declaration.project import load_declarations, load_pipeline
from sluice.errors import ConfigurationError
from sluice.job.job import Job, open_job
from sluice.store.open import StoreLocation
from sluice.surface.snapshots import FileDetails
from sluice.surface.units import size

ROOT_VARIABLE = "SLUICE_ROOT"
LEAST_COLUMN = 9  # Letters of a table's column, with its border: most words fit.
DEFAULT_FOLDER = ".sluice/jobs"  # Below the current folder; .gitignore names it.

# The flags for what a person may consent to, by the words of the refusals.
_CHOICES = {
    r"allow non-restored state": "--allow-non-restored-state",
    r"take table '([^']+)' over": r"--take-over \1",
    r"accept(?: the)? tables as they are": "--accept-tables",
    r"roll(?: the)? tables back": "--roll-back-tables",
}


def declared_uids(incomplete: str) -> list[str]:
    """What a shell offers for *incomplete*; nothing where the project cannot be read."""
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
NoChecksums: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-checksums",
        help="Do not read every file to compare its bytes with what was written: their sizes must "
        "do.",
    ),
]
OtherPipeline: TypeAlias = Annotated[
    str | None, typer.Option(metavar="UID", help="The pipeline there, if its uid is another.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]


def location(root: str | None, endpoint_url: str | None) -> StoreLocation:
    """The named *root*, the environment's, or a folder below the current one."""
    uri = root or os.environ.get(ROOT_VARIABLE)
    if uri is None:
        uri = f"file://{Path(DEFAULT_FOLDER).resolve()}"
    return StoreLocation(root=uri, endpoint_url=endpoint_url)


def declared_job(pipeline: str, root: str | None, endpoint_url: str | None) -> Job:
    """Raises ConfigurationError when there is no such pipeline; nothing is read yet."""
    return open_job(load_pipeline(pipeline), location(root, endpoint_url))


def parameters(pairs: Sequence[str], extra: Sequence[str]) -> dict[str, str]:
    """Parameters from ``--param name=value`` and from ``--name value`` or ``--name=value``.

    Raises:
        ConfigurationError: one of them is not of these forms.
    """
    given: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ConfigurationError(f"--param {pair!r} lacks a value; write --param {pair}=VALUE")
        given[name] = value
    rest = list(extra)
    while rest:
        word = rest.pop(0)
        name, separator, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise ConfigurationError(f"{word!r} is not understood; write --name VALUE")
        if not separator and not rest:
            raise ConfigurationError(f"--{name} lacks a value")
        given[name.replace("-", "_")] = value if separator else rest.pop(0)
    return given


def with_flags(sentence: str) -> str:
    """*sentence* with the flag behind each choice that it names, as the forms of Airflow do."""
    for choice, flag in _CHOICES.items():
        if flag.partition(" ")[0] not in sentence:
            sentence = re.sub(choice, rf"\g<0> with {flag}", sentence, count=1)
    return sentence


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
