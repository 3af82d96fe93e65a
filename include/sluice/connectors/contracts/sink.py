"""``Sink``: the interface of a two-phase sink, of which readers see whole checkpoints or nothing.

A subtask stages its rows where readers do not look, and puts a ``Committable`` into its ack.  When
the checkpoint is completed, the coordinator commits the committables of all subtasks at once; when
it is aborted, the coordinator has the staged rows deleted.  Any process may repeat either.

A sink for a place that has transactions is a ``staged_sink.Target``; ``StagedSink`` does the
staging.  The page "A connector of one's own" describes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from sluice.core.acks import Committable
from sluice.core.timeline import Recovery, Standing, Writer

if TYPE_CHECKING:
    import pyarrow as pa

# True in a row that deletes the row of its key from a table with an upsert key.
DELETED = "_deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A staged file; ``file`` is its name in its ``Committable``."""

    file: str
    checkpoint_id: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpublished:
    """The staged files at ``root`` that no commit names.

    ``newest_ms`` is the time of the newest write seen there, published or not, by the place's
    clock.
    """

    root: str
    staged: tuple[Staged, ...]
    newest_ms: int


class RollBack(Enum):
    """The way in which a table returns to the version of a restored checkpoint."""

    BY_NEXT_COMMIT = "by its next commit"  # Also when no person asked for it.
    ON_REQUEST = "on request"
    NEVER = "never"


class Sink(Protocol):
    """A two-phase output.  Building one imports nothing heavy."""

    def stage(
        self, table: pa.Table, *, checkpoint_id: int, subtask: int, attempt_token: str
    ) -> Committable | None:
        """Make rows durable, but invisible to readers; None when there are no rows.

        In a subtask, what is put into a store that was opened at the place given to ``open`` is
        uploaded in the background, and is durable before the subtask acknowledges.
        Rows with a column ``_deleted``, which is then true in all of them, delete the rows of
        their keys, except for keys that the same checkpoint writes.
        *attempt_token* is unique to one attempt of one subtask: letters, digits and hyphens.
        """
        ...

    def check(
        self, parent: int | None, schema: pa.Schema, committables: Sequence[Committable]
    ) -> None:
        """Check that rows of *schema*, staged as *committables*, can be published behind the
        version *parent*.

        The coordinator calls it before a checkpoint is completed, for the place as it is now.
        Deletes have the same columns.  Nothing is published, and rows that were published before
        pass.  Idempotent.

        Raises:
            ConfigurationError: they cannot; it names the table, the column and the fix.
            ProtocolViolation: what was staged is gone, or is damaged.
        """
        ...

    def commit(
        self,
        writer: Writer,
        checkpoint_id: int,
        parent: int | None,
        committables: Sequence[Committable],
    ) -> None:
        """Publish the checkpoint's rows: all *committables* of its subtasks.  Idempotent.

        *parent* is the version that this one continues.  So after a restore to an older
        checkpoint, later versions are left out, if the sink can; None starts the output anew.

        Raises:
            FencedError: a restore of the same life was to a checkpoint before this one.
            TableMismatch: readers do not see *parent*, or another life owns the table; see
                ``timeline.Timeline.publishing``.
            ConfigurationError: the place was changed since ``check``, and the rows no longer fit;
                it names the fix, and no row is lost.
        """
        ...

    def discard_copied(self, committables: Sequence[Committable]) -> None:
        """Delete the staged files whose rows ``commit`` has copied.  Idempotent.

        The coordinator calls it when the commit is journaled: before, the place may be restored
        from a backup, and the commit repeated.  Files that remain are ``unpublished``.
        """
        ...

    def damage_of(self, committables: Iterable[Committable]) -> Sequence[str]:
        """A sentence for each committable whose staged file is missing or changed.

        Files that are published may be gone.  Empty where the sink cannot check.
        """
        ...

    def is_published(self, checkpoint_id: int) -> bool:
        """Whether the checkpoint has been committed to this table."""
        ...

    @property
    def rolls_back(self) -> RollBack: ...

    def standing(self, life: str, version: int | None) -> Standing:
        """The standing of the table against the *version* that a job of *life* would continue."""
        ...

    def is_empty(self) -> bool:
        """Whether readers see no rows at all; False where the sink cannot know."""
        ...

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """Recover the table, as *recovery* says, when the job is restored or begins a new life.

        Rows and time line change in one step.  Idempotent.  An empty table can always be rolled
        back.

        Raises:
            FencedError: a later restore has recovered the table.
            TableMismatch: the table lacks the version, and that was not accepted; or another life
                owns it.
            ConfigurationError: the recovery is a roll-back, and the sink cannot do it.
        """
        ...

    def describe(self, version: int) -> str:
        """The name of a published *version* in its place: "snapshot 8237", "ledger row 7"."""
        ...

    def abort(self, checkpoint_id: int) -> None:
        """Delete the checkpoint's staged files that are not committed.  Idempotent."""
        ...

    def unpublished(self) -> Unpublished:
        """The staged files of any checkpoint that no commit names.

        Files of pending checkpoints are among them; the caller knows which these are.

        Raises:
            ProtocolViolation: a commit's record cannot be read.
        """
        ...

    def discard(self, files: Iterable[str]) -> None:
        """Delete *files* of ``unpublished``.  Idempotent."""
        ...
