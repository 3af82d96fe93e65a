"""Stand-ins: a declared pipeline with given rows as sources, and tables as sinks.

All else is as declared, except for the checkpoints: they are taken by the run, one at a time,
aligned and exactly once.  Master hooks, which connect to places outside, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from sluice.declaration.config import Checkpointing, CheckpointingMode
from sluice.declaration.nodes import SourceNode
from sluice.declaration.params import ENVIRONMENT_PREFIX, Param
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.sources import Files
from sluice.testing.captured import captured
from sluice.testing.given import GivenRows, GivenTable
from sluice.testing.rows import SourceRows

Given = GivenRows | GivenTable


@dataclass(frozen=True, slots=True)
class StandIns:
    """``sources`` are those of ``pipeline``, by uid."""

    pipeline: Pipeline
    sources: Mapping[str, Given]

    @property
    def epochs(self) -> int:
        """The number of epochs of the longest stream; tables have versions for these."""
        return _epochs(self.sources)

    @property
    def ends(self) -> bool:
        """Whether every stream ends, and the job with it."""
        streams = [given for given in self.sources.values() if isinstance(given, GivenRows)]
        return all(given.bounded for given in streams)

    def arrive(self, epoch: int) -> None:
        for given in self.sources.values():
            given.arrive(epoch)


def stand_ins(
    pipeline: Pipeline, rows: Mapping[str, SourceRows], bounded: frozenset[str], folder: Path
) -> StandIns:
    """*bounded* are the sources that end; files are written to *folder*.

    Raises:
        ConfigurationError: a table is given for more epochs than there are.
    """
    sources = {
        uid: _given(node, rows[uid], folder / uid, is_bounded=uid in bounded)
        for uid, node in pipeline.sources.items()
    }
    epochs = _epochs(sources)
    for uid, given in sources.items():
        if len(given.chunks) > epochs:
            raise ConfigurationError(
                f"the table {uid!r} is given for {len(given.chunks)} epochs, and rows come in "
                f"{epochs}; give [] for an epoch of a stream in which nothing comes"
            )
    checkpointing = replace(
        pipeline.checkpointing,
        interval=None,
        schedule=None,
        interval_during_backlog=None,
        min_pause=timedelta(0),
        max_concurrent_checkpoints=1,
        num_retained=max(epochs, Checkpointing().num_retained),
        mode=CheckpointingMode.EXACTLY_ONCE,
        unaligned=False,
        aligned_checkpoint_timeout=timedelta(0),
        max_records_per_epoch=None,
        target_epoch=None,
    )
    local = copy(pipeline)
    local.checkpointing = checkpointing
    local.sources = {
        uid: replace(node, spec=sources[uid], is_induced=False)
        for uid, node in pipeline.sources.items()
    }
    local.sinks = {uid: captured(node) for uid, node in pipeline.sinks.items()}
    local.hooks = {}
    return StandIns(local, sources)


def _epochs(sources: Mapping[str, Given]) -> int:
    streams = [given for given in sources.values() if isinstance(given, GivenRows)]
    return max((len(given.chunks) for given in streams), default=1)


def local_params(pipeline: Pipeline, params: Mapping[str, object]) -> dict[str, str]:
    """The given values of the parameters that a local run needs: those of transforms.

    Raises:
        ConfigurationError: one is not declared.
    """
    declared = [one.name for one in pipeline.params]
    if unknown := [name for name in params if name not in declared]:
        raise ConfigurationError(
            f"params= names {unknown[0]!r}, which is no parameter of pipeline {pipeline.uid!r}; "
            f"those are {', '.join(declared) or 'none'}"
        )
    return {name: str(value) for name, value in params.items()}


def check_params(
    needed: tuple[Param, ...], given: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """Raises ConfigurationError when a required parameter is missing."""
    for one in needed:
        is_set = one.name in given or ENVIRONMENT_PREFIX + one.name.upper() in environment
        if one.required and one.default is None and not is_set:
            meaning = f" ({one.help})" if one.help else ""
            raise ConfigurationError(
                f'parameter {one.name!r} is not set{meaning}; pass params={{"{one.name}": ...}}'
            )


def _given(node: SourceNode, rows: SourceRows, place: Path, *, is_bounded: bool) -> Given:
    if not node.is_table:
        return GivenRows(node.uid, place, rows.chunks, is_bounded, rows.decoding)
    if rows.decoding is None:
        spec = Files(str(place), format="parquet")
    else:
        assert isinstance(node.spec, Files), "nothing else can be a table"
        spec = replace(node.spec, location=str(place), header=False)
    return GivenTable(place, rows.chunks, spec, rows.decoding is not None)
