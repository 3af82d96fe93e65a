"""A table as a source: its rows in the order of a growing column, the offset.

The table is one partition.  A row is read once; later updates and deletes are not noticed.  Numbers
may have gaps; an epoch begins at the next row that exists.

An epoch must end where no row before its end will be committed later.  But a row takes its number
of the sequence when it is inserted, and is visible when its transaction commits; so a smaller
number may appear after a larger one.  There are two answers.

``Wait``, which is sound: an INSERT locks the table that it names (ROW EXCLUSIVE, PostgreSQL's
table-level locks) before it takes a number, and holds the lock until its transaction has ended and
its rows are visible.  It may name any table that takes numbers of the sequence, or one above or
below it: a partitioned table locks a partition only when a row with its number gets there.  So a
running transaction with a number up to the sequence's present one holds the lock of one of these:

    1. through = the sequence's last value
    2. writers = the transactions that hold the lock, or wait for it, read after 1
    3. when all of them have ended, every row up to ``through`` is visible, or never will be

This is a ``ReadFence``.  It is kept in the position, so that transactions that always overlap delay
reading without stopping it.  It needs numbers that are taken in order, by the INSERT itself: a
sequence without CACHE, and no application that fetches numbers beforehand.

``Lag``, which relies on a declared bound: every writing transaction commits within *lag* of the
timestamp of its rows.  Rows that are twice as old can be read: the newest of them took its number
at most one lag after its timestamp, and a transaction that took a smaller one before that commits
at most another lag later.

What was read is known by the table's identity and by a place in the server's log, before which all
of it was committed.  A server that was promoted without that part of the log, a server that was put
back, and another one may have other rows of these numbers, now or later: they are refused, unless a
person declares that nothing is missing.  A promotion that lost nothing of it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, assert_never

from sluice.connectors.offsets import OffsetSource, Readable
from sluice.connectors.postgres.copy import (
    BATCH_BYTES,
    Selection,
    copy_out,
    filter_sql,
    parsed_csv,
    select,
)
from sluice.connectors.postgres.server import (
    NO_WAL,
    Connection,
    Server,
    TableIdentity,
    TableName,
    WalPosition,
    check_encoding,
    check_numbered,
    check_row_security,
    history_of,
    identity_of,
    one_row,
    parsed_identity,
    parsed_wal,
    sequence_of,
    table_oid,
    wal_position_of,
)
from sluice.connectors.postgres.server import (
    Sequence as DatabaseSequence,
)
from sluice.core.plan import PartitionOffset, Slice
from sluice.declaration.places import Barrier, SourcePosition, offsets_by_partition
from sluice.errors import BEGIN_ANEW, ConfigurationError, ProtocolViolation

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE_S = 2.0  # The time that a trigger waits for writers; most transactions are much shorter.
POLL_S = 0.01
WHOLE_NUMBERS = ("int2", "int4", "int8")
PREPARED = "-1/"  # The prefix of a prepared transaction that outlived a server's restart.


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
class TableCut:
    """The readable part of the table, whose version is the ``TableLineage``, and the ``ReadFence``.

    A bounded source has not ended before the cut is settled.
    """

    readable: Readable
    fence: str = ""
    is_settled: bool = True


@dataclass(frozen=True, slots=True)
class TableLineage:
    """The identity of what was read: of which table, and before which place in its log."""

    table: TableIdentity
    wal: WalPosition | None

    @property
    def name(self) -> str:
        """The server, the database and the timeline: what ``continues`` of a declaration names."""
        return f"{self.table.database}@{self.wal.timeline if self.wal is not None else NO_WAL}"

    def __str__(self) -> str:
        return f"{self.table} {self.wal or NO_WAL}"


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The version in a position: the lineage, and the fence up to which the table was read."""

    offset: int = 0
    lineage: TableLineage | None = None
    fence: str = ""

    @classmethod
    def at(cls, position: PartitionOffset | None) -> ReadPosition:
        if position is None:
            return cls()
        lineage, fence = _parsed(position.version)
        return cls(position.offset, lineage, fence)


def _parsed(version: str) -> tuple[TableLineage, str]:
    table, _, rest = version.partition(" ")
    wal, _, fence = rest.partition(" ")
    return TableLineage(parsed_identity(table), parsed_wal(wal)), fence


