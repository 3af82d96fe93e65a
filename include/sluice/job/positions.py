"""The positions of sources in the bucket.

A position of many partitions is kept in layers, which checkpoints share.  A layer is read when the
position is needed in full, and written under the id of the checkpoint that adds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from sluice.core.handles import SegmentHandle
from sluice.core.ids import CheckpointId
from sluice.core.plan import PartitionOffset, SourceCut
from sluice.core.position import Position, with_whole
from sluice.declaration.places import SourcePosition
from sluice.errors import RestoreError
from sluice.job.job import Job
from sluice.job.snapshots import verified
from sluice.protocol.records import checksum, decode_position_layer, encode_position_layer

LAYERS_KEPT = 8  # Decoded, for the next checkpoint of this process: those of a source or two.


def load_position(job: Job, cut: SourceCut | None) -> Position:
    """How far the source was read at the barrier, in full, and the layers that say so.

    A *cut* of None is that of a source which was never read.

    Raises:
        RestoreError: a layer is gone.
        CorruptSegment: its bytes are not those that were written.
    """
    if cut is None:
        return Position()
    return Position.of(cut, [_layer(job, handle) for handle in cut.layers])


def position_of(job: Job, cut: SourceCut) -> SourcePosition:
    """All partitions of the cut, as the source takes them.  Raises as ``load_position``."""
    return load_position(job, cut).whole if cut.layers else cut.position


def whole_cut(job: Job, cut: SourceCut) -> SourceCut:
    """*cut* as if it had no layers.  Raises as ``load_position``."""
    return with_whole(cut, load_position(job, cut)) if cut.layers else cut


def layer_of(entries: Sequence[PartitionOffset]) -> SegmentHandle:
    """A layer of *entries*, inline until ``store_layers`` writes it as a file."""
    body = encode_position_layer(entries)
    return SegmentHandle(
        key="", size_bytes=len(body), rows=len(entries), checksum=checksum(body), inline=body
    )


def store_layers(job: Job, cut: SourceCut, checkpoint_id: CheckpointId) -> SourceCut:
    """Write the layer that the cut adds under the checkpoint's id, so that an abort finds it.

    The layer's name is its content's: another coordinator that plans the same checkpoint writes the
    same file, or a different one, which is garbage as soon as the checkpoint is over.
    """

    def stored(layer: SegmentHandle) -> SegmentHandle:
        if layer.inline is None:
            return layer
        key = job.paths.position_layer(cut.uid, checkpoint_id, layer.checksum)
        job.store.put(key, layer.inline)
        return replace(layer, key=key, inline=None)

    return replace(cut, layers=tuple(stored(layer) for layer in cut.layers))


def _layer(job: Job, handle: SegmentHandle) -> Mapping[str, PartitionOffset]:
    raw = handle.inline
    if raw is None:
        raw = job.store_at(handle.root).get(handle.key)
    if raw is None:
        raise RestoreError(
            f"{handle.root or job.store.root}/{handle.key} is gone, so it is not known how far its "
            "source was read; restore another checkpoint"
        )
    return entries_of(verified(handle, raw, "restore another checkpoint"), handle.key)


@lru_cache(maxsize=LAYERS_KEPT)
def entries_of(raw: bytes, key: str) -> Mapping[str, PartitionOffset]:
    return {entry.partition: entry for entry in decode_position_layer(raw, key)}
