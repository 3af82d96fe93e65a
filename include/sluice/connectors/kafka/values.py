"""The columns of a record: of its value, and of its metadata.

A value that cannot be decoded, or metadata that no column can hold, makes a malformed row and does
not stop the job.  A null value is a tombstone, which deletes its key from a compacted topic.  Its
row has nulls in all columns and, if values are decoded, true in the column ``tombstone``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from sluice.connectors.plain_lines import PlainLines, decoded_texts
from sluice.declaration.columns import check_source_columns
from sluice.declaration.places import MALFORMED_COLUMN, RAW, RECORD
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa
    from confluent_kafka import Message

TOMBSTONE = "tombstone"
LAST_MS = (2**63 - 1) // 1_000  # The range of microseconds that a timestamp column holds.
KINDS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "headers")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decoded:
    """Arrays of ``kept``, then of ``fields``; ``malformed`` has errors by row number."""

    columns: list[pa.Array]
    malformed: dict[int, str]


class Values(Protocol):
    """A decoder of values, pickled for Spark's workers; imports nothing heavy until it decodes."""

    @property
    def text_schema(self) -> str | None:
        """The schema of JSON that Spark has to decode in the column ``value``; else None."""
        ...

    def kept(self) -> list[pa.Field]:
        """The columns beside the decoded ones."""
        ...

    def fields(self) -> list[pa.Field]: ...

    def decode(self, raw: Sequence[bytes | None]) -> Decoded: ...


class DecodedValues:
    """Values that Python decodes, beside which a column says whether they are tombstones."""

    __slots__ = ()

    @property
    def text_schema(self) -> str | None:
        return None

    def kept(self) -> list[pa.Field]:
        import pyarrow as pa

        return [pa.field(TOMBSTONE, pa.bool_())]


@dataclass(frozen=True, slots=True)
class RawValues(DecodedValues):
    """The column ``value`` as bytes, or as text; a text that is not UTF-8 is malformed."""

    as_text: bool = False

    def kept(self) -> list[pa.Field]:
        return []

    def fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [pa.field("value", pa.string() if self.as_text else pa.binary())]

    def decode(self, raw: Sequence[bytes | None]) -> Decoded:
        import pyarrow as pa

        if not self.as_text:
            return Decoded([pa.array(raw, pa.binary())], {})
        texts, bad = texts_of(raw)
        return Decoded([texts], dict.fromkeys(bad, "the value is not UTF-8"))


@dataclass(frozen=True, slots=True)
class JsonValues(DecodedValues):
    """JSON text for Spark to decode.  Spark skips blank texts and nulls: a tombstone is ``{}``."""

    schema: str

    @property
    def text_schema(self) -> str | None:
        return self.schema

    def fields(self) -> list[pa.Field]:
        import pyarrow as pa

        return [pa.field("value", pa.string())]

    def decode(self, raw: Sequence[bytes | None]) -> Decoded:
        import pyarrow as pa

        texts, bad = texts_of([b"{}" if one is None else one for one in raw])
        if bad:
            # Bytes that are not UTF-8 are no JSON; they are shown with replacements.
            shown = texts.to_pylist()
            for row in bad:
                value = raw[row]
                assert value is not None
                shown[row] = f"not UTF-8: {value.decode(errors='replace')}"
            texts = pa.array(shown, pa.string())
        return Decoded([tombstones(raw), texts], {})


@dataclass(frozen=True, slots=True)
class PlainJsonValues(DecodedValues):
    """The objects of JSON texts, which *plain* decodes."""

    plain: PlainLines

    def fields(self) -> list[pa.Field]:
        return list(self.plain.schema)

    def decode(self, raw: Sequence[bytes | None]) -> Decoded:
        """See ``Values``.

        Raises:
            UndecidedError: Spark might read one of the texts otherwise.
        """
        lines = b"\n".join([b"{}" if one is None else one for one in raw])
        rows = decoded_texts(lines, len(raw), self.plain)
        return Decoded([tombstones(raw), *(one.combine_chunks() for one in rows.columns)], {})


