"""``SinkSpec``: the declaration of a sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from sluice.declaration.params import Param
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.connectors.contracts.sink import Sink
    from sluice.storage.open import StoreLocation


class SinkSpec(Protocol):
    """A light, frozen and picklable descriptor; ``open`` gives the two-phase connector."""

    @property
    def params(self) -> tuple[Param, ...]: ...

    @property
    def upsert_key(self) -> tuple[str, ...]:
        """The newest row of equal values in these columns counts; empty: rows are appended.

        Rows with a true ``_deleted`` take away what has their key.
        """
        ...

    @property
    def changelog(self) -> bool:
        """Whether every change is appended, with what it does in the column ``kind``."""
        ...

    def open(self, uid: str, params: Mapping[str, str], default: StoreLocation) -> Sink:
        """*default* is the place under the job's root that is used when none is named."""
        ...


def check_changelog(what: str, spec: SinkSpec) -> None:
    """Refuse a table that is to hold every change, and the newest row of a key alone.

    Raises:
        ConfigurationError: *spec* asks for both.
    """
    if spec.changelog and spec.upsert_key:
        raise ConfigurationError(
            f"{what} keeps the newest row per {', '.join(spec.upsert_key)}, and changelog=True "
            "every change; write one of the two"
        )
