"""``StagedSink``: a sink for a place with transactions: a database, a broker, Iceberg.

Rows are staged as files under the job's root, by the subtasks in parallel; when the checkpoint is
completed, the coordinator passes them to the ``Target``, which makes them visible in one atomic
step together with a note of the checkpoint's id.  The note makes it exactly once: a commit that is
repeated, after a crash or by another coordinator, finds the note and does nothing.

A table has one note, which is found by the table alone, and says of which table it is: a note that
was copied with a table, or that outlived it, says nothing of another one.

Places that keep the time line in one value, a property or an offset's metadata, store it as text:

    {"v":3,"table":"9c2e","at":[],"life":"5f0c","sink":"s3://jobs/root/shop/tables/sales",
     "generation":2,"fenced_by":2,"through":13,"continues":null,"published":"1-9,12,14-17",
     "is_cut":false,"past":[["c3d0.1f7a2b90",4]]}

A note of another format is refused, with its place and the fix.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from sluice.connectors.staged_files import StagedFiles, deletes_first, is_deletes, staged_by
from sluice.core.answers import Attempt, Committable
from sluice.core.timeline import CheckpointRange, Recovery, Timeline, TimelineComparison, Writer
from sluice.declaration.places import DELETED, CheckpointListener, RollBack, Unpublished
from sluice.errors import (
    ConfigurationError,
    FencedError,
    ProtocolViolation,
    StoreUnavailable,
    TableMismatch,
)
from sluice.store.open import StoreLocation, open_store

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT_VERSION: Literal[3] = 3

# A writer that commits all the time wins some races; an attempt costs two or three requests.
COMMIT_ATTEMPTS = 20
PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class EpochRows:
    """A checkpoint's rows, one file of a bounded number of rows at a time.

    Deletes come first: a row that is both deleted and written by a checkpoint stays.  With an
    upsert key, each key is in ``deletes`` at most once, and in ``upserts`` at most once.
    """

    files: StagedFiles
    staged: tuple[Committable, ...]

    @property
    def row_count(self) -> int:
        return sum(file.rows for file in self.staged)

    @property
    def checkpoint_id(self) -> int | None:
        """The checkpoint that staged the rows; None without any."""
        return staged_by(self.staged[0].file) if self.staged else None

    @property
    def has_deletes(self) -> bool:
        return any(is_deletes(file.file) for file in self.staged)

    def schema(self) -> pa.Schema | None:
        """The columns of the rows, or else of the deletes; None without either.  Reads a file."""
        for table in self.upserts():
            return table.schema
        for table in self.deletes():
            return table.schema
        return None

    def upserts(self) -> Iterator[pa.Table]:
        """Rows to be appended; with an upsert key they replace those of the same key."""
        return self._read(is_delete=False)

    def deletes(self) -> Iterator[pa.Table]:
        """Rows whose keys are to be deleted, without the column ``_deleted``."""
        return (table.drop_columns([DELETED]) for table in self._read(is_delete=True))

    def has_nulls(self, columns: Sequence[str]) -> bool:
        """Whether an upserted or appended row may be null in one of *columns*.

        Only the footers of the staged files are read: a ranged request or two for each.
        """
        files = [staged for staged in self.staged if columns and not is_deletes(staged.file)]
        return any(self.files.has_nulls(file.file, file.size_bytes, columns) for file in files)

    def _read(self, *, is_delete: bool) -> Iterator[pa.Table]:
        for staged in sorted(self.staged, key=deletes_first):
            if is_deletes(staged.file) == is_delete:
                yield self.files.read(
                    staged.file,
                    rows=staged.rows,
                    size_bytes=staged.size_bytes,
                    expected=staged.checksum,
                )


class Target(Protocol):
    """A place with transactions.  Several processes may call each method at once, and repeat it."""

    @property
    def rolls_back(self) -> RollBack: ...

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:
        """Check that *rows*, of *schema*, can be published.  See ``Sink.check``.

        A target reads the rows if its place may refuse some of their values.
        """
        ...

    def check_rows(self, rows: pa.Table) -> None:
        """Check that the place can hold the values of rows before they are staged.

        Rows that it cannot hold could never be committed.  Called in the subtasks; it does not
        connect to the place.

        Raises:
            ConfigurationError: it cannot; the message names the column and the fix.
        """
        ...

    def publish(
        self, writer: Writer, checkpoint_id: int, parent: int | None, rows: EpochRows
    ) -> None:
        """Make *rows* visible and store ``Timeline.publishing``, in one atomic step.

        It does nothing if that is None.

        Raises:
            FencedError, TableMismatch: as ``Timeline.publishing``.
            ConfigurationError: the rows do not fit.
            StoreUnavailable: try again.
        """
        ...

    def timeline(self) -> Timeline:
        """The time line; ``Timeline()`` in a place without any writes."""
        ...

    def is_empty(self) -> bool:
        """See ``Sink``."""
        ...

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        """Store ``Timeline.recovered``, in one atomic step; it does nothing if that is None.

        With ``roll_back`` the same step deletes the rows of ids after its version.  See ``Sink``.
        """
        ...

    def describe(self, version: int) -> str:
        """See ``Sink``."""
        ...


class TargetDefaults:
    """The defaults of a target that holds any rows, and cannot take any back."""

    __slots__ = ()

    @property
    def rolls_back(self) -> RollBack:
        return RollBack.NEVER

    def check(self, schema: pa.Schema, rows: EpochRows) -> None:
        pass

    def check_rows(self, rows: pa.Table) -> None:
        pass

    def is_empty(self) -> bool:
        return False

    def describe(self, version: int) -> str:
        return f"version {version}"


@dataclass(frozen=True, slots=True)
class StagedSink(CheckpointListener):
    """See ``Sink``; *files* are below the job's root for every *target*."""

    files: StagedFiles
    target: Target

    @classmethod
    def at(
        cls, location: StoreLocation, uid: str, upsert_key: tuple[str, ...], target: Target
    ) -> StagedSink:
        """The sink *uid*, whose rows are staged at *location*."""
        return cls(StagedFiles(uid, open_store(location), upsert_key), target)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if isinstance(self.target, CheckpointListener):
            self.target.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        if isinstance(self.target, CheckpointListener):
            self.target.notify_checkpoint_aborted(checkpoint_id)

    def notify_checkpoint_subsumed(self, checkpoint_id: int) -> None:
        if isinstance(self.target, CheckpointListener):
            self.target.notify_checkpoint_subsumed(checkpoint_id)

    @property
    def rolls_back(self) -> RollBack:
        return self.target.rolls_back

    def stage(self, table: pa.Table, by: Attempt) -> Committable | None:
        self.target.check_rows(table)
        return self.files.stage(table, by)

    def check(
        self, parent: int | None, schema: pa.Schema, committables: Sequence[Committable]
    ) -> None:
        rows = EpochRows(self.files, tuple(committables))
        checkpoint_id = rows.checkpoint_id
        try:
            self.target.check(schema, rows)
        except (ConfigurationError, ProtocolViolation):
            if checkpoint_id is None or not self.is_published(checkpoint_id):
                raise  # A published checkpoint conflicts with its own rows, or they were copied.
        require_parent(self.target.timeline(), checkpoint_id, parent, self.files.sink)

    def commit(
        self,
        writer: Writer,
        checkpoint_id: int,
        parent: int | None,
        committables: Sequence[Committable],
    ) -> None:
        try:
            rows = EpochRows(self.files, tuple(committables))
            self.target.publish(self._as_this_sink(writer), checkpoint_id, parent, rows)
        except ProtocolViolation:
            if not self.is_published(checkpoint_id):
                raise  # Else another process has published the rows and deleted the files.

    def discard_copied(self, committables: Sequence[Committable]) -> None:
        self.files.discard(staged.file for staged in committables)

    def damage_of(self, committables: Iterable[Committable]) -> list[str]:
        return self.files.damage_of(committables)

    def is_published(self, checkpoint_id: int) -> bool:
        return self.target.timeline().shows(checkpoint_id)

    def compare(self, life: str, version: int | None) -> TimelineComparison:
        return self.target.timeline().compare(life, version, self.place)

    @property
    def place(self) -> str:
        """The sink's place in its job's root; see ``Writer.sink``."""
        return self.files.store.root

    def _as_this_sink(self, writer: Writer) -> Writer:
        return replace(writer, sink=self.place)

    def is_empty(self) -> bool:
        return self.target.is_empty()

    def recover(self, writer: Writer, recovery: Recovery) -> None:
        self.target.recover(self._as_this_sink(writer), recovery)

    def describe(self, version: int) -> str:
        return self.target.describe(version)

    def abort(self, checkpoint_id: int, checkpoint_token: str) -> None:
        self.files.discard(self.files.of_checkpoint(checkpoint_id, checkpoint_token))

    def unpublished(self) -> Unpublished:
        """See ``Sink``; files of a published checkpoint are garbage, too, as they were copied."""
        return self.files.unpublished(self.files.listed(), ())

    def discard(self, files: Iterable[str]) -> None:
        self.files.discard(files)


