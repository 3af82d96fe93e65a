"""The first line of a CSV file against the columns that the source declares."""

from __future__ import annotations

import csv
from collections.abc import Iterator

from sluice.connectors.source import TextDecoding
from sluice.connectors.text_lines import BYTE_ORDER_MARK
from sluice.errors import ConfigurationError


def check_header(line: bytes, how: TextDecoding, what: str) -> None:
    """Compare the names, as Spark does without regard to case.

    Raises:
        ConfigurationError: they are others, or in another order; *what* names the file.
    """
    text = line.removeprefix(BYTE_ORDER_MARK).removesuffix(b"\r").decode("utf-8", "replace")
    found = header_names(text, how)
    declared = list(columns_of(how.schema))
    if [name.lower() for name in found] != [name.lower() for name in declared]:
        raise ConfigurationError(
            f"the first line of {what} names the columns {', '.join(found) or 'none'}, and the "
            f"schema {', '.join(declared)}; correct the schema or the file, or declare header=False"
        )


def header_names(text: str, how: TextDecoding) -> list[str]:
    quote = how.options.get("quote", '"')
    escape = how.options.get("escape", "\\")
    reader = csv.reader(
        [text],
        delimiter=how.options.get("sep", ","),
        quotechar=quote,
        doublequote=escape == quote,
        escapechar=None if escape == quote else escape,
    )
    return [name.strip() for name in next(reader, [])]


def columns_of(schema: str) -> Iterator[str]:
    """The names of the top-level columns of a schema as Spark writes it."""
    depth, start = 0, 0
    is_quoted = False
    for at, letter in enumerate(schema + ","):
        if letter == "`":
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == "," and depth == 0:
            column = schema[start:at].strip()
            start = at + 1
            if column.startswith("`"):
                yield column[1:].partition("`")[0]
            elif column:
                yield column.replace(":", " ").split()[0]
