"""The check of a CSV file's header against the columns that the source declares."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sluice.connectors.contracts.source import TextDecoding
from sluice.connectors.files.line_scan import MAX_FIRST_LINE_BYTES
from sluice.connectors.files.text_lines import BYTE_ORDER_MARK
from sluice.errors import ConfigurationError

# The escapes of Spark's CSV reader in a delimiter.
ESCAPES = {"t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def check_header(line: bytes, how: TextDecoding, what: str) -> None:
    """Compare the header's names with those of the schema, ignoring case as Spark does.

    Raises:
        ConfigurationError: names or their order differ; *what* names the file.
    """
    if len(line) > MAX_FIRST_LINE_BYTES:
        raise ConfigurationError(
            f"the first line of {what} has more than {MAX_FIRST_LINE_BYTES} bytes and names no "
            "columns; correct the file, or declare header=False"
        )
    text = line.removeprefix(BYTE_ORDER_MARK).removesuffix(b"\r").decode("utf-8", "replace")
    found = header_names(text, how)
    declared = list(columns_of(how.schema))
    if [name.lower() for name in found] != [name.lower() for name in declared]:
        raise ConfigurationError(
            f"the first line of {what} names the columns {', '.join(found) or 'none'}, and the "
            f"schema {', '.join(declared)}; correct the schema or the file, or declare header=False"
        )


def header_names(text: str, how: TextDecoding) -> list[str]:
    """The fields of a line as ``from_csv`` would split it, without blanks around them."""
    delimiter = delimiter_of(how)
    quote, escape = how.options.get("quote", '"'), how.options.get("escape", "\\")
    names: list[str] = []
    at = 0 if text else 1
    while at <= len(text):
        if text.startswith(quote, at):
            name, at = _quoted(text, at + 1, quote, escape)
        else:
            name = ""
        end = text.find(delimiter, at)
        end = len(text) if end < 0 else end
        names.append((name + text[at:end]).strip())
        at = end + len(delimiter)
    return names


def delimiter_of(how: TextDecoding) -> str:
    """The delimiter between two fields: the option as Spark reads it, with ``\\t`` for a tab."""
    sep = how.options.get("sep", ",")
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _unescaped, sep)


def _unescaped(found: re.Match[str]) -> str:
    code = found.group(1)
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return ESCAPES.get(code, code)


def _quoted(text: str, at: int, quote: str, escape: str) -> tuple[str, int]:
    """The text of a quoted field that begins at *at*, and the position behind its last quote."""
    taken: list[str] = []
    while at < len(text):
        if text[at] == escape and text.startswith(quote, at + 1):
            taken.append(quote)
            at += 2
        elif text[at] == quote:
            return "".join(taken), at + 1
        else:
            taken.append(text[at])
            at += 1
    return "".join(taken), at


def columns_of(schema: str) -> Iterator[str]:
    """The names of the top-level columns of a schema in Spark's DDL."""
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
