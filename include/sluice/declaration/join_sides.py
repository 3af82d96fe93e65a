"""The check that the inputs of one keyed stage fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.declaration.operations import IntervalJoin, Stateful
from sluice.declaration.windows import Attached
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    from sluice.declaration.keyed_streams import KeyedStream


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
