"""When Spark reads a place: once for all readings that were missed, whatever a clock says."""

from __future__ import annotations

from sluice.connectors.spark_read.declared import Readings
from sluice.declaration.places import Barrier, SourcePosition

OFTEN, SELDOM = Readings(1), Readings(3_600_000)


def plan(source: Readings, position: SourcePosition) -> Barrier:
    return source.plan(position, max_records=None, parallelism=1)


def test_another_interval_or_an_earlier_clock_neither_stops_the_readings_nor_repeats_all() -> None:
    first = plan(OFTEN, ())

    later = plan(SELDOM, first.position)  # Its numbers are lower, as behind a clock that went back.
    again = plan(OFTEN, later.position)

    assert [one.records for one in (first, later, again)] == [1, 0, 1]
    assert later.position[0].offset < first.position[0].offset
