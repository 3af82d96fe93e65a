"""What a stage has read of another one's stream at each barrier, where checkpoints are unaligned.

The rules of ADR 3, told once more.  Which stages were unaligned or overtaken is of the checkpoint;
which rows they had read by then, and how far event time had come for them, follows here.
"""

# ruff: noqa: S608 - queries are made of what a drawing named
from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz.plans import StagePlan
from tests.fuzz.queries import EPOCH, q

if TYPE_CHECKING:
    from tests.fuzz.oracle import Oracle
    from tests.fuzz.past import Past


def read_up_to(past: Past) -> dict[str, list[int | None]]:
    """Per stage and barrier: the epoch up to which it has read its streams; None where it read
    nothing in that epoch, because it was overtaken, or had a stream that no row had reached.
    """
    first: dict[str, int] = {}
    found: dict[str, list[int | None]] = {}
    for stage in past.plan.stages:
        streams = [given.producer for given in stage.inputs if is_stream(past, given.producer)]
        found[stage.uid] = []
        for number, epoch in enumerate(past.epochs, start=1):
            last = number - 1 if stage.uid in epoch.unaligned else number
            has_read = stage.uid not in epoch.overtaken and all(
                first.get(producer, last + 1) <= last for producer in streams
            )
            if has_read:
                first.setdefault(stage.uid, number)
            found[stage.uid].append(last if has_read else None)
    return found


def is_stream(past: Past, producer: str) -> bool:
    return past.plan.source(producer) is None


def seen_by(oracle: Oracle, stage: StagePlan, producer: str) -> str:
    """The table of what *stage* has read of a stream at the last barrier; the epoch of a row is
    that in which it was read.
    """
    past = oracle.past
    if not past.plan.unaligned or not is_stream(past, producer):
        return producer
    name, reads, last = f"{producer} for {stage.uid}", [], 0
    for number, up_to in enumerate(read_up_to(past)[stage.uid], start=1):
        if up_to is not None:
            reads += [(sent, number) for sent in range(last + 1, up_to + 1)]
            last = up_to
    if not last:
        oracle.make(name, f"SELECT * FROM {q(producer)} WHERE false")
        return name
    epochs = ", ".join(map(str, reads))
    oracle.sql.register("_sent", oracle.table_at(last, producer))
    oracle.make(
        name,
        f"SELECT s.* REPLACE (CAST(coalesce(e.read_in, 0) AS BIGINT) AS {EPOCH}) FROM _sent s "
        f"LEFT JOIN (VALUES {epochs}) e(sent_in, read_in) ON e.sent_in = s.{EPOCH}",
    )
    oracle.sql.unregister("_sent")
    return name
