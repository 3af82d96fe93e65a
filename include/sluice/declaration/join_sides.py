"""The check that the inputs of one keyed stage fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.declaration.broadcast_state import KeyedBroadcastProcessFunction
from sluice.declaration.declared_states import declared_broadcasts
from sluice.declaration.operations import IntervalJoin, Stateful
from sluice.declaration.windows import Attached
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.keyed_process import KeyedProcessFunction
    from sluice.declaration.keyed_streams import KeyedStream
    from sluice.declaration.streams import Stream


def check_side(uid: str, operation: Stateful, first: KeyedStream, side: KeyedStream) -> None:
    """Raises ConfigurationError unless *side* can be read beside the *first* input of a stage."""
    stream = side.stream
    if stream.pipeline is not first.stream.pipeline:
        raise ConfigurationError(
            f"stage {uid!r} joins streams of two pipelines, {first.stream.pipeline.uid!r} and "
            f"{stream.pipeline.uid!r}; declare both in one"
        )
    if len(side.keys) != len(first.keys):
        raise ConfigurationError(
            f"stage {uid!r} joins {len(first.keys)} key columns with {len(side.keys)}; "
            "key both sides by as many"
        )
    window = getattr(operation, "window", None)
    is_timed = isinstance(operation, IntervalJoin) or (
        window is not None and not isinstance(window, Attached)
    )
    if is_timed and stream.event_time is None:
        raise ConfigurationError(
            f"stage {uid!r} reads {stream.producer!r}, which has no event time; name it: "
            "source(..., event_time='column')"
        )


def check_broadcast(
    uid: str, function: KeyedProcessFunction, first: KeyedStream, broadcast: Stream | None
) -> None:
    """Raises ConfigurationError unless *function* can read *broadcast* beside the *first* input."""
    name = type(function).__name__
    if not isinstance(function, KeyedBroadcastProcessFunction):
        if broadcast is not None:
            raise ConfigurationError(
                f"stage {uid!r} reads the broadcast stream {broadcast.producer!r}, but {name} has "
                "no process_broadcast(); derive it from KeyedBroadcastProcessFunction"
            )
        states = declared_broadcasts(function)
        if states:
            raise ConfigurationError(
                f"stage {uid!r}: {name} declares broadcast state {', '.join(map(repr, states))}, "
                "which nothing writes; derive it from KeyedBroadcastProcessFunction"
            )
        return
    if broadcast is None:
        raise ConfigurationError(
            f"stage {uid!r}: {name} is a KeyedBroadcastProcessFunction; say which stream it sees "
            "whole: process_keyed(..., broadcast=stream)"
        )
    if broadcast.pipeline is not first.stream.pipeline:
        raise ConfigurationError(
            f"stage {uid!r} reads streams of two pipelines, {first.stream.pipeline.uid!r} and "
            f"{broadcast.pipeline.uid!r}; declare both in one"
        )
    if broadcast.producer not in broadcast.pipeline.stages:
        raise ConfigurationError(
            f"stage {uid!r} broadcasts the source {broadcast.producer!r} itself; put a stage "
            'between them, such as transform("rules", lambda rows: rows)'
        )
