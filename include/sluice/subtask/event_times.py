"""The largest event time per partition of a source, from which its watermark is computed."""

from __future__ import annotations

import polars as pl

from sluice.errors import ConfigurationError
from sluice.subtask.side_rows import SOURCE


class EventTimes:
    """The event times of the rows of *source*: the *column* of what the stage *stage* yields."""

    def __init__(self, stage: str, source: str, column: str) -> None:
        self._stage, self._source, self._column = stage, source, column
        self.latest_ms: dict[str, int] = {}

    def add(self, frame: pl.DataFrame) -> None:
        """Raises ConfigurationError when a column that is needed was dropped."""
        if SOURCE not in frame.columns:
            raise ConfigurationError(
                f"stage {self._stage!r} dropped the column {SOURCE!r}; keep it, the watermark of "
                f"{self._column!r} is measured per source partition"
            )
        if self._column not in frame.columns:
            raise ConfigurationError(
                f"stage {self._stage!r} yields no column {self._column!r}, the event time that its "
                f"source names; it yields {', '.join(frame.columns)}"
            )
        seen = (
            frame.lazy()
            .filter(pl.col(self._column).is_not_null())
            .group_by(pl.col(SOURCE).struct.field("partition"))
            .agg(pl.col(self._column).max().dt.epoch("ms"))
            .collect()
        )
        for partition, event_time_ms in seen.iter_rows():  # A row per partition, not per record.
            name = f"{self._source}/{partition}"
            self.latest_ms[name] = max(event_time_ms, self.latest_ms.get(name, event_time_ms))
