"""Bytes <-> core types: versioned JSON, checked once on the way in; never pickle.

Every object is an envelope ``{"kind": ..., "version": ..., "checksum": ..., "body": ...}``,
compressed by zlib when it is large.  A reader refuses a kind it did not ask for, a version it does
not know, and a body whose bytes are not those that were written, and names the remedy.
"""

from __future__ import annotations

import hashlib
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, count
from typing import TYPE_CHECKING, Protocol, TypeVar, cast, get_args

import msgspec

from sluice.core.answers import Ack, Decline, StageAnswer, TaskFailure
from sluice.core.compaction import Compaction, MergedRuns
from sluice.core.completed import CheckpointMetadata
from sluice.core.events import AcksReceived, Event
from sluice.core.plan import CheckpointPlan, PartitionOffset, Slice
from sluice.core.savepoints import SavepointPointer
from sluice.core.state import CoordinatorState
from sluice.errors import ConfigurationError, DamagedRecord, ProtocolViolation, require
from sluice.figures.record import CheckpointStatistics

if TYPE_CHECKING:
    from typing_extensions import Buffer

FORMAT_VERSION = 17
COMPRESSED_ABOVE = 16_384  # Bytes; people can read a smaller record as it is.
ZLIB_LEVEL = 1
# A record of 10,000 subtasks has a few MB.  What unpacks to more was not written by a coordinator.
MAX_RECORD_BYTES = 256 * 1024**2
_LIMIT = f"{MAX_RECORD_BYTES // 1024**2} MiB"
CHECKSUM_BYTES = 16  # blake2b-128: collision-free in practice, 32 characters in an ack.
T = TypeVar("T")

_JOURNALED: dict[str, type] = {
    cls.__name__: cls for cls in get_args(Event) if cls is not AcksReceived
}


class _Envelope(msgspec.Struct, frozen=True):
    kind: str
    version: int
    body: msgspec.Raw
    checksum: str  # Of the body.


class _Plan(msgspec.Struct, frozen=True):
    """The slices of each source are beside the plan, which has none itself."""

    plan: CheckpointPlan
    slices: tuple[SliceColumns, ...]


class _PositionLayer(msgspec.Struct, frozen=True):
    entries: tuple[PartitionOffset, ...]


class _EntryBody(msgspec.Struct, frozen=True):
    author: str
    previous: str
    place: str
    clock_offset_ms: int | None
    event_name: str
    event: msgspec.Raw
    state: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One event, the state it led to, and the token by which its author knows it again.

    ``previous`` is the token of the entry before it, so that entries are a chain.  ``place`` is the
    store that was probed for conditional writes.  ``clock_offset_ms`` is what the job's clock is
    ahead of the store's; None until somebody has asked for the time.
    """

    author: str
    previous: str
    event: Event
    state: CoordinatorState
    place: str = ""
    clock_offset_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunJournal:
    """The pointer to the journal that is the job's in a root: the one with this ``token``."""

    token: str


def _codec(kind: str, cls: type[T]) -> tuple[Callable[[T], bytes], Callable[[bytes, str], T]]:
    """How a record is encoded, and how its bytes, which have a key, are decoded."""

    def encode(record: T) -> bytes:
        return _seal(kind, record)

    def decode(raw: bytes, key: str) -> T:
        return _open(kind, cls, raw, key)

    return encode, decode


encode_begun, decode_begun = _codec("begun journal", BegunJournal)
encode_ack, decode_ack = _codec("ack", Ack)
encode_answer, decode_answer = _codec("stage answer", StageAnswer)
encode_decline, decode_decline = _codec("decline", Decline)
encode_failure, decode_failure = _codec("task failure", TaskFailure)
encode_metadata, decode_metadata = _codec("checkpoint metadata", CheckpointMetadata)
encode_pointer, decode_pointer = _codec("savepoint pointer", SavepointPointer)
encode_compaction, decode_compaction = _codec("compaction", Compaction)
encode_merged_runs, decode_merged_runs = _codec("merged runs", MergedRuns)
encode_statistics, decode_statistics = _codec("checkpoint statistics", CheckpointStatistics)


def encode_entry(entry: JournalEntry) -> bytes:
    require(type(entry.event).__name__ in _JOURNALED, "acks are not journaled")
    body = _EntryBody(
        author=entry.author,
        previous=entry.previous,
        place=entry.place,
        clock_offset_ms=entry.clock_offset_ms,
        event_name=type(entry.event).__name__,
        event=msgspec.Raw(msgspec.json.encode(entry.event)),
        state=msgspec.Raw(msgspec.json.encode(entry.state)),
    )
    return _seal("journal entry", body)


