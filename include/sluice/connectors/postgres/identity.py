"""The identity of a table beside its name, by which a replaced table is noticed.

DROP and CREATE make another table.  TRUNCATE gives the table, or each of its partitions, another
file and, with RESTART IDENTITY, its sequence, too.  VACUUM FULL rewrites only the table's file and
ALTER SEQUENCE only the sequence's, and neither changes rows.  Identities of different databases
cannot be compared: a table that was moved with its numbers counts as the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.connectors.postgres.server import Connection
from sluice.errors import ProtocolViolation

FIND = """
SELECT (SELECT system_identifier FROM pg_control_system()),
    (SELECT oid FROM pg_database WHERE datname = current_database()),
    coalesce(
        (SELECT min(pg_relation_filenode(relid)) FROM pg_partition_tree(%(table)s::oid::regclass)
            WHERE isleaf),
        pg_relation_filenode(%(table)s::oid::regclass), 0)::bigint,
    coalesce(pg_relation_filenode(%(sequence)s::oid::regclass), 0)::bigint
"""


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """The identity of a table, made of its files.

    ``file`` is the table's, or that of its oldest partition; ``sequence_file`` is 0 if no sequence
    numbers the rows.
    """

    database: str
    table: int
    file: int
    sequence_file: int

    def is_other_than(self, before: TableIdentity) -> bool:
        """Whether the table was replaced or truncated since *before*: its numbers may repeat."""
        if self.database != before.database:
            return False
        is_emptied = self.file != before.file
        return self.table != before.table or (
            is_emptied and self.sequence_file != before.sequence_file
        )

    def __str__(self) -> str:
        return f"{self.database}/{self.table}/{self.file}/{self.sequence_file}"


def identity_of(connection: Connection, table: int, sequence: int | None) -> TableIdentity:
    """The identity of the table and the sequence with these oids."""
    row = connection.execute(FIND, {"table": table, "sequence": sequence}).fetchone()
    assert row is not None, "the statement has a row whatever there is"
    return TableIdentity(f"{row[0]}/{row[1]}", table, row[2], row[3])


def parsed_identity(text: str) -> TableIdentity:
    """The identity that ``str`` wrote.  Raises ProtocolViolation for any other text."""
    try:
        database, table, file, sequence_file = text.rsplit("/", 3)
        return TableIdentity(database, int(table), int(file), int(sequence_file))
    except ValueError:
        raise ProtocolViolation(f"{text!r} is no table's identity") from None
