"""A store whose answers to create-only writes are lost, doubled, or behind another writer's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.errors import StoreUnavailable
from sluice.store.object_store import AlreadyExists, CreateResult, ObjectStore


@dataclass
class Faults:
    """A layer over the stores of one test: what the next creations of keys with *part* answer."""

    part: str
    fates: list[str]
    another: Callable[[], object] = lambda: None

    def store_of(
        self, root: str, opened: Callable[[], ObjectStore], patience_s: float
    ) -> ObjectStore:
        store, faults = opened(), self

        class Faulty:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def create(self, key: str, body: bytes) -> CreateResult:
                fate = faults.fates.pop(0) if faults.part in key and faults.fates else "works"
                match fate:
                    case "overtaken":
                        faults.another()
                    case "request lost":
                        raise StoreUnavailable("request lost")
                    case "answer lost":
                        store.create(key, body)
                        raise StoreUnavailable("answer lost")
                    case "sent twice":  # By a gateway: the second is answered, 412.
                        store.create(key, body)
                        again = store.create(key, body)
                        assert isinstance(again, AlreadyExists)
                        return again
                    case _:
                        pass
                return store.create(key, body)

        return Faulty()
