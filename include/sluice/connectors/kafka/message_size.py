"""The size of a message as librdkafka counts it, so that none is found too large at the commit.

librdkafka refuses a message above ``message.max.bytes`` when it is given one
(``rd_kafka_msg_max_wire_size`` in rdkafka_msg.h); the broker's own limit, ``max.message.bytes`` of
the topic, is larger unless one of the two was changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING

from sluice.connectors.kafka.cluster import MAX_MESSAGE_BYTES
from sluice.connectors.kafka.messages import AvroRow
from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from sluice.connectors.kafka.messages import MessageFormat

    Header = tuple[str, str | bytes | None]

OVERHEAD_BYTES = 36  # RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD, in rdkafka_proto.h.
ESCAPED_BYTES = 6  # A control character of one byte is \u00XX in JSON.
SCALAR_BYTES = 100  # A number, a time or a decimal of 76 digits, as text.


def check_sizes(made: MessageFormat, rows: pa.Table, most: int, mark: Header) -> None:
    """Check that each row's message, with the header *mark*, has *most* bytes or fewer.

    Rows are encoded for it where their columns do not show it, and always as Avro.

    Raises:
        ConfigurationError: one is larger, or cannot be encoded.
    """
    if not isinstance(made.value, AvroRow) and _bound(rows, mark) <= most:
        return
    of_rows: Iterable[Sequence[Header]] = made.header_rows(rows) or repeat([])
    for number, (key, value, headers) in enumerate(
        zip(made.keys(rows), made.values(rows), of_rows, strict=False)
    ):
        size = OVERHEAD_BYTES + _length(key) + _length(value)
        size += sum(map(_header_length, chain(headers, [mark])))
        if size > most:
            raise ConfigurationError(
                f"a message of {size:,} bytes is larger than {MAX_MESSAGE_BYTES}, {most:,}; its "
                f"row's longest column is {_longest(rows.slice(number, 1))!r}: shorten it before "
                f"the sink, or give KafkaTopic config={{'{MAX_MESSAGE_BYTES}': ...}}, and the "
                "topic a max.message.bytes that is not smaller"
            )


def _bound(rows: pa.Table, mark: Header) -> float:
    """No message of the rows is larger: cheap, and mostly far below the limit."""
    columns = sum(
        _column_bound(column) + ESCAPED_BYTES * _length(name)
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    )
    return OVERHEAD_BYTES + _header_length(mark) + 2 * columns  # A column may be key and field.


def _column_bound(column: pa.ChunkedArray) -> float:
    import pyarrow as pa
    import pyarrow.compute as pc

    types = pa.types
    if types.is_nested(column.type) or types.is_dictionary(column.type):
        return float("inf")
    if types.is_string(column.type) or types.is_large_string(column.type) or _is_binary(column):
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        return float(ESCAPED_BYTES * longest + SCALAR_BYTES)
    return SCALAR_BYTES


def _is_binary(column: pa.ChunkedArray) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(
        types.is_binary(column.type)
        or types.is_large_binary(column.type)
        or types.is_fixed_size_binary(column.type)
    )


def _length(text: bytes | str | None) -> int:
    if text is None:
        return 0
    return len(text if isinstance(text, bytes) else text.encode())


def _header_length(header: Header) -> int:
    name, value = map(_length, header)
    return name + _varint_bytes(name) + value + _varint_bytes(value)


def _varint_bytes(length: int) -> int:
    """The bytes of a length in zigzag encoding, 7 bits in each."""
    return max(1, -(-(2 * length).bit_length() // 7))


def _longest(row: pa.Table) -> str:
    return max(map(str, row.column_names), key=lambda name: row.column(name).nbytes)
