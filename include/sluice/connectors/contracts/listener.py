"""``CheckpointListener``: what a source or a sink derives from to hear how each checkpoint ended.

As with Flink's interface of this name, nothing correct may depend on it.
"""

from __future__ import annotations


class CheckpointListener:
    """A source, a sink, or the target of a staged one, that is told of checkpoints.

    Both are called on the coordinator.  An id may be told twice, and ids are left out: that *n* is
    complete says that all before it have ended.  What they raise is logged, and changes nothing.
    """

    __slots__ = ()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is completed, and every sink has published it."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint was aborted, and what was staged for it is gone.

        Not told where the coordinator dies in that moment.
        """
