"""Casts of values as Spark casts them under ANSI; and decimals as whole numbers.

    converted(pl.col("t"), pl.String(), pl.Int32())     what is in the text, and where it is none

A cast has beside its value the rows in which Spark would stop.  Of a few forms of texts, and of
days beyond the years 1 to 9999, only Spark knows the value: those rows stop, too, and of a source
are read again by Spark (``sluice.exchange.reading``).

Decimals are computed as 128-bit integers of their last digit, because Polars rounds half to even,
and Spark half up.

Of Spark's patterns of days and instants, such as ``yyyy-MM-dd HH:mm:ss``, only runs of letters are
known whose meaning is one for every day of the years 1 to 9999.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import polars as pl

TIMESTAMP = pl.Datetime("us", "UTC")
INTEGERS: Sequence[pl.DataType] = (pl.Int8(), pl.Int16(), pl.Int32(), pl.Int64())
LEAST: Mapping[pl.DataType, int] = {
    of: -(2 ** (bits - 1)) for of, bits in zip(INTEGERS, (8, 16, 32, 64), strict=True)
}
LONG = 2.0**63
MOST_DIGITS = 38
DAY = 86_400_000_000  # In microseconds.
DAYS = (-719_162, 2_932_896)  # The years 1 to 9999, since 1970.

OVERFLOW = "overflows"
INVALID = "cannot read it"
# Spark computes on, but neither Python nor most tables have such a day.
RANGE = "leaves the years 1 to 9999"
FORM = "has a form that only Spark reads"
BY_SPARK = "takes more digits than are computed without Spark"
# Where Spark may have a value, and TRY_CAST no null.
JAVAS = "has more digits in one version of Java than in another"
ONLY_SPARK = frozenset({RANGE, FORM, BY_SPARK, JAVAS})

_WIDE = pl.Int128()
_MAX_LONG = 2**63 - 1
# What Spark trims of texts before it casts them; of numbers with a fraction it is Java's trim().
_BLANKS = "".join(map(chr, (*range(0x21), 0x7F)))
_JAVA_BLANKS = "".join(map(chr, range(0x21)))
_DOUBLE = r"^[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?|NaN|Infinity)$"
_NAMED = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), "inf"),
    **dict.fromkeys(("-inf", "-infinity"), "-inf"),
    "nan": "NaN",
}
_HEXADECIMAL = r"^[+-]?0[xX]"
_DECIMAL = r"^([+-]?)0*([0-9]*)(?:\.([0-9]*))?$"
_ANY_DECIMAL = r"^[+-]?[\p{Nd}.]+(?:[eE][+-]?\p{Nd}+)?$"
_DATE = r"(?s)^([+-]?)([0-9]{4,7})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T].*)?)?)?$"
_INSTANT = (
    r"^([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})"
    r"(?::([0-9]{1,2})(?:\.([0-9]*))?( ?UTC|Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?)?)?)?)?)?$"
)
# Times of today, other years, and other zones.
_ANY_INSTANT = (
    r"^(?:[+-]?[0-9]{4,6}(?:-[0-9]{1,2}){0,2}(?:[ T][0-9]{1,2}(?::[0-9]{1,2}(?::[0-9]{1,2}"
    r"(?:\.[0-9]*)?(?: ?[A-Za-z+-][A-Za-z0-9_/:+-]*)?)?)?)?|T?[0-9]{1,2}(?::.*)?)$"
)


@dataclass(frozen=True, slots=True)
class NoValue:
    """The rows in which there is no value, and why; null is no."""

    what: str
    rows: pl.Expr


@dataclass(frozen=True, slots=True)
class Converted:
    """A value of another type, and where there is none."""

    value: pl.Expr
    stops: tuple[NoValue, ...] = ()

    def or_null(self) -> Converted:
        """Null where Spark would stop, as TRY_CAST has it."""
        known = tuple(stop for stop in self.stops if stop.what in ONLY_SPARK)
        wrong = [stop.rows for stop in self.stops if stop.what not in ONLY_SPARK]
        if not wrong:
            return self
        return Converted(pl.when(~reduce(or_, wrong)).then(self.value), known)


def converted(value: pl.Expr, of: pl.DataType, to: pl.DataType) -> Converted:
    """*value* of type *of* as *to*; both are of those that ``CASTS`` lists."""
    if of == pl.String():
        return _read(value, to)
    if to == pl.String():
        return _written(value, of)
    if isinstance(to, pl.Decimal):
        scale = of.scale if isinstance(of, pl.Decimal) else 0
        return _fitted(unscaled(value, of), scale, to)
    if isinstance(of, pl.Decimal):
        return _of_decimal(value, of, to)
    return _of_number(value, of, to)


def _of_number(value: pl.Expr, of: pl.DataType, to: pl.DataType) -> Converted:
    cast = value.cast(to, strict=False)
    if to in LEAST and of in LEAST:
        return Converted(cast, _overflow(outside(value, to)) if LEAST[to] > LEAST[of] else ())
    if to in LEAST and of.is_float():
        wide, least, end = value.cast(pl.Float64()), float(LEAST[to]), -float(LEAST[to])
        # Of the largest doubles Spark takes 2^63 for a bigint, too.
        most = end if to == pl.Int64() else end - 1
        whole = wide.cast(pl.Int64(), strict=False)
        found = pl.when(wide == LONG).then(_MAX_LONG).otherwise(whole)
        is_inside = (wide.floor() <= most) & (wide.ceil() >= least)
        return Converted(found.cast(to, strict=False), _overflow(~is_inside))
    if to == pl.Boolean():
        return Converted(value != 0)
    if of == pl.Date():
        days = value.cast(pl.Int32()).cast(pl.Int64())
        micros = days * DAY  # Without a calendar, which Polars has of fewer years.
        return Converted(micros.cast(to), _overflow(micros.floordiv(DAY) != days))
    if of == TIMESTAMP:
        seconds = value.dt.epoch("us").floordiv(1_000_000)
        return Converted(value.dt.date() if to == pl.Date() else seconds)
    return Converted(cast)


def outside(integer: pl.Expr, of: pl.DataType) -> pl.Expr:
    least = LEAST[of]
    return ~integer.is_between(least, -least - 1)


def _overflow(rows: pl.Expr) -> tuple[NoValue, ...]:
    return (NoValue(OVERFLOW, rows),)


# --- Decimals


def unscaled(value: pl.Expr, of: pl.DataType) -> pl.Expr:
    """An integer, or a decimal as the integer of its digits."""
    return value.to_physical() if isinstance(of, pl.Decimal) else value.cast(_WIDE)


def decimal_of(digits: pl.Expr, to: pl.Decimal) -> pl.Expr:
    """The decimal of the integer *digits*."""
    return digits.reinterpret(dtype=to)


def negated(digits: pl.Expr) -> pl.Expr:
    return wide(0) - digits


def wide(number: int) -> pl.Expr:
    return pl.lit(number, _WIDE)


def half_up(digits: pl.Expr, dropped: int) -> pl.Expr:
    """*digits* without the last *dropped* ones, rounded half up."""
    return quotient(digits, wide(10**dropped), is_rounded=True)


def quotient(digits: pl.Expr, by: pl.Expr, *, is_rounded: bool) -> pl.Expr:
    """*digits* by a positive number, toward zero or rounded half up."""
    size = digits.abs()
    whole = size // by
    if is_rounded:
        rest = size - whole * by
        whole = whole + (rest >= by - rest).cast(_WIDE)
    return pl.when(digits < 0).then(negated(whole)).otherwise(whole)


def _fitted(digits: pl.Expr, scale: int, to: pl.Decimal) -> Converted:
    """The decimal *to* of *digits*, of which *scale* are behind the point."""
    more = to.scale - scale
    most = to.precision - more  # Digits that have room.
    found = half_up(digits, -more) if more < 0 else digits
    limit = to.precision if more < 0 else max(most, 0)
    is_over = found.abs() >= wide(10**limit) if limit < MOST_DIGITS else pl.lit(value=False)
    fitting: pl.Expr = pl.when(~is_over).then(found)
    if more > 0:
        fitting = fitting * wide(10 ** min(more, MOST_DIGITS))
    return Converted(decimal_of(fitting, to), _overflow(is_over))


def _of_decimal(value: pl.Expr, of: pl.Decimal, to: pl.DataType) -> Converted:
    digits = unscaled(value, of)
    if to == pl.Boolean():
        return Converted(digits != 0)
    if to.is_float():
        return Converted(value.cast(pl.String()).cast(to))  # Rounded once.
    whole = quotient(digits, wide(10**of.scale), is_rounded=False)
    return Converted(whole.cast(to, strict=False), _overflow(outside(whole, to)))


# --- Texts


def _read(text: pl.Expr, to: pl.DataType) -> Converted:
    trimmed = text.str.strip_chars(_BLANKS)
    if to in LEAST:
        return _sure(text, trimmed.cast(to, strict=False))
    if to == pl.Boolean():
        word = trimmed.str.to_lowercase()
        is_true = word.is_in(["t", "true", "y", "yes", "1"])
        is_false = word.is_in(["f", "false", "n", "no", "0"])
        return _sure(text, pl.when(is_true | is_false).then(is_true))
    if to.is_float():
        return _number(text.str.strip_chars(_JAVA_BLANKS), to)
    if isinstance(to, pl.Decimal):
        return _decimal(text.str.strip_chars(_JAVA_BLANKS), to)
    return _day(trimmed) if to == pl.Date() else _instant(trimmed)


def _sure(text: pl.Expr, found: pl.Expr) -> Converted:
    return Converted(found, (NoValue(INVALID, text.is_not_null() & found.is_null()),))


def _number(text: pl.Expr, to: pl.DataType) -> Converted:
    is_number = text.str.contains(_DOUBLE)
    named = text.str.to_lowercase().replace_strict(_NAMED, default=None, return_dtype=pl.String())
    plain = pl.when(is_number).then(text.str.strip_chars_end("dDfF")).otherwise(named)
    found = plain.cast(to, strict=False)
    is_hexadecimal = text.str.contains(_HEXADECIMAL)
    return Converted(
        found,
        (NoValue(FORM, is_hexadecimal), NoValue(INVALID, found.is_null() & ~is_hexadecimal)),
    )


def _decimal(text: pl.Expr, to: pl.Decimal) -> Converted:
    parts = text.str.extract_groups(_DECIMAL)
    sign, whole, part = (parts.struct.field(name) for name in "123")
    part = part.fill_null("")
    has_digits = text.str.contains("[0-9]")
    is_plain = whole.is_not_null() & has_digits
    is_over = whole.str.len_bytes() > to.precision - to.scale
    kept = part.str.slice(0, to.scale).str.pad_end(to.scale, "0")
    digits = pl.concat_str(pl.lit("0"), whole, kept).cast(_WIDE, strict=False)
    digits = digits + (part.str.slice(to.scale, 1) >= "5").cast(_WIDE)
    is_over = is_over | (digits >= wide(10**to.precision))
    size = pl.when(is_plain & ~is_over).then(digits)
    is_other = ~is_plain & text.str.contains(_ANY_DECIMAL) & text.str.contains(r"\p{Nd}")
    return Converted(
        decimal_of(pl.when(sign == "-").then(negated(size)).otherwise(size), to),
        (
            NoValue(OVERFLOW, is_plain & is_over),
            NoValue(FORM, is_other),
            NoValue(INVALID, ~is_plain & ~is_other),
        ),
    )


def _day(text: pl.Expr) -> Converted:
    parts = text.str.extract_groups(_DATE)
    sign, *numbers = (parts.struct.field(name) for name in "1234")
    year, month, day = (one.cast(pl.Int32(), strict=False) for one in numbers)
    is_read = year.is_not_null()
    is_near = year.is_between(1, 9999) & (sign != "-")
    found = calendar_day(pl.when(is_near).then(year), month.fill_null(1), day.fill_null(1))
    return Converted(
        found,
        (
            NoValue(RANGE, is_read & ~is_near),
            NoValue(INVALID, text.is_not_null() & found.is_null() & ~(is_read & ~is_near)),
        ),
    )


def calendar_day(year: pl.Expr, month: pl.Expr, day: pl.Expr) -> pl.Expr:
    """The date of numbers; null if there is none."""
    is_month = month.is_between(1, 12)
    first = pl.date(
        pl.when(is_month).then(year), pl.when(is_month).then(month), pl.lit(1, pl.Int32())
    )
    is_day = (day >= 1) & (day <= first.dt.days_in_month())
    return pl.when(is_day).then((first.cast(pl.Int32()) + day - 1).cast(pl.Date()))


def time_of_day(hour: pl.Expr, minute: pl.Expr, second: pl.Expr, micros: pl.Expr) -> pl.Expr:
    """Microseconds since midnight; null if there is no such time."""
    is_time = hour.is_between(0, 23) & minute.is_between(0, 59) & second.is_between(0, 59)
    seconds = hour.cast(pl.Int64()) * 3600 + minute.cast(pl.Int64()) * 60 + second.cast(pl.Int64())
    return pl.when(is_time).then(seconds * 1_000_000 + micros)


def _instant(text: pl.Expr) -> Converted:
    parts = text.str.extract_groups(_INSTANT)
    *numbers, part, zone = (parts.struct.field(name) for name in "12345678")
    year, month, day, *time = (one.cast(pl.Int32(), strict=False) for one in numbers)
    is_read = year >= 1
    micros = part.str.slice(0, 6).str.pad_end(6, "0").cast(pl.Int64(), strict=False)
    hour, minute, second = (one.fill_null(0) for one in time)
    since = time_of_day(hour, minute, second, micros.fill_null(0))
    away = zone.str.starts_with("+") | zone.str.starts_with("-")
    minutes = zone.str.slice(1, 2).cast(pl.Int64(), strict=False) * 60 + zone.str.slice(4, 2).cast(
        pl.Int64(), strict=False
    )
    ahead = pl.when(zone.str.starts_with("-")).then(-minutes).otherwise(minutes)
    offset = pl.when(away).then(ahead * 60_000_000).otherwise(0)
    days = calendar_day(pl.when(is_read).then(year), month.fill_null(1), day.fill_null(1))
    at = days.cast(pl.Int32()).cast(pl.Int64()) * DAY + since - offset
    is_other = text.str.contains(_ANY_INSTANT) & year.is_null() | (year == 0)
    is_inside = at.is_between(DAYS[0] * DAY, (DAYS[1] + 1) * DAY - 1)
    return Converted(
        at.cast(TIMESTAMP),
        (
            NoValue(FORM, is_other),
            NoValue(RANGE, ~is_inside),
            NoValue(INVALID, text.is_not_null() & at.is_null() & ~is_other.fill_null(value=False)),
        ),
    )


def _written(value: pl.Expr, of: pl.DataType) -> Converted:
    """*value* as Spark's text of it."""
    if of.is_float():
        return _written_number(value, of)
    if of not in (pl.Date(), TIMESTAMP):
        return Converted(value.cast(pl.String()))
    found = near(value, of)
    if of == pl.Date():
        return Converted(found.value.dt.strftime("%Y-%m-%d"), found.stops)
    second = found.value.dt.strftime("%Y-%m-%d %H:%M:%S")
    part = found.value.dt.strftime(".%6f").str.strip_chars_end("0").str.strip_chars_end(".")
    return Converted(second + part, found.stops)


