"""A visit to a key: the user's function gets its rows of the epoch, then its timers fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec

import polars as pl

from sluice.declaration.checkpointed_function import SubtaskContext
from sluice.declaration.keyed_process import Context, KeyedProcessFunction, OnTimerContext, Row
from sluice.errors import CheckpointDeclined, ConfigurationError, StageFailed
from sluice.subtask.operators.declared_types import frame_of_rows, row_values
from sluice.subtask.operators.keyed_timers import KeyTimers, instant_of
from sluice.subtask.operators.operator import EpochTime

P = ParamSpec("P")


class Visitor:
    """A visitor of keys, one after the other, that collects the results of all."""

    def __init__(
        self,
        uid: str,
        function: KeyedProcessFunction,
        result: pl.Schema,
        event_time: str | None,
        time: EpochTime,
    ) -> None:
        self._uid = uid
        self._function = function
        self._result = result
        self._event_time = event_time
        self._watermark_before = instant_of(time.previous_watermark_ms)
        self._watermark = instant_of(time.watermark_ms)
        self._processing_time = instant_of(time.processing_time_ms)
        self._rows: list[tuple[object, ...]] = []

    def visit(self, key: Row, rows: Iterable[Row], timers: KeyTimers) -> None:
        """Call the function with *rows* in their order, then with its timers until none is due."""
        for row in rows:
            context = Context(
                key=key,
                timestamp=None if self._event_time is None else row[self._event_time],
                current_watermark=self._watermark_before,
                processing_time=self._processing_time,
                timers=timers,
            )
            self._collect(key, self._function.process, row, context)
        while (due := timers.next_due()) is not None:
            timestamp, domain = due
            firing = OnTimerContext(
                key=key,
                timestamp=timestamp,
                current_watermark=self._watermark,
                processing_time=self._processing_time,
                timers=timers,
                time_domain=domain,
            )
            self._collect(key, self._function.on_timer, timestamp, firing)

    def prepare(self, context: SubtaskContext) -> None:
        """Call the function before the barrier, behind the last key."""
        self._collect(None, self._function.prepare_snapshot_pre_barrier, context)

    def tell(self, call: Callable[[SubtaskContext], None], context: SubtaskContext) -> None:
        """Call a method of the function that yields nothing."""
        before = len(self._rows)
        self._collect(None, call, context)
        if len(self._rows) > before:
            name = getattr(call, "__name__", "its function")
            raise ConfigurationError(
                f"stage {self._uid!r}: {name}() yields rows; yield them in process(), on_timer() "
                "or prepare_snapshot_pre_barrier()"
            )

    def results(self) -> pl.DataFrame:
        """The results of all visits, in their order."""
        return frame_of_rows(
            self._rows, self._result, f"stage {self._uid!r}: its function's result"
        )

    def _collect(
        self,
        key: Row | None,
        call: Callable[P, Iterable[Row] | None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call the user's code, of a *key* or of none, and collect each row once it is yielded.

        Raises:
            ConfigurationError: a row has other columns than declared, or state was misused.
            CheckpointDeclined: the user's code raised it.
            StageFailed: the user's code raised something else.
        """
        name = getattr(call, "__name__", "its function")
        where = f"stage {self._uid!r}" + ("" if key is None else f", key {key}")
        try:
            for row in call(*args, **kwargs) or ():
                self._rows.append(row_values(row, self._result, f"what {name}() yields"))
        except CheckpointDeclined:
            raise
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error
        except Exception as error:
            raise StageFailed(
                f"{where}: {name}() raised {type(error).__name__}: {error}"
            ) from error
