"""What a snapshot says of its sources, stages and sinks, in few words: a name and a value each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from sluice.core.completed import CheckpointMetadata, StageState
from sluice.core.plan import SourceCut
from sluice.job.job import Job
from sluice.job.positions import position_of
from sluice.views.keyed_state import table_names

Facts: TypeAlias = Mapping[str, int | str]
Entry: TypeAlias = tuple[int, int, bool]  # An offset, the records before it, whether it is sealed.


def facts_of_checkpoint(metadata: CheckpointMetadata) -> Facts:
    facts: dict[str, int | str] = {
        "type": metadata.type.value,
        "generation": metadata.generation,
        "life": metadata.life,
    }
    return facts | {f"hook {name}": text or "" for name, text in metadata.master_states.items()}


def offsets(job: Job, cut: SourceCut | None) -> dict[str, Entry]:
    """How far each partition was read: its offset, the records before it, and whether it ended."""
    entries = () if cut is None else position_of(job, cut)
    return {one.partition: (one.offset, one.records, one.sealed) for one in entries}


def facts_of_source(cut: SourceCut | None, entries: Mapping[str, Entry]) -> Facts:
    if cut is None:
        return {}
    if cut.table is not None:
        return {"rows of the table": cut.table.rows, "version of the table": cut.table.checksum}
    return {
        "partitions": len(entries),
        "records": sum(records for _, records, _ in entries.values()),
        "exhausted": "yes" if cut.exhausted else "no",
    }


def facts_of_stage(stage: StageState | None) -> Facts:
    if stage is None:
        return {}
    return {
        "parallelism": stage.parallelism,
        "max parallelism": stage.max_parallelism,
        "watermark": stage.watermark_ms,
        "finished": "yes" if stage.is_finished else "no",
        "unaligned": "yes" if stage.is_overtaken else "no",
        "rows in flight": sum(one.rows for one in stage.in_flight_segments),
        "tables of state": ", ".join(table_names(stage)),
    }


def sinks_of(metadata: CheckpointMetadata) -> set[str]:
    """The sinks of which the checkpoint tells anything."""
    return {*metadata.tables, *(one.sink for one in metadata.committables)}


def facts_of_sink(metadata: CheckpointMetadata, uid: str) -> Facts:
    """What is ``published`` is of this checkpoint alone."""
    staged = [one for one in metadata.committables if one.sink == uid]
    facts: dict[str, int | str] = {}
    if uid in metadata.tables:
        facts["version of the table"] = metadata.tables[uid]
    return facts | {
        "files published": len(staged),
        "rows published": sum(one.rows for one in staged),
        "bytes published": sum(one.size_bytes for one in staged),
    }