@dataclass(frozen=True, slots=True)
class PostgresTableSource(OffsetSource):
    """See ``OffsetSource``; ``cut`` is set only while an epoch is planned."""

    server: Server
    table: TableName
    offset_column: str
    columns: tuple[str, ...]
    late_commits: Wait | Lag
    where: str = ""
    bounded: bool = False
    continues: str = ""
    batch_bytes: int = BATCH_BYTES
    cut: TableCut | None = None

    @property
    def name(self) -> str:
        return f"table {self.table}"

    def schema(self) -> pa.Schema:
        with self.server.session(read_only=True) as connection:
            return self._selection(connection).schema()

    def readable(self) -> Mapping[str, Readable]:
        cut = self._cut(ReadPosition()) if self.cut is None else self.cut
        return {str(self.table): cut.readable}

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
        read = ReadPosition.at(before)
        cut = self._cut(read)
        if before is not None:
            # The identity of the table is compared in ``_cut``.
            now = replace(before, version=cut.readable.version)
            if until is None and cut.readable.first > read.offset:
                # No row has the numbers in between, and none will.
                now = replace(now, offset=cut.readable.first)
            position = tuple(now if entry is before else entry for entry in position)
        barrier = OffsetSource.plan(
            replace(self, cut=cut),
            position,
            max_records=max_records,
            parallelism=parallelism,
            until=until,
        )
        return replace(
            barrier,
            position=tuple(
                replace(one, version=f"{self._lineage_at(one, read, cut)} {cut.fence}")
                for one in barrier.position
            ),
            exhausted=barrier.exhausted and cut.is_settled,
        )

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        with self.server.session(read_only=True) as connection:
            # From here on the table is locked against ALTER and TRUNCATE.
            selection = self._selection(connection)
            if piece.version:
                planned, _ = _parsed(piece.version)
                self._check_continued(connection, planned, self._lineage(connection), "was planned")
            selection = selection.narrowed(columns)
            schema = selection.schema()
            query = selection.sql(self.where, piece.start, piece.end)
            for csv in copy_out(connection, query, self.batch_bytes):
                yield parsed_csv(csv, selection, schema)

    def _lineage(self, connection: Connection) -> TableLineage:
        # In this order: the place lies behind all that this session has seen.
        table = identity_of(connection, self.table, self.offset_column)
        return TableLineage(table, wal_position_of(connection))

    def _lineage_at(self, now: PartitionOffset, read: ReadPosition, cut: TableCut) -> TableLineage:
        """The lineage for a position: the place moves only if more is read.

        So a server may be lost with all that it did since without one row that was read.
        """
        lineage, _ = _parsed(cut.readable.version)
        if read.lineage is None or read.lineage.wal is None or now.offset != read.offset:
            return lineage
        is_same = read.lineage.name == lineage.name
        return replace(lineage, wal=read.lineage.wal) if is_same else lineage

    def _check_continued(
        self, connection: Connection, before: TableLineage, now: TableLineage, when: str
    ) -> None:
        """Check that the server has all that was read or planned at *before*.

        Raises:
            ConfigurationError: it has another table, or may lack commits.
        """
        if now.table.is_other_than(before.table):
            raise ConfigurationError(
                f"table {self.table} was truncated or made anew after it {when}, so its numbers "
                f"may mean other rows; {BEGIN_ANEW}, too"
            )
        if self.continues == before.name != now.name:
            return
        declare = (
            f"restore a checkpoint from before, or "
            f"{BEGIN_ANEW}, or, if you know that no row of the "
            f"table is missing, declare PostgresTable(..., continues={before.name!r})"
        )
        if now.table.database != before.table.database:
            raise ConfigurationError(
                f"table {self.table} {when} in database {before.table.database} (system "
                f"identifier and oid) and is in {now.table.database} now, whose numbers may mean "
                f"other rows; {declare}"
            )
        if before.wal is None or now.wal is None:
            return
        history: Mapping[int, int] | None = {}
        if now.wal.timeline != before.wal.timeline:
            history = history_of(self.server, connection, now.wal.timeline)
        moved = f"the server was on timeline and place {before.wal} when table {self.table} {when}"
        if history is None:
            raise ConfigurationError(
                f"{moved} and is on timeline {now.wal.timeline} now, and may lack rows that were "
                "read; GRANT EXECUTE ON FUNCTION pg_read_file(text) to the role, or give it "
                f"REPLICATION, so that the timeline's history can be read; or {declare}"
            )
        if not before.wal.is_on(now.wal, history):
            left = history.get(before.wal.timeline)
            place = now.wal if left is None else WalPosition(before.wal.timeline, left)
            raise ConfigurationError(
                f"{moved}, and what it is now has its log to {place} only: it failed over to a "
                f"server that lacks commits, or was put back, so numbers that were read may mean "
                f"other rows; {declare}"
            )

    def _selection(self, connection: Connection) -> Selection:
        table_oid(connection, self.table)
        check_encoding(connection, self.server.who)
        check_row_security(connection, self.table, "which would never be read")
        selected = select(connection, self.table, self.offset_column, (self.offset_column,))
        (offset,) = selected.columns
        if offset.type not in WHOLE_NUMBERS:
            raise ConfigurationError(
                f"offset column {self.offset_column!r} of {self.table} is of type "
                f"{offset.shown}; it has to be a bigint, integer or smallint"
            )
        return select(connection, self.table, self.offset_column, self.columns)

    def _cut(self, read: ReadPosition) -> TableCut:
        with self.server.session(read_only=True) as connection:
            self._selection(connection)
            check_numbered(connection, self.table, self.offset_column)
            before = read.lineage
            if before is not None and before.name != self._lineage(connection).name:
                # The fence is of another server: its writers, and numbers that may be lost.
                read = replace(read, fence="")
            match self.late_commits:
                case Wait(patience_s):
                    cut = self._waited(connection, read, patience_s)
                case Lag(column, lag):
                    cut = self._lagging(connection, read.offset, column, lag)
                case _:
                    assert_never(self.late_commits)
            readable = cut.readable
            if readable.end > read.offset:
                readable = self._from_next_row(connection, read.offset, readable.end)
            lineage = self._lineage(connection)
            if before is not None:
                self._check_continued(connection, before, lineage, f"was read to {read.offset}")
            return replace(cut, readable=replace(readable, version=str(lineage)))

    def _waited(self, connection: Connection, read: ReadPosition, patience_s: float) -> TableCut:
        sequence = sequence_of(connection, self.table, self.offset_column)
        behind_all = sequence.last_value(connection) + 1
        fence = wait_for_writers(
            connection,
            sequence,
            parsed_fence(read.fence),
            is_pinned=self.bounded,
            patience_s=patience_s,
        )
        # A sequence that began anew ends before the fence: ``plan`` fails, or reads what exists.
        end = min(max(read.offset, fence.verified), behind_all)
        return TableCut(Readable(min(read.offset, end), end), str(fence), fence.is_settled)

    def _lagging(
        self, connection: Connection, offset: int, lag_column: str, lag: timedelta
    ) -> TableCut:
        from psycopg.sql import SQL, Identifier, Literal

        (told,) = select(connection, self.table, self.offset_column, (lag_column,)).columns
        if told.type != "timestamptz":
            raise ConfigurationError(
                f"lag_column {lag_column!r} of {self.table} is {told.shown}, which has no time "
                "zone, so it does not say how old a row is; make it timestamptz, or name one that "
                "is"
            )
        # Without parameters, as a name may contain "%".
        column, at = Identifier(self.offset_column), Identifier(lag_column)
        old = connection.execute(
            SQL(
                "SELECT {0} FROM {1} WHERE {2} <= clock_timestamp() - {3} ORDER BY {0} DESC LIMIT 1"
            ).format(column, self.table.sql, at, Literal(2 * lag))
        ).fetchone()
        newest = SQL("SELECT coalesce(max({}) + 1, 0) FROM {}").format(column, self.table.sql)
        (newest_end,) = one_row(connection, newest)
        old_end = old[0] + 1 if old is not None else 0
        # A table whose rows were all deleted cannot be distinguished from one that began anew.
        end = newest_end if 0 < newest_end < offset else max(old_end, offset)
        return TableCut(Readable(min(offset, end), end), is_settled=newest_end <= end)

    def _from_next_row(self, connection: Connection, offset: int, end: int) -> Readable:
        from psycopg.sql import SQL, Identifier, Literal

        column = Identifier(self.offset_column)
        if offset == 0:
            minimum = SQL("SELECT min({}) FROM {}").format(column, self.table.sql)
            (smallest,) = one_row(connection, minimum)
            if smallest is not None and smallest < 0:
                raise ConfigurationError(
                    f"table {self.table} has rows with an {self.offset_column} below 0, as "
                    f"{smallest}; offsets are 0 or more"
                )
        # Without parameters, as the condition may contain "%".
        found = connection.execute(
            SQL(
                "SELECT {0} FROM {1} WHERE {0} >= {2} AND {0} < {3}{4} ORDER BY {0} LIMIT 1"
            ).format(column, self.table.sql, Literal(offset), Literal(end), filter_sql(self.where))
        ).fetchone()
        return Readable(end if found is None else found[0], end)


