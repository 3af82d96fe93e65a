"""``Nexmark``: the declared source of the Nexmark benchmark's generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from sluice.declaration.arguments import NumberLimits, checked_initializer
from sluice.declaration.params import Param, said_of
from sluice.declaration.places import GivenForm, SourceMeaning, params_of, whole_number

if TYPE_CHECKING:
    from sluice.declaration.places import Source

USUAL_RATE = 10_000  # Events a second.


@checked_initializer
@dataclass(frozen=True, slots=True)
class Nexmark:
    """The Nexmark benchmark's events, generated: deterministic, addressed by event number.

    With ``events`` 0 it never ends.  Persons, auctions and bids are in proportion 1 : 3 : 46.
    """

    events: Annotated[int, NumberLimits(0)] | Param = 0
    events_per_second: Annotated[int, NumberLimits(1)] | Param = USUAL_RATE
    columns: tuple[str, ...] = ()  # The columns to generate; all when empty.

    @property
    def params(self) -> tuple[Param, ...]:
        return params_of(self.events, self.events_per_second)

    def meaning(self, params: Mapping[str, str]) -> SourceMeaning:
        rate = said_of(self.events_per_second, params)
        is_usual = rate == str(USUAL_RATE)
        decoding = "" if is_usual else f"at({rate} events a second)"
        return SourceMeaning(places=("Nexmark",), decoding=decoding)

    def given_form(self, params: Mapping[str, str]) -> GivenForm:  # noqa: ARG002 - none tells columns
        """See ``GivenSourceSpec``."""
        opened = replace(self, events=0, events_per_second=USUAL_RATE).open({}, None)
        return GivenForm(schema=opened.schema())

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:  # noqa: ARG002 - reads nothing
        from sluice.connectors.nexmark.source import COLUMNS, NexmarkSource

        events = whole_number(self.events, params)
        rate = whole_number(self.events_per_second, params)
        columns = self.columns or COLUMNS
        return NexmarkSource(events or None, first_event_rate=rate, columns=columns)
