"""An object of a store as a file that can be read and sought."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from sluice.errors import StoreUnavailable
from sluice.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Buffer


class RangeReader(io.RawIOBase):
    """Each read is a ranged request."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size_bytes if size < 0 else min(self._at + size, self._size_bytes)
        if end <= self._at:
            return b""
        body = self._store.get_range(self._key, self._at, end)
        if body is None or len(body) < end - self._at:
            raise StoreUnavailable(f"{self._key} became shorter than {end} bytes while it was read")
        self._at = end
        return body

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        body = self.read(len(view))
        view[: len(body)] = body
        return len(body)
