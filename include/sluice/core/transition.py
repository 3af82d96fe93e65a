"""The transition that an event causes: the next state, a verdict, and commands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from sluice.core.messages import Command
from sluice.core.pending import AckResult
from sluice.core.state import CoordinatorState


class Verdict(Enum):
    """The verdict on an event."""

    APPLIED = auto()
    IGNORED = auto()  # Already true, or about something that ended: repeating is harmless.
    FENCED = auto()  # Its author's generation was overtaken.
    REFUSED = auto()  # Not allowed in this state; the caller asks for the reason.


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """``ack_results`` are of the event's acks, in their order."""

    state: CoordinatorState
    verdict: Verdict = Verdict.APPLIED
    commands: tuple[Command, ...] = ()
    ack_results: tuple[AckResult, ...] = ()


def ignored(state: CoordinatorState) -> Transition:
    return Transition(state=state, verdict=Verdict.IGNORED)


def refused(state: CoordinatorState) -> Transition:
    return Transition(state=state, verdict=Verdict.REFUSED)
