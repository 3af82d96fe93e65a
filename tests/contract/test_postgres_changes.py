"""A table's changes, decoded from its server's log, add up to the table."""

# ruff: noqa: S608 - the names of tables are the tests' own

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest

from harness.postgres_database import (
    LOGICAL,
    Database,
    as_superuser,
    prepare_postgres,
    standby_of,
)
from harness.postgres_database import serving_postgres as serving
from sluice.connectors.postgres import changes, server
from sluice.connectors.postgres.changes import PostgresChangesSource
from sluice.connectors.postgres.declared_source import PostgresChanges
from sluice.connectors.postgres.server import table_name
from sluice.declaration.places import RECORD, WEIGHT, Barrier, SourcePosition
from sluice.errors import ConfigurationError
from tests.contract.source_rules import check_columns_asked_for

COLUMNS = "id bigint PRIMARY KEY, city text, note text, amount numeric(12, 2)"
Rows = Counter[tuple[Any, ...]]


@pytest.fixture(scope="module")
def logical(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder = tmp_path_factory.mktemp("logical")
    prepare_postgres(folder)
    as_superuser(folder, "ALTER ROLE airflow REPLICATION")
    with serving(folder, **LOGICAL, logical_decoding_work_mem="64kB") as database:
        yield database


@dataclass
class Shop:
    """A table with a publication and the name of a slot."""

    database: Database
    table: str
    slot: str
    publication: str

    def run(self, statement: str) -> None:
        self.database.run(statement.replace("{t}", self.table))

    def source(self, **options: Any) -> PostgresChangesSource:
        given = {"slot": self.slot, "publication": self.publication, **options}
        source = PostgresChanges(self.database.dsn, self.table, **given).open({}, None)
        return replace(source, patience_s=120)  # However slow the machine is, all is on disk.

    def rows(self) -> Rows:
        return Counter(tuple(row.values()) for row in self.database.rows(f"TABLE {self.table}"))


@pytest.fixture
def shop(logical: Database) -> Iterator[Shop]:
    yield from a_shop(logical, COLUMNS)


def a_shop(database: Database, columns: str) -> Iterator[Shop]:
    name = f"s{secrets.token_hex(6)}"
    shop = Shop(database, f"{name}.orders", name, name)
    database.run(f"CREATE SCHEMA {name}")
    shop.run(f"CREATE TABLE {{t}} ({columns})")
    shop.run("ALTER TABLE {t} REPLICA IDENTITY FULL")
    shop.run(f"CREATE PUBLICATION {name} FOR TABLE {{t}}")
    yield shop
    database.run(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT temporary"
    )


def plan(
    source: PostgresChangesSource, position: SourcePosition = (), most: int | None = None
) -> Barrier:
    return source.plan(position, max_records=most, parallelism=2)


def read(source: PostgresChangesSource, barrier: Barrier) -> Rows:
    """The rows of an epoch, with how often it adds them; it has the same ones each time."""
    found: Rows = Counter()
    for piece in barrier.slices:
        rows = [row for batch in source.read(piece) for row in batch.to_pylist()]
        numbers = [row.pop(RECORD) for row in rows]
        assert numbers == sorted(set(numbers))
        assert all(piece.start <= number < piece.end for number in numbers)
        for row in rows:
            weight = row.pop(WEIGHT)
            found[tuple(row.values())] += weight
    return found


def without_zeros(rows: Rows) -> Rows:
    assert all(count >= 0 for count in rows.values())
    return +rows


def test_epochs_of_any_size_are_the_table_at_their_place_in_the_log_through_kills_and_restores(
    shop: Shop,
) -> None:
    seed = secrets.randbits(32)
    random = Random(seed)
    source, past = shop.source(), History()
    write_at_random(shop, past, random, 10)
    first = plan(source)
    kept: list[tuple[SourcePosition, Rows]] = [(first.position, read(source, first))]
    check_columns_asked_for(source, first.slices[0])
    for _ in range(20):
        if random.random() < 0.4:
            write_at_random(shop, past, random, random.randrange(6))
        position, rows = kept[-1]
        assert without_zeros(rows) == past.rows_at(position), f"seed {seed}"
        barrier = plan(source, position, random.choice([None, 1, 3, 10, 40]))
        if random.random() < 0.4:
            write_at_random(shop, past, random, random.randrange(6))
        sums = Counter(rows)
        sums.update(read(source, barrier))
        assert barrier.records == sum(
            batch.num_rows for piece in barrier.slices for batch in source.read(piece)
        )
        act = random.randrange(4)
        if act == 0:  # Killed before it completed, and planned again.
            continue
        kept.append((barrier.position, sums))
        if act == 1:  # Any that is not subsumed is restored.
            del kept[random.randrange(len(kept)) + 1 :]
        elif act == 2:
            source.notify_complete("group", barrier.position)
            del kept[:-1]


@dataclass
class History:
    """The table behind each commit, with a place in the log before the commit."""

    tables: list[tuple[int, Rows]] = field(default_factory=lambda: [(0, Counter())])

    def rows_at(self, position: SourcePosition) -> Rows:
        return [rows for place, rows in self.tables if place < position[0].offset][-1]

    def commit(self, connection: Any, observer: Any, table: str) -> None:
        observer.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
        place = int(observer.fetchone()[0])
        connection.commit()
        observer.execute(f"TABLE {table}")
        self.tables.append((place, Counter(observer.fetchall())))


def write_at_random(shop: Shop, past: History, random: Random, transactions: int) -> None:
    """Transactions of a few statements, two at a time, some of which are rolled back in part."""
    with (
        closing(shop.database.connect()) as one,
        closing(shop.database.connect()) as other,
        closing(shop.database.connect()) as third,
        third.cursor() as observer,
    ):
        for connection in (one, other):
            with connection.cursor() as cursor:  # A commit may be seen before it is on disk.
                cursor.execute(f"SET synchronous_commit = {random.choice(['on', 'off'])}")
            connection.autocommit = False
        open_ = {0: one.cursor(), 1: other.cursor()}
        fresh = itertools.count(random.randrange(1 << 40))
        for _ in range(transactions * 3):
            side = random.randrange(2)
            cursor = open_[side]
            # Each session has keys of its own, so that neither waits for the other.
            key = random.randrange(6) * 2 + side
            text = random.choice(["NULL", "''", "'a\"b,\n'", "repeat('long', 900)"])
            cursor.execute(
                random.choice(
                    [
                        "INSERT INTO {t} VALUES ({key}, {text}, {text}) ON CONFLICT DO NOTHING",
                        "INSERT INTO {t} VALUES ({key}, 'x', '', 1.5) ON CONFLICT DO NOTHING",
                        "UPDATE {t} SET city = {text} WHERE id = {key}",
                        "UPDATE {t} SET amount = coalesce(amount, 0) + 1 WHERE id % 2 = {side}",
                        "UPDATE {t} SET id = {fresh} WHERE id = {key}",
                        "DELETE FROM {t} WHERE id = {key}",
                        "SAVEPOINT a; DELETE FROM {t} WHERE id % 2 = {side}; ROLLBACK TO a",
                        "SAVEPOINT b; DELETE FROM {t} WHERE id = {key}; RELEASE b",
                    ]
                ).format(t=shop.table, key=key, text=text, side=side, fresh=next(fresh) * 2 + side)
            )
            ends = random.randrange(4)
            if ends == 0:
                past.commit(cursor.connection, observer, shop.table)
            elif ends == 1:
                cursor.connection.rollback()
        past.commit(one, observer, shop.table)
        past.commit(other, observer, shop.table)


@pytest.mark.parametrize("rows", [1, 50])
def test_what_a_plan_decodes_grows_with_its_epoch_and_not_with_what_is_behind_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    told: list[int] = []

    def counting(connection: Any, statement: Any, *values: object) -> tuple[Any, ...]:
        row = server.one_row(connection, statement, *values)
        if "WITH told" in str(statement):
            told.append(row[-1])
        return row

    monkeypatch.setattr(changes, "one_row", counting)
    source = shop.source()
    position = plan(source).position
    with closing(shop.database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("SET synchronous_commit = off")
        for start in range(0, 9000, rows):
            cursor.execute(
                f"INSERT INTO {shop.table} SELECT n FROM generate_series(%s, %s) n",
                (start, start + rows - 1),
            )
            connection.commit()
    counts = []
    for _ in range(3):
        barrier = plan(source, position, most=600)
        assert barrier.is_backlog
        counts.append(barrier.records)
        position = barrier.position

    assert counts == [600] * 3
    assert sum(told) <= 3 * 600 * 8
    assert plan(source, position).records == 9000 - 1800


def test_an_epoch_ends_behind_its_last_commit_even_if_another_is_logged_next_to_it(
    shop: Shop,
) -> None:
    source = shop.source()
    position = plan(source).position
    with closing(shop.database.connect()) as one, closing(shop.database.connect()) as other:
        for number, connection in enumerate((one, other)):
            connection.autocommit = False
            connection.cursor().execute(f"INSERT INTO {shop.table} VALUES ({number})")
        one.commit()
        other.commit()

    for number in range(2):
        epoch = plan(source, position, most=1)
        assert (epoch.records, epoch.is_backlog) == (1, number == 0)
        assert read(source, epoch) == {(number, None, None, None): 1}
        position = epoch.position


def test_a_transaction_belongs_to_the_epoch_in_which_it_commits(shop: Shop) -> None:
    source = shop.source()
    first = plan(source)
    with closing(shop.database.connect()) as slow, slow.cursor() as cursor:
        slow.autocommit = False
        cursor.execute(f"INSERT INTO {shop.table} VALUES (1, 'slow', NULL, NULL)")
        shop.run("INSERT INTO {t} VALUES (2, 'fast', NULL, NULL)")
        second = plan(source, first.position)
        cursor.execute(f"UPDATE {shop.table} SET city = 'later' WHERE id = 2")
        slow.commit()
    third = plan(source, second.position)

    assert read(source, second) == {(2, "fast", None, None): 1}
    assert +read(source, third) == {(1, "slow", None, None): 1, (2, "later", None, None): 1}
    assert -read(source, third) == {(2, "fast", None, None): 1}


def test_what_commits_while_an_epoch_is_planned_is_in_the_next(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = shop.source()
    first = plan(source)

    def and_then_others_commit(connection: Any, statement: Any, *values: object) -> tuple[Any, ...]:
        row = server.one_row(connection, statement, *values)
        if "pg_current_wal_flush_lsn" in str(statement):
            shop.run("INSERT INTO {t} VALUES (1, 'a', NULL, NULL) ON CONFLICT DO NOTHING")
        return row

    monkeypatch.setattr(changes, "one_row", and_then_others_commit)
    second = plan(source, first.position)
    monkeypatch.undo()

    assert (second.records, second.is_backlog, read(source, second)) == (0, False, {})
    third = plan(source, second.position)
    assert (third.records, read(source, third)) == (1, {(1, "a", None, None): 1})


def test_a_large_transaction_is_one_epoch_and_others_wait_for_the_next(shop: Shop) -> None:
    source = shop.source()
    first = plan(source)
    shop.run(
        "INSERT INTO {t} SELECT n, 'n' || n, repeat('x', 90), n FROM generate_series(1, 20000) n"
    )
    shop.run("UPDATE {t} SET city = 'u' WHERE id <= 5")
    shop.run("DELETE FROM {t} WHERE id = 6")
    large = plan(source, first.position, most=100)
    update = plan(source, large.position, most=11)
    rest = plan(source, update.position, most=11)

    assert [one.records for one in (large, update, rest)] == [20_000, 11, 0]
    assert [one.is_backlog for one in (large, update, rest)] == [True, False, False]
    assert large.unread is not None
    assert large.unread.size_bytes
    assert sum(read(replace(source, batch_bytes=10_000), large).values()) == 20_000
    assert sum(read(source, update).values()) == -1
    assert read(source, rest) == {}


def test_what_was_not_logged_of_a_large_value_is_that_of_the_row_before(shop: Shop) -> None:
    shop.run("ALTER TABLE {t} ALTER note SET STORAGE EXTERNAL")
    shop.run("INSERT INTO {t} VALUES (1, 'a', repeat('long ', 1000), NULL)")
    source = shop.source()
    first = plan(source)
    sums = read(source, first)  # Before the change, which it would undo.
    shop.run("UPDATE {t} SET city = 'b'")
    second = plan(source, first.position)

    sums.update(read(source, second))
    assert without_zeros(sums) == {(1, "b", "long " * 1000, None): 1}


def test_rows_of_the_first_epoch_are_the_same_after_the_table_has_changed(shop: Shop) -> None:
    shop.run("INSERT INTO {t} SELECT n, 'n', NULL, n FROM generate_series(1, 9) n")
    source = shop.source()
    first = plan(source)
    before = shop.rows()
    shop.run("DELETE FROM {t} WHERE id < 4")
    shop.run("UPDATE {t} SET city = 'later'")
    shop.run("INSERT INTO {t} VALUES (20, 'new', NULL, NULL)")

    assert without_zeros(read(source, first)) == before


def test_rows_of_the_first_epoch_are_the_same_while_the_table_changes(shop: Shop) -> None:
    shop.run("INSERT INTO {t} SELECT n, 'n', NULL, n FROM generate_series(1, 900) n")
    source = shop.source()
    (piece,) = plan(source).slices
    before = shop.rows()
    shop.run("DELETE FROM {t} WHERE id < 10")
    reader = iter(replace(source, batch_bytes=1000).read(piece))
    batches = [next(reader)]
    shop.run("UPDATE {t} SET city = 'not seen' WHERE id % 7 = 0")
    shop.run("INSERT INTO {t} VALUES (0, 'not seen', NULL, NULL)")
    batches += reader

    found: Rows = Counter()
    for row in (row for batch in batches for row in batch.to_pylist()):
        weight, _ = row.pop(WEIGHT), row.pop(RECORD)
        found[tuple(row.values())] += weight
    assert without_zeros(found) == before


def test_readers_of_one_slot_do_not_wait_for_one_another(shop: Shop) -> None:
    source = shop.source()
    first = plan(source)
    shop.run("INSERT INTO {t} SELECT n, 'n', NULL, n FROM generate_series(1, 5000) n")
    second = plan(source, first.position)
    (piece,) = second.slices
    found: list[Rows] = []
    with_one_open = iter(replace(source, batch_bytes=1000).read(piece))
    next(with_one_open)
    readers = [Thread(target=lambda: found.append(read(source, second))) for _ in range(3)]
    for one in readers:
        one.start()
    for one in readers:
        one.join()
    rest = sum(sum(batch.column(WEIGHT).to_pylist()) for batch in with_one_open)

    assert 0 < rest < 5000
    assert [sum(one.values()) for one in found] == [5000] * 3
    assert shop.database.run("SELECT count(*) FROM pg_replication_slots") == [(1,)]


def test_the_slot_follows_the_newest_completed_checkpoint(shop: Shop) -> None:
    source = shop.source()
    first = plan(source)
    shop.run("INSERT INTO {t} VALUES (1, 'a', NULL, NULL)")
    second = plan(source, first.position)
    shop.run("INSERT INTO {t} VALUES (2, 'b', NULL, NULL)")
    third = plan(source, second.position)
    for _ in range(2):
        source.notify_complete("group", second.position)
    source.notify_complete("group", first.position)

    assert read(source, third) == {(2, "b", None, None): 1}
    with pytest.raises(ConfigurationError, match="restore the newest completed checkpoint") as gone:
        plan(source, first.position)
    assert f"the slot '{shop.slot}' is at " in str(gone.value)
    with pytest.raises(ConfigurationError, match="are needed from "):
        read(source, second)
    shop.database.run("SELECT pg_drop_replication_slot(%s)", shop.slot)
    with pytest.raises(ConfigurationError, match=f"the slot '{shop.slot}' is gone"):
        plan(source, third.position)


def test_the_slot_also_follows_a_log_that_others_fill(shop: Shop) -> None:
    source = replace(shop.source(), idle_bytes=4_000_000)
    first = plan(source)
    shop.database.run("SELECT pg_logical_emit_message(false, 'other', 'short')")
    short = plan(source, first.position)
    shop.database.run("SELECT pg_logical_emit_message(false, 'other', repeat('x', 4000000))")
    long = plan(source, first.position)

    assert (short.records, long.records) == (0, 1)
    assert read(source, long) == {}
    assert long.position[0].offset > first.position[0].offset + 4_000_000


def test_a_first_plan_that_is_repeated_begins_at_the_same_place(shop: Shop) -> None:
    source = shop.source()
    first = plan(source)
    shop.run("INSERT INTO {t} VALUES (1, 'a', NULL, NULL)")
    again = plan(source)

    assert again.position[0].offset == first.position[0].offset
    assert without_zeros(read(source, again)) == {}
    assert read(source, plan(source, again.position)) == {(1, "a", None, None): 1}


def test_a_slot_that_lost_its_log_is_named_with_the_way_out(tmp_path: Path) -> None:
    prepare_postgres(tmp_path)
    as_superuser(tmp_path, "ALTER ROLE airflow REPLICATION\nGRANT pg_checkpoint TO airflow")
    as_superuser(tmp_path, "GRANT EXECUTE ON FUNCTION pg_switch_wal() TO airflow")
    small = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with serving(tmp_path, **LOGICAL, **small) as database:
        shop = next(a_shop(database, COLUMNS))
        source = shop.source()
        first = plan(source)
        for _ in range(4):
            shop.run("INSERT INTO {t} SELECT n, 'n', NULL, n FROM generate_series(1, 9) n")
            shop.run("DELETE FROM {t}")
            database.run("SELECT pg_switch_wal()")
        database.run("CHECKPOINT")

        with pytest.raises(ConfigurationError, match=r"is lost .* raise max_slot_wal_keep_size"):
            plan(source, first.position)
        with pytest.raises(ConfigurationError, match="is lost"):
            source.check_place()


def test_a_server_that_lacks_what_was_read_is_refused_and_another_one_is_not(
    tmp_path: Path,
) -> None:
    primary, standby, back = (tmp_path / name for name in ("primary", "standby", "back"))
    prepare_postgres(primary)
    as_superuser(primary, "ALTER ROLE airflow REPLICATION")
    settings = {**LOGICAL, "restore_command": "false", "hot_standby": "off"}
    with serving(primary, **settings) as database:
        shop = next(a_shop(database, COLUMNS))
        first = plan(shop.source())
    standby_of(primary, standby)
    standby_of(primary, back, is_promoted=False)
    with serving(primary, **settings) as database:
        shop = replace(shop, database=database)
        shop.run("INSERT INTO {t} SELECT n, 'lost', NULL, n FROM generate_series(1, 999) n")
        second = plan(shop.source(), first.position)
    for folder in (standby, back):
        with serving(folder, **settings) as database:
            shop = replace(shop, database=database)
            shop.run("INSERT INTO {t} VALUES (1, 'other', NULL, NULL)")
            source = shop.source()
            with pytest.raises(ConfigurationError, match="lacks what was read: it failed over"):
                plan(source, second.position)
            with pytest.raises(ConfigurationError, match="lacks what was read"):
                read(source, second)
            third = plan(source, first.position)
            assert read(source, third) == {(1, "other", None, None): 1}


TYPES = {
    "smallint": "-32768", "integer": "7", "bigint": "9223372036854775807", "real": "1.1",
    "double precision": "'Infinity'", "boolean": "true", "numeric(38, 10)": "-0.0000000001",
    "numeric(3, -3)": "999000", "text": "''", "varchar(9)": "'\"'", "char(3)": "'ü'",
    "bytea": "'\\x00ff'", "date": "'0001-01-01'", "timestamptz": "'2026-03-29 02:30+02'",
    "timestamp": "'9999-12-31 23:59:59.999999'", "json": "'{\"a\":  1}'", "jsonb": "'[1, null]'",
    "uuid": "'00000000-0000-0000-0000-00000000000f'",
}  # fmt: skip


# What a role's sessions write values in; ours are read in one form.
FORMS = {
    "bytea_output": "escape",
    "DateStyle": "German",
    "extra_float_digits": "-15",
    "TimeZone": "America/New_York",
}


@pytest.mark.parametrize("forms", [{}, FORMS], ids=["the server's forms", "others"])
def test_values_of_the_log_are_those_that_the_table_has(
    logical: Database, forms: dict[str, str]
) -> None:
    for name, form in forms.items():
        logical.run(f"ALTER ROLE airflow SET {name} = '{form}'")
    columns = [f'"{kind}" {kind}' for kind in TYPES]
    made = a_shop(logical, ", ".join(columns))
    shop = next(made)
    values = ", ".join(TYPES.values())
    shop.run(f"INSERT INTO {{t}} VALUES ({values})")
    source = shop.source()
    first = plan(source)
    shop.run("DELETE FROM {t}")
    shop.run("INSERT INTO {t} DEFAULT VALUES")
    second = plan(source, first.position)

    (before,) = without_zeros(read(source, first))
    assert -read(source, second) == {before: 1}
    assert +read(source, second) == {(None,) * len(before): 1}
    next(made, None)
    logical.run("ALTER ROLE airflow RESET ALL")


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no whole rows before": (
        "ALTER TABLE {t} REPLICA IDENTITY DEFAULT", {}, "ALTER TABLE .* REPLICA IDENTITY FULL"
    ),
    "no publication": ("SELECT", {"publication": "none"}, "CREATE PUBLICATION none FOR TABLE"),
    "another table's": (
        "ALTER PUBLICATION {p} SET TABLES IN SCHEMA information_schema", {}, "ADD TABLE"
    ),
    "some kinds": (
        "ALTER PUBLICATION {p} SET (publish = 'insert, update')", {}, "leaves out some kinds"
    ),
    "some rows": ("ALTER PUBLICATION {p} SET TABLE {t} WHERE (id > 1)", {}, "leaves out rows"),
    "some columns": (
        "ALTER PUBLICATION {p} SET TABLE {t} (id, city, amount)", {}, "leaves out column 'note'"
    ),
    "an array": ("ALTER TABLE {t} ADD tags text[]", {}, r"column 'tags' .* text\[\], which is not"),
    "any numeric": ("ALTER TABLE {t} ADD n numeric", {}, "numeric without a precision"),
    "a cast": ("SELECT", {"columns": ("id::text",)}, "cast it in a select behind"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_is_refused_with_the_fix(shop: Shop, what: str) -> None:
    statement, options, why = REFUSED[what]
    if "{p} SET TABLES" in statement:
        shop.run(f"ALTER PUBLICATION {shop.publication} DROP TABLE {{t}}")
    else:
        shop.run(statement.replace("{p}", shop.publication))

    source = shop.source(**options)
    for act in (source.check_place, lambda: plan(source)):
        with pytest.raises(ConfigurationError, match=why):
            act()
    made = "SELECT count(*) FROM pg_replication_slots WHERE NOT temporary"
    assert shop.database.run(made) == [(0,)]


BEHIND: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "truncated": (["TRUNCATE {t}"], {}, "was truncated at .* delete rows instead"),
    "a column more": (["ALTER TABLE {t} ADD more int DEFAULT 3"], {}, "with other columns"),
    "a column less": (["ALTER TABLE {t} DROP note"], {}, "with other columns"),
    "a column made anew": (
        ["ALTER TABLE {t} DROP note", "ALTER TABLE {t} ADD note text"], {}, "with other columns"
    ),
    "not published for a while": (
        [
            "ALTER PUBLICATION {p} DROP TABLE {t}", "DELETE FROM {t}",
            "ALTER PUBLICATION {p} ADD TABLE {t}",
        ],
        {},
        "was altered or made anew since",
    ),
    "deletes not published for a while": (
        [
            "ALTER PUBLICATION {p} SET (publish = 'insert, update, truncate')", "DELETE FROM {t}",
            "ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",
        ],
        {},
        "was altered or made anew since",
    ),
    "another type": (["ALTER TABLE {t} ALTER amount TYPE float"], {}, "with other columns"),
    "the same type, and other values": (
        ["ALTER TABLE {t} ALTER city TYPE text USING upper(city)"], {}, "been rewritten since"
    ),
    "made anew": (
        [
            "DROP TABLE {t}", f"CREATE TABLE {{t}} ({COLUMNS})",
            "ALTER TABLE {t} REPLICA IDENTITY FULL", "ALTER PUBLICATION {p} ADD TABLE {t}",
        ],
        {},
        "with other changes",
    ),
    "renamed there and back": (
        [
            "ALTER TABLE {t} RENAME note TO other", "INSERT INTO {t} VALUES (5)",
            "ALTER TABLE {t} RENAME other TO note",
        ],
        {},
        "column 'note' of table .* was missing at",
    ),
    "no whole row for a while": (
        [
            "ALTER TABLE {t} REPLICA IDENTITY DEFAULT", "UPDATE {t} SET city = 'b'",
            "ALTER TABLE {t} REPLICA IDENTITY FULL",
        ],
        {},
        "REPLICA IDENTITY was not FULL then",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BEHIND)
def test_what_cannot_be_taken_back_stops_the_source_by_name(shop: Shop, what: str) -> None:
    statements, options, why = BEHIND[what]
    shop.run("INSERT INTO {t} VALUES (1, 'a', NULL, NULL)")
    source = shop.source(**options)
    first = plan(source)
    for statement in statements:
        shop.run(statement.replace("{p}", shop.publication))

    def on() -> None:
        read(source, plan(source, first.position))

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=why):
            on()


def test_a_log_whose_newest_file_is_empty_has_an_end_that_is_flushed(tmp_path: Path) -> None:
    """What is written next begins behind the file's header, which is not written before that."""
    prepare_postgres(tmp_path)
    as_superuser(tmp_path, "ALTER ROLE airflow REPLICATION")
    as_superuser(tmp_path, "GRANT EXECUTE ON FUNCTION pg_switch_wal() TO airflow")
    with serving(tmp_path, **LOGICAL) as database:
        shop = next(a_shop(database, COLUMNS))
        source = replace(shop.source(), patience_s=0)
        first = plan(source)
        shop.run("INSERT INTO {t} VALUES (1, 'a', NULL, NULL)")
        ends = []
        for _ in range(20):  # The server writes a record of its own every 15 s, perhaps between.
            database.run("SELECT pg_switch_wal()")
            second = plan(source, first.position)
            ends.append(second.position[0].offset % (16 << 20))

        assert 0 in ends
        assert without_zeros(read(source, first)) == {}
        assert read(source, second) == {(1, "a", None, None): 1}


def test_a_column_that_is_not_read_and_another_table_may_come_and_go(shop: Shop) -> None:
    source = shop.source(columns=("city", "id"))
    first = plan(source)
    shop.run("CREATE TABLE {t}_of_others (id int PRIMARY KEY)")
    shop.run(f"ALTER PUBLICATION {shop.publication} ADD TABLE {{t}}_of_others")
    shop.run("INSERT INTO {t}_of_others VALUES (1)")
    shop.run("TRUNCATE {t}_of_others")
    shop.run("ALTER TABLE {t} ADD more int DEFAULT 3")
    shop.run("INSERT INTO {t} (id, city) VALUES (1, 'a')")
    shop.run("ALTER TABLE {t} DROP note")
    shop.run("ALTER TABLE {t} ALTER city SET DEFAULT 'c'")
    shop.run("UPDATE {t} SET city = 'b'")
    second = plan(source, first.position)

    assert read(source, second) == {("a", 1): 0, ("b", 1): 1}
    shop.run("VACUUM FULL {t}")
    assert read(source, plan(source, second.position)) == {}


def test_a_partition_is_read_while_its_changes_are_not_published_as_its_roots(shop: Shop) -> None:
    root = f"{shop.table}_by_id"
    shop.run(f"CREATE TABLE {root} (LIKE {{t}}) PARTITION BY RANGE (id)")
    shop.run(f"ALTER TABLE {root} ATTACH PARTITION {{t}} FOR VALUES FROM (0) TO (9)")
    shop.run(f"ALTER PUBLICATION {shop.publication} SET TABLE {root}")
    source = shop.source()
    first = plan(source)
    shop.run(f"INSERT INTO {root} VALUES (1, 'a', NULL, NULL)")
    second = plan(source, first.position)
    shop.run(f"ALTER PUBLICATION {shop.publication} SET (publish_via_partition_root = true)")

    with pytest.raises(ConfigurationError, match=r"SET \(publish_via_partition_root = false"):
        read(source, second)
    shop.run(f"ALTER PUBLICATION {shop.publication} SET (publish_via_partition_root = false)")
    with pytest.raises(ConfigurationError, match="altered or made anew"):
        read(source, second)
    with pytest.raises(ConfigurationError, match="is partitioned, and its log has its partitions'"):
        plan(replace(source, table=table_name(root)))


def test_a_server_without_logical_decoding_is_refused_with_the_fix(database: Database) -> None:
    shop = next(a_shop(database, COLUMNS))

    with pytest.raises(ConfigurationError, match="ALTER SYSTEM SET wal_level = logical"):
        plan(shop.source())


def test_a_role_without_the_right_is_refused_with_the_fix(logical: Database, shop: Shop) -> None:
    schema = shop.table.partition(".")[0]
    logical.run(f"GRANT USAGE ON SCHEMA {schema} TO guest")
    logical.run(f"GRANT SELECT ON {shop.table} TO guest")
    spec = PostgresChanges(logical.guest_dsn, shop.table, shop.slot, shop.publication)
    source = spec.open({}, None)

    with pytest.raises(ConfigurationError, match="ALTER ROLE guest REPLICATION"):
        plan(source)


def test_a_slot_of_another_kind_is_not_taken(logical: Database, shop: Shop) -> None:
    logical.run("SELECT pg_create_physical_replication_slot(%s)", shop.slot)

    with pytest.raises(ConfigurationError, match="is not one of pgoutput in database"):
        plan(shop.source())


@pytest.mark.parametrize("name", ["", "Orders", "a-b", "x" * 64])
def test_a_slot_has_a_name_that_postgres_takes(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is no name of a replication slot"):
        PostgresChanges("dsn", "public.orders", name, "p")


def test_a_declaration_says_what_its_rows_mean() -> None:
    spec = PostgresChanges("dsn", "public.orders", "orders", "p")

    assert spec.meaning({}).places == ("changing rows of table public.orders",)
    assert spec.takes_rows_back
