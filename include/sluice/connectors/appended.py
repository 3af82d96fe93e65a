"""A source of what was appended to a table, or of its changes, commit by commit; its partitions
are data files.

Commits are immutable, and each has files in a fixed order, so a repeated plan finds the same ones.
A commit that may take rows back is read in one epoch, whatever the epoch's limit: at each barrier
behind the first table the rows that were read add up to the table as it was at a commit.

A position has at most two entries, whatever the table's history.  The first, called ``mark``, has
as its offset the sequence number of the last commit that was read to its end, and as its version
that one's id; it is sealed, as no row is read of it: the watermark waits for open files only.  A
data file is the other entry when the cut lies in the commit after that: the files before it in
order are read, those after it are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.declaration.places import (
    Barrier,
    SourceDefaults,
    SourcePosition,
    check_induced,
    offsets_by_partition,
)
from sluice.errors import BEGIN_ANEW, ConfigurationError

NOTHING = ""  # Stands for the id of the commit before the first one.
BASE = "base "  # The prefix of the id of a commit whose table is being read whole, not finished.


class Step(Protocol):
    """A commit to read; its text names it."""

    @property
    def sequence(self) -> int: ...

    @property
    def is_base(self) -> bool:
        """Whether the table is read whole, as it was then, and not what the commit did."""
        ...


StepT = TypeVar("StepT", bound=Step)
StepT_contra = TypeVar("StepT_contra", bound=Step, contravariant=True)


class Appends(Protocol[StepT_contra]):
    """The history of a table."""

    @property
    def name(self) -> str: ...

    def version(self, step: StepT_contra, /) -> str:
        """A text that tells *step* from any other commit of that number."""
        ...

    def files(self, step: StepT_contra, /) -> list[AddedFile]:
        """The files to read of *step*, in order; none where no row was added."""
        ...

    def rows(self, step: StepT_contra, /) -> int | None:
        """The number of rows to read of *step*, as far as that is known without its files."""
        ...

    def adds_rows(self, step: StepT_contra, /) -> bool:
        """Whether *step* may have added rows."""
        ...


AppendsT = TypeVar("AppendsT", bound=Appends[Any])


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file; ``name`` tells it from all others of the table."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in the table: after the commit *version*, and *offset* rows into *file*.

    ``mark`` names the entry of the commit.
    """

    mark: str
    sequence: int = 0
    version: str = NOTHING
    file: str = ""
    offset: int = 0
    is_done: bool = False

    def position(self) -> SourcePosition:
        entries = [
            PartitionOffset(
                partition=self.mark,
                offset=self.sequence,
                records=0,
                sealed=True,
                version=self.version,
            )
        ]
        if self.file:
            entries.append(
                PartitionOffset(
                    partition=self.file,
                    offset=self.offset,
                    records=self.offset,
                    sealed=self.is_done,
                )
            )
        return tuple(sorted(entries, key=lambda entry: entry.partition))


