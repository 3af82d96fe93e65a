"""Stand-ins: a declared pipeline with given rows as sources, and tables as sinks.

All else is as declared, except for the checkpoints: they are taken by the run, one at a time,
aligned and exactly once.  Master hooks, which connect to places outside, are left out.

Given rows become one Arrow table per epoch, with the declared columns, and are read as a source of
one partition, which grows from epoch to epoch.  The columns are known, without a connection, of a
``GivenSourceSpec``: text, JSON and CSV files, Kafka and Nexmark, and one's own.  Those of Parquet
and Avro files, PostgreSQL and Iceberg are the columns of the given rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from difflib import get_close_matches
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from sluice.connectors.columns import is_list
from sluice.connectors.offsets import OffsetSource, Readable
from sluice.core.configuration import CheckpointingMode
from sluice.core.plan import Slice
from sluice.declaration.checkpointing import Checkpointing
from sluice.declaration.nodes import SinkNode, SourceNode
from sluice.declaration.params import ENVIRONMENT_PREFIX, Param, resolve_params
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import (
    MALFORMED_COLUMN,
    RAW,
    RECORD,
    WEIGHT,
    CheckingSinkSpec,
    Filler,
    GivenSourceSpec,
    MovableSinkSpec,
    Sink,
    SinkSpec,
    Source,
    TextDecoding,
    takes_rows_back,
)
from sluice.errors import ConfigurationError
from sluice.job.places import check_tables
from sluice.sinks import FilesTable
from sluice.store.open import StoreLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTANT = pa.timestamp("us", tz="UTC")
_WIDER = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_LARGEST = pa.decimal128(20, 0)  # For unsigned integers of 64 bits.
MIDNIGHT = time()
PARTITION = "rows"  # The only one of a source of given rows.
_OURS = (RECORD, MALFORMED_COLUMN, RAW)

_Column = TypeVar("_Column", pa.Array, pa.ChunkedArray)

# A list of dicts or of texts; a frame of Polars, pandas, PyArrow or Spark; or a list of those.
Rows: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class RowsByEpoch:
    """The rows of a source by epoch; ``is_cut``: they were given by epoch.

    ``decoding`` is the format of rows that were given as texts.  Those of a place that ``decodes``
    texts have columns for malformed ones, also if none was given as a text.
    """

    chunks: tuple[pa.Table, ...]
    is_cut: bool
    decoding: TextDecoding | None = None
    decodes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredRows:
    """The form in which rows may be given.

    ``schema`` is None where any columns may be.  ``fills`` are columns that the place adds to rows
    without them.  With a column ``text``, rows may be given as texts: ``text_schema`` is that of
    the place's rows then, and ``decoding`` their format.
    """

    schema: pa.Schema | None = None
    fills: Mapping[str, Filler] = field(default_factory=dict[str, Filler])
    decoding: TextDecoding | None = None
    text: str = ""
    text_schema: pa.Schema | None = None


@dataclass(frozen=True, slots=True)
class StandIns:
    """The pipeline to run in place of the declared one; ``sources`` are its own, by uid."""

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
    pipeline: Pipeline, rows: Mapping[str, RowsByEpoch], bounded: frozenset[str], folder: Path
) -> StandIns:
    """*pipeline* over *rows*; *bounded* are the sources that end, *folder* is for files.

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


def _given(node: SourceNode, rows: RowsByEpoch, place: Path, *, is_bounded: bool) -> Given:
    if node.is_table:
        return GivenTable(node.uid, place, rows.chunks, rows.decoding, rows.decodes)
    return GivenRows(
        node.uid,
        place,
        rows.chunks,
        is_bounded,
        rows.decoding,
        rows.decodes,
        takes_rows_back=takes_rows_back(node.spec),
    )


