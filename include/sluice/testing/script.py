"""The script of a local run: attempts to kill, and restores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """A kill of the first attempt of *stage* in *epoch*, which counts from 1.

    A worker process is killed when it has written its files, and before it acknowledges.  Then the
    stage is run again.
    """

    stage: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Once *after_epoch* is published the job goes back to the checkpoint of *to_epoch*, and reads
    what came since again, in the same epochs.  *parallelism*, if it is given, is that of every
    stage from then on.

    *to_epoch* may be *after_epoch*: then nothing is read again.
    """

    to_epoch: int
    after_epoch: int
    parallelism: int | None = None


Happening: TypeAlias = Kill | Restore


def check_script(pipeline: Pipeline, script: Iterable[Happening], last: int, *, ends: bool) -> None:
    """Check that all of *script* can happen; with *ends* the *last* epoch ends the job.

    Raises:
        ConfigurationError: a kill or a restore could never happen.
    """
    for one in script:
        match one:
            case Kill(stage=stage, epoch=epoch):
                if stage not in pipeline.stages:
                    raise ConfigurationError(
                        f"{one} names stage {stage!r}; those of pipeline {pipeline.uid!r} are "
                        f"{', '.join(pipeline.stages)}"
                    )
                if not 1 <= epoch <= last:
                    raise ConfigurationError(
                        f"{one} never comes: the run has {last} epochs; give their rows as a list "
                        "of chunks, or epochs="
                    )
            case Restore(to_epoch=to, after_epoch=after):
                _check_restore(one, to, after, last, ends=ends)


def _check_restore(one: Restore, to: int, after: int, last: int, *, ends: bool) -> None:
    if not 1 <= to <= after:
        raise ConfigurationError(f"{one} cannot be: give a to_epoch from 1 to after_epoch")
    if after > last or (ends and after == last):
        behind = f"the job ends with epoch {last}" if ends else f"the run has {last} epochs"
        raise ConfigurationError(
            f"{one} never comes: {behind}; give more chunks, or epochs="
            + (", or bounded=False" if ends else "")
        )


def restores_after(script: Sequence[Happening], epoch: int) -> list[Restore]:
    return [one for one in script if isinstance(one, Restore) and one.after_epoch == epoch]