_NUMBER = r"^([0-9]+)(?:\.([0-9]+))?(?:e([+-]?[0-9]+))?$"
# Mantissas as they are stored, and what is the smallest number that has all of its bits.
_STORED: Mapping[pl.DataType, tuple[pl.DataType, int, float]] = {
    pl.Float64(): (pl.Int64(), 52, 2.0**-1022),
    pl.Float32(): (pl.Int32(), 23, 2.0**-126),
}


def _written_number(value: pl.Expr, of: pl.DataType) -> Converted:
    """Double.toString, which has the fewest digits that tell a number from its neighbours.

    Before Java 19 it may have another digit: of whole numbers that those digits are not exactly, of
    powers of two and of what is next to 0.  Spark's value depends on its Java there.
    """
    plain = value.cast(pl.String())
    size = value.cast(pl.Float64()).abs()
    parts = value.abs().cast(pl.String()).str.extract_groups(_NUMBER)
    whole, part, power = (parts.struct.field(name) for name in "123")
    written_digits = whole + part.fill_null("")
    digits = written_digits.str.strip_chars_start("0")
    zeros = written_digits.str.len_bytes() - digits.str.len_bytes()
    exponent = whole.str.len_bytes().cast(pl.Int64) - 1 - zeros.cast(pl.Int64)
    exponent = exponent + power.cast(pl.Int64, strict=False).fill_null(0)
    rest = digits.str.slice(1).str.strip_chars_end("0")
    rest = pl.when(rest == "").then(pl.lit("0")).otherwise(rest)
    sign = pl.when(value < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    short = sign + digits.str.slice(0, 1) + "." + rest + "E" + exponent.cast(pl.String())
    infinite = sign + "Infinity"
    text = (
        pl.when(value.is_nan() | (size == 0) | ((size >= 1e-3) & (size < 1e7)))
        .then(plain)
        .when(value.is_infinite())
        .then(infinite)
        .otherwise(short)
    )
    stored, mantissa, least = _STORED[of]
    has_one_bit = value.reinterpret(dtype=stored) % 2**mantissa == 0
    is_exact = (size == 0) | ((size >= 2.0**-20) & (size < 2.0 ** (mantissa + 1)))
    is_sure = (size >= least) & ~((size >= 2.0 ** (mantissa + 1)) & (size < 2.0**90))
    is_special = value.is_nan() | value.is_infinite()
    # A whole number whose digits are no others than the fewest.
    long = pl.when(size < LONG).then(size).cast(pl.Int64, strict=False).cast(pl.String())
    is_short = (size >= 2.0**mantissa) & (
        long.str.strip_chars_end("0") == digits.str.strip_chars_end("0")
    )
    is_exact = is_exact | is_short.fill_null(value=False)
    return Converted(text, (NoValue(JAVAS, ~(is_special | is_exact | (is_sure & ~has_one_bit))),))


def near(value: pl.Expr, of: pl.DataType) -> Converted:
    """The days and instants whose year has four digits; over some others Polars panics."""
    size, number = (1, value.cast(pl.Int32())) if of == pl.Date() else (DAY, value.dt.epoch("us"))
    is_near = (number >= DAYS[0] * size) & (number < (DAYS[1] + 1) * size)
    return Converted(pl.when(is_near).then(value), (NoValue(RANGE, ~is_near),))


_PART = re.compile(r"'(?P<quoted>(?:[^']|'')*)'|(?P<run>([A-Za-z])\3*)|(?P<sign>[^A-Za-z'#{}\[\]])")
_WRITTEN: Mapping[str, str] = {
    "yyyy": "%Y",
    "MM": "%m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "E": "%a",
    "EEE": "%a",
    "EEEE": "%A",
    "HH": "%H",
    "mm": "%M",
    "ss": "%S",
    "SSS": "%3f",
    "SSSSSS": "%6f",
}
_READ = ("yyyy", "MM", "dd", "HH", "mm", "ss")
# Signs that Java takes for another one, too, when it compares without case.
_OTHERWISE_WRITTEN = re.compile(r"[iks]|[^\x00-\x7f]", re.IGNORECASE)


def _parts(pattern: str) -> Iterator[tuple[str, bool]]:
    """The runs of letters and the texts between them, and whether it is a run.

    Raises:
        ValueError: there is something else.
    """
    at = 0
    while at < len(pattern):
        found = _PART.match(pattern, at)
        if found is None:
            raise ValueError(pattern[at])
        at = found.end()
        if found["run"] is not None:
            yield found["run"], True
        elif found["sign"] is not None:
            yield found["sign"], False
        else:
            yield (found["quoted"].replace("''", "'") or "'"), False


def formatted(at: pl.Expr, of: pl.DataType, pattern: str) -> Converted | None:
    """The text of a day or an instant; None if only Spark knows *pattern*."""
    try:
        parts = [*_parts(pattern)]
    except ValueError:
        return None
    runs = [_WRITTEN.get(part) if is_run else part.replace("%", "%%") for part, is_run in parts]
    known = [one for one in runs if one is not None]
    if len(known) < len(runs) or not known:
        return None
    found = near(at, of)
    return Converted(found.value.cast(TIMESTAMP).dt.strftime("".join(known)), found.stops)


def instant_in(text: pl.Expr, pattern: str) -> Converted | None:
    """The instant that *text* has by *pattern*; None if only Spark knows it."""
    try:
        parts = [*_parts(pattern)]
    except ValueError:
        return None
    runs = [part for part, is_run in parts if is_run]
    others = "".join(part for part, is_run in parts if not is_run)
    is_known = set(runs) <= {*_READ} and len(runs) == len({*runs}) and "yyyy" in runs
    if not is_known or ("dd" in runs and "MM" not in runs) or _OTHERWISE_WRITTEN.search(others):
        return None
    regex = "".join(_group(part) if is_run else _literal(part) for part, is_run in parts)
    groups = text.str.extract_groups(f"^{regex}$")
    year, month, day, hour, minute, second = (
        groups.struct.field(run).cast(pl.Int32()) if run in runs else _default(text, run)
        for run in _READ
    )
    is_read = year >= 1
    days = calendar_day(pl.when(is_read).then(year), month, day)
    at = days.cast(pl.Int32()).cast(pl.Int64()) * DAY + time_of_day(
        hour, minute, second, pl.lit(0, pl.Int64())
    )
    # Java reads years with a sign, and the year 0, too.
    other = regex.replace(_group("yyyy"), r"(?:[+-][0-9]{4,}|0000)")
    is_other = text.str.contains(f"^{other}$")
    return Converted(
        at.cast(TIMESTAMP),
        (NoValue(FORM, is_other), NoValue(INVALID, at.is_null() & ~is_other)),
    )


def _group(run: str) -> str:
    return f"(?<{run}>[0-9]{{{len(run)}}})"


def _literal(text: str) -> str:
    signs = (
        f"[{sign.upper()}{sign.lower()}]" if sign.isalpha() else _escaped(sign) for sign in text
    )
    return "".join(signs)


def _escaped(sign: str) -> str:
    return rf"\x{{{ord(sign):x}}}"


def _default(text: pl.Expr, run: str) -> pl.Expr:
    default = 1 if run in {"MM", "dd"} else 0
    return pl.when(text.is_not_null()).then(pl.lit(default, pl.Int32()))