class AppendedSource(SourceDefaults, Generic[AppendsT, StepT]):
    """The plan of such a source; what derives from it knows the commits, and reads."""

    __slots__ = ()
    mark: ClassVar[str]  # The name of the position's entry of a commit.
    start: str  # "earliest", "latest", or the number of a commit.
    changes: bool | Literal["rows"]
    bounded: bool

    @property
    def takes_rows_back(self) -> bool:
        """Whether all changes are read, as rows with weights."""
        return self.changes == "rows"

    @property
    def starts_at_end(self) -> bool:
        """See ``StartingSource``."""
        return self.start == "latest"

    def _check_start(self, name: str, number: str) -> None:
        """Raises ConfigurationError: there is no such start, *number* being the third one; or
        changes would take back rows that were never read.
        """
        if self.start not in ("earliest", "latest") and not self.start.isdecimal():
            raise ConfigurationError(
                f"the start {self.start!r} of {name} is unknown; write 'earliest', 'latest', or "
                f"{number}"
            )
        if self.takes_rows_back and self.starts_at_end:
            raise ConfigurationError(
                f"{name} is read with changes='rows' and start='latest', so that its changes would "
                "take back rows that were never read; begin with start='earliest', or read the "
                "rows that are appended"
            )

    def _appends(self) -> AbstractContextManager[AppendsT]:
        raise NotImplementedError

    def _first(self, appends: AppendsT) -> Cursor:
        """The first position of a source without one."""
        raise NotImplementedError

    def _steps(self, appends: AppendsT, cursor: Cursor) -> list[StepT]:
        """The commits after *cursor*, oldest first."""
        raise NotImplementedError

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """See ``Source.plan``; reads what commits say of themselves.

        An induced barrier names ``mark`` and a sequence number, and lies after that commit.
        """
        assert max_records is None or max_records > 0
        assert parallelism > 0

        with self._appends() as appends:
            cursor = parsed_cursor(position, self.mark) if position else self._first(appends)
            steps = self._steps(appends, cursor)
            last = None
            if until is not None:
                end = steps[-1].sequence if steps else cursor.sequence
                check_induced(appends.name, until, {self.mark: (cursor.sequence, end)})
                last = until.get(self.mark, cursor.sequence)
            return self._cut(appends, cursor, steps, max_records, parallelism, last)

    def _cut(
        self,
        appends: AppendsT,
        cursor: Cursor,
        steps: Sequence[StepT],
        max_records: int | None,
        parallelism: int,
        last: int | None,
    ) -> Barrier:
        """The barrier in *steps*, at the latest behind the one of the number *last*."""
        parts: list[tuple[str, int, int]] = []
        missing = max_records
        rest, stays_at = False, cursor.sequence
        for step in steps:
            if last is not None and (step.sequence > last or last == stays_at):
                break
            if missing == 0:
                rest = any(map(appends.adds_rows, steps[steps.index(step) :]))
                break
            files = self._unread(appends, step, cursor)
            most = missing
            if self.takes_rows_back and not step.is_base:
                if parts and missing is not None and sum(file.rows for file in files) > missing:
                    rest = True
                    break
                most = None
            for file in files:
                start = cursor.offset if file.name == cursor.file else 0
                if most == 0:
                    rest = True
                    break
                end = file.rows if most is None else min(file.rows, start + most)
                most = None if most is None else most - (end - start)
                missing = None if missing is None else max(missing - (end - start), 0)
                parts.append((file.name, start, end))
                cursor = replace(cursor, file=file.name, offset=end, is_done=end == file.rows)
            if rest or (cursor.file and not cursor.is_done):
                rest = True
                break
            cursor = Cursor(self.mark, step.sequence, appends.version(step))
        longest = max(1, -(-sum(end - start for _, start, end in parts) // parallelism))
        is_amid_base = cursor.version.startswith(BASE)  # Which has no number if it is of version 1.
        left = [
            step
            for step in steps
            if step.sequence > cursor.sequence or (is_amid_base and step.is_base)
        ]
        return Barrier(
            position=cursor.position(),
            slices=tuple(
                Slice(partition=name, start=a, end=b, first_record=a, records=b - a)
                for name, start, end in parts
                for a, b in ranges_of(start, end, longest)
            ),
            exhausted=self.bounded and not rest and last is None,
            is_backlog=rest,
            # Files of one commit may hold the same times, so the snapshot counts as a whole.
            waiting=(self.mark,) if cursor.file else (),
            unread=self._left(appends, cursor, left),
        )

    def _left(self, appends: AppendsT, cursor: Cursor, steps: Sequence[StepT]) -> Unread:
        """The unread rows of *steps*: of the first by its files, of others by their summaries."""
        rows: list[int | None] = [appends.rows(step) for step in steps[bool(cursor.file) :]]
        if cursor.file:
            files = self._unread(appends, steps[0], cursor)
            already_read = 0 if cursor.is_done else cursor.offset
            rows.append(sum(file.rows for file in files) - already_read)
        known = [count for count in rows if count is not None]
        return Unread(
            partitions=sum(1 for count in rows if count != 0),
            records=sum(known) if len(known) == len(rows) else None,
        )

    def _unread(self, appends: AppendsT, step: StepT, cursor: Cursor) -> list[AddedFile]:
        """The files of *step* from the one of the cursor on."""
        files = appends.files(step)
        if not cursor.file:
            return files
        names = [file.name for file in files]
        if cursor.file not in names or files[names.index(cursor.file)].rows < cursor.offset:
            raise ConfigurationError(
                f"{cursor.file} was read to row {cursor.offset} and is not in {step} of "
                f"{appends.name} any more: the table was made anew; {BEGIN_ANEW}, too"
            )
        return files[names.index(cursor.file) + cursor.is_done :]


def parsed_cursor(position: SourcePosition, mark: str) -> Cursor:
    entries = offsets_by_partition(position)
    read = entries.pop(mark)
    assert len(entries) <= 1, "at most one file is read in part"
    cursor = Cursor(mark, read.offset, read.version)
    for file in entries.values():
        cursor = replace(cursor, file=file.partition, offset=file.offset, is_done=file.sealed)
    return cursor


def ranges_of(start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Cut rows into nearly equal ranges of about *longest*, or fewer."""
    pieces = -(-(end - start) // longest)
    yield from pairwise(start + (end - start) * piece // pieces for piece in range(pieces + 1))
