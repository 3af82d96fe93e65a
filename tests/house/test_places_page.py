"""docs/connectors/places.md: what each place of a sink does, and by which test.

The table is here; after a change of it: ``python -m tests.house.test_places_page``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.house.test_repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "connectors" / "places.md"
TESTS = REPOSITORY / "tests"

HEAD = """# What a place does, and the test of it

Every promise of a sink, and the test that shows it. In brackets, what of a test is meant: a rule of
all sinks, the place, or who reads it. Kafka is the real one where `make kafka` has fetched it, the
REST catalog where `make lake` has.
"""

# Of tests/contract, if there is no folder.
APPENDED, UPSERTED = "test_appended", "test_upserted"
ROLLED_BACK = "[a_table_that_can_be_rolled_back_is_and_another_says_that_it_cannot]"
CHANGELOG = "test_sinks_of_a_job.py::test_every_change_of_a_count_is_in_each_place_once"
KILLED = "exactly_once/test_pairs.py::test_kills_at_seeded_lines"
ANSWERED = "test_answers.py::test_whatever_is_answered_a_checkpoint_is_there_once"
CUT = "test_cut_wire.py::test_a_commit_is_there_once_wherever_it_is_cut"
BY_REST = "test_iceberg_sink.py::test_upserted_by_a_rest_catalog"
NOBODY_ELSE = "test_nobody_else_can_write_the_log_or_vacuum_what_it_does_not_name"
PROPERTIES = (
    *("append", "upsert", "changelog", "roll back", "other writers", "kill schedule"),
    *("fault matrix", "independent reader"),
)
PLACES: dict[str, tuple[str, ...]] = {
    "files table": (
        f"test_files_table.py::{APPENDED}",
        f"test_files_table.py::{UPSERTED}",
        f"{CHANGELOG}[FilesTable]",
        f"test_files_table.py::{UPSERTED}{ROLLED_BACK}",
        f"test_files_table_delta_log.py::{NOBODY_ELSE}",
        f"{KILLED}[files_table]",
        f"{ANSWERED}[files_table]",
        "test_files_table_delta_log.py::test_duckdb_reads_it",
    ),
    "Delta Lake": (
        f"test_delta_sink.py::{APPENDED}",
        f"test_delta_sink.py::{UPSERTED}",
        f"{CHANGELOG}[DeltaTable]",
        f"test_delta_sink.py::{UPSERTED}{ROLLED_BACK}",
        "test_delta_sink.py::test_others_that_are_faster_cost_nothing_and_lose_nothing",
        f"{KILLED}[delta_sink]",
        f"{ANSWERED}[delta]",
        f"test_delta_sink.py::{APPENDED}[read_by_polars]",
    ),
    "Iceberg, SQL catalog": (
        f"test_iceberg_sink.py::{APPENDED}",
        f"test_iceberg_sink.py::{UPSERTED}",
        f"{CHANGELOG}[IcebergTable]",
        f"test_iceberg_sink.py::{UPSERTED}{ROLLED_BACK}",
        "test_iceberg_sink.py::test_other_writers_in_between_cost_nothing_and_lose_nothing",
        f"{KILLED}[iceberg_sink]",
        f"{ANSWERED}[iceberg]",
        f"test_iceberg_sink.py::{APPENDED}[read_by_polars]",
    ),
    "Iceberg, REST catalog": (
        f"{BY_REST}[APPEND_RULES]",
        BY_REST,
        "not shown: only the catalog differs from the one above",
        f"{BY_REST}{ROLLED_BACK}",
        f"{BY_REST}[coordinators_that_commit_at_once_publish_once]",
        "not shown: only the catalog differs from the one above",
        f"{ANSWERED}[iceberg-by-rest]",
        f"{BY_REST}[read_of]",
    ),
    "Kafka": (
        "test_kafka_sink.py::test_appended_in_transactions",
        "test_kafka_sink.py::test_upserted_in_transactions",
        f"{CHANGELOG}[KafkaTopic]",
        "refused: a topic cannot be rolled back once rows are ahead",
        "test_kafka_sink.py::test_a_zombie_inside_its_transaction_is_fenced_by_a_restore",
        f"{KILLED}[kafka_sink]",
        f"{CUT}[real_broker]",
        f"{KILLED}[consumed]",
    ),
    "PostgreSQL": (
        f"test_postgres_target.py::{APPENDED}",
        f"test_postgres_target.py::{UPSERTED}",
        f"{CHANGELOG}[PostgresTable]",
        f"test_postgres_target.py::{APPENDED}{ROLLED_BACK}",
        "test_postgres_target.py::test_a_roll_back_leaves_rows_of_nobody",
        f"{KILLED}[postgres_sink]",
        f"{CUT}[postgres]",
        f"{KILLED}[selected]",
    ),
}
CELLS = [
    (place, what, cell)
    for place, cells in PLACES.items()
    for what, cell in zip(PROPERTIES, cells, strict=True)
]
_TEST = re.compile(r"([\w/]+\.py)::(\w+)(?:\[([\w-]+)\])?")


def written() -> str:
    return "\n".join([HEAD, *_table(), ""])


def _table() -> Iterator[str]:
    yield "| | " + " | ".join(PROPERTIES) + " |"
    yield "|---" * (len(PROPERTIES) + 1) + "|"
    for place, cells in PLACES.items():
        yield f"| **{place}** | " + " | ".join(_shown(cell) for cell in cells) + " |"


def _shown(cell: str) -> str:
    if (test := _TEST.fullmatch(cell)) is None:
        return cell
    path, name, case = test.groups()
    return f"[{name}](../../tests/{_below_tests(path)})" + f" [`{case}`]" * (case is not None)


def _below_tests(path: str) -> str:
    return path if "/" in path else f"contract/{path}"


def test_the_page_is_what_is_declared() -> None:
    assert PAGE.read_text() == written(), "run: python -m tests.house.test_places_page"


@pytest.mark.parametrize(("place", "what", "cell"), CELLS, ids=[f"{a}-{b}" for a, b, _ in CELLS])
def test_each_cell_is_a_test_that_there_is_or_a_refusal(place: str, what: str, cell: str) -> None:
    if (test := _TEST.fullmatch(cell)) is None:
        assert cell.startswith(("refused: ", "not shown: ")), (place, what)
        return
    path, name, case = test.groups()
    module = TESTS / _below_tests(path)
    assert f"\ndef {name}(" in module.read_text(), f"{cell}: there is no such test"
    beside = "".join(one.read_text() for one in module.parent.glob("*.py"))
    assert case is None or re.search(rf"\b{case}\b", beside), f"{cell}: there is no such case"


if __name__ == "__main__":
    PAGE.write_text(written())
