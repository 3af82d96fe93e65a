"""Block files: rows that are sent by reference, where one machine runs all subtasks of a stage.

There the body of a block need not pass Spark's JVM: the sender writes it to a file on local disk,
uncompressed, and Spark's shuffle moves its place; the receiver maps it into memory.  The files lie
in Spark's own local folders, beside those of its shuffle, which go when the JVM ends.
"""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import polars as pl
import pyarrow as pa

from sluice.errors import StoreUnavailable
from sluice.subtask.state.segments import to_frame, to_table

LOCAL_FOLDERS = "SPARK_LOCAL_DIRS"  # Set by Spark in its Python workers: a list, with commas.
CARRIED_BYTES = 64 * 1024  # Smaller blocks are cheaper to carry than to write, open and map.
_OURS = "sluice-blocks"


@dataclass(frozen=True, slots=True)
class BlockFolder:
    """The folder of the block files of one execution attempt of a stage, below a local folder.

    ``stage`` is the part of its path that all attempts have in common; attempts sort by their age.
    """

    stage: str
    attempt: str


class Place(NamedTuple):
    """The place of a block's body: a file, and the offset of its first byte."""

    file: str
    offset: int


class BlockFile(AbstractContextManager["BlockFile"]):
    """The block file of one sender, made when it has something to write.

    Its first one removes the files of the stage's earlier attempts and epochs: nothing reads those.
    """

    def __init__(self, folder: BlockFolder | None, sender: int) -> None:
        folders = os.environ.get(LOCAL_FOLDERS, "").split(",")
        local = folders[sender % len(folders)]
        self._stage = Path(local, _OURS, folder.stage) if folder is not None and local else None
        self._attempt = "" if folder is None else folder.attempt
        self._file: IO[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def takes(self, rows: pl.DataFrame) -> bool:
        """Whether *rows* are better written here than carried in the block."""
        return self._stage is not None and rows.estimated_size() >= CARRIED_BYTES

    def write(self, rows: pl.DataFrame) -> Place:
        """Append *rows*, which it ``takes``.

        Raises:
            OSError: the local disk refuses them.
        """
        if self._file is None:
            self._file = self._created()
        offset = self._file.tell()
        table = to_table(rows)  # Texts as offsets: written in half the time of Polars' views.
        with pa.ipc.new_stream(self._file, table.schema) as stream:
            stream.write_table(table)
        self._file.flush()
        return Place(self._file.name, offset)

    def _created(self) -> IO[bytes]:
        assert self._stage is not None
        folder = self._stage / self._attempt
        folder.mkdir(parents=True, exist_ok=True)
        for other in self._stage.iterdir():
            if other.name < self._attempt:
                shutil.rmtree(other, ignore_errors=True)
        return (folder / f"{uuid.uuid4().hex}.arrow").open("xb")


def read_block(place: Place) -> pl.DataFrame:
    """The rows at *place*, mapped: they take memory only as they are looked at, but for 16 bytes
    of each text, Polars' views.

    Raises:
        StoreUnavailable: the file is gone, or is cut off; the attempt has to begin again.
    """
    try:
        with pa.memory_map(place.file) as mapped:
            mapped.seek(place.offset)
            table = pa.ipc.open_stream(mapped).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreUnavailable(
            f"rows that a subtask sent cannot be read from {place.file}: {error}"
        ) from error
    return to_frame(table)
