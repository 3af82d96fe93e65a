"""The script of a world, turn by turn: drawn from a seed once, and then replayed.

A ``Turn`` is one actor's act; what befell it is kept by the number of its call to the store, so
that leaving out one turn or one fate changes no other.  An act draws its own choices from the seed
and the number of its turn, and from nothing else.  See ``shrink``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any, Protocol

MAX_DEPTH = 3  # An act, one that comes in between, and one in between that.


class Fate(Enum):
    """The fate of a request that is not simply answered."""

    REQUEST_LOST = "the request is lost"
    ANSWER_LOST = "the answer is lost"
    UNDER_WAY = "no answer, the request is under way"  # It may still ``arrive``.
    DIES_BEFORE = "its sender dies before"
    DIES_AFTER = "its sender dies after"
    DIES_UNDER_WAY = "its sender dies, the request is under way"


WEIGHTS = {
    Fate.REQUEST_LOST: 6,
    Fate.ANSWER_LOST: 6,
    Fate.UNDER_WAY: 5,
    Fate.DIES_BEFORE: 3,
    Fate.DIES_AFTER: 3,
    Fate.DIES_UNDER_WAY: 3,
}
FATES = [fate for fate, weight in WEIGHTS.items() for _ in range(weight)]
STRUCK_READS, STRUCK_WRITES = 0.015, 0.04  # What is half done is half written.
INTERLEAVED = 0.03  # Of calls: another actor goes first.


@dataclass(slots=True)
class Turn:
    """``at``: before its call of that number another turn came, or that was the call's fate."""

    number: int
    name: str
    actor: int
    at: dict[int, Turn | Fate] = field(default_factory=dict)


class Director(Protocol):
    """The director, which decides each next turn and fate."""

    script: list[Turn]

    def turns(self) -> Iterator[Turn]: ...
    def befalls(
        self, turn: Turn, call: int, depth: int, *, is_write: bool
    ) -> Turn | Fate | None: ...


class Drawn:
    """Draws everything from a seed, and writes down what it drew."""

    def __init__(self, seed: int, turns: int, choose: Callable[[Random, str | None], str]) -> None:
        self.script: list[Turn] = []
        self._random = Random(seed)
        self._turns = turns
        self._choose = choose
        self._numbers = iter(range(1, 1_000_000))

    def turns(self) -> Iterator[Turn]:
        for _ in range(self._turns):
            turn = self._turn(None)
            self.script.append(turn)
            yield turn

    def befalls(self, turn: Turn, call: int, depth: int, *, is_write: bool) -> Turn | Fate | None:
        drawn = self._random.random() - (STRUCK_WRITES if is_write else STRUCK_READS)
        if drawn < 0:
            fate = turn.at[call] = self._random.choice(FATES)
            return fate
        if drawn < INTERLEAVED and depth < MAX_DEPTH:
            other = turn.at[call] = self._turn(turn.name)
            return other
        return None

    def _turn(self, during: str | None) -> Turn:
        name = self._choose(self._random, during)
        return Turn(next(self._numbers), name, self._random.randrange(6))


class Replayed:
    """Plays a script again, or what was kept of it."""

    def __init__(self, script: Iterable[Turn]) -> None:
        self.script = [*script]

    def turns(self) -> Iterator[Turn]:
        return iter(self.script)

    def befalls(self, turn: Turn, call: int, depth: int, *, is_write: bool) -> Turn | Fate | None:
        return turn.at.get(call)


def marks(script: Iterable[Turn]) -> list[str]:
    """A name for every turn and every fate, in order: ``12``, and ``12@3`` for its third call."""
    found: list[str] = []
    for turn in script:
        found.append(str(turn.number))
        for call, event in turn.at.items():
            found += marks([event]) if isinstance(event, Turn) else [f"{turn.number}@{call}"]
    return found


def keep(script: Iterable[Turn], kept: Collection[str]) -> list[Turn]:
    """The script without whatever is not in *kept*."""
    return [
        Turn(
            turn.number,
            turn.name,
            turn.actor,
            {
                call: only
                for call, event in turn.at.items()
                for only in _kept(event, f"{turn.number}@{call}", kept)
            },
        )
        for turn in script
        if str(turn.number) in kept
    ]


def _kept(event: Turn | Fate, mark: str, kept: Collection[str]) -> list[Turn] | list[Fate]:
    if isinstance(event, Turn):
        return keep([event], kept)
    return [event] if mark in kept else []


def as_json(script: Iterable[Turn]) -> list[Any]:
    """The script as lists and strings, of which ``from_json`` makes it again."""
    return [
        [turn.number, turn.name, turn.actor]
        + [
            [call, as_json([event])[0] if isinstance(event, Turn) else event.name]
            for call, event in turn.at.items()
        ]
        for turn in script
    ]


def from_json(script: Iterable[Any]) -> list[Turn]:
    return [
        Turn(
            number,
            name,
            actor,
            {
                call: Fate[event] if isinstance(event, str) else from_json([event])[0]
                for call, event in at
            },
        )
        for number, name, actor, *at in script
    ]
