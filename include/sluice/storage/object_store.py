"""``ObjectStore``: the interface of a store, with conditional creation.

A store keeps immutable objects under keys relative to its root.  Its one strong promise is
``create``: of any number of racing callers exactly one gets ``Created``, and everybody else reads
the winner's bytes.  Reads see every write that was acknowledged before them, listings included.

Any call may raise ``StoreUnavailable``: the request or only its answer was lost, and the caller
may repeat it.  A repeated ``create`` may therefore find its own bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from sluice.core.pages import STORES
from sluice.errors import ConfigurationError, ProtocolViolation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Created:
    """The object did not exist, and does now, with our bytes."""


@dataclass(frozen=True, slots=True)
class AlreadyExists:
    """The key was written before, perhaps by an earlier call whose answer was lost."""

    body: bytes


CreateResult: TypeAlias = Created | AlreadyExists


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One object in a listing.  ``modified_ms`` is the store's clock, fit for display and grace."""

    key: str
    size_bytes: int
    modified_ms: int
    version: str  # Changes whenever the bytes do: ETag, or size and mtime of a file.


class ObjectStore(Protocol):
    """Keys are relative, ``/``-separated, without ``.`` or ``..`` parts; any other one raises
    ProtocolViolation.
    """

    @property
    def root(self) -> str:
        """The root's URI, for messages and for handing to another process."""
        ...

    def get(self, key: str) -> bytes | None:
        """Return the object's bytes, or None when there is no such object."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Return bytes ``start`` to ``end`` (exclusive, cut at the end), or None when absent."""
        ...

    def put(self, key: str, body: bytes) -> None:
        """Write the object, replacing what was there.  Only for keys whose bytes never differ."""
        ...

    def create(self, key: str, body: bytes) -> CreateResult:
        """Write the object if, and only if, there is none."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Listed]:
        """Objects whose key starts with *prefix*, in key order, after *start_after*."""
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects; an absent one is not an error."""
        ...


def check_range(start: int, end: int) -> None:
    """Raises ProtocolViolation for a range that ends before it starts, or starts before 0."""
    if not 0 <= start <= end:
        raise ProtocolViolation(f"bytes {start} to {end} are no range of an object")


def verify_conditional_writes(store: ObjectStore, probe_key: str, token: bytes) -> None:
    """Refuse a store that ignores ``If-None-Match: *``: without it two coordinators both win.

    Raises:
        ConfigurationError: the store let a second create replace the first.
    """
    try:
        store.create(probe_key, token)
        second = store.create(probe_key, token + b"-second")
        if isinstance(second, Created) or second.body != token:
            raise ConfigurationError(
                f"the store at {store.root} ignores conditional writes (If-None-Match: *); sluice "
                f"cannot keep a journal there: use AWS S3, or another store listed in {STORES}"
            )
    finally:
        store.delete([probe_key])
