"""What sluice asks of a sink: two phases, so that readers see whole checkpoints or nothing.

A subtask stages its rows where nobody looks and puts a ``Committable`` into its ack.  When the
checkpoint is completed the coordinator commits the committables of all subtasks at once; when it
was aborted, it has what was staged deleted.  Either may be repeated, by any process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sluice.core.acks import Committable

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

    def commit(
        self, checkpoint_id: int, parent: int | None, committables: Sequence[Committable]
    ) -> None:
        """Publish the checkpoint's rows, of which *committables* are all.  Idempotent.

        *parent* is the version this one continues, so a restore to an older checkpoint leaves out
        what was published after it; None starts the output anew.
        """
        ...

    def is_published(self, checkpoint_id: int) -> bool:
        """Whether ``commit`` was called for the checkpoint."""
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
