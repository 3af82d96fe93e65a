"""The trigger for new files, by which a pipeline's checkpoints follow its input (``OnAsset``).

The module is light, as the triggerer imports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from sluice.errors import StoreUnavailable
from sluice.storage.open import StoreLocation, open_store

if TYPE_CHECKING:
    from sluice.storage.object_store import ObjectStore

log = logging.getLogger(__name__)


class NewFilesTrigger(BaseEventTrigger):  # type: ignore[misc]  # Airflow's annotations are skipped.
    """Fires whenever the listing of *uri* (s3://bucket/prefix or file:///folder) has changed.

    One LIST per poll.  Files may have arrived while no triggerer ran, so the first poll fires, too;
    a checkpoint without new input is skipped.  The class path and the keyword names are
    stored in Airflow's database: rename neither.
    """

    def __init__(self, *, uri: str, poll_s: float = 5.0, endpoint_url: str | None = None) -> None:
        super().__init__()
        self.uri = uri
        self.poll_s = poll_s
        self.endpoint_url = endpoint_url

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "sluice_airflow.arrivals.NewFilesTrigger",
            {"uri": self.uri, "poll_s": self.poll_s, "endpoint_url": self.endpoint_url},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        store = await asyncio.to_thread(
            open_store, StoreLocation(root=self.uri, endpoint_url=self.endpoint_url)
        )
        seen: dict[str, int] | None = None
        while True:
            try:
                found = await asyncio.to_thread(_listing, store)
            except StoreUnavailable as error:
                log.warning("no listing uri=%s: %s", self.uri, error)
            else:
                if found != seen:
                    changed = found.items() - (seen or {}).items()
                    seen = found
                    yield TriggerEvent({"files": len(found), "changed": len(changed)})
            await asyncio.sleep(self.poll_s)


def _listing(store: ObjectStore) -> dict[str, int]:
    """The size of each file: growing counts as a change, too."""
    return {listed.key: listed.size_bytes for listed in store.list("")}