@dataclass(frozen=True, slots=True)
class ReadFence:
    """All rows below ``verified`` are visible; up to ``through``, when ``writers`` have ended."""

    verified: int
    through: int
    writers: frozenset[str]

    @property
    def is_settled(self) -> bool:
        return not self.writers

    def __str__(self) -> str:
        return f"{self.verified} {self.through} {','.join(sorted(self.writers))}".rstrip()


def parsed_fence(version: str) -> ReadFence | None:
    """The fence that ``str`` wrote; None for no text.  Raises ProtocolViolation for others."""
    if not version:
        return None
    try:
        verified, through, *writers = version.split(" ")
        return ReadFence(
            int(verified), int(through), frozenset(writers[0].split(",") if writers else ())
        )
    except ValueError:
        raise ProtocolViolation(f"the position's version {version!r} is no fence") from None


def wait_for_writers(
    connection: Connection,
    sequence: DatabaseSequence,
    before: ReadFence | None,
    *,
    is_pinned: bool,
    patience_s: float,
) -> ReadFence:
    """Wait for the writers of *before*, then for the present ones, at most *patience_s* in total.

    With *is_pinned* the fence stays at the numbers that were taken when it was first set.
    """
    deadline = time.monotonic() + patience_s
    verified = before.verified if before is not None else 0
    fence = before if before is not None and (before.writers or is_pinned) else None
    is_of_now = False
    while True:
        if fence is None:
            through = sequence.last_value(connection)
            fence = ReadFence(verified, through, _writers(connection, sequence))
            is_of_now = True
        elif fence.writers:
            now = _writers(connection, sequence)
            fence = ReadFence(verified, fence.through, remaining(fence.writers, now))
        if fence.is_settled:
            verified = max(verified, fence.through + 1)
            if is_of_now or is_pinned:
                return ReadFence(verified, fence.through, frozenset())
            fence = None
            continue
        if time.monotonic() > deadline:
            return fence
        time.sleep(POLL_S)


