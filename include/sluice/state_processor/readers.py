"""Stages whose state holds what a changed stage told them, and which will be told otherwise."""

from __future__ import annotations

from collections.abc import Collection

from sluice.declaration.changelog import Append
from sluice.declaration.pipeline import Pipeline


def readers_of(pipeline: Pipeline, changed: Collection[str]) -> tuple[str, ...]:
    """The stages with state that read updates of the *changed* ones, directly or through stages
    without state, and are not changed themselves.

    A stage that takes a row back takes it from its own state; a reader that was told of another
    row, or of none, would subtract what it never added.
    """
    declared = pipeline.stages
    waiting = [uid for uid in changed if uid in declared and declared[uid].kind != Append()]
    found: dict[str, None] = {}
    while waiting:
        for reader in pipeline.consumers_of(waiting.pop()):
            if reader.uid in changed or reader.uid in found:
                continue
            if reader.is_stateful:
                found[reader.uid] = None
            else:
                waiting.append(reader.uid)
    return tuple(found)
