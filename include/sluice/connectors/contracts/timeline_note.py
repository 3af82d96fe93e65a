"""A time line as text, for places that keep it in one value: a property, an offset's metadata.

    {"v":2,"life":"5f0c","generation":2,"fenced_by":2,"through":13,"continues":null,
     "published":"1-9,12,14-17","is_cut":false,"past":[["c3d0",4]]}

A note of another format is refused, with its place and the fix.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal

import msgspec

from sluice.core.timeline import Span, Timeline
from sluice.errors import FencedError, ProtocolViolation, TableMismatch

FORMAT_VERSION: Literal[2] = 2


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: Literal[2]
    life: str
    generation: int
    fenced_by: int
    through: int
    continues: int | None
    published: str
    is_cut: bool
    past: tuple[tuple[str, int], ...]


def encoded(timeline: Timeline, max_bytes: int) -> str:
    """The note, in at most *max_bytes* of ASCII: the oldest entries are dropped if needed."""
    text = _text(timeline)
    while len(text) > max_bytes and (spans := len(timeline.published)) > 1:
        # A good guess, as spans are shorter than their share of the text.
        kept = min(spans - 1, max(1, spans * max_bytes // len(text)))
        timeline = timeline.shortened(kept)
        text = _text(timeline)
    assert len(text) <= max_bytes, "a life is a short token"
    return text


def decoded(text: str | None, place: str, fix: str) -> Timeline:
    """The time line in *text*.

    Raises:
        ProtocolViolation: *text* is no note of this format; it names *place* and *fix*.
    """
    try:
        note = msgspec.json.decode(text or "", type=_Note)
        published = _spans(note.published)
    except (msgspec.DecodeError, ValueError):
        raise ProtocolViolation(
            f"{place} is no note that this sluice (format {FORMAT_VERSION}) reads: {text!r}; {fix}"
        ) from None
    return Timeline(
        life=note.life,
        generation=note.generation,
        fenced_by=note.fenced_by,
        through=note.through,
        continues=note.continues,
        published=published,
        is_cut=note.is_cut,
        past=note.past,
    )


@contextmanager
def named(place: str) -> Iterator[None]:
    """Prefix the errors of a time line with the name of the table's place."""
    try:
        yield
    except (FencedError, TableMismatch) as error:
        raise type(error)(f"{place}: {error}") from None


def _text(timeline: Timeline) -> str:
    note = _Note(
        v=FORMAT_VERSION,
        life=timeline.life,
        generation=timeline.generation,
        fenced_by=timeline.fenced_by,
        through=timeline.through,
        continues=timeline.continues,
        published=",".join(str(a) if a == b else f"{a}-{b}" for a, b in timeline.published),
        is_cut=timeline.is_cut,
        past=timeline.past,
    )
    return msgspec.json.encode(note).decode("ascii")


def _spans(text: str) -> tuple[Span, ...]:
    spans = tuple(_span(one) for one in text.split(",") if one)
    if any(last + 1 >= first for (_, last), (first, _) in pairwise(spans)):
        raise ValueError(text)
    return spans


def _span(text: str) -> Span:
    first, _, last = text.partition("-")
    span = int(first), int(last or first)
    if not 0 < span[0] <= span[1]:
        raise ValueError(text)
    return span
