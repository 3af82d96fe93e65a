"""The area shared-registry: which shared files, and which restored snapshots, are still in use.

Answered by the model of Flink's registry; ``test_flinks_models.py`` compares it with the product,
which asks only what the retained snapshots name.
"""

from __future__ import annotations

from typing import Any

from tests.conformance.flink_plan import Registry, SnapshotKind


def shared_registry(case: dict[str, Any]) -> object:
    registry = Registry()
    returned: list[list[int]] = []
    deleted: list[str] = []
    wrapped: set[str] = set()  # Reused by a changelog, which keeps the restored checkpoint.
    for step, details in case["when"]:
        match step:
            case "reg":
                key, user, *more = details
                keeps_creator = key in wrapped or any(_prevents_deletion(one) for one in more)
                file = next((one for one in more if not _prevents_deletion(one)), None) or None
                kept = registry.register(key, user, file=file, keeps_creator=keeps_creator)
                deleted += [file] if file is not None and file != kept else []
            case "restore":
                restored, keys, kind = details[0], details[1], " ".join(details[2:])
                registry.restore(keys, restored, _kind(kind), claimed="NO_CLAIM" not in kind)
                wrapped |= set(keys) if "changelog" in kind else set()
            case "unused":
                freed = registry.unregister_unused(details[0])
                returned.append(sorted(freed.still_in_use))
                deleted += freed.to_delete
            case "release":
                deleted += registry.release(details).to_delete
            case _:
                raise NotImplementedError(f"shared-registry: {step!r}")
    return {"unused_returns": returned, "deleted": deleted}


def _prevents_deletion(detail: object) -> bool:
    """Whether *detail* is the flag with which a changelog registers what it wraps, in Flink's
    ``registerReference(key, handle, checkpoint, preventDiscardingCreatedCheckpoint)``.
    """
    return detail is True or (isinstance(detail, str) and "changelog" in detail)


def _kind(name: str) -> SnapshotKind:
    if "savepoint" in name:
        is_canonical = "canonical" in name
        return SnapshotKind.CANONICAL_SAVEPOINT if is_canonical else SnapshotKind.NATIVE_SAVEPOINT
    return SnapshotKind.FULL_CHECKPOINT if "full" in name else SnapshotKind.CHECKPOINT