# An INSERT may name the table, any other that takes its numbers from the sequence by a default or
# as its owner, and whatever they inherit from or are inherited by.  No snapshot is involved.
_WRITERS = """
WITH RECURSIVE tree AS (
    SELECT relation FROM (
        SELECT %(table)s::oid AS relation
        UNION SELECT refobjid FROM pg_depend WHERE classid = 'pg_class'::regclass
            AND objid = %(sequence)s AND refclassid = 'pg_class'::regclass
            AND deptype IN ('a', 'i')
        UNION SELECT f.adrelid FROM pg_depend d JOIN pg_attrdef f ON f.oid = d.objid
            WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
            AND d.refobjid = %(sequence)s) takers
    UNION SELECT near.relation FROM tree, LATERAL (
        SELECT inhparent FROM pg_inherits WHERE inhrelid = tree.relation
        UNION ALL SELECT inhrelid FROM pg_inherits WHERE inhparent = tree.relation
    ) near(relation))
SELECT DISTINCT virtualtransaction FROM pg_locks JOIN tree USING (relation)
WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def _writers(connection: Connection, sequence: DatabaseSequence) -> frozenset[str]:
    oids = {"table": sequence.table_oid, "sequence": sequence.oid}
    return frozenset(name for (name,) in connection.execute(_WRITERS, oids))


def remaining(waited_for: Iterable[str], now: frozenset[str]) -> frozenset[str]:
    """The writers of *waited_for* that run *now*; a server's restart renames prepared ones."""
    return (now & frozenset(waited_for)) | {name for name in now if name.startswith(PREPARED)}
