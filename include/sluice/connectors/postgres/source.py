"""A table as a source: its rows in the order of a growing column, the offset.

The table is one partition.  A row is read once; later updates and deletes are not noticed.  Numbers
may have gaps; an epoch begins at the next row that exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from sluice.connectors.contracts.offsets import OffsetSource, Readable
from sluice.connectors.contracts.source import Barrier, SourcePosition, offsets_by_partition
from sluice.connectors.postgres.identity import TableIdentity, identity_of, parsed_identity
from sluice.connectors.postgres.late_commits import lagging_end, parsed_fence, settled
from sluice.connectors.postgres.reading import BATCH_BYTES, copy_out, parsed
from sluice.connectors.postgres.select import Selection, filter_sql, select
from sluice.connectors.postgres.sequence import (
    check_numbered,
    sequence_of,
    sequence_oid,
    table_oid,
)
from sluice.connectors.postgres.server import (
    Connection,
    Server,
    TableName,
    check_encoding,
    one_row,
)
from sluice.core.plan import PartitionOffset, Slice
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

# The time that a trigger waits for writers; most transactions are much shorter.
PATIENCE_S = 2.0
WHOLE_NUMBERS = ("int2", "int4", "int8")


@dataclass(frozen=True, slots=True)
class Wait:
    """Read rows below all running transactions' numbers; wait *patience_s* for these to end."""

    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True)
class Lag:
    """Rely on writers to commit within *lag* of the timestamp in *column*."""

    column: str
    lag: timedelta


@dataclass(frozen=True, slots=True)
class Cut:
    """The readable part of the table, and its ``Fence``.

    A bounded source has not ended before the cut is settled.
    """

    there: Readable
    fence: str = ""
    is_settled: bool = True


@dataclass(frozen=True, slots=True)
class Seen:
    """The version in a position: the table's identity, and the fence up to which it was read."""

    offset: int = 0
    table: TableIdentity | None = None
    fence: str = ""

    @classmethod
    def at(cls, position: PartitionOffset | None) -> Seen:
        if position is None:
            return cls()
        table, _, fence = position.version.partition(" ")
        return cls(position.offset, parsed_identity(table), fence)


@dataclass(frozen=True, slots=True)
class PostgresTableSource(OffsetSource):
    """See ``OffsetSource``; ``cut`` is set only while an epoch is planned."""

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
        cut = self._cut(Seen()) if self.cut is None else self.cut
        return {str(self.table): cut.there}

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """See ``Source.plan``.  A cap counts numbers; there are never more rows than numbers."""
        before = offsets_by_partition(position).get(str(self.table))
        seen = Seen.at(before)
        cut = self._cut(seen)
        # The identity of the table is compared in ``_check_same``.
        position = tuple(
            replace(one, version=cut.there.version) if one is before else one for one in position
        )
        if before is not None and until is None and cut.there.first > seen.offset:
            # No row has these numbers, and none will.
            position = tuple(
                replace(one, offset=cut.there.first) if one.partition == before.partition else one
                for one in position
            )
        barrier = OffsetSource.plan(
            replace(self, cut=cut),
            position,
            max_records=max_records,
            parallelism=parallelism,
            until=until,
        )
        self._check_same(
            seen.table, parsed_identity(cut.there.version), f"was read to {seen.offset}"
        )
        version = f"{cut.there.version} {cut.fence}"
        return replace(
            barrier,
            position=tuple(replace(one, version=version) for one in barrier.position),
            exhausted=barrier.exhausted and cut.is_settled,
        )

    def read(self, piece: Slice) -> Iterator[pa.RecordBatch]:
        with self.server.session(read_only=True) as connection:
            # From here on the table is locked against ALTER and TRUNCATE.
            selection = self._selection(connection)
            if piece.version:
                planned = parsed_identity(piece.version)
                self._check_same(planned, self._identity(connection), "was planned")
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

    def _identity(self, connection: Connection) -> TableIdentity:
        oid = table_oid(connection, self.table)
        return identity_of(connection, oid, sequence_oid(connection, oid, self.offset_column))

    def _check_same(self, before: TableIdentity | None, now: TableIdentity, when: str) -> None:
        if before is not None and now.is_other_than(before):
            raise ConfigurationError(
                f"table {self.table} was truncated or made anew after it {when}, so its numbers "
                "may mean other rows; begin anew, too"
            )

    def _cut(self, seen: Seen) -> Cut:
        with self.server.session(read_only=True) as connection:
            self._selection(connection)
            check_numbered(connection, self.table, self.offset_column)
            offset = seen.offset
            match self.late_commits:
                case Wait(patience_s):
                    cut = self._waited(connection, seen, patience_s)
                case Lag(column, lag):
                    cut = self._lagging(connection, offset, column, lag)
                case _:
                    assert_never(self.late_commits)
            there = cut.there
            if there.end > offset:
                there = self._from_next_row(connection, offset, there.end)
            version = str(self._identity(connection))
            return replace(cut, there=replace(there, version=version))

    def _waited(self, connection: Connection, seen: Seen, patience_s: float) -> Cut:
        offset = seen.offset
        sequence = sequence_of(connection, self.table, self.offset_column)
        behind_all = sequence.last_value(connection) + 1
        fence = settled(
            connection,
            sequence,
            parsed_fence(seen.fence),
            is_pinned=self.is_bounded,
            patience_s=patience_s,
        )
        end = max(offset, fence.verified)
        if behind_all < end:  # Numbers began anew: raise an error, or read the ones that exist.
            end = min(end, behind_all)
        return Cut(Readable(min(offset, end), end), str(fence), fence.is_settled)

    def _lagging(self, connection: Connection, offset: int, column: str, lag: timedelta) -> Cut:
        old, newest = lagging_end(connection, self.table, self.offset_column, column, lag)
        # A table whose rows were all deleted cannot be told from one that began anew.
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
        # Without parameters, as the condition may contain "%".
        found = connection.execute(
            SQL(
                "SELECT {0} FROM {1} WHERE {0} >= {2} AND {0} < {3}{4} ORDER BY {0} LIMIT 1"
            ).format(column, self.table.sql, Literal(offset), Literal(end), filter_sql(self.where))
        ).fetchone()
        return Readable(end if found is None else found[0], end)
