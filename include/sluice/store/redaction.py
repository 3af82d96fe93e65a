"""Texts of errors without the secrets in them: what is journaled stays in the bucket for ever.

A driver's or a client's error may quote its configuration: a connection string, a token, a key.
Known secrets are masked wherever they stand: the values that ``env(...)`` declares, and those of
environment variables with the name of a secret.  So is what looks like a secret: a password in a
URL, the value of ``password=``, an AWS key.

``redact_logs`` masks what a process logs, whoever logs it: a client's own message, and the
tracebacks of an error with all its causes.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Iterable
from functools import partial
from typing import Any
from urllib.parse import quote

MASK = "***"
SHORTEST_SECRET = 4  # A shorter one would mask parts of words, and is guessed anyway.
SHORTEST_UNDECLARED = 8  # Of variables that merely have the name of a secret; "test" is not one.

# The variables that hold secrets, as far as this process has declared or used them.
SECRET_VARIABLES: set[str] = set()

# Every repetition has a limit, and no pattern begins with one: a text is searched in time that is
# linear in its length, whatever somebody made it of.
_WORD = r"(?:passw(?:or)?d|secret|token|api_?key|access_?key|credential)"
_SECRET_VARIABLE = re.compile(_WORD, re.IGNORECASE)
_NAME = rf"{_WORD}[\w.-]{{0,64}}"
_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s'",;&)}\]]+)"""
_PATTERNS = (
    # scheme://user:password@host, where the password may hold anything but a space.
    (re.compile(r"(://[^\s:/@]{0,256}:)\S{1,512}@"), rf"\1{MASK}@"),
    # password=..., token = '...'
    (re.compile(rf"({_NAME}\s{{0,8}}=\s{{0,8}}){_VALUE}", re.IGNORECASE), rf"\1{MASK}"),
    # {"sasl.password": "..."}, as Python or JSON print it.
    (re.compile(rf"""({_NAME}["']\s{{0,8}}:\s{{0,8}}){_VALUE}""", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    # The 40 characters of an AWS secret key: of both cases and digits, unlike a path or a digest.
    (
        re.compile(
            r"(?<![\w/+.=-])(?=[\w/+]*[a-z])(?=[\w/+]*[A-Z])(?=[\w/+]*\d)"
            r"[A-Za-z0-9+][A-Za-z0-9/+]{39}(?![\w/+.=-])"
        ),
        MASK,
    ),
)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """*text* without *secrets*, those that this process knows, and what looks like one."""
    known = {*secrets, *_known_secrets()}
    spelled = {form for secret in known for form in (secret, quote(secret, safe=""))}
    for secret in sorted(spelled, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, MASK)
    for pattern, masked in _PATTERNS:
        text = pattern.sub(masked, text)
    return text


def masked(value: Any) -> Any:  # noqa: ANN401 - whatever JSON has
    """*value* with each text in it ``redacted``, however deep in lists and dicts."""
    match value:
        case str():
            return redacted(value)
        case list() | tuple():
            make = getattr(value, "_make", type(value))  # Of a named tuple, which Airflow logs.
            return make(map(masked, value))
        case dict():
            return {name: masked(item) for name, item in value.items()}
        case _:
            return value


def redact_logs() -> None:
    """Mask secrets in the messages and tracebacks of all records of this process's ``logging`` from
    now on.  Whatever handlers there are get the record without them.
    """
    make = logging.getLogRecordFactory()
    if not (isinstance(make, partial) and make.func is _redacted_record):
        logging.setLogRecordFactory(partial(_redacted_record, make))


def _redacted_record(make: Any, *args: Any, **kwargs: Any) -> logging.LogRecord:  # noqa: ANN401
    record: logging.LogRecord = make(*args, **kwargs)
    try:
        message = record.getMessage()
    except (TypeError, ValueError, KeyError):  # Logging would print them as they are.
        message, record.args = f"{record.msg} {record.args!r}", ()
        record.msg = message
    public = redacted(message)
    if public != message:
        record.msg, record.args = public, ()
    if record.exc_info:
        trace = "".join(traceback.format_exception(*record.exc_info)).rstrip()
        public = redacted(trace)
        if public != trace:  # As part of the message: every formatter shows that.
            record.msg, record.args, record.exc_info = f"{record.getMessage()}\n{public}", (), None
    return record


def _known_secrets() -> set[str]:
    declared = {os.environ[name] for name in SECRET_VARIABLES if name in os.environ}
    named_so = {
        value
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.search(name) and len(value) >= SHORTEST_UNDECLARED
    }
    return declared | named_so
