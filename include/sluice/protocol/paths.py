"""Every key in the bucket, built here and nowhere else.  Keys are relative to the root.

    {pipeline}/
      journal/{seq}                                          the coordinator's log, create-only
      checkpoints/{id}/plan                                  immutable
      checkpoints/{id}/acks/{stage}/{subtask}.{attempt}      create-only
      checkpoints/{id}/declines/{stage}/{subtask}.{attempt}  create-only
      checkpoints/{id}/_metadata                             immutable
      shared/{stage}/{id}-{content}.arrow                    state segments, shared by checkpoints
      streams/{stream}/{id}/{content}.arrow                  stream segments of one epoch
      tables/{sink}/...                                      a sink's table, unless it names a place
      side/{stage}.{name}/...                                side outputs, published like a table
      savepoints/{name}/_metadata + files                    self-contained, owned by the user
      probes/{token}                                         written and deleted at start-up

Numbers are zero-padded, so that listing order is their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.core.ids import SubtaskId

SEQ_DIGITS = 12
ID_DIGITS = 10


@dataclass(frozen=True, slots=True)
class PipelinePaths:
    """Keys of one pipeline under a root."""

    pipeline: str

    def journal(self) -> str:
        return f"{self.pipeline}/journal/"

    def journal_entry(self, seq: int) -> str:
        return f"{self.journal()}{seq:0{SEQ_DIGITS}d}"

    def journal_seq(self, key: str) -> int:
        """The number of the entry at *key*; the inverse of ``journal_entry``."""
        return int(key.removeprefix(self.journal()))

    def checkpoint(self, checkpoint_id: int) -> str:
        return f"{self.pipeline}/checkpoints/{checkpoint_id:0{ID_DIGITS}d}/"

    def plan(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}plan"

    def metadata(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}_metadata"

    def acks(self, checkpoint_id: int, stage: str | None = None) -> str:
        return f"{self.checkpoint(checkpoint_id)}acks/" + (f"{stage}/" if stage else "")

    def ack(self, checkpoint_id: int, subtask: SubtaskId, attempt: int) -> str:
        return f"{self.acks(checkpoint_id, subtask.stage)}{subtask.index}.{attempt}"

    def declines(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}declines/"

    def decline(self, checkpoint_id: int, subtask: SubtaskId, attempt: int) -> str:
        return f"{self.declines(checkpoint_id)}{subtask.stage}/{subtask.index}.{attempt}"

    def shared_segments(self, stage: str, checkpoint_id: int) -> str:
        """What checkpoint *checkpoint_id* added; a name is never written by another one."""
        return f"{self.pipeline}/shared/{stage}/{checkpoint_id:0{ID_DIGITS}d}-"

    def shared_segment(self, stage: str, checkpoint_id: int, content: str) -> str:
        return f"{self.shared_segments(stage, checkpoint_id)}{content}.arrow"

    def streams(self, stream: str, checkpoint_id: int) -> str:
        return f"{self.pipeline}/streams/{stream}/{checkpoint_id:0{ID_DIGITS}d}/"

    def stream_segment(self, stream: str, checkpoint_id: int, content: str) -> str:
        return f"{self.streams(stream, checkpoint_id)}{content}.arrow"

    def table(self, sink: str) -> str:
        return f"{self.pipeline}/tables/{sink}"

    def side_output(self, name: str) -> str:
        return f"{self.pipeline}/side/{name}"

    def savepoints(self) -> str:
        return f"{self.pipeline}/savepoints/"

    def savepoint(self, name: str) -> str:
        return f"{self.savepoints()}{name}/"

    def savepoint_metadata(self, name: str) -> str:
        return f"{self.savepoint(name)}_metadata"

    def savepoint_file(self, name: str, content: str) -> str:
        return f"{self.savepoint(name)}{content}.arrow"

    def probe(self, token: str) -> str:
        return f"{self.pipeline}/probes/{token}"


def subtask_of_answer(key: str) -> tuple[SubtaskId, int]:
    """The subtask and execution attempt an ack's or decline's key names."""
    stage, _, leaf = key.rpartition("/")
    index, _, attempt = leaf.partition(".")
    return SubtaskId(stage.rpartition("/")[2], int(index)), int(attempt)
