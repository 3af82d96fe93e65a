"""The columns of a record's value.  A value that cannot be decoded is a malformed row.

A null value is a tombstone, which deletes its key from a compacted topic.  Its row has nulls in all
columns and, if values are decoded, true in the column ``tombstone``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from sluice.connectors.kafka.columns import texts_of

if TYPE_CHECKING:
    import pyarrow as pa

TOMBSTONE = "tombstone"
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


@dataclass(frozen=True, slots=True)
class RawValues:
    """The column ``value`` as bytes, or as text; a text that is not UTF-8 is malformed."""

    as_text: bool = False

    @property
    def text_schema(self) -> str | None:
        return None

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
class JsonValues:
    """JSON text for Spark to decode.  Spark skips blank texts and nulls: a tombstone is ``{}``."""

    schema: str

    @property
    def text_schema(self) -> str | None:
        return self.schema

    def kept(self) -> list[pa.Field]:
        return tombstone_fields()

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


def held(
    records: Sequence[T | None],
    columns: Callable[[Sequence[T | None]], list[pa.Array]],
    malformed: dict[int, str],
) -> list[pa.Array]:
    """The *columns* of the records.

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


def tombstone_fields() -> list[pa.Field]:
    import pyarrow as pa

    return [pa.field(TOMBSTONE, pa.bool_())]


def tombstones(raw: Sequence[bytes | None]) -> pa.Array:
    import pyarrow as pa

    return pa.array([one is None for one in raw], pa.bool_())
