"""Opens the store of a root's URI.

A ``StoreLocation`` is pickled for other processes; a store never is.  It is checked when it is
built, so that a misspelt root is reported where it was written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, assert_never

from sluice.errors import ConfigurationError
from sluice.storage.file import FileStore
from sluice.storage.memory import named_store
from sluice.storage.object_store import Listed, ObjectStore
from sluice.storage.s3 import S3Store

EXAMPLES = "s3://my-bucket/checkpoints, file:///var/lib/sluice or memory://test"

# AWS's rule; some servers answer a shorter name with an error that does not say so.
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
MEMORY_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class StoreLayer(Protocol):
    """What lies over every store that is opened for one purpose."""

    def store_of(self, root: str, opened: Callable[[], ObjectStore]) -> ObjectStore:
        """The store of *root*, over the one that *opened* opens."""
        ...


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Where a root is.  ``endpoint_url`` names an S3 server other than AWS; other roots ignore it.

    A root is taken literally: ``%20`` in ``file:///a%20b`` is three letters of a folder's name.
    A ``layer`` is over every store that is opened here, below or elsewhere; it is not picklable.

    Raises:
        ConfigurationError: the root or the endpoint is not one of the forms above.
    """

    root: str
    endpoint_url: str | None = None
    layer: StoreLayer | None = field(default=None, compare=False, repr=False)

    def below(self, key: str) -> StoreLocation:
        """The place of *key* as a root of its own."""
        return replace(self, root=f"{self.root.rstrip('/')}/{key}")

    def elsewhere(self, root: str) -> StoreLocation:
        """Another root, on the same server if it is one of S3."""
        return replace(self, root=root)

    @property
    def place(self) -> tuple[str, ...]:
        """Where that is, part by part, spelled in the one way: two roots are one place, or one lies
        in the other, exactly if their parts say so.  Links of a file system are followed.
        """
        match _parse(self.root):
            case _S3Root(bucket, prefix):
                return ("s3://" + bucket, *filter(None, prefix.split("/")))
            case _FileRoot(folder):
                return ("file:///", *Path(os.path.realpath(folder)).parts[1:])
            case _MemoryRoot(name, prefix):
                return ("memory://" + name, *filter(None, prefix.split("/")))

    def __post_init__(self) -> None:
        _parse(self.root)
        if self.endpoint_url is not None and not re.match(r"https?://[^/]", self.endpoint_url):
            raise ConfigurationError(
                f"the endpoint {self.endpoint_url!r} is not a URL; write http://host:port or "
                "https://host, or leave it out for AWS"
            )


@dataclass(frozen=True, slots=True)
class _S3Root:
    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class _FileRoot:
    folder: str


@dataclass(frozen=True, slots=True)
class _MemoryRoot:
    name: str
    prefix: str


def open_store(location: StoreLocation) -> ObjectStore:
    """Open the store; the first call that reaches it reports a store that is not there."""
    if location.layer is not None:
        return location.layer.store_of(location.root, lambda: _opened(location))
    return _opened(location)


def _opened(location: StoreLocation) -> ObjectStore:
    root = _parse(location.root)
    match root:
        case _S3Root(bucket, prefix):
            return S3Store(bucket, prefix, endpoint_url=location.endpoint_url)
        case _FileRoot(folder):
            return FileStore(folder)
        case _MemoryRoot(name, prefix):
            return named_store(name, prefix)
        case _:
            assert_never(root)


def temporaries(location: StoreLocation, prefix: str) -> Sequence[Listed]:
    """What writers below *prefix* have begun and not ended, where a store keeps such a thing; no
    listing shows it.
    """
    store = _opened(location)
    return store.temporaries(prefix) if isinstance(store, FileStore) else []


def discard_temporaries(location: StoreLocation, keys: Iterable[str]) -> None:
    """Delete what ``temporaries`` listed."""
    store = _opened(location)
    if isinstance(store, FileStore):
        store.discard_temporaries(keys)


def _parse(root: str) -> _S3Root | _FileRoot | _MemoryRoot:
    scheme, separator, rest = root.partition("://")
    if not separator:
        raise ConfigurationError(f"the root {root!r} is not a URI; write {EXAMPLES}")
    match scheme:
        case "s3":
            bucket, _, prefix = rest.partition("/")
            if not BUCKET_NAME.fullmatch(bucket):
                raise ConfigurationError(
                    f"{bucket!r} in the root {root!r} cannot be a bucket's name: that is 3 to 63 "
                    f"lower-case letters, digits, dots and hyphens; write {EXAMPLES}"
                )
            return _S3Root(bucket, _checked_path(root, prefix))
        case "file":
            if not rest.startswith("/"):
                raise ConfigurationError(
                    f"the root {root!r} needs three slashes and an absolute folder; "
                    f"write {EXAMPLES}"
                )
            return _FileRoot("/" + _checked_path(root, rest[1:]))
        case "memory":
            name, _, prefix = rest.partition("/")
            if not MEMORY_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"the root {root!r} needs a name of letters, digits, '.', '_' and '-'; "
                    f"write {EXAMPLES}"
                )
            return _MemoryRoot(name, _checked_path(root, prefix))
        case _:
            raise ConfigurationError(
                f"the root {root!r} names no store that sluice knows; write {EXAMPLES}"
            )


def _checked_path(root: str, path: str) -> str:
    path = path.removesuffix("/")
    if path and {"", ".", ".."} & set(path.split("/")):
        raise ConfigurationError(
            f"the root {root!r} has an empty, '.' or '..' part; write {EXAMPLES}"
        )
    return path