def decode_entry(raw: bytes, key: str) -> JournalEntry:
    body = _open("journal entry", _EntryBody, raw, key)
    if body.event_name not in _JOURNALED:
        raise ProtocolViolation(
            f"{key} holds an event {body.event_name!r} that this version of sluice does not know; "
            "run the version that wrote it, or a newer one"
        )
    event = cast("Event", _decode(_JOURNALED[body.event_name], body.event, key))
    return JournalEntry(
        author=body.author,
        previous=body.previous,
        event=event,
        state=_decode(CoordinatorState, body.state, key),
        place=body.place,
        clock_offset_ms=body.clock_offset_ms,
    )


def encode_plan(plan: CheckpointPlan) -> bytes:
    slices = tuple(SliceColumns.of_slices(cut.slices) for cut in plan.sources)
    return _seal("plan", _Plan(plan=_with_slices(plan, [()] * len(slices)), slices=slices))


def decode_plan(raw: bytes, key: str) -> CheckpointPlan:
    """Raises ProtocolViolation when the bytes are no plan."""
    found = _open("plan", _Plan, raw, key)
    try:
        return _with_slices(found.plan, [tuple(columns.slices()) for columns in found.slices])
    except (AssertionError, IndexError, ValueError) as error:
        raise ProtocolViolation(f"{key} cannot be read as a plan: {error}") from error


def encode_position_layer(entries: Sequence[PartitionOffset]) -> bytes:
    return _seal("position layer", _PositionLayer(entries=tuple(entries)))


def decode_position_layer(raw: bytes, key: str) -> tuple[PartitionOffset, ...]:
    return _open("position layer", _PositionLayer, raw, key).entries


def format_version(raw: bytes, key: str) -> int:
    """The format version of any record, also of one that this version of sluice does not read.

    Raises:
        ProtocolViolation: the bytes are no record.
    """
    return _envelope(raw, key).version


def _with_slices(plan: CheckpointPlan, slices: Sequence[tuple[Slice, ...]]) -> CheckpointPlan:
    cuts = zip(plan.sources, slices, strict=True)
    return replace(plan, sources=tuple(replace(cut, slices=of) for cut, of in cuts))


def _seal(kind: str, body: object) -> bytes:
    raw = msgspec.Raw(msgspec.json.encode(body, order="deterministic"))
    sealed = msgspec.json.encode(
        _Envelope(kind=kind, version=FORMAT_VERSION, body=raw, checksum=checksum(bytes(raw)))
    )
    if len(sealed) > MAX_RECORD_BYTES:
        raise ConfigurationError(
            f"a record ({kind}) has {len(sealed):,} bytes, and at most {_LIMIT} are read back: use "
            "fewer subtasks or sources, or less data_inline_threshold"
        )
    return sealed if len(sealed) <= COMPRESSED_ABOVE else zlib.compress(sealed, ZLIB_LEVEL)


def _open(kind: str, cls: type[T], raw: bytes, key: str) -> T:
    envelope = _envelope(raw, key)
    if envelope.kind != kind:
        raise DamagedRecord(f"{key} is a {envelope.kind}, not a {kind}")
    if envelope.version != FORMAT_VERSION:
        raise ProtocolViolation(
            f"{key} has format version {envelope.version}; this version of sluice reads "
            f"{FORMAT_VERSION}: run the version that wrote it, or a newer one"
        )
    if envelope.checksum != (now := checksum(bytes(envelope.body))):
        raise DamagedRecord(
            f"{key} is damaged: checksum {envelope.checksum} was recorded, its body has {now}"
        )
    return _decode(cls, envelope.body, key)


def _envelope(raw: bytes, key: str) -> _Envelope:
    """Raises DamagedRecord when the bytes are no envelope: then none can have been written."""
    try:
        return _decode(_Envelope, _plain(raw, key), key)
    except ProtocolViolation as error:
        raise DamagedRecord(str(error)) from error


def _plain(raw: bytes, key: str) -> bytes:
    """The JSON in *raw*, which begins with a brace where it is not compressed."""
    if raw.startswith(b"{"):
        return raw
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(raw, MAX_RECORD_BYTES + 1)
    except zlib.error as error:
        raise ProtocolViolation(f"{key} cannot be read: {error}") from error
    if len(plain) > MAX_RECORD_BYTES:
        raise ProtocolViolation(f"{key} cannot be read: it unpacks to more than {_LIMIT}")
    if not unpacker.eof:
        raise ProtocolViolation(f"{key} cannot be read: it is cut off")
    return plain


