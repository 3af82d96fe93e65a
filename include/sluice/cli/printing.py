"""Output of the commands: one JSON document on stdout, or lines for people."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import typer
from rich.console import Console

from sluice.views.checkpoint_details import FileDetails
from sluice.views.units import size


def print_json(document: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def print_line(line: str) -> None:
    """As it is, however narrow the terminal."""
    Console(soft_wrap=True).print(line, highlight=False, markup=False)


def print_files(files: Iterable[FileDetails]) -> None:
    """A line each: a table would break the keys of a narrow terminal."""
    for file in files:
        place = f"{file.root}/{file.key}" if file.root else file.key
        print_line(f"{size(file.size_bytes):>9} {file.rows:>11,} rows  {place}")
