"""The invariants of a sink's table: completed epochs, each once, in order, with the right rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.jobs import SINK
from sluice.connectors.files_table.table import ManifestTable
from sluice.core.completed import CheckpointMetadata
from sluice.job.places import open_sinks
from tests.simulation.broken import Broken
from tests.simulation.dataflow import Row, pure, reference, rows_of
from tests.simulation.snapshots import staged_files

if TYPE_CHECKING:
    from tests.simulation.invariants import Invariants
    from tests.simulation.world import World


# A commit that began before a restore to an older checkpoint writes its manifest after it; readers
# do not follow it, for it sorts before the restore's own.
ROLLED_BACK_STAYS_UNPUBLISHED = False


@dataclass(frozen=True, slots=True)
class Manifest:
    checkpoint_id: int
    parent: int | None
    files: frozenset[str]


def check_published(seen: Invariants, manifest: Manifest) -> None:
    """Of a completed checkpoint, after its parent's, exactly what was staged, the right rows."""
    checkpoint_id, parent = manifest.checkpoint_id, manifest.parent
    if seen.world.settings.is_early and seen.ended.get(checkpoint_id) != "completed":
        _check_shown_early(seen, manifest)
        return
    if seen.ended.get(checkpoint_id) != "completed":
        raise Broken(5, "published before it is completed", f"{checkpoint_id}")
    metadata = seen.metadata[checkpoint_id]
    if parent != metadata.previous_tables.get(SINK):
        raise Broken(5, "published after another version than its parent's", f"{checkpoint_id}")
    if parent is not None and parent not in seen.manifests:
        raise Broken(5, "published before its parent", f"{checkpoint_id}")
    if manifest.files != staged_files(metadata):
        raise Broken(7, "other files are published than were acknowledged", f"{checkpoint_id}")
    if ROLLED_BACK_STAYS_UNPUBLISHED and checkpoint_id not in _lineage(seen):
        raise Broken(10, "published after the job was put back before it", f"{checkpoint_id}")
    start = position(seen, metadata.parent) if metadata.parent is not None else 0
    shown = 0 if parent is None else seen.consumed.get(parent, 0)
    if shown != start and not seen.accepts:
        raise Broken(11, "rows are missing in between", f"{checkpoint_id} after {parent}")
    expected = reference(len(metadata.stages) - 1, position(seen, checkpoint_id))[start:]
    if pure(_rows(seen.world, manifest.files)) != expected:
        raise Broken(8, "an epoch's output is not that without failures", f"{checkpoint_id}")


def check_shown(seen: Invariants, metadata: CheckpointMetadata) -> None:
    """AT_LEAST_ONCE: what readers saw of a checkpoint that completes now is what it names."""
    manifest = seen.manifests.get(metadata.checkpoint_id)
    if manifest is not None and manifest.files != staged_files(metadata):
        raise Broken(11, "completed with other rows than readers see", f"{manifest}")


def _check_shown_early(seen: Invariants, manifest: Manifest) -> None:
    """An early publication has the files that the last stage's subtasks staged in one attempt."""
    if manifest.checkpoint_id not in seen.plans:
        raise Broken(5, "published without a checkpoint", f"{manifest.checkpoint_id}")
    if manifest.parent is not None and manifest.parent not in seen.manifests:
        raise Broken(5, "published before its parent", f"{manifest.checkpoint_id}")
    whose = (manifest.checkpoint_id, seen.world.stages[-1])
    staged = (files for (*key, _), files in seen.ack_files.items() if tuple(key) == whose)
    if not any(manifest.files <= files for files in staged):
        raise Broken(7, "other files are shown than were acknowledged", f"{whose}")
    _rows(seen.world, manifest.files)


def published_rows(world: World) -> list[Row]:
    """The table as a reader sees it: at any moment the output without failures, up to an epoch."""
    seen = world.witness
    table = open_sinks(world.job, world.head.configuration.params)[SINK]
    assert isinstance(table, ManifestTable)
    chain = table.chain()
    if not chain:
        return []
    prefix = world.job.names.table(SINK)
    rows = _rows(world, (f"{prefix}/{file.file}" for one in chain for file in one.files))
    newest = chain[-1].checkpoint_id
    if seen.accepts:
        return rows
    if world.settings.is_early:
        done = max((p for one in chain if (p := seen.consumed.get(one.checkpoint_id))), default=0)
        if not {*reference(len(world.stages) - 1, done)} <= {*pure(rows)}:
            raise Broken(8, "a reader misses rows that were committed", f"version {newest}")
        return rows
    if pure(rows) != reference(len(world.stages) - 1, position(seen, newest)):
        raise Broken(8, "a reader sees other rows than without failures", f"version {newest}")
    return rows


def position(seen: Invariants, checkpoint_id: int) -> int:
    """The number of source records that have reached the sink at the checkpoint's barrier."""
    return seen.consumed[checkpoint_id]


def _lineage(seen: Invariants) -> set[int]:
    """The checkpoint that the job continues, and all that it continues itself."""
    found: set[int] = set()
    checkpoint_id: int | None = seen.head.base
    while checkpoint_id is not None:
        found.add(checkpoint_id)
        checkpoint_id = seen.metadata[checkpoint_id].parent
    return found


def _rows(world: World, files: Iterable[str]) -> list[Row]:
    rows: list[Row] = []
    for file in files:
        body = world.bucket.objects.get(file)
        if body is None:
            raise Broken(5, "a published file is missing", file)
        rows += rows_of(body)
    return rows
