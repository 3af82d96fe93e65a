"""A table as a source: its rows by a column of growing numbers, the offsets.

One partition, the table.  A row is read once and for ever: who changes or deletes it afterwards is
not heard of.  Numbers need not be dense; an epoch begins at the next row that there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from sluice.connectors.offsets import OffsetSource, Readable
from sluice.connectors.postgres.late_commits import lagging_end, parsed_fence, settled
from sluice.connectors.postgres.reading import BATCH_BYTES, copy_out, parsed
from sluice.connectors.postgres.select import Selection, filter_sql, select
from sluice.connectors.postgres.sequence import sequence_of, table_oid
from sluice.connectors.postgres.server import (
    Connection,
    Server,
    TableName,
    check_encoding,
    one_row,
)
from sluice.connectors.source import Barrier, SourcePosition, offsets_by_partition
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

# A trigger waits so long for those who write; most transactions are over in a fraction of it.
PATIENCE_S = 2.0
WHOLE_NUMBERS = ("int2", "int4", "int8")


@dataclass(frozen=True, slots=True)
class Wait:
    """Read what no running transaction can add to; wait *patience_s* for those that run."""

    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True)
class Lag:
    """Trust that who writes commits within *lag* of the timestamp in *column*."""

    column: str
    lag: timedelta


@dataclass(frozen=True, slots=True)
class Cut:
    """What can be read now.  A bounded source is not at its end before the cut is settled."""

    there: Readable
    version: str = ""
    is_settled: bool = True


@dataclass(frozen=True, slots=True)
class PostgresTableSource(OffsetSource):
    """See ``OffsetSource``; ``cut`` is set while an epoch is planned, and not otherwise."""

    server: Server
    table: TableName
    offset_column: str
    columns: tuple[str, ...]
    late_commits: Wait | Lag
    where: str = ""
    is_bounded: bool = False
    batch_bytes: int = BATCH_BYTES
    cut: Cut | None = None

    @property
    def bounded(self) -> bool:
        return self.is_bounded

    @property
    def name(self) -> str:
        return f"table {self.table}"

    def schema(self) -> pa.Schema:
        with self.server.session(read_only=True) as connection:
            return self._selection(connection).schema()

    def readable(self) -> Mapping[str, Readable]:
        cut = self._cut(None) if self.cut is None else self.cut
        return {str(self.table): cut.there}

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """See ``Source.plan``.  A cap counts numbers, and so is one on rows."""
        seen = offsets_by_partition(position).get(str(self.table))
        cut = self._cut(seen)
        if seen is not None and until is None and cut.there.first > seen.offset:
            # No row has these numbers, and none will.
            position = tuple(
                replace(one, offset=cut.there.first) if one is seen else one for one in position
            )
        barrier = OffsetSource.plan(
            replace(self, cut=cut),
            position,
            max_records=max_records,
            parallelism=parallelism,
            until=until,
        )
        return replace(
            barrier,
            position=tuple(replace(one, version=cut.version) for one in barrier.position),
            exhausted=barrier.exhausted and cut.is_settled,
        )

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        with self.server.session(read_only=True) as connection:
            selection = self._selection(connection)
            schema = selection.schema()
            query = selection.sql(self.where, piece.start, piece.end)
            for csv in copy_out(connection, query, self.batch_bytes):
                yield parsed(csv, selection, schema)

    def _selection(self, connection: Connection) -> Selection:
        table_oid(connection, self.table)
        check_encoding(connection, self.server.who)
        offset = select(connection, self.table, self.offset_column, (self.offset_column,))
        if offset.columns[0].type not in WHOLE_NUMBERS:
            raise ConfigurationError(
                f"offset column {self.offset_column!r} of {self.table} is of type "
                f"{offset.columns[0].shown}; it has to be a bigint, integer or smallint"
            )
        return select(connection, self.table, self.offset_column, self.columns)

    def _cut(self, seen: PartitionOffset | None) -> Cut:
        with self.server.session(read_only=True) as connection:
            self._selection(connection)
            offset = seen.offset if seen is not None else 0
            match self.late_commits:
                case Wait(patience_s):
                    cut = self._waited(connection, seen, patience_s)
                case Lag(column, lag):
                    cut = self._lagging(connection, offset, column, lag)
                case _:
                    assert_never(self.late_commits)
            if cut.there.end <= offset:
                return cut
            return replace(cut, there=self._from_next_row(connection, offset, cut.there.end))

    def _waited(
        self, connection: Connection, seen: PartitionOffset | None, patience_s: float
    ) -> Cut:
        offset = seen.offset if seen is not None else 0
        sequence = sequence_of(connection, self.table, self.offset_column)
        behind_all = sequence.last_value(connection) + 1
        fence = settled(
            connection,
            sequence,
            parsed_fence(seen.version) if seen is not None else None,
            is_pinned=self.is_bounded,
            patience_s=patience_s,
        )
        end = max(offset, fence.verified)
        if behind_all < end:  # Numbers began anew: say so, or read what there is of them.
            end = min(end, behind_all)
        return Cut(Readable(min(offset, end), end), str(fence), fence.is_settled)

    def _lagging(self, connection: Connection, offset: int, column: str, lag: timedelta) -> Cut:
        old, newest = lagging_end(connection, self.table, self.offset_column, column, lag)
        # Who deletes all that was read leaves an empty table: then nobody can say.
        end = newest if 0 < newest < offset else max(old, offset)
        return Cut(Readable(min(offset, end), end), is_settled=newest <= end)

    def _from_next_row(self, connection: Connection, offset: int, end: int) -> Readable:
        from psycopg.sql import SQL, Identifier, Literal

        column = Identifier(self.offset_column)
        if offset == 0:
            least = one_row(
                connection, SQL("SELECT min({}) FROM {}").format(column, self.table.sql)
            )[0]
            if least is not None and least < 0:
                raise ConfigurationError(
                    f"table {self.table} has rows with an {self.offset_column} below 0, as {least};"
                    " offsets are 0 or more"
                )
        # Without parameters, for the condition may have a "%".
        found = connection.execute(
            SQL(
                "SELECT {0} FROM {1} WHERE {0} >= {2} AND {0} < {3}{4} ORDER BY {0} LIMIT 1"
            ).format(column, self.table.sql, Literal(offset), Literal(end), filter_sql(self.where))
        ).fetchone()
        return Readable(end if found is None else found[0], end)