def texts_of(raw: Sequence[bytes | None]) -> tuple[pa.Array, list[int]]:
    """*raw* as strings, and the numbers of the rows that are not UTF-8, which are null."""
    import pyarrow as pa

    try:
        return pa.array(raw, pa.binary()).cast(pa.string()), []
    except pa.ArrowInvalid:
        texts, bad = [], []
        for row, one in enumerate(raw):
            try:
                texts.append(None if one is None else one.decode())
            except UnicodeDecodeError:
                texts.append(None)
                bad.append(row)
        return pa.array(texts, pa.string()), bad


def arrays_of(
    records: Sequence[T | None],
    columns: Callable[[Sequence[T | None]], list[pa.Array]],
    malformed: dict[int, str],
) -> list[pa.Array]:
    """The *columns* of the records, decoded values of Kafka's records.

    A record with a value that its column cannot hold, such as a sentinel for "never" that is no
    valid time, is null in all columns, and gets its reason in *malformed*.
    """
    try:
        return columns(records)
    except _not_held():
        kept = [*records]
        for row, record in enumerate(records):
            try:
                columns([record])
            except _not_held() as error:
                malformed[row] = f"no column can hold it: {error}"
                kept[row] = None
        return columns(kept)


def _not_held() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


def tombstones(raw: Sequence[bytes | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array([one is None for one in raw], pa.bool_())


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """The columns in *wanted*, each ``name`` or ``name as other_name``.

    They are before the decoded ones, or behind them with *are_last*, as Spark has those of JSON.

    Raises:
        ConfigurationError: Kafka has no such column.
    """

    wanted: tuple[str, ...]
    key: Literal["binary", "string"] = "binary"
    are_last: bool = False

    def __post_init__(self) -> None:
        for kind, _ in self.named():
            if kind not in KINDS:
                raise ConfigurationError(
                    f"columns= names {kind!r}; what Kafka says of a record is {', '.join(KINDS)}"
                )

    def fields(self) -> list[pa.Field]:
        import pyarrow as pa

        types = {
            "topic": pa.string(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "timestamp_type": pa.string(),
            "key": pa.string() if self.key == "string" else pa.binary(),
            "headers": pa.map_(pa.string(), pa.binary()),
        }
        return [pa.field(name, types[kind]) for kind, name in self.named()]

    def schema(self, values: Values) -> pa.Schema:
        """Raises ConfigurationError when a value's column has the name of one of these."""
        import pyarrow as pa

        fields = self._in_order([*self.fields(), *values.kept()], values.fields())
        self.check_values([field.name for field in (*values.kept(), *values.fields())])
        if values.text_schema is None:
            fields += [pa.field(MALFORMED_COLUMN, pa.string()), pa.field(RAW, pa.string())]
        return pa.schema([*fields, pa.field(RECORD, pa.int64())])

    def check_values(self, names: Sequence[str]) -> None:
        """Raises ConfigurationError when decoded columns collide with these or reserved ones.

        Names are compared without case, as in Spark's SQL.
        """
        kept = [name for _, name in self.named()]
        lower = [name.lower() for name in (*names, *kept)]
        if twice := [name for name in (*kept, *names) if lower.count(name.lower()) > 1]:
            raise ConfigurationError(
                f"the values have a column {twice[0]!r}, and so has Kafka; rename Kafka's, as in "
                f'columns=("{twice[0]} as kafka_{twice[0]}",), or leave it out'
            )
        check_source_columns([*kept, *names], "Kafka's record")

    def batch(self, messages: Sequence[Message], topic: str, values: Values) -> pa.RecordBatch:
        """Messages as rows; metadata that no column can hold makes a row malformed, too."""
        import pyarrow as pa

        raw = [one.value() for one in messages]
        decoded = values.decode(raw)
        offsets = pa.array([one.offset() for one in messages], pa.int64())
        arrays: list[pa.Array] = []
        reasons: dict[int, str] = {}
        for kind, _ in self.named():
            match kind:
                case "key":
                    arrays.append(self._keys(messages, reasons))
                case "timestamp":
                    arrays.append(_timestamps(messages, reasons))
                case "offset":
                    arrays.append(offsets)
                case _:
                    arrays.append(_column(kind, messages, topic))
        kept = len(values.kept())
        arrays = self._in_order([*arrays, *decoded.columns[:kept]], decoded.columns[kept:])
        if values.text_schema is None:
            arrays += _malformed(raw, {**reasons, **decoded.malformed})
        else:
            arrays[-1] = _spoilt(arrays[-1], reasons)
        return pa.RecordBatch.from_arrays([*arrays, offsets], schema=self.schema(values))

    def _keys(self, messages: Sequence[Message], reasons: dict[int, str]) -> pa.Array:
        """The keys; adds to *reasons* the rows whose key is invalid, and why."""
        import pyarrow as pa

        raw = [one.key() for one in messages]
        if self.key == "binary":
            return pa.array(raw, pa.binary())
        texts, bad = texts_of(raw)
        for row in bad:
            key = raw[row]
            assert isinstance(key, bytes)
            reasons[row] = f"the key is not UTF-8 (hex {key.hex()})"
        return texts

    def _in_order(self, own: list[T], decoded: list[T]) -> list[T]:
        return [*decoded, *own] if self.are_last else [*own, *decoded]

    def named(self) -> Iterator[tuple[str, str]]:
        """The name of each in Kafka, and the name of its column."""
        for one in self.wanted:
            kind, _, name = one.partition(" as ")
            yield kind.strip(), name.strip() or kind.strip()


def _column(kind: str, messages: Sequence[Message], topic: str) -> pa.Array:
    import pyarrow as pa

    match kind:
        case "topic":
            return pa.repeat(pa.scalar(topic, pa.string()), len(messages))
        case "partition":
            return pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), len(messages))
        case "timestamp_type":
            names = {1: "create", 2: "append"}
            return pa.array([names.get(one.timestamp()[0]) for one in messages], pa.string())
        case _:
            return pa.array(
                [_headers(one.headers()) for one in messages], pa.map_(pa.string(), pa.binary())
            )


def _timestamps(messages: Sequence[Message], reasons: dict[int, str]) -> pa.Array:
    """The timestamps; null for Kafka's -1, and for a value that is no valid time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at = pa.array([one.timestamp()[1] for one in messages], pa.int64())
    for row in pc.indices_nonzero(pc.greater(at, LAST_MS)).to_pylist():
        reasons[row] = f"the record's timestamp is no moment: {at[row]} ms"
    is_time = pc.and_(pc.greater_equal(at, 0), pc.less_equal(at, LAST_MS))
    times = pc.if_else(is_time, at, pa.scalar(None, pa.int64()))
    return times.cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _headers(headers: object) -> list[tuple[str, bytes | None]]:
    """The headers for a map column: of several headers of one name the last one is kept."""
    return list(dict(headers).items()) if isinstance(headers, list) else []


def _spoilt(texts: pa.Array, reasons: dict[int, str]) -> pa.Array:
    """*texts* with the reason put before that of each malformed row, so that it is not decoded."""
    import pyarrow as pa

    if not reasons:
        return texts
    shown = texts.to_pylist()
    for row, reason in reasons.items():
        if shown[row] is not None and shown[row].strip():  # A blank text is no row.
            shown[row] = f"{reason}: {shown[row]}"
    return pa.array(shown, texts.type)


def _malformed(raw: Sequence[bytes | None], reasons: dict[int, str]) -> list[pa.Array]:
    """The reason of each malformed row, and its value: as text, or in hex if it is none."""
    import pyarrow as pa

    if not reasons:
        return [pa.nulls(len(raw), pa.string()), pa.nulls(len(raw), pa.string())]
    shown = [_shown(raw[row]) if row in reasons else None for row in range(len(raw))]
    why = [reasons.get(row) for row in range(len(raw))]
    return [pa.array(why, pa.string()), pa.array(shown, pa.string())]


def _shown(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return f"hex {raw.hex()}"
    return text if text.isprintable() else f"hex {raw.hex()}"