@dataclass(eq=False, slots=True)
class GivenRows:
    """A ``SourceSpec``.  ``chunks`` are the rows of each epoch; ``arrive`` makes them readable.

    One that is ``bounded`` ends with its last chunk.  All rows are in one Arrow file at ``path``,
    so a slice always has the same rows, also after more have arrived.
    """

    uid: str
    path: Path
    chunks: Sequence[pa.Table]
    bounded: bool
    decoding: TextDecoding | None = None
    decodes: bool = False
    takes_rows_back: bool = False  # As the declared source does; of those given none is.
    _epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        with pa.OSFile(str(self.path), "wb") as file, pa.ipc.new_file(file, self.schema) as writer:
            for chunk in self.chunks:
                writer.write_table(chunk)

    @property
    def schema(self) -> pa.Schema:
        return self.chunks[0].schema

    @property
    def params(self) -> tuple[Param, ...]:
        return ()

    def arrive(self, epoch: int) -> None:
        """Make the chunks of the first *epoch* epochs readable, and no others."""
        self._epoch = epoch

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> GivenSource:  # noqa: ARG002 - of a spec
        ends = [0, *accumulate(chunk.num_rows for chunk in self.chunks)]
        return GivenSource(
            uid=self.uid,
            path=self.path,
            columns=self.schema,
            arrived=ends[min(self._epoch, len(self.chunks))],
            ends=self.bounded and self._epoch >= len(self.chunks),
            text_decoding=self.decoding,
            decodes=self.decodes,
            takes_rows_back=self.takes_rows_back,
        )


@dataclass(frozen=True, slots=True)
class GivenSource(OffsetSource):
    """The first *arrived* rows of the file at *path*; with *ends* no more will follow."""

    uid: str
    path: Path
    columns: pa.Schema
    arrived: int
    ends: bool
    text_decoding: TextDecoding | None
    decodes: bool
    takes_rows_back: bool

    @property
    def bounded(self) -> bool:
        return self.ends

    @property
    def name(self) -> str:
        return f"the rows given for {self.uid!r}"

    @property
    def decoding(self) -> TextDecoding | None:
        how = self.text_decoding
        if how is None or not self.takes_rows_back:
            return how
        return replace(how, keeps=(*how.keeps, WEIGHT))

    def schema(self) -> pa.Schema:
        """The schema, with columns for malformed rows where the place has any."""
        malformed = [pa.field(name, pa.string()) for name in (MALFORMED_COLUMN, RAW)]
        weight = [pa.field(WEIGHT, pa.int8())] if self.takes_rows_back else []
        return pa.schema([*self.columns, *(malformed if self.decodes else ()), *weight])

    def readable(self) -> Mapping[str, Readable]:
        return {PARTITION: Readable(0, self.arrived)}

    def read(
        self,
        piece: Slice,
        columns: Sequence[str] | None = None,  # noqa: ARG002 - they are in memory
    ) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self.path)) as file:
            rows = pa.ipc.open_file(file).read_all()
        rows = rows.slice(piece.start, piece.records)
        for column in self.schema():
            if column.name not in rows.column_names:
                value = pa.scalar(1 if column.name == WEIGHT else None, column.type)
                rows = rows.append_column(column, pa.repeat(value, rows.num_rows))
        yield from rows.to_batches()


@dataclass(eq=False, slots=True)
class GivenTable:
    """A ``SourceSpec`` of a table to look up, which each epoch has anew.  See ``GivenRows``."""

    uid: str
    path: Path
    chunks: Sequence[pa.Table]
    decoding: TextDecoding | None = None
    decodes: bool = False
    _version: GivenRows = field(init=False)

    def __post_init__(self) -> None:
        self.path.mkdir()
        self.arrive(1)

    @property
    def params(self) -> tuple[Param, ...]:
        return ()

    def arrive(self, epoch: int) -> None:
        """Make the table that of *epoch*, or the last one given before it."""
        number = min(epoch, len(self.chunks))
        rows = [self.chunks[number - 1]]
        path = self.path / f"{number:05d}"
        self._version = GivenRows(self.uid, path, rows, True, self.decoding, self.decodes)  # noqa: FBT003
        self._version.arrive(1)

    def open(self, params: Mapping[str, str], endpoint_url: str | None) -> Source:
        return self._version.open(params, endpoint_url)


Given = GivenRows | GivenTable


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
    for one in _unset(needed, given, environment):
        meaning = f" ({one.help})" if one.help else ""
        raise ConfigurationError(
            f'parameter {one.name!r} is not set{meaning}; pass params={{"{one.name}": ...}}'
        )


def _unset(
    declared: tuple[Param, ...], given: Mapping[str, str], environment: Mapping[str, str]
) -> Iterator[Param]:
    """The required parameters that have no value."""
    for one in declared:
        is_set = one.name in given or ENVIRONMENT_PREFIX + one.name.upper() in environment
        if one.required and one.default is None and not is_set:
            yield one


