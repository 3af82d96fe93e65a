"""A table as a source of its rows and of all their changes, by logical decoding.

The table is one partition, whose offsets are places in the server's log (LSN).  A place cuts the
transactions by where their commits are logged, so an epoch has whole transactions, in the order in
which they committed.

The first epoch is the table as it was when the slot was made.  A stage reads the table later, and
undoes what committed in between: a transaction that its snapshot sees is decoded, too, so what it
added is taken back, and what it took is added.  So these rows are the same ones however often they
are read, without a snapshot that somebody has to hold.

A reader decodes through a copy of the slot that ends with its session: readers do not wait for one
another, and the slot stays where it is.  It moves to the end of an epoch when that is published.
So the log is there for what begins at the newest completed checkpoint; what begins before is
refused.

The plugin ``pgoutput``'s messages are read in protocol version 1, with values as text: see "Logical
Replication Message Formats" of PostgreSQL's documentation.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sluice.connectors.postgres.copy import (
    BATCH_BYTES,
    CAST,
    Selection,
    copy_out,
    parsed_csv,
    select,
)
from sluice.connectors.postgres.server import (
    Connection,
    Server,
    TableName,
    WalPosition,
    check_encoding,
    check_row_security,
    history_of,
    one_row,
    table_oid,
    wal_position_of,
)
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.declaration.places import (
    RECORD,
    WEIGHT,
    Barrier,
    SourceDefaults,
    SourcePosition,
    offsets_by_partition,
)
from sluice.errors import BEGIN_ANEW, ConfigurationError, StoreUnavailable
from sluice.protocol.records import checksum

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE_S = 2.0  # For commits that the server has made and not flushed; it does so within 0.6 s.
POLL_S = 0.01
# Of the log that others fill; behind them an epoch without rows lets the slot follow.
IDLE_BYTES = 64 << 20
FEWEST_TOLD = 1000  # Messages of a first decoding, which costs about as much as fewer.
FLUSHING_S = 60
MAKING_S = 60  # For the transactions that run when a slot is made: it waits for their ends.

_FLUSHED = "SELECT pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint"
# Where the newest page has its header alone, the end is before that: it is written with a record.
_END = """
SELECT CASE WHEN at % file = 40 THEN at - 40 WHEN at % page = 24 THEN at - 24 ELSE at END
FROM (SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint AS at,
    (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_block_size') AS page,
    (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_segment_size') AS file) AS log
"""
_ANEW = f"{BEGIN_ANEW}, with a slot of another name"


def lsn(number: int) -> str:
    """The place as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class Found:
    """The table as a session found it; ``version`` says which one it is, with these columns as they
    were defined, in which files, how it is published, and the timeline of the server's log.
    """

    oid: int
    wal: WalPosition
    selection: Selection
    columns: Mapping[str, tuple[int, int]]  # Those selected, each with its type's oid and modifier.
    version: str


@dataclass(frozen=True, slots=True)
class Counted:
    """Decoded transactions: those that an epoch takes, and whether more follow."""

    rows: int
    end: int
    is_rest: bool


@dataclass(frozen=True, slots=True)
class PostgresChangesSource(SourceDefaults):
    """See ``Source``, and ``declared_source.PostgresChanges``."""

    server: Server
    table: TableName
    slot: str
    publication: str
    columns: tuple[str, ...] = ()
    batch_bytes: int = BATCH_BYTES
    idle_bytes: int = IDLE_BYTES
    patience_s: float = PATIENCE_S

    @property
    def bounded(self) -> bool:
        return False

    def schema(self) -> pa.Schema:
        with self.server.session(read_only=True) as connection:
            return _weighed(self._found(connection).selection)

    def check_place(self) -> None:
        """See ``Source.check_place``; the slot may be missing, as the first plan makes it."""
        with self.server.session(read_only=True) as connection:
            self._found(connection)
            self._slot_at(connection)

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,  # noqa: ARG002 - a server decodes in one session
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """See ``Source.plan``.  A transaction is read whole, however many records an epoch has."""
        assert until is None, "a source that takes rows back has no induced barriers"
        name = str(self.table)
        before = offsets_by_partition(position).get(name)
        with self.server.session(read_only=True) as connection:
            found = self._found(connection)
            if before is None:
                return self._first(connection, found)
            self._check_version(connection, found, before.version, before.offset)
            now = _flushed(connection, self.patience_s)
            with self._decoding(connection, before.offset) as copy:
                counted = self._counted(connection, found, copy, before.offset, now, max_records)
        is_due = counted.end - before.offset >= self.idle_bytes
        after = PartitionOffset(
            partition=name,
            offset=counted.end,
            records=before.records + (counted.rows or int(is_due)),
            version=found.version,
        )
        behind = (now[0] - counted.end) if counted.is_rest else 0
        return Barrier(
            position=(after,),
            slices=_slices(before, after),
            exhausted=False,
            is_backlog=counted.is_rest,
            waiting=(name,) if counted.is_rest else (),
            unread=Unread(
                partitions=int(counted.is_rest),
                records=None if counted.is_rest else 0,
                size_bytes=behind,
            ),
        )

    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        locked = self.table if piece.start == 0 else None
        with self.server.session(read_only=True, locked=locked) as connection:
            found = self._found(connection)
            self._check_version(connection, found, piece.version, piece.end)
            selection = found.selection.narrowed(columns)
            number = piece.start
            parts = self._base if piece.start == 0 else self._changed
            for csv, weights in parts(connection, found, selection, piece):
                rows = parsed_csv(csv, selection, selection.schema())
                yield _numbered(rows, number, weights)
                number += rows.num_rows

    def notify_complete(self, group: str, position: SourcePosition) -> None:  # noqa: ARG002
        """Move the slot to what the newest completed checkpoint has read."""
        (read,) = position
        with self.server.session() as connection:
            at = self._slot_at(connection)
            if at is not None and at < read.offset:
                advance = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"
                one_row(connection, advance, self.slot, lsn(read.offset))

    def _first(self, connection: Connection, found: Found) -> Barrier:
        at = self._slot_at(connection)
        if at is None:
            limit = "SELECT set_config('statement_timeout', %s, true)"
            (before_it,) = one_row(connection, "SHOW statement_timeout")
            one_row(connection, limit, f"{MAKING_S}s")
            make = "SELECT lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
            one_row(connection, make, self.slot)
            one_row(connection, limit, before_it)
            at = self._slot_at(connection)
            assert at is not None, "it has just been made"
        from psycopg.sql import SQL

        count = SQL("SELECT count(*) FROM ONLY {}").format(self.table.sql)
        (rows,) = one_row(connection, count)
        name = str(self.table)
        before = PartitionOffset(partition=name, offset=0, records=0, version=found.version)
        after = PartitionOffset(
            partition=name, offset=at, records=max(rows, 1), version=found.version
        )
        return Barrier(position=(after,), slices=_slices(before, after), exhausted=False)

    def _check_server(self, connection: Connection) -> None:
        level, is_standby, may_replicate = one_row(
            connection,
            "SELECT current_setting('wal_level'), pg_is_in_recovery(),"
            " (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)",
        )
        who = self.server.who
        if is_standby:
            raise ConfigurationError(
                f"{who}: the address leads to a standby, whose log ends elsewhere; give the "
                "primary's address"
            )
        if level != "logical":
            raise ConfigurationError(
                f"{who}: the server has wal_level = {level}, so its log does not have what changed "
                "in rows; ALTER SYSTEM SET wal_level = logical, and restart it (of a managed "
                "server: its setting of logical replication)"
            )
        if not may_replicate:
            role = connection.info.user
            raise ConfigurationError(
                f"{who}: role {role!r} may not decode the log; ALTER ROLE {role} REPLICATION"
            )

    def _found(self, connection: Connection) -> Found:
        """The table, of which all that is to be read is in its rows and in the publication."""
        self._check_server(connection)
        oid = table_oid(connection, self.table)
        check_encoding(connection, self.server.who)
        check_row_security(connection, self.table, "which the log has all the same")
        kind, identity, files, system, database = one_row(
            connection,
            "SELECT relkind::text, relreplident::text, relfilenode,"
            " (SELECT system_identifier FROM pg_control_system()),"
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
            " FROM pg_class WHERE oid = %s",
            oid,
        )
        if kind == "p":
            raise ConfigurationError(
                f"table {self.table} is partitioned, and its log has its partitions' rows; name "
                "these, each as a source"
            )
        if identity != "f":
            raise ConfigurationError(
                f"the log has no whole rows before a change of table {self.table}, so they cannot "
                f"be taken back; ALTER TABLE {self.table} REPLICA IDENTITY FULL"
            )
        selection = self._selection(connection)
        attributes = connection.execute(
            "SELECT attname, atttypid, atttypmod, attnum, xmin::text FROM pg_attribute"
            " WHERE attrelid = %s AND attname = ANY(%s) ORDER BY attname",
            [oid, [one.name for one in selection.columns]],
        ).fetchall()
        columns = {name: (type_, modifier) for name, type_, modifier, *_ in attributes}
        published = self._published(connection, oid, [*columns])
        digest = _digest(one[:4] for one in attributes)
        altered = _digest(one[4:] for one in attributes)
        wal = wal_position_of(connection)
        assert wal is not None, "it is no standby"
        table = f"{system}/{database}/{oid}"
        version = f"{table} {digest} {files}/{altered} {published} {wal.timeline}"
        return Found(oid, wal, selection, columns, version)

    def _selection(self, connection: Connection) -> Selection:
        if casts := [one for one in self.columns if CAST.fullmatch(one)]:
            raise ConfigurationError(
                f"column {casts[0]!r} of {self.table} is cast, and the log has values as they are; "
                "name the column alone, and cast it in a select behind the source"
            )
        selection = select(connection, self.table, "", self.columns)
        for one in selection.columns:
            readable = not one.is_array
            try:
                one.arrow()
            except ConfigurationError:
                readable = False
            if not readable:
                digits = " without a precision" if one.type == "numeric" else ""
                raise ConfigurationError(
                    f"column {one.name!r} of {self.table} is of type {one.shown}{digits}, which is "
                    "not read from the log; leave it out of `columns`, or ALTER its type"
                )
        return selection

    def _published(self, connection: Connection, oid: int, columns: Sequence[str]) -> str:
        """A text that tells the publication of the table from one that was another for a while.

        Raises:
            ConfigurationError: it does not have all that the table's log is read for.
        """
        found = connection.execute(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate,"
            " pubviaroot AND (SELECT relispartition FROM pg_class WHERE oid = %s),"
            " concat_ws('.', p.oid, p.xmin, (SELECT r.oid FROM pg_publication_rel r"
            " WHERE prpubid = p.oid AND prrelid = %s)) FROM pg_publication p WHERE pubname = %s",
            [oid, oid, self.publication],
        ).fetchone()
        named = f"publication {self.publication!r}"
        if found is None:
            raise ConfigurationError(
                f"there is no {named} in database {connection.info.dbname!r}; CREATE PUBLICATION "
                f"{self.publication} FOR TABLE {self.table}, before the slot {self.slot!r} is made"
            )
        *kinds, is_in_its_root, version = found
        if not all(kinds):
            raise ConfigurationError(
                f"{named} leaves out some kinds of changes; ALTER PUBLICATION {self.publication} "
                "SET (publish = 'insert, update, delete, truncate')"
            )
        table = connection.execute(
            "SELECT to_jsonb(t) FROM pg_publication_tables t"
            " WHERE pubname = %s AND schemaname = %s AND tablename = %s",
            [self.publication, self.table.schema, self.table.name],
        ).fetchone()
        if table is None:
            add = f"ADD TABLE {self.table}"
            fix = "SET (publish_via_partition_root = false)" if is_in_its_root else add
            raise ConfigurationError(
                f"{named} does not have table {self.table}; ALTER PUBLICATION {self.publication} "
                f"{fix}, and {_ANEW}"
            )
        if table[0].get("rowfilter"):
            raise ConfigurationError(
                f"{named} leaves out rows of table {self.table} (WHERE); publish all, and filter "
                "behind the source"
            )
        listed = table[0].get("attnames")
        if missing := [name for name in columns if listed is not None and name not in listed]:
            raise ConfigurationError(
                f"{named} leaves out column {missing[0]!r} of table {self.table}; publish it, or "
                "leave it out of `columns`"
            )
        return str(version)

    def _check_version(
        self, connection: Connection, found: Found, version: str, offset: int
    ) -> None:
        """Check that what was read or planned to *offset* is continued by what is there now."""
        table, columns, form, published, timeline = version.split(" ")
        now, columns_now, form_now, published_now, _ = found.version.split(" ")
        read = f"table {self.table} was read to {lsn(offset)}"
        if table != now:
            raise ConfigurationError(
                f"{read} as {table} (system identifier and oids) and is {now} now, with other "
                f"changes; {_ANEW}"
            )
        if columns != columns_now:
            raise ConfigurationError(
                f"{read} with other columns than it has now, so its rows cannot be taken back as "
                f"they were; declare columns=(...) with those that it had, as they were, or {_ANEW}"
            )
        # VACUUM FULL has new files alone, SET DEFAULT another definition alone.
        if all(map(str.__ne__, form.split("/"), form_now.split("/"))):
            raise ConfigurationError(
                f"{read}, and has been rewritten since by ALTER TABLE, whose new values the log "
                f"lacks, so its rows cannot be taken back as they were; {_ANEW}"
            )
        if published != published_now:
            raise ConfigurationError(
                f"{read}, and publication {self.publication!r} was altered or made anew since, so "
                f"changes may be missing; {_ANEW}"
            )
        before = WalPosition(int(timeline), offset)
        history: Mapping[int, int] = {}
        if before.timeline != found.wal.timeline:
            history = history_of(self.server, connection, found.wal.timeline) or {}
        if not before.is_on(found.wal, history):
            raise ConfigurationError(
                f"{read} on timeline {timeline} of the server, whose log is now {found.wal} and "
                "lacks what was read: it failed over to a server that lacks commits, or was put "
                f"back; restore a checkpoint from before, or {_ANEW}"
            )

    def _slot_at(self, connection: Connection, copy: str = "") -> int | None:
        """The place from which the slot, or its *copy*, decodes; None if there is none."""
        row = connection.execute(
            "SELECT to_jsonb(s), database = current_database(),"
            " pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint"
            " FROM pg_replication_slots s WHERE slot_name = %s",
            [copy or self.slot],
        ).fetchone()
        if row is None:
            return None
        told, is_of_database, at = row
        if told["plugin"] != "pgoutput" or not is_of_database:
            raise ConfigurationError(
                f"the slot {self.slot!r} is not one of pgoutput in database "
                f"{connection.info.dbname!r}; name another one"
            )
        if told["wal_status"] == "lost" or told.get("invalidation_reason"):
            raise ConfigurationError(
                f"the slot {self.slot!r} of table {self.table} is lost "
                f"({told.get('invalidation_reason') or 'its log was removed'}), with the changes "
                f"behind {lsn(at)}; raise max_slot_wal_keep_size, SELECT "
                f"pg_drop_replication_slot('{self.slot}'), and {BEGIN_ANEW}"
            )
        return int(at)

    @contextmanager
    def _decoding(self, connection: Connection, start: int) -> Iterator[str]:
        """A slot of this session that decodes from *start*.

        Raises:
            ConfigurationError: changes behind *start* are gone.
        """
        self._reached(start, self._slot_at(connection))
        copy = f"sluice_{secrets.token_hex(8)}"
        make = "SELECT lsn FROM pg_copy_logical_replication_slot(%s, %s, true)"
        one_row(connection, make, self.slot, copy)
        # The slot may have moved on before it was copied.
        at = self._reached(start, self._slot_at(connection, copy))
        if at < start:
            advance = "SELECT end_lsn FROM pg_replication_slot_advance(%s, %s::pg_lsn)"
            one_row(connection, advance, copy, lsn(start))
        yield copy
        one_row(connection, "SELECT pg_drop_replication_slot(%s)", copy)

    def _reached(self, start: int, at: int | None) -> int:
        if at is None or at > start:
            now = "is gone" if at is None else f"is at {lsn(at)}"
            raise ConfigurationError(
                f"changes of table {self.table} are needed from {lsn(start)} on, and the slot "
                f"{self.slot!r} {now}: a later checkpoint completed, another job uses the slot, or "
                f"somebody moved or dropped it; restore the newest completed checkpoint, or {_ANEW}"
            )
        return at

    def _counted(
        self,
        connection: Connection,
        found: Found,
        copy: str,
        start: int,
        now: tuple[int, bool],
        max_records: int | None,
    ) -> Counted:
        """The transactions behind *start* that an epoch of *max_records* takes; at least one.

        The server decodes until it has told a number of messages, which is raised until there is a
        transaction that is not taken, or no more: so what it decodes grows with the epoch, and not
        with what is behind it.
        """
        through, is_flushed = now
        query = _COUNT.format(commit=_LSN_IN.format(3), end=_LSN_IN.format(11))
        bound = lsn(through) if is_flushed else None
        most = None if max_records is None else max(2 * max_records, FEWEST_TOLD)
        while True:
            mine = _signed(found.oid)
            rows, end, is_rest, truncated, told = one_row(
                connection, query, copy, bound, most, *self._options(), mine, mine, max_records
            )
            if is_rest or most is None or told < most:
                break
            most *= 2
        if truncated is not None:
            raise self._truncated(truncated)
        if is_rest or not is_flushed:
            return Counted(int(rows), max(start, int(end or 0)), bool(is_rest))
        return Counted(int(rows), through, is_rest=False)

    def _options(self) -> tuple[str, str, str, str]:
        quoted = self.publication.replace('"', '""')
        return ("proto_version", "1", "publication_names", f'"{quoted}"')

    def _truncated(self, at: int) -> ConfigurationError:
        return ConfigurationError(
            f"table {self.table} was truncated at {lsn(at)}, and the log does not say which rows "
            f"it took; delete rows instead, and {_ANEW}"
        )

    def _messages(
        self, connection: Connection, found: Found, copy: str, end: int
    ) -> Iterator[Message]:
        from psycopg.sql import SQL, Literal

        query = SQL(
            "SELECT encode(data, 'hex') FROM pg_logical_slot_peek_binary_changes({}, {}, NULL, {})"
            " WHERE get_byte(data, 0) IN (66, 84) OR substring(data, 2, 4) = int4send({}::int)"
        ).format(
            Literal(copy),
            Literal(lsn(end)),
            SQL(", ").join(map(Literal, self._options())),
            Literal(_signed(found.oid)),
        )
        lines = (
            line
            for block in copy_out(connection, query, BATCH_BYTES)
            for line in block.split(b"\n")
        )
        return messages_of((bytes.fromhex(line.decode()) for line in lines if line), found.oid)

    def _base(
        self, connection: Connection, found: Found, selection: Selection, piece: Slice
    ) -> Iterator[tuple[bytes, int | list[int]]]:
        """The table as it was at the end of *piece*."""
        from psycopg.sql import SQL

        seen = _Snapshot.of(connection)
        query = SQL("SELECT {columns} FROM ONLY {table}").format(
            columns=SQL(", ").join([SQL("0"), *selection.expressions()]), table=self.table.sql
        )
        for csv in copy_out(connection, query, self.batch_bytes):
            yield csv, 1
        through, is_flushed = _flushed(connection, FLUSHING_S)
        if not is_flushed:
            raise StoreUnavailable(
                f"{self.server.who}: the server did not write its log to disk for {FLUSHING_S} s"
            )
        with self._decoding(connection, piece.end) as copy:
            undone = (
                RowChange(one.new, one.old, is_whole=True)
                for one in self._changes(connection, found, copy, through, seen)
            )
            yield from self._lines(found, selection, undone)

    def _changed(
        self, connection: Connection, found: Found, selection: Selection, piece: Slice
    ) -> Iterator[tuple[bytes, int | list[int]]]:
        """The changes of the transactions whose commits are in *piece*."""
        with self._decoding(connection, piece.start) as copy:
            told = self._changes(connection, found, copy, piece.end, None)
            yield from self._lines(found, selection, told)

    def _changes(
        self,
        connection: Connection,
        found: Found,
        copy: str,
        end: int,
        seen: _Snapshot | None,
    ) -> Iterator[RowChange]:
        """Each with its selected columns in the order of ``found``, and whole rows; only of
        transactions that *seen*, if given, sees.  The server stops behind the record at *end*.
        """
        relation: Relation | None = None
        places: list[int] = []
        commit, is_in = 0, False
        for told in self._messages(connection, found, copy, end):
            if isinstance(told, Begin):
                commit, is_in = told.commit, seen is None or seen.sees(told.xid)
            elif isinstance(told, Relation):  # Told once, also in a transaction that is not in.
                relation, places = told, []
            elif is_in:
                if isinstance(told, Truncate):
                    raise self._truncated(commit)
                assert relation is not None, "rows come behind their relation"
                places = places or self._places(found, relation, commit)
                yield self._whole(told, places, commit)

    def _places(self, found: Found, told: Relation, commit: int) -> list[int]:
        """The places of the selected columns in the rows that follow *told*."""
        there = {name: (number, of) for number, (name, *of) in enumerate(told.columns)}
        places = []
        for one in found.selection.columns:
            number, of = there.get(one.name, (0, None))
            if of is None or tuple(of) != found.columns[one.name]:
                now = "was missing" if of is None else "had another type"
                raise ConfigurationError(
                    f"column {one.name!r} of table {self.table} {now} at {lsn(commit)}, in changes "
                    f"that are not read yet, so rows cannot be taken back as they were; {_ANEW}"
                )
            places.append(number)
        return places

    def _whole(self, told: RowChange, places: list[int], commit: int) -> RowChange:
        if not told.is_whole:
            raise ConfigurationError(
                f"a change of table {self.table} at {lsn(commit)} has no whole row before it, so "
                f"the row cannot be taken back: REPLICA IDENTITY was not FULL then; {_ANEW}"
            )
        old = None if told.old is None else [told.old[place] for place in places]
        new = None if told.new is None else [told.new[place] for place in places]
        if old is not None and new is not None:  # What was not logged did not change.
            new = [a if b is UNCHANGED else b for a, b in zip(old, new, strict=True)]
        return RowChange(old, new, is_whole=True)

    def _lines(
        self, found: Found, selection: Selection, changes: Iterable[RowChange]
    ) -> Iterator[tuple[bytes, int | list[int]]]:
        """The rows that *changes* take back and add, as CSV with their weights."""
        names = [one.name for one in found.selection.columns]
        wanted = [(names.index(one.name), one.is_hex) for one in selection.columns]
        lines: list[bytes] = []
        weights: list[int] = []
        held = 0
        for change in changes:
            for row, weight in ((change.old, -1), (change.new, 1)):
                if row is not None:
                    line = _csv(row, wanted)
                    lines.append(line)
                    weights.append(weight)
                    held += len(line)
            if held >= self.batch_bytes:
                yield b"".join(lines), weights
                lines, weights, held = [], [], 0
        if lines:
            yield b"".join(lines), weights


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """The transactions that a session sees: those below ``end``, but for the ``running``.

    Numbers are the low 32 bits of ids, as the log has them.
    """

    end: int
    running: frozenset[int] = field(default_factory=frozenset[int])

    @classmethod
    def of(cls, connection: Connection) -> _Snapshot:
        (text,) = one_row(connection, "SELECT pg_current_snapshot()::text")
        _, end, running = text.split(":")
        ids = (int(one) for one in running.split(",") if one)
        return cls(int(end) & 0xFFFFFFFF, frozenset(one & 0xFFFFFFFF for one in ids))

    def sees(self, xid: int) -> bool:
        return (self.end - xid - 1) & 0xFFFFFFFF < 1 << 31 and xid not in self.running


def _flushed(connection: Connection, patience_s: float) -> tuple[int, bool]:
    """The end of the log, and whether all before it is on disk, within *patience_s*."""
    (end,) = one_row(connection, _END)
    deadline = time.monotonic() + patience_s
    while one_row(connection, _FLUSHED)[0] < end:
        if time.monotonic() > deadline:
            return int(end), False
        time.sleep(POLL_S)
    return int(end), True


def _slices(before: PartitionOffset, after: PartitionOffset) -> tuple[Slice, ...]:
    records = after.records - before.records
    if not records:
        return ()
    return (
        Slice(
            partition=before.partition,
            start=before.offset,
            end=after.offset,
            first_record=before.records,
            records=records,
            version=after.version,
        ),
    )


def _digest(of: Iterable[tuple[object, ...]]) -> str:
    return checksum(str([*of]).encode())[:8]


def _signed(oid: int) -> int:
    return oid - (1 << 32) if oid >= 1 << 31 else oid


def _csv(row: Row, wanted: Sequence[tuple[int, bool]]) -> bytes:
    values = [b"0"]
    for place, is_hex in wanted:
        value = row[place]
        if value is None:
            values.append(b"")
        elif is_hex:
            values.append(b'"' + value[2:] + b'"')
        else:
            values.append(b'"' + value.replace(b'"', b'""') + b'"')
    return b",".join(values) + b"\n"


def _weighed(selection: Selection) -> pa.Schema:
    import pyarrow as pa

    return selection.schema().append(pa.field(WEIGHT, pa.int8()))


def _numbered(rows: pa.RecordBatch, first: int, weights: int | list[int]) -> pa.RecordBatch:
    """*rows* with their weights, and with numbers from *first* on, which none behind a slice has:
    a row takes more than a byte of the log.
    """
    import pyarrow as pa

    numbers = pa.array(range(first, first + rows.num_rows), pa.int64())
    rows = rows.set_column(rows.schema.get_field_index(RECORD), RECORD, numbers)
    if isinstance(weights, int):
        return rows.append_column(WEIGHT, pa.repeat(pa.scalar(weights, pa.int8()), rows.num_rows))
    return rows.append_column(WEIGHT, pa.array(weights, pa.int8()))


_LSN_IN = "('x' || encode(substring(data, {}, 8), 'hex'))::bit(64)::bigint"  # Of the message C.

# Transactions in order, each with the rows that the table's changes make of it.  An epoch takes
# them up to its limit, and the first with rows in any case.
_COUNT: Any = """
WITH told AS MATERIALIZED (
    SELECT row_number() OVER () AS n, get_byte(data, 0) AS kind, data
    FROM pg_logical_slot_peek_binary_changes(%s, %s, least(%s, 2147483647)::int, %s, %s, %s, %s)
), mine AS (
    SELECT count(*) FILTER (WHERE kind = 66) OVER (ORDER BY n) AS number,
        CASE kind WHEN 85 THEN 2 WHEN 68 THEN 1 WHEN 73 THEN 1 ELSE 0 END AS rows,
        CASE WHEN kind = 67 THEN {commit} END AS commit,
        CASE WHEN kind = 67 THEN {end} END AS ended,
        kind = 84 AS is_truncate
    FROM told WHERE kind IN (66, 67) OR substring(data, 2, 4) = int4send(%s::int)
        OR kind = 84 AND EXISTS (SELECT FROM generate_series(7, length(data), 4) AS place
            WHERE substring(data, place, 4) = int4send(%s::int))
), transactions AS (
    SELECT number, sum(rows) AS rows, max(commit) AS commit, max(ended) AS ended,
        bool_or(is_truncate) AS is_truncated
    FROM mine GROUP BY number
), summed AS (
    SELECT *, sum(rows) OVER (ORDER BY number) AS through FROM transactions
), taken AS (
    SELECT *, coalesce(through <= %s::bigint, true) OR through = rows AS is_taken FROM summed
)
SELECT coalesce(sum(rows) FILTER (WHERE is_taken), 0)::bigint,
    max(ended) FILTER (WHERE is_taken), coalesce(bool_or(NOT is_taken AND rows > 0), false),
    min(commit) FILTER (WHERE is_taken AND is_truncated), (SELECT count(*) FROM told)
FROM taken
"""


Value: TypeAlias = bytes | None
Row: TypeAlias = list[Value]

UNCHANGED: Final = b"unchanged TOAST"  # This object stands for a large value that was not logged.

_TAKEN_BACK = b"O"  # The whole row before a change; b"K" has its key alone.
_SHORT, _LENGTH = struct.Struct(">H"), struct.Struct(">I")
_BEGIN = struct.Struct(">QqI")
_TYPE = struct.Struct(">Ii")


@dataclass(frozen=True, slots=True)
class Begin:
    """The changes that follow are of transaction *xid*, whose commit is logged at *commit*."""

    commit: int
    xid: int


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns of the rows that follow: each name with its type's oid and modifier."""

    columns: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row was inserted (no *old*), deleted (no *new*) or updated.

    *old* has the whole row if it ``is_whole``, and else its key alone, or is None in an update.
    """

    old: Row | None
    new: Row | None
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """The table was emptied."""


Message: TypeAlias = Begin | Relation | RowChange | Truncate


def messages_of(messages: Iterable[bytes], oid: int) -> Iterator[Message]:
    """The *messages* about the table *oid*, decoded."""
    told = _LENGTH.pack(oid)
    for message in messages:
        kind = message[:1]
        if kind == b"B":
            commit, _, xid = _BEGIN.unpack_from(message, 1)
            yield Begin(commit, xid)
        elif kind == b"T":
            count = _LENGTH.unpack_from(message, 1)[0]
            if told in [message[at : at + 4] for at in range(6, 6 + 4 * count, 4)]:
                yield Truncate()
        elif message[1:5] != told:
            continue
        elif kind == b"R":
            yield _relation(message)
        elif kind in b"IUD":
            yield _row_change(kind, message)


def _relation(message: bytes) -> Relation:
    at = message.index(0, message.index(0, 5) + 1) + 2  # Behind schema, name and replica identity.
    (count,) = _SHORT.unpack_from(message, at)
    at += 2
    columns = []
    for _ in range(count):
        end = message.index(0, at + 1)
        columns.append((message[at + 1 : end].decode(), *_TYPE.unpack_from(message, end + 1)))
        at = end + 9
    return Relation(tuple(columns))


def _row_change(kind: bytes, message: bytes) -> RowChange:
    old, at = None, 5
    part = message[at : at + 1]
    if part in b"KO":
        old, at = _row(message, at + 1)
    new = None if kind == b"D" else _row(message, at + 1)[0]
    return RowChange(old, new, is_whole=kind == b"I" or part == _TAKEN_BACK)


def _row(message: bytes, at: int) -> tuple[Row, int]:
    (count,) = _SHORT.unpack_from(message, at)
    at += 2
    row: Row = []
    for _ in range(count):
        kind = message[at]
        at += 1
        if kind == 0x74:  # t: a text
            (length,) = _LENGTH.unpack_from(message, at)
            at += 4 + length
            row.append(message[at - length : at])
        else:
            row.append(UNCHANGED if kind == 0x75 else None)  # u, n
    return row, at
