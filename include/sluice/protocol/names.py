"""What may become part of a key, checked where it enters: each refusal names the limits.

Keys are built of uids, of names that people choose, and of numbers.  What comes out of the bucket
or out of a form is none of these until it was looked at here.  Nothing here is an ``assert``: these
checks guard input, and hold under ``python -O``.
"""

from __future__ import annotations

import re

from sluice.errors import ConfigurationError, ProtocolViolation

TEMPORARY_PREFIX = ".sluice-tmp-"  # FileStore writes these beside the objects; no key may.

UID = r"[a-z][a-z0-9_]{0,62}"  # It becomes a key, a task id and a column-safe name.
SAVEPOINT_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_UID, _SAVEPOINT = re.compile(UID), re.compile(SAVEPOINT_NAME)
_PART = rf"(?!\.\.?(?:/|\Z))(?!{re.escape(TEMPORARY_PREFIX)})[^/]+"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")


def is_uid(uid: str) -> bool:
    return _UID.fullmatch(uid) is not None


def check_uid(uid: str, what: str = "uid") -> str:
    """Raises ConfigurationError unless *uid*, which the message calls *what*, may name a thing."""
    if not is_uid(uid):
        raise ConfigurationError(
            f"{what} {uid!r} is not usable; use up to 63 of a-z, 0-9 and _, starting with a letter"
        )
    return uid


def is_savepoint_name(name: str) -> bool:
    return _SAVEPOINT.fullmatch(name) is not None


def check_savepoint_name(name: str) -> str:
    """Raises ConfigurationError unless a savepoint may have that name."""
    if not is_savepoint_name(name):
        raise ConfigurationError(
            f"savepoint name {name!r} is not usable; use up to 128 of A-Z a-z 0-9 _ . - "
            "and start with a letter or digit"
        )
    return name


def is_key(key: str) -> bool:
    """Whether it is relative, ``/``-separated, without empty, ``.``, ``..`` or reserved parts."""
    return _KEY.fullmatch(key) is not None


def check_key(key: str) -> None:
    """Raises ProtocolViolation for what would lead out of a root, or is a store's own file."""
    if not is_key(key):
        raise ProtocolViolation(
            f"{key!r} is no key: it is to be relative, without empty, '.' and '..' parts and "
            f"without parts that begin with {TEMPORARY_PREFIX!r}"
        )


def check_prefix(prefix: str) -> None:
    """As ``check_key``, for the begin of a key, which may end with a slash or in a part."""
    folder, slash, _ = prefix.rpartition("/")
    if slash:
        check_key(folder)
