"""Staged rows: Parquet files below a root that nobody looks at until a commit names them.

data/{checkpoint}-{subtask}-{attempt}.parquet            rows
data/{checkpoint}-{subtask}-{attempt}-deletes.parquet    rows that are taken away
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sluice.connectors.sink import DELETED, Staged, Unpublished
from sluice.core.acks import Committable
from sluice.errors import ConfigurationError, ProtocolViolation
from sluice.storage.object_store import Listed, ObjectStore

if TYPE_CHECKING:
    import pyarrow as pa

ATTEMPT_TOKEN = re.compile(r"[A-Za-z0-9-]+")
DATA = "data/"
DATA_FILE = re.compile(r"data/([0-9]{20})-[0-9]{5,}-[A-Za-z0-9-]+\.parquet")
DELETES = "-deletes.parquet"


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """What the sink *sink* has staged at *store*'s root."""

    sink: str
    store: ObjectStore
    upsert_key: tuple[str, ...] = ()

    def stage(
        self, table: pa.Table, *, checkpoint_id: int, subtask: int, attempt_token: str
    ) -> Committable | None:
        """See ``Sink.stage``.

        Raises:
            ConfigurationError: the rows have no upsert key, or one of them twice.
        """
        import pyarrow.parquet as pq

        assert ATTEMPT_TOKEN.fullmatch(attempt_token), f"not a file name: {attempt_token!r}"
        if table.num_rows == 0:
            return None
        self._check_keys(table)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        body = buffer.getvalue()
        kind = DELETES if DELETED in table.column_names else ".parquet"
        file = f"{_prefix(checkpoint_id)}{subtask:05d}-{attempt_token}{kind}"
        self.store.put(file, body)
        return Committable(sink=self.sink, file=file, rows=table.num_rows, size_bytes=len(body))

    def read(self, file: str, *, rows: int, size_bytes: int) -> pa.Table:
        """Raises ProtocolViolation when it is gone, or is not what was staged."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        place = f"{self.store.root}/{file}"
        body = self.store.get(file)
        if body is None:
            raise ProtocolViolation(f"{place} was committed and is missing")
        if len(body) != size_bytes:
            raise ProtocolViolation(
                f"{place} has {len(body)} bytes where {size_bytes} were committed"
            )
        try:
            table = pq.read_table(pa.BufferReader(body))
        except pa.ArrowInvalid as error:
            raise ProtocolViolation(f"{place} is not the file that was committed") from error
        if table.num_rows != rows:
            raise ProtocolViolation(
                f"{place} has {table.num_rows} rows where {rows} were committed"
            )
        return table

    def of_checkpoint(self, checkpoint_id: int) -> list[str]:
        return [listed.key for listed in self.store.list(_prefix(checkpoint_id))]

    def discard(self, files: Iterable[str]) -> None:
        self.store.delete(files)

    def listed(self) -> list[Listed]:
        return [*self.store.list(DATA)]

    def unpublished(self, listed: Sequence[Listed], named: Iterable[str]) -> Unpublished:
        """Of the files *listed* those that no commit has *named*."""
        published = set(named)
        return Unpublished(
            root=self.store.root,
            staged=tuple(one for one in staged_in(listed) if one.file not in published),
            newest_ms=max((one.modified_ms for one in listed), default=0),
        )

    def _check_keys(self, table: pa.Table) -> None:
        if not self.upsert_key:
            return
        if missing := sorted(set(self.upsert_key) - set(table.column_names)):
            raise ConfigurationError(
                f"sink {self.sink!r} upserts by {', '.join(self.upsert_key)}, but its rows have no "
                f"{', '.join(missing)}; they have {', '.join(table.column_names)}"
            )
        if len(newest_rows(table, self.upsert_key)) != table.num_rows:
            raise ConfigurationError(
                f"sink {self.sink!r} upserts by {', '.join(self.upsert_key)}, but a checkpoint has "
                "several rows of one key; key the stage before it by these columns, or append"
            )


def staged_in(listed: Iterable[Listed]) -> list[Staged]:
    return [
        Staged(
            file=one.key,
            checkpoint_id=int(name[1]),
            size_bytes=one.size_bytes,
            modified_ms=one.modified_ms,
        )
        for one in listed
        if (name := DATA_FILE.fullmatch(one.key)) is not None
    ]


def newest_rows(table: pa.Table, key: Sequence[str]) -> pa.Array:
    """The number of each key's last row, in order.  Types stay Arrow's: Polars sees keys only."""
    import polars as pl
    import pyarrow as pa

    keys = pl.from_arrow(table.select(list(key)))
    assert isinstance(keys, pl.DataFrame)
    # By number, for a key column may have any name.
    keys.columns = [str(number) for number in range(len(key))]
    last = keys.with_row_index("row").unique(keys.columns, keep="last", maintain_order=True)
    return pa.array(last["row"].to_numpy())


def deletes_first(staged: Committable) -> tuple[bool, str]:
    """The order in which a checkpoint's files count."""
    return not staged.file.endswith(DELETES), staged.file


def _prefix(checkpoint_id: int) -> str:
    return f"{DATA}{checkpoint_id:020d}-"
