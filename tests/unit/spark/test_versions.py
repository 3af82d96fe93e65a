"""Where rows are placed on a Spark that has no ``repartitionById``."""

from __future__ import annotations

from sluice.spark import versions


def test_hashes_of_numbers_are_those_of_spark() -> None:
    """``SELECT hash(0), hash(1), hash(42), hash(2147483647)`` on Spark 4.3."""
    hashed = [versions._hash(number) for number in (0, 1, 42, 2**31 - 1)]  # noqa: SLF001

    assert hashed == [933211791, -559580957, 29417773, 133916647]


def test_every_partition_has_a_number_that_leads_there() -> None:
    for partitions in (1, 2, 7, 128, 1000):
        numbers = versions._numbers_by_partition(partitions)  # noqa: SLF001

        assert [versions._hash(n) % partitions for n in numbers] == [*range(partitions)]  # noqa: SLF001
