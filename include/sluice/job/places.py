"""The places where a job's rows come from and go to: its declared sources and sinks, opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.connectors.opening import open_side_output, open_sink
from sluice.declaration.side_outputs import side_outputs
from sluice.errors import ConfigurationError
from sluice.job.job import Job

if TYPE_CHECKING:
    from sluice.connectors.contracts.sink import Sink
    from sluice.connectors.contracts.source import Source
    from sluice.connectors.files_table.table import FilesTable


def open_source(job: Job, uid: str, params: Mapping[str, str]) -> Source:
    return job.pipeline.sources[uid].spec.open(params, job.location.endpoint_url)


class Sources:
    """The sources of a job for one act of its coordinator: each is opened once, when it is asked
    for.
    """

    def __init__(self, job: Job, params: Mapping[str, str]) -> None:
        self._job = job
        self._params = params
        self._opened: dict[str, Source] = {}

    def __getitem__(self, uid: str) -> Source:
        if uid not in self._opened:
            self._opened[uid] = open_source(self._job, uid, self._params)
        return self._opened[uid]


def open_sinks(job: Job, params: Mapping[str, str]) -> dict[str, Sink]:
    """Every declared sink, and a table for each side output that a stage may have."""
    declared = {
        uid: open_sink(node, params, job.location, job.paths)
        for uid, node in job.pipeline.sinks.items()
    }
    return declared | {uid: open_side_table(job, uid) for uid in side_outputs(job.pipeline)}


def open_side_table(job: Job, uid: str) -> FilesTable:
    """The rows of a side output, published like a table of its own, exactly once."""
    return open_side_output(uid, job.location, job.paths)


def has_result_table(job: Job, params: Mapping[str, str], uid: str) -> bool:
    """Whether the sink *uid* can be read back."""
    return _readable(job, params, uid) is not None


def open_result_table(job: Job, params: Mapping[str, str], uid: str | None = None) -> FilesTable:
    """The table of the sink *uid*, by default of the first.

    Raises:
        ConfigurationError: that sink cannot be read back.
    """
    uid = next(iter(job.pipeline.sinks)) if uid is None else uid
    table = _readable(job, params, uid)
    if table is None:
        raise ConfigurationError(
            f"sink {uid!r} cannot be read back, for only a FilesTable can; look where it publishes"
        )
    return table


def _readable(job: Job, params: Mapping[str, str], uid: str) -> FilesTable | None:
    from sluice.connectors.files_table.table import FilesTable

    sink = open_sink(job.pipeline.sinks[uid], params, job.location, job.paths)
    return sink if isinstance(sink, FilesTable) else None
