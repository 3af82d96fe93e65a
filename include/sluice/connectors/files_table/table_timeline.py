"""The time line of a files table, read from the names of its manifests and fences.

To the rules of ``core/timeline.py`` a version counts as shown as long as its manifest is there:
the table goes back and forward by what the next manifest or fence continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from sluice.connectors.files_table.table_manifest import FORMAT_VERSION, Fence, TableLog
from sluice.connectors.staging.file_names import Name, fence_key, manifest_key
from sluice.core.timeline import Recovery, Standing, Timeline, Writer, spans_of
from sluice.errors import ProtocolViolation, TableMismatch


@dataclass(frozen=True, slots=True)
class TableTimeline:
    """``last`` is the newest name, ``shown`` the version that readers see by it."""

    log: TableLog
    line: Timeline
    last: Name | None
    shown: int | None

    def standing(self, life: str, version: int | None) -> Standing:
        newest = 0 if self.last is None else self.last.checkpoint_id
        ahead = self.log.lineage(version or 0)
        return replace(self.line.standing(life, version), ahead=ahead, newest=newest)

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """Write the fence behind which late commits are not seen.  See ``Sink``.

        Without ``roll_back`` readers lose no rows, except for those of the commit that is owed,
        which follows at once.
        """
        # Manifests stay, so nothing is ever taken away in terms of the rules.
        after = self.line.recovered(writer, replace(recovery, roll_back=False))
        if after is None:
            return
        shown = recovery.version
        goes_back = recovery.roll_back or recovery.continues is not None
        if not goes_back and self.log.lineage(recovery.version or 0):
            shown = self.shown
        fence = Fence(
            version=FORMAT_VERSION,
            checkpoint_id=after.through,
            shown=shown,
            continues=recovery.continues,
            life=writer.life,
            generation=writer.generation,
        )
        key = fence_key(after.through, writer.generation, shown)
        if self.last is not None and key < self.last.key:
            raise TableMismatch(
                f"the table at {self.log.store.root} was fenced by another life of a job "
                f"({self.last.key}) after this one looked at it; restore the job again"
            )
        self.log.store.create(key, msgspec.json.encode(fence))

    def show(self, writer: Writer, checkpoint_id: int) -> None:
        """Make the checkpoint visible whose commit was owed, by another fence behind the others."""
        fence = Fence(
            version=FORMAT_VERSION,
            checkpoint_id=self.line.through,
            shown=checkpoint_id,
            continues=None,
            life=writer.life,
            generation=writer.generation,
        )
        key = fence_key(self.line.through, writer.generation, checkpoint_id)
        self.log.store.create(key, msgspec.json.encode(fence))


def timeline_since(log: TableLog, parent: int | None) -> TableTimeline:
    """The time line of the table after its version *parent*: one LIST.

    If nothing came after it, the life is not read: it is that of the parent's publisher.
    """
    names = [*log.names(since=parent or 0)]
    if parent is not None and [name.key for name in names] == [manifest_key(parent)]:
        return TableTimeline(log, Timeline(published=((parent, parent),)), names[0], parent)
    return _told(log, names)


def timeline_of(log: TableLog) -> TableTimeline:
    """The whole time line of the table: one LIST, and at most two GETs."""
    return _told(log, [*log.names()])


def _told(log: TableLog, names: Sequence[Name]) -> TableTimeline:
    if not names:
        return TableTimeline(log, Timeline(), None, None)
    last = names[-1]
    published = spans_of(name.checkpoint_id for name in names if not name.is_fence)
    fences = [name for name in names if name.is_fence]
    fence = log.fence(fences[-1]) if fences else None
    owner = fence if last.is_fence else log.manifest(last.checkpoint_id)
    if owner is None:
        raise ProtocolViolation(f"{log.store.root}/{last.key} was listed and is gone")
    line = Timeline(life=owner.life, generation=owner.generation, published=published)
    if fence is not None:
        fenced_by = fence.generation if fence.life == owner.life else 0
        line = replace(
            line,
            generation=max(line.generation, fenced_by),
            fenced_by=fenced_by,
            through=fence.checkpoint_id,
            continues=fence.continues,
        )
    return TableTimeline(log, line, last, last.shown)
