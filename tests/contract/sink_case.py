"""A table under test, of any connector: handles of several processes, and an outside reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from sluice.connectors.staged_sink import StagedSink
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import Writer
from sluice.declaration.places import DELETED, Sink
from tests.builders import ATTEMPTED, PLANNED

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("price", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

# The job, after its first and second restore; and a job that began anew over an emptied root.
JOB = Writer(life="first-life", generation=1)
RESTORED = Writer(life="first-life", generation=2)
RESTORED_AGAIN = Writer(life="first-life", generation=3)
ANEW = Writer(life="second-life", generation=1)


@dataclass(frozen=True, slots=True)
class SinkCase:
    """``open`` gives a new handle on the same table; with upsert rules its key is ``id``.

    ``read`` gives the rows of ``SCHEMA`` that another tool reads now, in any order.
    """

    open: Callable[[], Sink]
    read: Callable[[], list[Row]]


def rows(*ids: int, name: str | None = "n") -> list[Row]:
    return [
        {
            "id": number,
            "name": None if number % 7 == 0 else f"{name}{number} 'quoted', \\ tab\t, ü",
            "price": number / 4,
            "at": BEGIN + timedelta(microseconds=number),
        }
        for number in ids
    ]


def open_staged(case: SinkCase) -> StagedSink:
    """A handle on a table whose rows are staged below the job's root."""
    sink = case.open()
    assert isinstance(sink, StagedSink)
    return sink


def stage(
    sink: Sink,
    checkpoint_id: int,
    added: Iterable[Row],
    subtask: int = 0,
    attempt: str = "1-a",
    planned: str = PLANNED,
) -> Committable | None:
    return sink.stage(
        pa.Table.from_pylist([*added], SCHEMA),
        Attempt(
            checkpoint_id=checkpoint_id,
            subtask=subtask,
            checkpoint_token=planned,
            attempt_token=attempt,
        ),
    )


def staged_rows(
    sink: Sink, checkpoint_id: int, *ids: int, name: str = "n", **how: Any
) -> Committable:
    staged = stage(sink, checkpoint_id, rows(*ids, name=name), **how)
    assert staged is not None
    return staged


def stage_deletes(sink: Sink, checkpoint_id: int, added: Iterable[Row]) -> Committable:
    table = pa.Table.from_pylist([*added], SCHEMA)
    table = table.append_column(DELETED, pa.array([True] * table.num_rows))
    staged = sink.stage(
        table,
        Attempt(
            checkpoint_id=checkpoint_id,
            subtask=0,
            checkpoint_token=PLANNED,
            attempt_token=ATTEMPTED,
        ),
    )
    assert staged is not None
    return staged


def publish(
    sink: Sink, checkpoint_id: int, parent: int | None, added: Iterable[Row], writer: Writer = JOB
) -> None:
    staged = stage(sink, checkpoint_id, added)
    sink.commit(writer, checkpoint_id, parent, [staged] if staged is not None else [])


def seen(case: SinkCase) -> list[Row]:
    return sorted(case.read(), key=lambda row: (row["id"], str(row)))
