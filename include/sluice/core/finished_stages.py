"""A stage that has finished is followed by finished ones only: Flink's VertexFinishedStateChecker.

What finished saw the end of its input, and its event time is at MAX.  A chain in which something
before it still gives rows, because it is new or was not connected before, cannot continue the
checkpoint: each of those rows would be late.  Flink refuses to run such a job, and no option lets
it pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sluice.core.completed import CheckpointMetadata
from sluice.core.watermarks import MAX_WATERMARK


def problems_behind_the_end(
    metadata: CheckpointMetadata, producers: Mapping[str, Sequence[str]]
) -> list[str]:
    """Each finished stage of the checkpoint that would read on, with what it would read.

    *producers* are the sources and stages that each declared stage reads.
    """
    return [
        f"stage {uid!r} has finished in checkpoint {metadata.checkpoint_id}, and "
        f"{'stage' if producer in producers else 'source'} {producer!r} before it "
        f"{_stands(metadata, producer)}: its "
        f"rows would come behind the end of all input. Let nothing new stand before {uid!r}, or "
        f"give {uid!r} a new uid and allow non-restored state, so that it begins anew"
        for uid, read in producers.items()
        if _has_finished(metadata, uid, producers)
        for producer in dict.fromkeys(read)
        if not _gives_nothing(metadata, producer, producers)
    ]


def _has_finished(
    metadata: CheckpointMetadata, uid: str, producers: Mapping[str, Sequence[str]]
) -> bool:
    """As the next plan would see it, had nothing been put before it.

    A drained savepoint ends event time, too, but not its sources: Flink restores that.
    """
    stage = metadata.stage(uid)
    if stage is None:
        return False
    if stage.is_finished:
        return True
    if stage.watermark_ms != MAX_WATERMARK or stage.in_flight_segments:
        return False
    return all(_had_ended(metadata, one, producers) for one in producers[uid])


def _had_ended(
    metadata: CheckpointMetadata, producer: str, producers: Mapping[str, Sequence[str]]
) -> bool:
    """Whether all that the checkpoint knows of *producer*, or of what is before it, had ended."""
    if producer not in producers:
        cut = metadata.source(producer)
        return cut is None or cut.exhausted
    if metadata.stage(producer) is not None:
        return _has_finished(metadata, producer, producers)
    return all(_had_ended(metadata, one, producers) for one in producers[producer])


def _gives_nothing(
    metadata: CheckpointMetadata, producer: str, producers: Mapping[str, Sequence[str]]
) -> bool:
    if producer in producers:
        return _has_finished(metadata, producer, producers)
    cut = metadata.source(producer)
    return cut is not None and cut.exhausted


def _stands(metadata: CheckpointMetadata, producer: str) -> str:
    known = metadata.stage(producer) or metadata.source(producer)
    return "is new" if known is None else "has not"