def attempts(what: str) -> Iterator[None]:
    """The attempts of a commit, with growing, random pauses in between.

    Raises:
        StoreUnavailable: other writers won all races; it begins with *what* could not be written.
    """
    for attempt in range(COMMIT_ATTEMPTS):
        yield
        longest = min(PAUSE_S * 2**attempt, LONGEST_PAUSE_S)
        time.sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - no secret
    raise StoreUnavailable(
        f"{what}: other writers were always faster; try again, or have them commit less often"
    )


@contextmanager
def errors_of_place(place: str) -> Iterator[None]:
    """Prefix the errors of a time line with the name of the table's place."""
    try:
        yield
    except (FencedError, TableMismatch) as error:
        raise type(error)(f"{place}: {error}") from None


def require_parent(
    timeline: Timeline, checkpoint_id: int | None, parent: int | None, sink: str
) -> None:
    """Check before a checkpoint is completed that its commit will find *parent* in the table.

    Raises:
        TableMismatch: it will not: somebody outside has put the table back, emptied or replaced it.
    """
    if parent is None or timeline.shows(parent):
        return
    if checkpoint_id is None or not timeline.shows(checkpoint_id):
        raise TableMismatch(
            f"the table of sink {sink!r} does not show checkpoint {parent}, which the job "
            f"continues (its newest is {timeline.newest or 'none'}): it was put back, emptied or "
            "replaced, or the sink was declared for another one; restore a checkpoint that it "
            "shows, or restore and accept tables as they are, which leaves the rows in between out"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A time line, and of which *table* it is, by the table's own identity; empty where the place
    tells none, as a broker before 2.8.

    ``at`` are the place's names of the commits that wrote the newest notes, newest first, where
    the place has a history that somebody may put back.
    """

    timeline: Timeline
    table: str = ""
    at: tuple[int, ...] = ()


def encoded_note(note: Note, max_bytes: int) -> str:
    """The note, in at most *max_bytes* of UTF-8: the oldest entries are dropped if needed.

    Raises:
        ConfigurationError: not even the newest one has room beside the sink's place.
    """
    text = _text(note)
    while (size := len(text.encode())) > max_bytes and (spans := len(note.timeline.published)) > 1:
        # An estimate that may keep too many, as the text has other fields: then it tries again.
        kept = min(spans - 1, max(1, spans * max_bytes // size))
        note = replace(note, timeline=note.timeline.shortened(kept))
        text = _text(note)
    if size > max_bytes:
        raise ConfigurationError(
            f"the note of a table has room for {max_bytes} bytes, and the place of its sink, "
            f"{note.timeline.sink}, is too long for it; give the job a root with a shorter name"
        )
    return text


def decoded_note(text: str | None, place: str, fix: str) -> Note:
    """The note in *text*.

    Raises:
        ProtocolViolation: *text* is no note of this format; it names *place* and *fix*.
    """
    try:
        note = msgspec.json.decode(text or "", type=_Note)
        published = _spans(note.published)
    except (msgspec.DecodeError, ValueError):
        raise ProtocolViolation(
            f"{place} is no note that this sluice (format {FORMAT_VERSION}) reads: {text!r}; {fix}"
        ) from None
    timeline = Timeline(
        life=note.life,
        sink=note.sink,
        generation=note.generation,
        fenced_by=note.fenced_by,
        through=note.through,
        continues=note.continues,
        published=published,
        is_cut=note.is_cut,
        past=note.past,
    )
    return Note(timeline=timeline, table=note.table, at=note.at)


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    v: Literal[3]
    table: str
    at: tuple[int, ...]
    life: str
    sink: str
    generation: int
    fenced_by: int
    through: int
    continues: int | None
    published: str
    is_cut: bool
    past: tuple[tuple[str, int], ...]


def _text(note: Note) -> str:
    timeline = note.timeline
    encoded = _Note(
        v=FORMAT_VERSION,
        table=note.table,
        at=note.at,
        life=timeline.life,
        sink=timeline.sink,
        generation=timeline.generation,
        fenced_by=timeline.fenced_by,
        through=timeline.through,
        continues=timeline.continues,
        published=",".join(str(a) if a == b else f"{a}-{b}" for a, b in timeline.published),
        is_cut=timeline.is_cut,
        past=timeline.past,
    )
    return msgspec.json.encode(encoded).decode()


def _spans(text: str) -> tuple[CheckpointRange, ...]:
    """Raises ValueError unless the spans ascend, with gaps between them."""
    bounds = [part.partition("-") for part in text.split(",") if part]
    spans = tuple((int(first), int(last or first)) for first, _, last in bounds)
    is_sorted = all(last + 1 < first for (_, last), (first, _) in pairwise(spans))
    if not is_sorted or not all(0 < first <= last for first, last in spans):
        raise ValueError(text)
    return spans