def check_sinks_apart(
    pipeline: Pipeline, given: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """Raises ConfigurationError if two declared sinks write one table.

    A place whose parameter has no value is told apart by the parameter.
    """
    unset = (one.name for one in _unset(pipeline.params, given, environment))
    stand_ins = {name: f"memory://{name}" for name in unset}
    params = resolve_params(pipeline.params, {**stand_ins, **given}, pipeline.uid)
    check_tables(pipeline, params, StoreLocation("memory://run_local"))


def source_rows(
    uid: str, given: Rows, declared: DeclaredRows, event_time: str | None
) -> RowsByEpoch:
    """The rows *given*, with the columns that are declared.

    Raises:
        ConfigurationError: they have other columns, or an unknown form; the message names the row
            and the column.
    """
    parts, is_cut = _parts(uid, given)
    is_text = bool(declared.text) and any(map(_is_text, parts))
    if is_text:
        declared = replace(declared, schema=declared.text_schema)
        parts = [_lines(uid, part, declared.text) for part in parts]
    schema = declared.schema or _schema_of(uid, parts, event_time)
    if declared.schema is not None:
        _check_columns(uid, parts, schema, declared)
    chunks, first = [], 0
    for number, part in enumerate(parts, 1):
        where = f"source {uid!r}" + (f" in epoch {number}" if len(parts) > 1 else "")
        chunks.append(_conformed(part, schema, declared, where, first))
        first += chunks[-1].num_rows
    decoding = declared.decoding
    if is_text:
        return RowsByEpoch(tuple(chunks), is_cut, decoding)
    return RowsByEpoch(tuple(chunks), is_cut, decodes=decoding is not None)


def _parts(uid: str, given: Rows) -> tuple[list[Any], bool]:
    """The parts, lists of dicts or texts and Arrow tables, and whether there is one per epoch."""
    if not isinstance(given, list | tuple):
        return [_table(uid, given)], False
    if not given or isinstance(given[0], Mapping | str | bytes):
        return [_listed(uid, given)], False
    return [
        _listed(uid, one) if isinstance(one, list | tuple) else _table(uid, one) for one in given
    ], True


def _listed(uid: str, rows: Sequence[Any]) -> list[Any]:
    are_texts = bool(rows) and isinstance(rows[0], str | bytes)
    for number, row in enumerate(rows, 1):
        if not isinstance(row, str | bytes if are_texts else Mapping):
            raise ConfigurationError(
                f"row {number} of source {uid!r} is {row!r}; a row is a dict of its columns"
            )
    return list(rows)


def _table(uid: str, frame: Rows) -> pa.Table:
    if hasattr(frame, "toArrow"):  # Spark's.
        return frame.toArrow()
    if type(frame).__module__.startswith("pandas"):
        return pa.Table.from_pandas(frame, preserve_index=False)
    if type(frame).__name__ == "LazyFrame":
        frame = frame.collect()
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.table(frame)
    raise ConfigurationError(
        f"the rows of source {uid!r} are {type(frame).__name__!r}; give a list of dicts, a frame, "
        "or a list of one of these for each epoch"
    )


def _is_text(part: Any) -> bool:  # noqa: ANN401 - see Rows
    return isinstance(part, list) and bool(part) and isinstance(part[0], str | bytes)


def _lines(uid: str, part: Any, column: str) -> list[dict[str, Any]]:  # noqa: ANN401 - see Rows
    if isinstance(part, list) and (not part or _is_text(part)):
        return [{column: text} for text in part]
    raise ConfigurationError(
        f"some rows of source {uid!r} are texts, and others are not; give texts in every epoch, or "
        "in none"
    )


def _check_columns(
    uid: str, parts: Sequence[Any], schema: pa.Schema, declared: DeclaredRows
) -> None:
    """Refuse columns that are not declared, and declared ones that no row has."""
    names = list(dict.fromkeys(name for part in parts for name in _names(part)))
    if unknown := [name for name in names if name not in schema.names]:
        close = get_close_matches(unknown[0], schema.names, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ConfigurationError(
            f"the rows of source {uid!r} have a column {unknown[0]!r}{hint}; it is declared with "
            f"{', '.join(schema.names)}"
        )
    if not any(map(len, parts)):
        return
    if missing := [name for name in schema.names if name not in (*names, *declared.fills)]:
        raise ConfigurationError(
            f"no row of source {uid!r} has the column {missing[0]!r}, with which it is declared; "
            "give it, as None where a row has none"
        )


def _names(part: Any) -> list[str]:  # noqa: ANN401 - see Rows
    if isinstance(part, pa.Table):
        return list(part.column_names)
    return list(dict.fromkeys(name for row in part for name in row))


def _schema_of(uid: str, parts: Sequence[Any], event_time: str | None) -> pa.Schema:
    """The union of the columns of all epochs."""
    tables = [part for part in parts if isinstance(part, pa.Table)]
    listed = [row for part in parts if not isinstance(part, pa.Table) for row in part]
    try:
        known = [table.schema for table in tables]
        if listed:
            known.append(_inferred(uid, listed))
        whole = pa.unify_schemas(known or [pa.schema([])], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigurationError(
            f"the rows of source {uid!r} make no table: {error}; give one type for each column"
        ) from error
    if not whole.names:
        raise ConfigurationError(
            f"nothing says which columns source {uid!r} has, as there is no row of it; give an "
            'empty frame with columns, such as polars.DataFrame(schema={"id": polars.Int64})'
        )
    columns = []
    for column in whole:
        dtype = as_spark_has_it(column.type)
        is_instant = column.name == event_time and pa.types.is_timestamp(dtype)
        columns.append(pa.field(column.name, INSTANT if is_instant else dtype))
    return pa.schema(columns)


def _inferred(uid: str, rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """The columns by first appearance, each with the type that holds all of its values."""
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.schema(
        [pa.field(name, _type_of(uid, name, [row.get(name) for row in rows])) for name in names]
    )


def _type_of(uid: str, name: str, values: Sequence[Any]) -> pa.DataType:
    try:
        return pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        known = pa.null()
        for row, value in enumerate(values, 1):
            try:
                known = pa.array(values[:row]).type
            except (pa.ArrowInvalid, pa.ArrowTypeError):
                raise ConfigurationError(
                    f"row {row} of source {uid!r} has {value!r} in column {name!r}, which is "
                    f"{known} in the rows before; give one type for each column"
                ) from error
        raise


def _conformed(
    part: Any,  # noqa: ANN401 - see Rows
    schema: pa.Schema,
    declared: DeclaredRows,
    where: str,
    first: int,
) -> pa.Table:
    count, names = len(part), set(_names(part))
    columns = []
    for column in schema:
        name, dtype = column.name, column.type
        if name not in names and name in declared.fills:
            columns.append(declared.fills[name](first, count).cast(dtype))
        elif name not in names:
            columns.append(pa.nulls(count, dtype))
        elif isinstance(part, pa.Table):
            columns.append(cast_column(part[name], dtype, name, where))
        else:
            columns.append(arrow_column([row.get(name) for row in part], dtype, name, where))
    return pa.Table.from_arrays(columns, schema=schema)


def check_cut(*, epochs: int | None, rows_per_epoch: int | None) -> None:
    """Raises ConfigurationError when both are given."""
    if epochs is not None and rows_per_epoch is not None:
        raise ConfigurationError(
            "epochs= and rows_per_epoch= both say where rows are cut; give one of the two"
        )


def cut(rows: RowsByEpoch, *, epochs: int | None, rows_per_epoch: int | None) -> RowsByEpoch:
    """*rows*, cut into *epochs* equal parts or by *rows_per_epoch*, unless given by epoch."""
    if rows.is_cut or (epochs is None and rows_per_epoch is None):
        return rows
    (whole,) = rows.chunks
    count = whole.num_rows
    if epochs is not None:
        bounds = [count * epoch // epochs for epoch in range(epochs + 1)]
    else:
        assert rows_per_epoch is not None
        bounds = [*range(0, max(count, 1), rows_per_epoch), count]
    return cut_at(rows, bounds[1:-1])


def cut_at(rows: RowsByEpoch, bounds: Sequence[int]) -> RowsByEpoch:
    """*rows*, of one chunk, cut before the rows of these ascending numbers."""
    (whole,) = rows.chunks
    ends = [0, *bounds, whole.num_rows]
    pieces = tuple(whole.slice(start, end - start) for start, end in pairwise(ends))
    return replace(rows, chunks=pieces)


def arrow_column(values: Sequence[Any], dtype: pa.DataType, name: str, where: str) -> pa.Array:
    """*values* as a column; instants and days may be ISO texts, in UTC without a time zone.

    Raises:
        ConfigurationError: a value is of another type; it names the row, from 1, and the column.
    """
    values = [_parsed(value, dtype) for value in values]
    try:
        return _array(values, dtype)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError):
        for row, value in enumerate(values, 1):
            if not _fits(value, dtype):
                raise ConfigurationError(
                    f"row {row} of {where} has {value!r} in column {name!r}, which is "
                    f"{dtype}; give a value of that type, or None"
                ) from None
        raise


def _parsed(value: Any, dtype: pa.DataType) -> Any:  # noqa: ANN401 - a user's value
    if not isinstance(value, str):
        return value
    try:
        if pa.types.is_timestamp(dtype):
            return datetime.fromisoformat(value)
        if pa.types.is_date(dtype):
            return date.fromisoformat(value)
    except ValueError:
        pass  # The error names its row.
    return value


def _array(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Raises ValueError, or Arrow's error, for a value of which Arrow would drop a part: a time of
    day in a column of days, a fraction, or a part of what is nested.
    """
    if pa.types.is_date(dtype) and any(
        isinstance(v, datetime) and v.time() != MIDNIGHT for v in values
    ):
        raise ValueError
    found = pa.array(values, dtype)
    if pa.types.is_integer(dtype) or pa.types.is_float32(dtype) or pa.types.is_nested(dtype):
        with suppress(pa.ArrowNotImplementedError):
            if (given := _as_inferred(values)) is not None:
                _cast_exactly(given, dtype)
            elif any(map(_is_cut, values, found.to_pylist())):
                raise ValueError
    return found


def _is_cut(given: Any, kept: Any) -> bool:  # noqa: ANN401 - a user's value
    """Whether a fraction in *given* is not in what was *kept* of it."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        return any(_is_cut(given[name], of) for name, of in kept.items() if name in given)
    if isinstance(given, list | tuple) and isinstance(kept, list):
        return any(map(_is_cut, given, kept))
    return isinstance(given, float) and isinstance(kept, int) and given != kept


def _as_inferred(values: Sequence[Any]) -> pa.Array | None:
    """*values* in the type that holds all of them; None if there is none."""
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


def _fits(value: Any, dtype: pa.DataType) -> bool:  # noqa: ANN401 - a user's value
    try:
        _array([value], dtype)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError):
        return False
    return True


def cast_column(
    column: pa.ChunkedArray, dtype: pa.DataType, name: str, where: str
) -> pa.ChunkedArray:
    """*column* as *dtype*, without loss.

    Raises:
        ConfigurationError: a value does not fit; it names the row, if it is known.
    """
    if pa.types.is_dictionary(column.type):
        plain = as_spark_has_it(column.type)
        decoded = [chunk.dictionary.cast(plain).take(chunk.indices) for chunk in column.chunks]
        column = pa.chunked_array(decoded, plain)
    try:
        return _cast_exactly(column, dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        for row in range(len(column)):
            one = column.slice(row, 1)
            try:
                _cast_exactly(one, dtype)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise ConfigurationError(
                    f"row {row + 1} of {where} has {one[0].as_py()!r} in column {name!r}, which is "
                    f"{column.type} where {dtype} is declared; cast it, or correct the value"
                ) from None
        raise


def _cast_exactly(given: _Column, dtype: pa.DataType) -> _Column:
    """*given* as *dtype*; Arrow makes a day of any time of it, true of any number but 0, and an
    infinity of a double that no float is.
    """
    found = given.cast(dtype)
    columns = ([given], [found]) if isinstance(given, pa.Array) else (given.chunks, found.chunks)
    if not all(map(_is_kept, *columns)):
        raise pa.ArrowInvalid("a part of a value would be lost")
    return found


def _is_kept(given: pa.Array, found: pa.Array) -> bool:
    """Whether *found*, which Arrow cast *given* to, has all that was in it."""
    of, to, types = given.type, found.type, pa.types
    if is_list(of) and is_list(to):
        return _is_kept(given.flatten(), found.flatten())
    if types.is_struct(of) and types.is_struct(to):
        kept = dict(zip((field.name for field in to), found.flatten(), strict=True))
        return all(
            _is_kept(one, kept[field.name]) if field.name in kept else one.null_count == len(one)
            for field, one in zip(of, given.flatten(), strict=True)
        )
    if types.is_float32(to) and types.is_float64(of):
        return bool(pc.is_finite(given).equals(pc.is_finite(found)))
    if types.is_decimal(to) and types.is_floating(of):
        # By its digits: Arrow's double of a decimal may be the one beside the nearest.
        return bool(found.cast(pa.string()).cast(of).equals(given))
    is_number = types.is_integer(of) or types.is_floating(of)
    may_be_cut = (
        (types.is_date(to) and types.is_timestamp(of))
        or (types.is_boolean(to) and is_number)
        or (types.is_floating(to) and types.is_decimal(of))
    )
    return not may_be_cut or bool(found.cast(of).equals(given))


def as_spark_has_it(dtype: pa.DataType) -> pa.DataType:
    """Spark's type that holds all values of *dtype*; instants are microseconds in UTC."""
    types = pa.types
    if types.is_dictionary(dtype):
        return as_spark_has_it(dtype.value_type)
    if types.is_null(dtype) or types.is_large_string(dtype) or types.is_string_view(dtype):
        return pa.string()
    if types.is_large_binary(dtype) or types.is_binary_view(dtype):
        return pa.binary()
    if types.is_timestamp(dtype):
        return pa.timestamp("us") if dtype.tz is None else INSTANT
    if types.is_date64(dtype):
        return pa.date32()
    if types.is_uint64(dtype):
        return _LARGEST
    if types.is_struct(dtype):
        return pa.struct([field.with_type(as_spark_has_it(field.type)) for field in dtype])
    if is_list(dtype):
        return pa.list_(as_spark_has_it(dtype.value_type))
    if types.is_map(dtype):
        return pa.map_(as_spark_has_it(dtype.key_type), as_spark_has_it(dtype.item_type))
    return _WIDER.get(dtype, dtype)


def declared_rows(node: SourceNode, params: Mapping[str, str], spark: SparkSession) -> DeclaredRows:
    """The form of the source's rows; ConfigurationError when an option for it is wrong."""
    form = node.spec.given_form(params) if isinstance(node.spec, GivenSourceSpec) else None
    if form is None:
        return DeclaredRows()
    read, how = _plain(form.schema), form.decoding
    if how is None:
        return DeclaredRows(schema=read, fills=form.fills, text=form.text, text_schema=read)
    kept = [read.field(name) for name in how.keeps]
    return DeclaredRows(
        schema=pa.schema([*_decoded(how, spark), *kept]),
        fills=form.fills,
        decoding=replace(how, has_header=False),
        text=how.column,
        text_schema=read,
    )


def _decoded(how: TextDecoding, spark: SparkSession) -> pa.Schema:
    """The Arrow schema of the columns in a text."""
    from sluice.spark.versions import arrow_schema

    return _plain(arrow_schema(spark.createDataFrame([], how.schema).schema))


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            pa.field(column.name, as_spark_has_it(column.type))
            for column in schema
            if column.name not in _OURS
        ]
    )


def captured(node: SinkNode) -> SinkNode:
    """The sink *node* as a table in the folder of the run.

    One that can lie there, as a ``FilesTable``, is used as it is.
    """
    spec = node.spec
    if isinstance(spec, MovableSinkSpec):
        return replace(node, spec=spec.below_root())
    return replace(node, spec=CapturedSink(spec))


@dataclass(frozen=True, slots=True)
class CapturedSink:
    """A ``SinkSpec``: a table in place of the sink ``declared``, with its upsert key and changelog.

    Its checks that need no connection are made, too, as Kafka's and PostgreSQL's: that a row can be
    encoded as a message, and that the database can hold a value.
    """

    declared: SinkSpec

    @property
    def params(self) -> tuple[Param, ...]:
        return ()

    @property
    def upsert_key(self) -> tuple[str, ...]:
        return self.declared.upsert_key

    @property
    def changelog(self) -> bool:
        return self.declared.changelog

    def open(
        self,
        uid: str,
        params: Mapping[str, str],  # noqa: ARG002 - of a spec
        default: StoreLocation,
    ) -> Sink:
        spec = self.declared
        checks = spec.row_checks(uid) if isinstance(spec, CheckingSinkSpec) else None
        table = FilesTable(upsert_key=self.upsert_key, compact_when_files=0)
        return table.open_with_checks(uid, default, checks)
