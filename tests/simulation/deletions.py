"""The invariants of deletions: retained, published and assigned files are never deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.core.compaction import Merges
from tests.simulation.broken import Broken
from tests.simulation.snapshots import NAMES, is_complete, meant_by, staged_files

if TYPE_CHECKING:
    from tests.simulation.invariants import Invariants

SAVEPOINTS = NAMES.savepoints()


def check_deleted(seen: Invariants, key: str) -> None:
    if key in seen.entries and key == max(seen.entries):
        raise Broken(1, "the newest journal entry is deleted", key)
    if key.startswith(SAVEPOINTS):
        _deletes_of_savepoint(seen, key)
    if key.startswith(seen.paths.all_compactions()) and seen.compactions.pop(key, None) is None:
        _deletes_of_compaction(seen, key)
    if seen.needed is None:
        seen.needed = _what_is_needed(seen)
    if key in seen.needed:
        number, why = seen.needed[key]
        raise Broken(number, f"a file is deleted that {why}", key)
    for pending in seen.head.pending:
        mine = [seen.paths.plan(pending.checkpoint_id)]
        for task in pending.tasks:
            attempt = pending.attempt_of(task.uid)
            mine += seen.ack_files.get((pending.checkpoint_id, task.uid, attempt), ())
        if key in mine:
            raise Broken(2, "a file is deleted that a pending checkpoint will need", key)


def _deletes_of_savepoint(seen: Invariants, key: str) -> None:
    """Only what no name means goes, and of pointers never the newest: else it would come back."""
    pointer, savepoint = NAMES.savepoint_pointer_of(key), NAMES.savepoint_of(key)
    # An abort that slept while the root was emptied deletes pointers that are gone.
    newest = None if pointer is None else seen.pointers.get(pointer[0])
    if pointer is not None and newest is not None and pointer[1] == newest[0]:
        raise Broken(9, "the newest pointer of a savepoint's name is deleted", key)
    if savepoint is None:
        return
    if meant_by(seen, key) is not None:
        raise Broken(9, "a savepoint's file is deleted", key)
    if seen.head.origin is not None and seen.head.origin.own_savepoint == savepoint:
        raise Broken(4, "a savepoint is deleted that the job will restore", key)
    seen.savepoint_bytes.pop(key, None)


def _deletes_of_compaction(seen: Invariants, key: str) -> None:
    """Merged state of a retained checkpoint is kept, as epochs that continue it may use it."""
    for retained in seen.head.completed:
        for stage in seen.metadata[retained.checkpoint_id].stages:
            records = [one for one in seen.compactions.values() if one.stage == stage.uid]
            for subtask in stage.subtasks:
                told = Merges(records).applied_to(subtask.state)
                if any(handle.segment.key == key for handle in told):
                    raise Broken(4, "merged state is deleted that a record hands out", key)


def _what_is_needed(seen: Invariants) -> dict[str, tuple[int, str]]:
    """The files that are needed, by key, with the invariant and the object that names them."""
    needed: dict[str, tuple[int, str]] = {}
    for manifest in seen.manifests.values():
        needed |= dict.fromkeys(manifest.files, (5, "is published"))
    for savepoint, metadata in seen.savepoints.items():
        if is_complete(seen, savepoint):
            needed |= dict.fromkeys((f.key for f in metadata.files), (4, "a savepoint names"))
    for retained in seen.head.completed:
        metadata = seen.metadata[retained.checkpoint_id]
        names = {handle.key for handle in metadata.files} | staged_files(metadata)
        names.add(seen.paths.metadata(retained.checkpoint_id))
        needed |= dict.fromkeys(names, (4, "a retained checkpoint names"))
    return needed
