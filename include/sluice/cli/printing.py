"""How the commands print: one JSON document on stdout, or sizes and times as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec
import typer
from rich.console import Console

from sluice.core.watermarks import MAX_WATERMARK, MIN_WATERMARK
from sluice.runner.details import FileDetails


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


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def size(size_bytes: int) -> str:
    """Decimal units, as Flink's UI: 3.2 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes} B"


def moment(at_ms: int) -> str:
    """UTC, to the millisecond."""
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
