"""A page of a stage's keyed state, as JSON can say it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec

from sluice.core.ids import CheckpointId
from sluice.job.job import Job
from sluice.job.retained import LATEST, retained_checkpoint
from sluice.views.keyed_state import StateTable, open_state, state_tables


class StateColumn(msgspec.Struct, frozen=True, kw_only=True):
    """``type`` is Polars' name of it."""

    name: str
    type: str
    is_key: bool


class StatePage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of one table of a stage's state, in no order that means anything, always the same.

    ``tables`` are all that the stage has; ``next``: the *offset* of the page behind this one.
    ``stored_rows`` counts what its segments hold, older versions and expired rows included.
    Bytes are base64, decimals text, periods seconds.
    """

    checkpoint: int | str
    stage: str
    table: str
    tables: tuple[str, ...]
    columns: tuple[StateColumn, ...]
    offset: int
    rows: tuple[dict[str, Any], ...]
    next: int | None
    stored_rows: int


def state_page(
    job: Job, checkpoint: str, stage: str, *, table: str | None, offset: int, limit: int
) -> StatePage:
    """The rows of *table*, by default of the first; *checkpoint* as ``open_state`` takes it.

    Raises:
        ConfigurationError: there is no such checkpoint, stage or table.
        RestoreError: its ``_metadata`` is gone.
    """
    named: CheckpointId | str = checkpoint
    if checkpoint == LATEST or checkpoint.isdecimal():
        named = retained_checkpoint(job, checkpoint)
    tables = state_tables(job, str(named), stage)
    state = open_state(job, str(named), stage, table or tables[0])
    schema = state.schema()
    found = state.page(offset, limit + 1)
    keys = {*schema.key_columns, *schema.sub_key_columns}
    return StatePage(
        checkpoint=named,
        stage=stage,
        table=state.name,
        tables=tables,
        columns=tuple(
            StateColumn(name=name, type=str(kind), is_key=name in keys)
            for name, kind in found.schema.items()
        ),
        offset=offset,
        rows=tuple(plain(row) for row in found.head(limit).to_dicts()),
        next=offset + limit if found.height > limit else None,
        stored_rows=_stored(state),
    )


def _stored(state: StateTable) -> int:
    return sum(handle.segment.rows for handles in state.subtasks for handle in handles)


def plain(value: Any) -> Any:  # noqa: ANN401 - whatever a column holds
    """*value* as JSON can say it; see ``StatePage``."""
    match value:
        case Mapping():
            return {str(name): plain(one) for name, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case _:
            return value