def _decode(cls: type[T], raw: bytes | msgspec.Raw, key: str) -> T:
    try:
        return cast("T", _DECODERS[cls].decode(raw))
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise ProtocolViolation(
            f"{key} cannot be read as {cls.__name__.lstrip('_')}: {error}"
        ) from error


class SliceColumns(msgspec.Struct, frozen=True):
    """The slices of a source as columns.

    A plan has slices for each of thousands of subtasks, and most begin where the one before ended,
    so a column of gaps is a column of zeros.  ``of`` are positions in ``partitions``, which were
    cut in these ``versions``; those in ``taken_back`` are taken back.  ``gaps`` and ``record_gaps``
    lie between a slice and the one before it in its partition, or the partition's beginning.
    """

    partitions: tuple[str, ...]
    versions: tuple[str, ...]
    of: tuple[int, ...]
    gaps: tuple[int, ...]
    lengths: tuple[int, ...]
    record_gaps: tuple[int, ...]
    records: tuple[int, ...]
    taken_back: tuple[int, ...]

    @classmethod
    def of_slices(cls, slices: Iterable[Slice]) -> SliceColumns:
        numbers: dict[tuple[str, str, bool], int] = {}
        ends: dict[int, tuple[int, int]] = {}
        rows: list[tuple[int, int, int, int, int]] = []
        for piece in slices:
            content = piece.partition, piece.version, piece.is_taken_back
            number = numbers.setdefault(content, len(numbers))
            end, record = ends.get(number, (0, 0))
            rows.append(
                (
                    number,
                    piece.start - end,
                    piece.end - piece.start,
                    piece.first_record - record,
                    piece.records,
                )
            )
            ends[number] = piece.end, piece.first_record + piece.records
        of, *columns = tuple(zip(*rows, strict=True)) or ((), (), (), (), ())
        gaps, lengths, record_gaps, records = columns
        partitions, versions, is_taken_back = tuple(zip(*numbers, strict=True)) or ((), (), ())
        return cls(
            partitions=partitions,
            versions=versions,
            of=of,
            gaps=gaps,
            lengths=lengths,
            record_gaps=record_gaps,
            records=records,
            taken_back=tuple(compress(count(), is_taken_back)),
        )

    def slices(self) -> Iterator[Slice]:
        ends = [(0, 0)] * len(self.partitions)
        taken_back = set(self.taken_back)
        rows = zip(self.of, self.gaps, self.lengths, self.record_gaps, self.records, strict=True)
        for number, gap, length, record_gap, records in rows:
            end, record = ends[number]
            start, first_record = end + gap, record + record_gap
            ends[number] = start + length, first_record + records
            yield Slice(
                partition=self.partitions[number],
                start=start,
                end=start + length,
                first_record=first_record,
                records=records,
                version=self.versions[number],
                is_taken_back=number in taken_back,
            )


def checksum(body: bytes | memoryview) -> str:
    """Hex blake2b-128 of the bytes, as a ``SegmentHandle`` records it."""
    return hashlib.blake2b(body, digest_size=CHECKSUM_BYTES).hexdigest()


def checksum_of(pieces: Iterable[bytes]) -> str:
    """The ``checksum`` of *pieces*, one after the other."""
    digest = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class _Writable(Protocol):
    def write(self, body: bytes, /) -> int: ...


class ChecksumStream(io.RawIOBase):
    """A stream that knows the checksum and the size of all that is written through it."""

    def __init__(self, stream: _Writable) -> None:
        super().__init__()
        self._stream = stream
        self._hash = hashlib.blake2b(digest_size=CHECKSUM_BYTES)
        self.size_bytes = 0

    @property
    def checksum(self) -> str:
        """The ``checksum`` of all bytes so far."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, body: Buffer, /) -> int:
        view = memoryview(body).cast("B")
        self._stream.write(bytes(view))
        self._hash.update(view)
        self.size_bytes += len(view)
        return len(view)


# Built when this module is imported, which one thread does: msgspec studies a class at its first
# use, and threads that do so at the same time crash the interpreter.
_DECODERS: dict[type, msgspec.json.Decoder[object]] = {
    cls: msgspec.json.Decoder(cls)
    for cls in (
        _Envelope,
        BegunJournal,
        _EntryBody,
        CoordinatorState,
        _Plan,
        CheckpointMetadata,
        SavepointPointer,
        Ack,
        StageAnswer,
        _PositionLayer,
        Decline,
        TaskFailure,
        Compaction,
        MergedRuns,
        CheckpointStatistics,
        *_JOURNALED.values(),
    )
}
