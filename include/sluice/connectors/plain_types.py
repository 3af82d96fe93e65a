"""Types of which Python reads the text exactly as Spark does, or leaves it to Spark.

Of each type Python knows the usual forms: a date is ``2026-03-01``, a timestamp has seconds, up to
six digits of a fraction, and ``Z``, an offset such as ``+02:00``, or nothing, which is UTC.  Spark
knows more forms, such as ``2026-3-1``; such text is undecided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.connectors.columns import DAY, FIRST_DAY, arrow_type
from sluice.declaration.column_types import ColumnType
from sluice.declaration.places import END, UndecidedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_PLAIN = frozenset(
    {
        *("bigint", "int", "smallint", "tinyint", "double", "boolean", "string"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)
_DIGITS = b"0123456789"
_WHOLE, _REAL = _DIGITS + b"-", _DIGITS + b"-+.eE"
_DATE_LETTERS = 10
_TIME_LETTERS = 19  # Of ``2026-03-01T10:00:00``, where a fraction or a zone may follow.
_LAST_OFFSET_HOUR = 17  # Spark knows zones of up to 18 hours, Arrow of up to 23.


def plain_type(column: ColumnType) -> pa.DataType | None:
    """The type as Spark hands it to Python; None where its text may be read differently.

    That is so for floats of 32 bits, which Spark's JSON rounds twice, and for decimals: a process
    that had Arrow read hostile ones ended with a segmentation fault.
    """
    return arrow_type(column) if column.name in _PLAIN else None


def check_bytes(whole: bytes) -> None:
    """Raises UndecidedError for bytes that Spark reads otherwise, wherever they are."""
    if END.encode() in whole or b"\0" in whole:
        raise UndecidedError("reserved characters")
    if not whole.isascii():
        try:
            whole.decode()
        except UnicodeDecodeError as error:
            raise UndecidedError("not UTF-8") from error


def of_text(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The strings *texts* as *kind*, of ``plain_type``.

    Raises:
        UndecidedError: Spark might read one of them otherwise.
    """
    from pyarrow import types

    if types.is_string(kind):
        return texts
    if types.is_boolean(kind):
        return _booleans(texts)
    if types.is_date32(kind):
        _, starts, ends = _bounds(texts)
        if (ends - starts != _DATE_LETTERS).any():
            raise UndecidedError("an unusual date")
    elif types.is_timestamp(kind):
        return _moments(texts, kind)
    else:
        _check_letters(texts, _WHOLE if types.is_integer(kind) else _REAL)
    values = _cast(texts, kind)
    check_numbers(values)
    _check_years(values)
    return values


def check_numbers(column: pa.Array) -> None:
    """Raises UndecidedError for a zero with a sign, or a number that no value of its type is."""
    import numpy as np
    from pyarrow import types

    if types.is_struct(column.type):
        for field in column.flatten():
            check_numbers(field)
    elif types.is_list(column.type):
        check_numbers(column.flatten())
    elif types.is_floating(column.type):
        values = column.drop_null().to_numpy(zero_copy_only=False)
        if not np.isfinite(values).all() or (np.signbit(values) & (values == 0)).any():
            raise UndecidedError("a number that is not finite, or a negative zero")


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        raise UndecidedError(str(error)) from error


def _booleans(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    small = pc.ascii_lower(texts)
    is_true = pc.equal(small, "true")
    if pc.all(pc.or_(is_true, pc.equal(small, "false"))).as_py() is False:
        raise UndecidedError("no boolean")
    return is_true


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    letters, starts, ends = _bounds(texts)
    if (ends - starts < _TIME_LETTERS).any():
        raise UndecidedError("an unusual timestamp")
    if (letters[starts + 13] != ord(":")).any() or (letters[starts + 16] != ord(":")).any():
        raise UndecidedError("an unusual timestamp")
    sign = letters[ends - 6]
    has_offset = ((sign == ord("+")) | (sign == ord("-"))) & (letters[ends - 3] == ord(":"))
    is_zoned = has_offset | (letters[ends - 1] == ord("Z"))
    hours = 10 * letters[ends - 5][has_offset].astype(np.int16) + letters[ends - 4][has_offset]
    if (hours > 11 * ord("0") + _LAST_OFFSET_HOUR).any():
        raise UndecidedError("an unusual time zone")
    local = pa.timestamp("us")
    if kind == local and is_zoned.any():
        raise UndecidedError("a time zone, which the column has not")
    # A cast to a type with a zone asks for one in each text, one to a type without for none.
    if is_zoned.all():
        values = _cast(texts, kind)
    elif not is_zoned.any():
        values = _cast(texts, local).view(kind)
    else:
        with_zone = np.zeros(len(texts), bool)
        with_zone[texts.is_valid().to_numpy(zero_copy_only=False)] = is_zoned
        mask, none = pa.array(with_zone), pa.scalar(None, texts.type)
        without = _cast(pc.if_else(mask, none, texts), local).view(kind)
        values = pc.coalesce(_cast(pc.if_else(mask, texts, none), kind), without)
    _check_years(values)
    return values


def _check_years(values: pa.Array) -> None:
    """Raises UndecidedError for a date or a timestamp before the year 1."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import types

    if not types.is_date32(values.type) and not types.is_timestamp(values.type):
        return
    is_date = types.is_date32(values.type)
    least = pc.min(values.view(pa.int32() if is_date else pa.int64())).as_py()
    if least is not None and least < FIRST_DAY * (1 if is_date else DAY["us"]):
        raise UndecidedError("a time before the year 1")


def _check_letters(texts: pa.Array, known: bytes) -> None:
    """Raises UndecidedError for another letter in *texts* than the *known* ones."""
    import numpy as np

    letters, starts, ends = _bounds(texts)
    if not len(starts):
        return
    is_known = np.zeros(256, bool)
    is_known[np.frombuffer(known, np.uint8)] = True
    if not is_known[letters[starts[0] : ends[-1]]].all():
        raise UndecidedError("an unusual number")


def _bounds(
    texts: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The bytes of *texts*, and where in them each begins and ends that is not null."""
    import numpy as np

    _, offsets, data = texts.buffers()
    letters = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    if offsets is None or not len(texts):
        return letters, np.zeros(0, np.intp), np.zeros(0, np.intp)
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    starts, ends = bounds[:-1].astype(np.intp), bounds[1:].astype(np.intp)
    if texts.null_count:
        is_there = texts.is_valid().to_numpy(zero_copy_only=False)
        starts, ends = starts[is_there], ends[is_there]
    return letters, starts, ends
