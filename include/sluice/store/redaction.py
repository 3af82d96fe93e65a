"""Texts of errors without the secrets in them: what is journaled stays in the bucket for ever.

A driver's or a client's error may quote its configuration: a connection string, a token, a key.
Known secrets are masked wherever they stand: the values that ``env(...)`` declares, and those of
environment variables with the name of a secret.  So is what looks like a secret: a password in a
URL, the value of ``password=``, an AWS key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"
SHORTEST_SECRET = 4  # A shorter one would mask parts of words, and is guessed anyway.
SHORTEST_UNDECLARED = 8  # Of variables that merely have the name of a secret; "test" is not one.

# The variables that hold secrets, as far as this process has declared or used them.
SECRET_VARIABLES: set[str] = set()

_NAME_OF_ONE = r"[\w.-]*(?:passw(?:or)?d|secret|token|api_?key|access_?key|credential)[\w.-]*"
_SECRET_VARIABLE = re.compile(_NAME_OF_ONE, re.IGNORECASE)
_VALUE = r"""(?:'[^']*'|"[^"]*"|[^\s'",;&)}\]]+)"""
_PATTERNS = (
    # scheme://user:password@host, where the password may hold anything but a space.
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)\S+@", re.IGNORECASE), rf"\1{MASK}@"),
    # password=..., token = '...'
    (re.compile(rf"\b({_NAME_OF_ONE}\s*=\s*){_VALUE}", re.IGNORECASE), rf"\1{MASK}"),
    # {"sasl.password": "..."}, as Python or JSON print it.
    (re.compile(rf"""(["']{_NAME_OF_ONE}["']\s*:\s*){_VALUE}""", re.IGNORECASE), rf"\1{MASK}"),
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


def _known_secrets() -> set[str]:
    declared = {os.environ[name] for name in SECRET_VARIABLES if name in os.environ}
    named_so = {
        value
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.fullmatch(name) and len(value) >= SHORTEST_UNDECLARED
    }
    return declared | named_so
