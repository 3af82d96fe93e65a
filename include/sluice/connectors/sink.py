"""What sluice asks of a sink: two phases, so that readers see whole checkpoints or nothing.

A subtask stages its rows where nobody looks and puts a ``Committable`` into its ack.  When the
checkpoint is completed the coordinator commits the committables of all subtasks at once; when it
was aborted, it has what was staged deleted.  Either may be repeated, by any process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from sluice.core.acks import Committable

if TYPE_CHECKING:
    import pyarrow as pa


class Sink(Protocol):
    """A two-phase output.  Building one imports nothing heavy."""

    def stage(
        self, table: pa.Table, *, checkpoint_id: int, subtask: int, attempt_token: str
    ) -> Committable | None:
        """Make the rows durable and invisible; None when there are none.

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

    def abort(self, checkpoint_id: int) -> None:
        """Delete what was staged for the checkpoint and is not committed.  Idempotent."""
        ...
