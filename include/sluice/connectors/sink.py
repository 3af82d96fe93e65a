"""What sluice asks of a sink: two phases, so that readers see whole checkpoints or nothing.

A subtask stages its rows where nobody looks and puts a ``Committable`` into its ack.  When the
checkpoint is completed the coordinator commits the committables of all subtasks at once; when it
was aborted, it has what was staged deleted.  Either may be repeated, by any process.

Who writes one for a place that has transactions writes a ``staged_sink.Target``, and leaves the
staging to ``StagedSink`` (docs/connectors.md).
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

# True in a row that takes away what a table with an upsert key has of that key.
DELETED = "_deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Something staged; ``file`` is what its ``Committable`` calls it."""

    file: str
    checkpoint_id: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpublished:
    """What no commit names, at ``root``.  ``newest_ms`` is the newest write that was seen there,
    published or not: the time on the clock of the place.
    """

    root: str
    staged: tuple[Staged, ...]
    newest_ms: int


class RollBack(Enum):
    """How a table gets back to what a restored checkpoint pinned."""

    BY_NEXT_COMMIT = "by its next commit"  # Whether anybody asked for it or not.
    ON_REQUEST = "on request"
    NEVER = "never"


class Sink(Protocol):
    """A two-phase output.  Building one imports nothing heavy."""

    def stage(
        self, table: pa.Table, *, checkpoint_id: int, subtask: int, attempt_token: str
    ) -> Committable | None:
        """Make the rows durable and invisible; None when there are none.

        With a column ``_deleted``, true in every row, they take rows of the same key away, unless
        the same checkpoint writes that key, too.
        *attempt_token* is unique to one attempt of one subtask: letters, digits and hyphens.
        """
        ...

    def check(self, parent: int | None, schema: pa.Schema) -> None:
        """Find out before a checkpoint completes whether its rows, of *schema*, can be published
        behind version *parent* into the place as it is now.  The coordinator asks; rows that are
        taken away have the same columns.  Idempotent.

        Raises:
            ConfigurationError: they cannot; it names the table, the column and what to do.
        """
        ...

    def commit(
        self,
        writer: Writer,
        checkpoint_id: int,
        parent: int | None,
        committables: Sequence[Committable],
    ) -> None:
        """Publish the checkpoint's rows, of which *committables* are all.  Idempotent.

        *parent* is the version this one continues, so a restore to an older checkpoint leaves out
        what was published after it, where the sink can; None starts the output anew.

        Raises:
            FencedError: a restore of the same life has left the checkpoint behind.
            TableMismatch: readers do not see *parent*, or another life owns the table; see
                ``timeline.Timeline.publishing``.
            ConfigurationError: the place was changed since ``check``, and the rows do not fit any
                more; it says what to do, and nothing is lost.
        """
        ...

    def discard_copied(self, committables: Sequence[Committable]) -> None:
        """Delete what ``commit`` has copied of *committables*, once the journal says that it is
        committed: until then the place may be put back, and have to be told again.  Idempotent;
        what is left to lie is ``unpublished``.
        """
        ...

    def damage_of(self, committables: Iterable[Committable]) -> Sequence[str]:
        """What of them is not there as it was staged, a sentence each; nothing where that cannot be
        told.  Those that were published may be gone.
        """
        ...

    def is_published(self, checkpoint_id: int) -> bool:
        """Whether ``commit`` was called for the checkpoint."""
        ...

    @property
    def rolls_back(self) -> RollBack: ...

    def standing(self, life: str, version: int | None) -> Standing:
        """How the table stands to the *version* that a job of *life* would continue."""
        ...

    def is_empty(self) -> bool:
        """Whether readers see no row at all; False where that cannot be told."""
        ...

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """The job was restored, or begins a new life: the table becomes what *recovery* says, in
        one step with its time line.  Idempotent.  An empty table can always be rolled back.

        Raises:
            FencedError: a later restore was here.
            TableMismatch: the table lacks the version, and nobody accepted that; or another life
                owns it.
            ConfigurationError: it is to be rolled back, and cannot be.
        """
        ...

    def describe(self, version: int) -> str:
        """What a person finds a published *version* by: "snapshot 8237", "ledger row 7"."""
        ...

    def abort(self, checkpoint_id: int) -> None:
        """Delete what was staged for the checkpoint and is not committed.  Idempotent."""
        ...

    def unpublished(self) -> Unpublished:
        """Everything staged that no commit names, whichever checkpoint staged it.

        Some of it is yet to be committed: the caller knows of which checkpoints.

        Raises:
            ProtocolViolation: what a commit names cannot be read.
        """
        ...

    def discard(self, files: Iterable[str]) -> None:
        """Delete *files* of ``unpublished``.  Idempotent."""
        ...
