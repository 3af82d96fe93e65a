"""What a person changed of a running job's checkpointing: a pause, and other times.

It is kept beside the configuration that the submission fixed, through failovers and restores, until
a person takes it back or the job is submitted anew.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """None: as the job was submitted.  While ``is_paused`` no periodic checkpoint is taken."""

    is_paused: bool = False
    interval_ms: int | None = None
    min_pause_ms: int | None = None
    timeout_ms: int | None = None
    tolerable_failed_checkpoints: int | None = None
    changed_at_ms: int | None = None
    changed_by: str = ""
