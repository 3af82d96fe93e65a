"""What a keyed stage reads of one input where no JVM has to look at it: files, straight to columns.

A ``Feed`` is built by the stage's driver and read by its workers.  There is none for an input that
says in more than plain SQL what it wants, or whose keys only Spark can hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import polars as pl
import pyarrow as pa

from sluice.connectors.parquet import ParquetSource
from sluice.core.handles import SegmentHandle
from sluice.core.plan import Slice
from sluice.nodes import Input
from sluice.runtime.chunks import chunks
from sluice.runtime.key_hash import can_hash, key_hash
from sluice.runtime.operators.computed import Computed, to_compute
from sluice.runtime.plain_sql import PlainSql
from sluice.runtime.plain_steps import NotPlainError, PlainSteps, column, condition, plain_steps
from sluice.runtime.state.cache import SegmentCache
from sluice.runtime.state.segments import HASH
from sluice.steps import Projection, computing
from sluice.storage.open import StoreLocation


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """``shares`` are the slices that each of the readers takes."""

    source: ParquetSource
    shares: tuple[tuple[Slice, ...], ...]

    def read(self, share: int, paths: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Batches of these columns or their fields, each with the partition that it is of."""
        for piece in self.shares[share]:
            for batch in self.source.read(piece, paths):
                yield piece.partition, batch


@dataclass(frozen=True, slots=True)
class StreamRows:
    """The segments of a stream, verified as they are read."""

    location: StoreLocation
    shares: tuple[tuple[SegmentHandle, ...], ...]
    schema: bytes  # Arrow's, serialized.

    def read(self, share: int, paths: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
        cache = SegmentCache(self.location)
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        for handle in self.shares[share]:
            for batch in cache.open(handle).cast(schema).select(list(paths)).to_batches():
                yield "", batch


@dataclass(frozen=True, kw_only=True)
class Feed:
    """``hashed`` are the columns that decide a row's subtask; ``wanted`` what the stage's
    aggregates are declared with; ``columns`` what the subtasks get, None for everything.
    """

    rows: ParquetRows | StreamRows
    schema: bytes  # Of all the columns that there are, Arrow's, serialized.
    given: Input
    hashed: tuple[str, ...]
    wanted: tuple[Computed, ...] = ()
    columns: tuple[str, ...] | None = None

    def __getstate__(self) -> dict[str, object]:
        """What travels to a worker: not what was computed here."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def is_possible(self) -> bool:
        """Whether everything that the declaration asks of this input is plain."""
        try:
            schema = self.prepared_schema
        except NotPlainError:
            return False
        return all(name in schema and can_hash(schema[name]) for name in self.hashed)

    @cached_property
    def prepared_schema(self) -> pl.Schema:
        """The columns of ``frames``."""
        prepared = self.prepared(self._raw.to_frame())
        return prepared.with_columns(pl.lit(None, pl.Int64()).alias(HASH)).schema

    def narrowed(self, columns: Sequence[str]) -> Feed:
        return replace(self, columns=tuple(columns))

    def frames(self, share: int) -> Iterator[pl.DataFrame]:
        """The rows of one reader's share, hashed."""
        columns = self.prepared_schema.names() if self.columns is None else self.columns
        for chunk in chunks(batch for _, batch in self.rows.read(share, self.paths)):
            rows = self.prepared(chunk)
            yield rows.with_columns(pl.Series(HASH, key_hash(rows, self.hashed))).select(columns)

    def of_event_time(self) -> Feed:
        """The same input with nothing but its event time, of rows that are filtered out as well."""
        given = self.given
        assert given.event_time is not None
        renamed = {new: name for name, new in given.renames.items()}
        steps = computing(given.steps, renamed.get(given.event_time, given.event_time))
        alone = replace(given, steps=steps, keys=(), key_expressions={})
        return replace(self, given=alone, hashed=(), wanted=(), columns=(given.event_time,))

    def times_ms(self, share: int) -> dict[str, tuple[int, int]]:
        """The least and the largest event time per partition."""
        at = pl.col(self.given.event_time or "")
        times: dict[str, tuple[int, int]] = {}
        for partition, batch in self.rows.read(share, self.paths):
            rows = self.prepared(_frame(batch))
            least, most = rows.select(
                at.min().dt.epoch("ms").alias("least"), at.max().dt.epoch("ms").alias("most")
            ).row(0)
            if most is not None:
                before = times.get(partition, (least, most))
                times[partition] = min(least, before[0]), max(most, before[1])
        return times

    @cached_property
    def _raw(self) -> pl.Schema:
        return _frame(pa.ipc.read_schema(pa.py_buffer(self.schema)).empty_table()).schema

    @cached_property
    def _steps(self) -> PlainSteps:
        """What the declaration does to the rows, up to the names by which the stage knows them."""
        renames = self.given.renames
        if not any(isinstance(step, Projection) for step in self.given.steps):
            for name in self._raw:
                column(name, self._raw)
        names = plain_steps(self.given.steps, self._raw).schema.names()
        if len({renames.get(name, name) for name in names}) < len(names):
            raise NotPlainError("two columns of one name")
        renaming = Projection(tuple(f"{name} AS {renames.get(name, name)}" for name in names))
        steps = (*self.given.steps, renaming) if set(renames) & set(names) else self.given.steps
        return plain_steps(steps, self._raw)

    @cached_property
    def _computed(self) -> dict[str, PlainSql]:
        """What the keys and the aggregates add to these."""
        known = self._steps.schema
        if any(name in known for name in self.given.key_expressions):
            raise NotPlainError("a key hides a column")
        keys = {name: column(text, known) for name, text in self.given.key_expressions.items()}
        return keys | {
            one.column: (condition if one.is_condition else column)(one.sql, known)
            for one in to_compute(self.wanted, [*known, *keys])
        }

    @cached_property
    def _needed(self) -> tuple[list[str], PlainSteps, set[str]]:
        """The columns that somebody looks at, how they are made, and of what."""
        wanted = self._steps.schema.names()
        if self.columns is not None:
            looked_at = {
                path.partition(".")[0] for one in self._computed.values() for path in one.reads
            }
            looked_at |= {*self.columns, *self.hashed}
            wanted = [name for name in wanted if name in looked_at]
        return (wanted, *self._steps.narrowed(wanted))

    @cached_property
    def paths(self) -> list[str]:
        """What has to be read, in the order of the columns that there are."""
        paths = self._needed[2]
        order = {name: place for place, name in enumerate(self._raw)}
        whole = {path for path in paths if "." not in path}
        parts = {path for path in paths if path.partition(".")[0] not in whole}
        wanted = sorted(whole | parts, key=lambda path: (order[path.partition(".")[0]], path))
        return wanted or [next(iter(self._raw))]  # How many rows there are matters all the same.

    def prepared(self, rows: pl.DataFrame) -> pl.DataFrame:
        """*rows* of the columns that were read, as the operator knows them."""
        wanted, steps, _ = self._needed
        return (
            steps.apply(rows)
            .select(wanted)
            .with_columns(item.expression.alias(name) for name, item in self._computed.items())
        )


def _frame(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame
