"""``FileSource``: the base of the sources of text, Parquet and Avro files of a folder.

Each file is a partition; files are read in the order of their names, each to its end before the
next.  A file that changed after it was read stops the pipeline, whichever process finds it (see
``FileIdentity``).  So does one that vanished with something that was not read of it; one that was
read to its end may go.

A file is followed to its new name when it is renamed, as logs are when they are rotated, and what
was read of it is not read again; a new file under its old name is read from its beginning.  On a
disk its id shows it.  If another file has its name, one of the same beginning is its copy
(logrotate's copytruncate), compressed or not; a compressed one may also have the text of a file
that is gone, if its name is that file's but for numbers.  Where names are ordered nothing is
renamed.

Without an order every file that was ever listed stays in the position: a new one may have any name.
Where names only grow, only the last files that were read stay, so that changes of these, and files
that are a few names late, are still found.  The first of them is the floor: files up to it are
neither listed nor remembered.

Folders may have columns in their names (see ``FolderColumns``).  Types that are inferred are those
of all names in the position, and a file that would change them stops the pipeline, so a column has
one type for as long as a job lives.  In such a folder, and where Spark's files are, a new file
beside one that was read and is gone is a version of the same rows, and stops the pipeline, too.

Where input may be replaced, the rows of the source are those of the files that are there: what was
read of a file that is gone, or has other bytes now, is taken back, and other bytes are read anew.
Each content is copied into the job's root by the first epoch that reads of it, and every slice is
read from its copy: so what is taken back is what was read, whatever has become of the file.  A
plan reads a file whose listing changed, and compares all of it.  Such a file does not grow.

Files that are still being written wait for a later epoch, up to a limit.  Only a file system shows
incomplete files; in a bucket an object appears whole.  A writer avoids this by writing a file
elsewhere and moving it into place.
"""

from __future__ import annotations

import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar

from sluice.connectors.files.file_set import (
    ContentMark,
    FileIdentity,
    FileSet,
    file_id_in,
    has_unread,
    is_listed_as,
    listing_of,
    unread_mark,
)
from sluice.connectors.files.folders import FolderColumns, in_columns
from sluice.core.plan import PartitionOffset, Slice, Unread
from sluice.declaration.places import (
    WEIGHT,
    Barrier,
    InputCopy,
    SourceDefaults,
    SourcePosition,
    check_induced,
    offsets_by_partition,
)
from sluice.errors import BEGIN_ANEW, ConfigurationError, StoreUnavailable
from sluice.protocol.records import checksum
from sluice.store.object_store import Listed, in_parallel

if TYPE_CHECKING:
    import pyarrow as pa

# Records that are read ahead of a waiting file for its event times: one small request per file.
HEAD_RECORDS = 100
HEAD_THREADS = 16
SOURCES_KEPT = 64

# Where names are ordered, files behind a full epoch are counted for display, up to this: one LIST.
COUNTED = 1_000

# Fewer than a listing's page of 1000 names, as a position is read with every checkpoint.
SEALED_KEPT = 16

# Longer than a writer pauses within a file, and short enough to report a dead writer that day.
GIVE_UP_AFTER_S = 3600

# ``part-00000-3f1c…-c000.snappy.parquet``: the number of the task, the id of the job that wrote it.
OF_SPARK = re.compile(r"part-\d{5}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b.*")

# A copy is one object, written in one request and held in memory while it is.
MOST_COPIED_BYTES = 1024**3

log = logging.getLogger(__name__)

CutT = TypeVar("CutT")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReadLimit:
    """The limit of an epoch for one file: at most ``most`` records, up to the offset ``until``.

    ``is_last``: there is no file of a later name.
    """

    most: int | None
    until: int | None
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Generic[CutT]):
    """The part of one file that an epoch reads.

    ``end`` is the offset up to which it could be read, if known.  ``has_rest``: there are bytes
    behind ``after``; ``is_half_a_record``: these are no complete record yet.
    """

    after: PartitionOffset
    cut: CutT | None = None
    records: int = 0
    end: int = 0
    has_rest: bool = False
    is_half_a_record: bool = False


@dataclass(frozen=True, slots=True)
class FileSource(SourceDefaults, ABC, Generic[CutT]):
    """The files of a ``FileSet`` at ``location``.

    ``ordered``: the names of new files sort after those of all complete files.
    ``give_up_after_s``: the seconds without a write after which an incomplete file is an error.
    ``skips_lost``: what was not read of a file that is gone or replaced is logged, and no error.
    ``folders`` are the columns of its folders, None where nobody declared them: then a listing
    shows them, or ``with_folders``.  ``takes_replaced``: see ``Files``.  Where it ``keeps_copies``,
    input may be replaced, and ``copies`` and ``taken_back`` are those of ``KeepingSource``.
    """

    _is_parquet: ClassVar[bool] = False

    location: str
    bounded: bool = True
    endpoint_url: str | None = None
    ordered: bool = False
    give_up_after_s: int = GIVE_UP_AFTER_S
    skips_lost: bool = False
    folders: FolderColumns | None = None
    takes_replaced: bool = False
    keeps_copies: bool = False
    copies: Mapping[str, InputCopy] = field(default_factory=dict[str, InputCopy])
    taken_back: Mapping[str, InputCopy] = field(default_factory=dict[str, InputCopy])

    def __post_init__(self) -> None:
        files = FileSet(self.location, self.endpoint_url)
        object.__setattr__(self, "location", files.location)
        assert not (self.ordered and self.bounded)

    def check_place(self) -> None:
        """Raises ConfigurationError if there is nothing at the location, not even a folder."""
        next(iter(self._files.listed()), None)

    @property
    def folder_columns(self) -> FolderColumns:
        """The columns of the folders; those of the files that exist now, where none are known."""
        if self.folders is not None:
            return self.folders
        try:
            first = next(iter(self._files.listed()), None)
        except ConfigurationError:  # There is nothing at the location; the plan says so.
            return FolderColumns()
        if first is None or not in_columns(first.key):
            return FolderColumns()
        self._check_declared(first.key)
        return FolderColumns.inferred((file.key for file in self._files.listed()), self.location)

    def with_folders(self, names: Iterable[str]) -> Self:
        """The source whose folders have the columns that the files *names* show."""
        if self.folders is not None:
            return self
        return replace(self, folders=FolderColumns.inferred(names, self.location))

    def settled(self, partitions: Iterable[str] | None = None) -> Self:
        """See ``Source``.  As all files have the same columns of folders, one without shows it."""
        if self.folders is not None:
            return self
        if partitions is None:
            return replace(self, folders=self.folder_columns)
        names = iter(partitions)
        first = next(names, None)
        if first is None or not in_columns(first):
            return replace(self, folders=FolderColumns())
        return self.with_folders(chain([first], names))

    def partition_values(self, partitions: Sequence[str]) -> pa.Table | None:
        """See ``Source``."""
        return self.folder_columns.table(partitions, self.location)

    def _check_declared(self, name: str) -> None:
        """Raises ConfigurationError where types would have to be inferred of names not listed."""
        if self.ordered and self.folders is None and in_columns(name):
            raise ConfigurationError(
                f"{name} of {self.location} is in folders of columns, whose types are inferred "
                "from all names, and ordered=True lists the last ones only; declare them: "
                'Files(..., partitions="dt date"), or partitions="" for none'
            )

    def _check_folders(self, read: Iterable[str], listed: Iterable[str]) -> None:
        """Check that new files have the columns, and the types of columns, of those *read*.

        Raises:
            ConfigurationError: they have not; it names a file.
        """
        read, listed = set(read), list(listed)
        new = [name for name in listed if name not in read]
        known = self.folders or FolderColumns.inferred(read or listed, self.location)
        for name in new:
            self._check_declared(name)
            known.values(name, self.location)
        if self.folders is None and read and new:
            now = FolderColumns.inferred([*read, *new], self.location)
            for (column, before), (_, after) in zip(known.types, now.types, strict=True):
                if before != after:
                    raise ConfigurationError(
                        f"the column {column!r} of the folders of {self.location} was read as "
                        f"{before}, and with {new[0]} it would be {after}; declare its type: "
                        f"Files(..., partitions={now.written()!r})"
                    )

    def plan(
        self,
        position: SourcePosition,
        *,
        max_records: int | None,
        parallelism: int,
        until: Mapping[str, int] | None = None,
    ) -> Barrier:
        """Cut the next epoch.  See ``Source.plan``."""
        assert max_records is None or max_records > 0
        assert parallelism > 0
        if self.keeps_copies:
            assert until is None, "a source that takes rows back is not induced"
            return self._plan_of_replaced(position, max_records, parallelism)

        read: Mapping[str, PartitionOffset] = offsets_by_partition(position)
        files, read = (None, read) if self.ordered else self._looked_at_twice(read)
        now: dict[str, PartitionOffset] = {}
        ends = {name: (before.offset, before.offset) for name, before in read.items()}
        cuts: list[CutT] = []
        waiting: dict[str, int] = {}
        rest, last_listed, missing = False, None, max_records

        def is_full() -> bool:
            return missing == 0 and until is None

        for file, is_last in self._listed(files, position, read, until, is_full):
            if self.ordered and file.key not in read:
                self._check_folders((), [file.key])
            before = self._continued(file, read)
            end = None if until is None else until.get(file.key, before.offset)
            part = self._part(before, file, FileReadLimit(most=missing, until=end, is_last=is_last))
            now[file.key] = part.after
            if part.has_rest and not part.after.version:
                now[file.key] = replace(part.after, version=unread_mark(file))
            ends[file.key] = (before.offset, part.end)
            rest = rest or part.has_rest
            if part.has_rest and not part.is_half_a_record:
                # Offsets of a file that may grow are its bytes; of others all bytes count.
                read_bytes = part.after.offset if self._may_grow(file.key) else 0
                waiting[file.key] = file.size_bytes - read_bytes
            if part.cut is not None:
                cuts.append(part.cut)
                missing = None if missing is None else missing - part.records
            if self.ordered and is_full() and part.has_rest:
                last_listed = file.key  # It holds the watermark back for all files behind it.
                break
        if until is not None:
            check_induced(self.location, until, ends)
        after = {**read, **now}
        if self.ordered:
            self._check_gone(read, now, last_listed, floor_of(position))
            after = without_forgotten(read, now, last_listed)
        return Barrier(
            position=tuple(after[name] for name in sorted(after)),
            slices=(slices := self._slices(cuts, parallelism)),
            exhausted=self.bounded and not rest,
            is_backlog=missing == 0 and rest,
            waiting=tuple(sorted(waiting)),
            unread=self._unread(waiting, last_listed),
            size_bytes=self._size_of(slices),
        )

    def named_by(self, position: SourcePosition, words: Sequence[str]) -> tuple[str, ...]:
        """See ``KeepingSource``."""
        return tuple(filter(self._all_folders(position).are_named_by, words))

    def plan_again(
        self, position: SourcePosition, words: Sequence[str], *, parallelism: int
    ) -> Barrier:
        """See ``KeepingSource``."""
        chosen = self._all_folders(position).choosing(words, self.location)
        return self._plan_of_replaced(position, None, parallelism, chosen)

    def _all_folders(self, position: SourcePosition) -> FolderColumns:
        """The columns of the folders that were read, and are there."""
        read = (entry.partition for entry in position)
        return self.with_folders(
            (*read, *(file.key for file in self._files.listed()))
        ).folder_columns

    def _plan_of_replaced(
        self,
        position: SourcePosition,
        max_records: int | None,
        parallelism: int,
        again: Callable[[str], bool] | None = None,
    ) -> Barrier:
        """``plan``, where files may be replaced; or of files alone that are to be read *again*.

        What is taken back, and the files beside it, are one epoch's, whatever its limit: at no
        barrier a partition is half of one version and half of another.
        """
        before: Mapping[str, PartitionOffset] = offsets_by_partition(position)
        files = {file.key: file for file in self._files.listed()}
        self._check_folders(before, files)
        others: dict[str, PartitionOffset] = {}
        if again is not None:
            others = {name: entry for name, entry in before.items() if not again(name)}
            before = {name: entry for name, entry in before.items() if again(name)}
            files = {name: file for name, file in files.items() if again(name)}
        known = {
            name: same
            for name, entry in before.items()
            if again is None
            and name in files
            and (same := self._same(entry, files[name])) is not None
        }
        gone = [entry for name, entry in before.items() if name not in known and entry.offset > 0]
        taken_back = [self._cut_again(entry) for entry in gone]
        replaced = {entry.partition.rpartition("/")[0] for entry in gone}
        missing = max_records
        if missing is not None:
            missing = max(missing - sum(entry.records for entry in gone), 0)
        now: dict[str, PartitionOffset] = {}
        cuts: list[CutT] = []
        waiting: dict[str, int] = {}

        for file in self._prepared(list(files.values()), known, lambda: False):
            start = known.get(file.key) or PartitionOffset(partition=file.key, offset=0, records=0)
            most = None if file.key.rpartition("/")[0] in replaced else missing
            part = self._part(start, file, FileReadLimit(most=most, until=None, is_last=False))
            now[file.key] = part.after
            if part.has_rest:
                waiting[file.key] = file.size_bytes
                if not part.after.version:
                    now[file.key] = replace(part.after, version=unread_mark(file))
            if part.cut is not None:
                cuts.append(part.cut)
                missing = None if missing is None else max(missing - part.records, 0)
        begun = {name for name, entry in now.items() if entry.offset > 0} - {
            name for name, entry in known.items() if entry.offset > 0
        }
        slices = (
            *(replace(one, is_taken_back=True) for one in self._slices(taken_back, parallelism)),
            *self._slices(cuts, parallelism),
        )
        after = {**others, **self._remembered(before, {**others, **now}), **now}
        return Barrier(
            position=tuple(after[name] for name in sorted(after)),
            slices=slices,
            exhausted=self.bounded and not waiting and again is None,
            is_backlog=missing == 0 and bool(waiting),
            waiting=tuple(sorted(waiting)),
            begun=tuple(sorted(begun)),
            unread=self._unread(waiting, None),
        )

    def _same(self, before: PartitionOffset, file: Listed) -> PartitionOffset | None:
        """The entry *before*, as *file* is listed now; None if the file is another content."""
        if not before.version or not is_listed_as(before.version, file):
            copy = self.copies.get(file.key)
            if before.offset == 0 or copy is None or file.size_bytes != copy.size_bytes:
                return None
            body = self._files.store_of(file.key).get(file.key)
            if body is None or checksum(body) != copy.checksum:
                return None
            return self._identity(file.key).as_listed(before, file)
        return before

    def _remembered(
        self, before: Mapping[str, PartitionOffset], now: Mapping[str, PartitionOffset]
    ) -> dict[str, PartitionOffset]:
        """Entries for folders that are gone: the types of columns are inferred of these, too."""
        if self.folders is not None:
            return {}
        there = {name.rpartition("/")[0] for name in now}
        one_of = {
            folder: name
            for name in before
            if in_columns(name) and (folder := name.rpartition("/")[0]) not in there
        }
        return {
            name: PartitionOffset(partition=name, offset=0, records=0, sealed=True)
            for name in one_of.values()
        }

    def with_copies(
        self, copies: Mapping[str, InputCopy], taken_back: Mapping[str, InputCopy]
    ) -> Self:
        """See ``KeepingSource``."""
        return replace(self, copies=copies, taken_back=taken_back)

    def content(self, entry: PartitionOffset) -> bytes:
        """See ``KeepingSource``."""
        name = entry.partition
        what, listed_as = f"{name} of {self.location}", ContentMark.parse(entry.version).listed_as
        file = self._files.find(name)
        if file is not None and file.size_bytes > MOST_COPIED_BYTES:
            raise ConfigurationError(
                f"{what} has {file.size_bytes} bytes, and of input that may be replaced the root "
                f"keeps copies of files of at most {MOST_COPIED_BYTES}; write smaller files, or "
                "drop replaced='by partition'"
            )
        body = self._files.store_of(name).get(name)
        after = self._files.find(name)
        if body is None or {listing_of(one) for one in (file, after) if one} != {listed_as}:
            raise StoreUnavailable(f"{what} was replaced while its epoch was planned")
        return body

    def _copy_of(self, piece: Slice) -> InputCopy | None:
        return (self.taken_back if piece.is_taken_back else self.copies).get(piece.partition)

    def with_weight(self, schema: pa.Schema) -> pa.Schema:
        import pyarrow as pa

        return schema.append(pa.field(WEIGHT, pa.int8())) if self.keeps_copies else schema

    def weighed(
        self, rows: pa.RecordBatch, piece: Slice, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """*rows* of *piece*, with their weight if the source has it, and *columns* ask for it."""
        import pyarrow as pa

        if not self.keeps_copies or (columns is not None and WEIGHT not in columns):
            return rows
        weight = pa.scalar(-1 if piece.is_taken_back else 1, pa.int8())
        return rows.append_column(WEIGHT, pa.repeat(weight, rows.num_rows))

    @property
    def partitions_end(self) -> bool:
        return True

    def heads(self, partitions: Sequence[str]) -> tuple[Slice, ...]:
        if self.keeps_copies:
            return ()  # No copy of them is there yet.
        heads = in_parallel(self._head_of, partitions, HEAD_THREADS)
        return tuple(piece for piece in heads if piece)

    def _head_of(self, name: str) -> Slice | None:
        file = self._files.find(name)
        return self._head(file) if file is not None and file.size_bytes else None

    @abstractmethod
    def _head(self, file: Listed) -> Slice | None:
        """The first HEAD_RECORDS records or fewer; None if they cannot be read yet."""

    @abstractmethod
    def read(self, piece: Slice, columns: Sequence[str] | None = None) -> Iterator[object]: ...

    @abstractmethod
    def _part(self, before: PartitionOffset, file: Listed, asked: FileReadLimit) -> Part[CutT]:
        """The part of *file* that the epoch reads, after the offset *before*."""

    @abstractmethod
    def _cut_again(self, read: PartitionOffset) -> CutT:
        """All that was *read* of a file, to be taken back."""

    @abstractmethod
    def _slices(self, cuts: list[CutT], parallelism: int) -> tuple[Slice, ...]: ...

    def _unread(self, waiting: Mapping[str, int], last_listed: str | None) -> Unread:
        """The files *waiting*, with their unread bytes, and up to COUNTED behind *last_listed*."""
        counted: list[Listed] = []
        if last_listed is not None:
            counted += islice(self._files.listed(start_after=last_listed), COUNTED)
        files = len(waiting) + len(counted)
        return Unread(
            partitions=files,
            records=None if files else 0,
            size_bytes=sum(waiting.values()) + sum(file.size_bytes for file in counted),
            is_least=len(counted) == COUNTED,
        )

    def _size_of(self, slices: Sequence[Slice]) -> int | None:
        if not all(self._may_grow(piece.partition) for piece in slices):
            return None
        return sum(piece.end - piece.start for piece in slices)

    def _may_grow(self, name: str) -> bool:  # noqa: ARG002 - those of most formats may not
        return False

    def _prepared(
        self,
        files: Iterable[Listed],
        read: Mapping[str, PartitionOffset],  # noqa: ARG002 - for formats that read ahead
        is_full: Callable[[], bool],  # noqa: ARG002
    ) -> Iterator[Listed]:
        """The *files*; a format may override it to open several at once, ahead of their turn."""
        yield from files

    def _listed(
        self,
        files: Sequence[Listed] | None,
        position: SourcePosition,
        read: Mapping[str, PartitionOffset],
        until: Mapping[str, int] | None,
        is_full: Callable[[], bool],
    ) -> Iterator[tuple[Listed, bool]]:
        """The files of the epoch, each with whether it is the last.

        *files* are all; None where they are ordered.  With *until* these are all files, as a
        barrier may name any.
        """
        floor = floor_of(position) if self.ordered and until is None else ""
        listed = self._files.listed(start_after=floor) if files is None else files
        for file, following in pairwise(chain(self._prepared(listed, read, is_full), [None])):
            assert file is not None
            is_read = file.key in read and read[file.key].sealed
            if self.ordered and following is not None and self._may_grow(file.key) and not is_read:
                # The next file shows that this one is complete, but it may have been listed before
                # its last lines were written.
                file = self._files.find(file.key) or file  # noqa: PLW2901
            yield file, following is None

    def _looked_at_twice(
        self, read: Mapping[str, PartitionOffset]
    ) -> tuple[list[Listed], Mapping[str, PartitionOffset]]:
        """See ``_followed``: the folder may have been listed while a file was renamed."""
        try:
            files, now = self._followed(read)
        except LostFileError:
            files, now = self._followed(read)
        later = self._files.rotated_since(now, files)
        return sorted([*files, *later], key=lambda file: file.key) if later else files, now

    def _followed(
        self, read: Mapping[str, PartitionOffset]
    ) -> tuple[list[Listed], dict[str, PartitionOffset]]:
        """All files, and the offset of each that was *read*, under the name that it has now.

        Raises:
            LostFileError: something was not read of a file that is nowhere, or another file has its
                name.
        """
        files = list(self._files.listed(known=read))
        present = {file.key: file for file in files}
        now: dict[str, PartitionOffset] = {}
        lost: dict[str, str | None] = {}  # Why another file has the name; None where none has.
        for name, before in read.items():
            file = present.get(name)
            if not before.version or (file is not None and is_listed_as(before.version, file)):
                now[name] = before
            elif file is None:
                lost[name] = None
            else:
                identity, mark = self._identity(name), ContentMark.parse(before.version)
                problem = identity.problem(mark, file, self._place(before))
                if problem is None:
                    now[name] = identity.as_listed(before, file)
                else:
                    lost[name] = problem
        if not lost:
            self._check_folders(now, present)
            return files, now
        new = {
            file.key: file
            for file in (*files, *self._files.beside())
            if file.key not in now or now[file.key].offset == 0
        }
        for name, file in self._moved({name: read[name] for name in lost}, present, new).items():
            log.info("file was renamed file=%s now=%s location=%s", name, file.key, self.location)
            now[file.key] = self._moved_offset(read[name], file)
            present.setdefault(file.key, file)
            del lost[name]
        for name, problem in lost.items():
            if problem is None or name in now:  # It is gone, and its name may be that of another.
                is_lost = self._check_read_to_its_end(name, read[name])
                now.setdefault(name, replace(read[name], sealed=True) if is_lost else read[name])
            else:
                self._lost_to(problem)
        self._check_not_replaced(now, present)
        self._check_folders(now, present)
        return [present[key] for key in sorted(present)], now

    def _check_gone(
        self,
        read: Mapping[str, PartitionOffset],
        now: Mapping[str, PartitionOffset],
        last_listed: str | None,
        floor: str,
    ) -> None:
        """Check the files of an ordered source that are not among those of this epoch, *now*."""
        for name, before in read.items():
            if name not in now and (last_listed is None or name <= last_listed):
                self._check_read_to_its_end(name, before)
        if last_listed is None:
            listed = {name: before for name, before in read.items() if name > floor}
            self._check_not_replaced(listed, now)

    def _check_not_replaced(
        self, read: Mapping[str, PartitionOffset], present: Collection[str]
    ) -> None:
        """Check that no file is a new version of rows that were read.

        Spark writes a partition anew by other files in its folder, and so it does a folder without
        columns, of which then no file is left.  Elsewhere files may go while others come.

        Raises:
            LostFileError: one is; it names the folder.
        """
        begun = {name for name, before in read.items() if before.offset > 0}
        gone = {name.rpartition("/")[0]: name for name in sorted(begun.difference(present))}
        if not gone or self.takes_replaced:
            return
        kept = {name.rpartition("/")[0] for name in begun.intersection(present)}
        for name in sorted(present):
            folder, _, file = name.rpartition("/")
            if folder not in gone or name in begun:
                continue
            old = gone[folder]
            is_spark = OF_SPARK.fullmatch(file) and OF_SPARK.fullmatch(old.rpartition("/")[2])
            if in_columns(name) or (is_spark and folder not in kept):
                raise LostFileError(
                    f"{folder or 'the folder'} of {self.location} was overwritten: {old}, which "
                    f"was read, is gone, and {name} is new, so its rows would be read twice; put "
                    "back what was read and write corrections elsewhere, "
                    f"{BEGIN_ANEW} without this "
                    "state, or, if the new files hold other rows, take them with "
                    "Files(..., replaced='append')"
                )

    def _moved(
        self,
        lost: Mapping[str, PartitionOffset],
        present: Mapping[str, Listed],
        new: Mapping[str, Listed],
    ) -> dict[str, Listed]:
        """The files among *new* that those of the names *lost* are now."""
        moved: dict[str, Listed] = {}
        left = dict(new)
        by_id = {file.file_id: file for file in new.values() if file.file_id}
        for name, before in lost.items():
            file = by_id.get(file_id_in(before.version))
            if file is None or file.key not in left:
                continue
            is_alike = self._may_grow(name) == self._may_grow(file.key)
            mark = ContentMark.parse(before.version)
            if is_alike and self._identity(file.key).is_renamed(mark, file):
                moved[name] = left.pop(file.key)
        wanted = {name: before for name, before in lost.items() if name not in moved}
        for name, key in self._copies(wanted, present, left) if left and wanted else ():
            moved[name] = new[key]
        return moved

    def _copies(
        self,
        lost: Mapping[str, PartitionOffset],  # noqa: ARG002 - for formats whose files grow
        present: Mapping[str, Listed],  # noqa: ARG002
        new: Mapping[str, Listed],  # noqa: ARG002
    ) -> Iterable[tuple[str, str]]:
        """Pairs of a *lost* file and one of *new* that has its content, each in one pair only."""
        return ()

    def _moved_offset(self, before: PartitionOffset, file: Listed) -> PartitionOffset:
        mark = ContentMark.parse(before.version).listed(file)
        return replace(before, partition=file.key, version=str(mark))

    def _check_read_to_its_end(self, name: str, before: PartitionOffset) -> bool:
        """Whether something is lost of a file that is gone: of what was listed, not all was read.

        Raises:
            LostFileError: it is, unless that is to be skipped.
        """
        if not has_unread(before, may_grow=self._may_grow(name)):
            return False
        self._lost(
            f"{name} of {self.location} was read to {self._place(before)} and is gone; put it "
            "back, or pass over what was not read of it with on_lost='skip'"
        )
        return True

    def _lost_to(self, problem: str) -> None:
        """See ``_lost``; another file has the name."""
        self._lost(f"{problem}; or pass over what was not read of it with on_lost='skip'")

    def _lost(self, problem: str) -> None:
        if not self.skips_lost:
            raise LostFileError(problem)
        log.error("RECORDS ARE LOST: %s", problem)

    def _continued(self, file: Listed, read: Mapping[str, PartitionOffset]) -> PartitionOffset:
        """The offset from which *file* is read on, after a check that it is the same file."""
        before = read.get(file.key)
        if before is None:
            if self.ordered:
                warn_of_late(file.key, read, self.location)
            return PartitionOffset(partition=file.key, offset=0, records=0)
        if not self.ordered or not before.version or is_listed_as(before.version, file):
            return before
        identity, mark = self._identity(file.key), ContentMark.parse(before.version)
        problem = identity.problem(mark, file, self._place(before))
        if problem is None:
            return identity.as_listed(before, file)
        self._lost_to(problem)
        return PartitionOffset(partition=file.key, offset=0, records=0)

    def _place(self, offset: PartitionOffset) -> str:
        return f"row {offset.offset}"

    def _identity(self, name: str) -> FileIdentity:
        return FileIdentity(files=self._files, name=name, may_grow=self._may_grow(name))

    def _marked(self, file: Listed) -> str:
        """The version of a complete file; the file is read for it at most once per process."""
        return self._identity(file.key).marked(file)

    @property
    def _files(self) -> FileSet:
        return _files_at(self.location, self.endpoint_url, is_parquet=self._is_parquet)


@lru_cache(maxsize=SOURCES_KEPT)
def _files_at(location: str, endpoint_url: str | None, *, is_parquet: bool) -> FileSet:
    """The set, which is built once: a source asks for it with each of its files."""
    return FileSet(location, endpoint_url, is_parquet=is_parquet)


def floor_of(position: SourcePosition) -> str:
    """The name up to which no file has to be listed; empty when all have to be.

    Once a file was forgotten there is always a floor.
    """
    is_full = len(position) >= SEALED_KEPT and position[0].sealed
    return position[0].partition if is_full else ""


def warn_of_late(name: str, read: Mapping[str, PartitionOffset], location: str) -> None:
    """Log a new file that sorts before files that were read: files are not written in order."""
    later = max((offset.partition for offset in read.values() if offset.sealed), default="")
    if name < later:
        log.warning(
            "file came out of order, others like it may have been missed file=%s after=%s "
            "location=%s",
            name,
            later,
            location,
        )


def without_forgotten(
    read: Mapping[str, PartitionOffset], now: Mapping[str, PartitionOffset], last_listed: str | None
) -> dict[str, PartitionOffset]:
    """The entries of *now* that an ordered source has to keep; *read* is the position before.

    Files that this epoch completed stay, as the readers need them, and so does the floor.
    Up to *last_listed*, or everywhere if that is None, files that are not in *now* have vanished,
    and count as read; files behind it are unchanged.
    """
    gone = {
        name: replace(offset, sealed=True)
        for name, offset in read.items()
        if last_listed is None or name <= last_listed
    }
    kept = {**read, **gone, **now}
    names = sorted(kept)
    sealed = 0
    while sealed < len(names) and names[sealed] in read and kept[names[sealed]].sealed:
        sealed += 1
    return {name: kept[name] for name in names[max(sealed - SEALED_KEPT, 0) :]}


class LostFileError(ConfigurationError):
    """A part of a file that was not read is gone, or the file under its name is another one."""


class NotWholeError(ConfigurationError):
    """A file ends too early; the rest may still be written."""


def leave_for_later(file: Listed, error: NotWholeError, give_up_after_s: int) -> None:
    """Log that *file* waits for a later epoch.

    Raises:
        ConfigurationError: it was not written to for *give_up_after_s* seconds; it names it.
    """
    if is_silent(file, give_up_after_s):
        raise ConfigurationError(
            f"{error}; it was not written to for {give_up_after_s} s"
        ) from error
    log.info(
        "file is not whole yet, left for a later epoch file=%s size_bytes=%d",
        file.key,
        file.size_bytes,
    )


def is_silent(file: Listed, seconds: int) -> bool:
    """Whether the last write was *seconds* ago, comparing the store's clock with this machine's."""
    return time.time_ns() // 1_000_000 - file.modified_ms >= seconds * 1000
