"""The files that a source reads: one file, or all below a folder, in any kind of store.

As Flink and Spark do, a folder's files and folders whose names start with ``.`` or ``_`` are
ignored.  Names are relative to the folder, and sorted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ConfigurationError
from sluice.storage.file import listed_file
from sluice.storage.object_store import Listed, ObjectStore
from sluice.storage.open import StoreLocation, open_store

# Python's substitute for a byte of a file's name that is not UTF-8; JSON cannot hold it.
SURROGATE = re.compile("[\ud800-\udfff]")
HIDDEN = re.compile("(?:^|/)[._]")  # As Spark's readers pass over such names.

# Two slashes in the middle of a path are no scheme.
URI = re.compile("[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files at a location.

    ``location`` is a path of this machine, resolved when the set is built, or a ``file:///``,
    ``s3://`` or ``memory://`` URI.  A bucket has no empty folders: end the URI of a folder that may
    have no files yet with a slash.
    """

    location: str
    endpoint_url: str | None = None

    def __post_init__(self) -> None:
        if not URI.match(self.location):
            local = f"file://{Path(self.location).expanduser().resolve()}"
            object.__setattr__(self, "location", local)
        self._store_location(self.location)  # Raises for a misspelt URI.

    @property
    def is_local(self) -> bool:
        return self.location.startswith("file://")

    def listed(self, *, start_after: str = "") -> Iterator[Listed]:
        """The files in the order of their names, after *start_after*; listed lazily.

        Raises:
            ConfigurationError: there is nothing at the location, or a name that is not UTF-8.
        """
        parent, name = self._as_file()
        if parent is not None:
            first = next(parent.list(name), None)
            if first is not None and first.key == name:
                if name > start_after:
                    yield first
                return
        # A bucket has no folders: one whose files are all read looks like one that does not exist.
        is_empty = not start_after or self.is_local
        for found in self._as_folder().list("", start_after=start_after):
            is_empty = False
            if HIDDEN.search(found.key):
                continue
            if SURROGATE.search(found.key):
                raise ConfigurationError(
                    f"the name of {found.key!a} below {self.location} is not UTF-8; rename the file"
                )
            yield found
        if is_empty and not self._may_be_empty():
            raise ConfigurationError(
                f"there is no file and no folder at {self.location}; create it or correct the "
                "location (a folder in a bucket that has no file yet is written with a slash at "
                "its end)"
            )

    def find(self, name: str) -> Listed | None:
        """One file, without a listing of the others."""
        path = self.local_path(name)
        if path is not None:
            return listed_file(path, name)
        first = next(self.store_of(name).list(name), None)
        return first if first is not None and first.key == name else None

    def store_of(self, name: str) -> ObjectStore:
        """The store in which *name* is a key: that of the folder, or that of the single file."""
        store = self._as_folder()
        parent, own_name = self._as_file()
        if parent is not None and name == own_name and store.get_range(name, 0, 0) is None:
            return parent
        return store

    def local_path(self, name: str) -> Path | None:
        """The path of a file on this machine; None when it is in a bucket or in memory."""
        scheme, _, path = self.location.partition("://")
        if scheme != "file":
            return None
        root = Path(path)
        return root if root.name == name and root.is_file() else root / name

    def _may_be_empty(self) -> bool:
        scheme, _, path = self.location.partition("://")
        return Path(path).is_dir() if scheme == "file" else self.location.endswith("/")

    def _as_folder(self) -> ObjectStore:
        return open_store(self._store_location(self.location))

    def _as_file(self) -> tuple[ObjectStore | None, str]:
        """The store and the name of the file, if the location is a single file; else None."""
        root, _, name = self.location.removesuffix("/").rpartition("/")
        if root.endswith(":/") or self.location.endswith("/"):
            return None, ""  # A bucket, or a folder by its slash.
        return open_store(self._store_location(root if root != "file://" else "file:///")), name

    def _store_location(self, root: str) -> StoreLocation:
        return StoreLocation(root=root, endpoint_url=self.endpoint_url)
