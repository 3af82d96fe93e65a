"""SQL computed without Spark: names, errors and refusals; its values are compared with Spark's."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from random import Random

import polars as pl
import pytest

from sluice.declaration.expressions import Filter, Projection, Step
from sluice.declaration.nodes import Input, StageNode
from sluice.declaration.operations import Union
from sluice.declaration.sql import parsed
from sluice.errors import ConfigurationError
from sluice.exchange.output import projected_result
from sluice.operators.operator import WEIGHT
from sluice.operators.sql import NotCompiledError, compiled, condition
from sluice.operators.steps import applied

ROWS = pl.DataFrame(
    {
        "Key": ["a", "b", None],
        "i": pl.Series([1, 2_000_000_000, None], dtype=pl.Int32),
        "n": pl.Series([1, 2**62, 0]),
        "d": [2.5, -0.5, None],
        "counted": pl.Series([1, 2, 3], dtype=pl.UInt32),
        "m": pl.Series([Decimal("1.00"), None, None], dtype=pl.Decimal(12, 2)),
        "total": pl.Series([Decimal("1.00"), None, None], dtype=pl.Decimal(38, 2)),
        "huge": pl.Series([None, Decimal(9 * 10**35), None], dtype=pl.Decimal(38, 2)),
        "s": [{"Inner": 1}, {"Inner": 2}, None],
        "tags": [["x"], [], None],
        "entries": [[{"key": 1, "value": 2}], [], None],
    }
)


HUGE = "a row with huge = Decimal('900000000000000000000000000000000000.00')"


def values(text: str, rows: pl.DataFrame = ROWS) -> list[object]:
    return applied(Projection((f"{text} AS value",)), rows)["value"].to_list()


def test_a_name_is_found_in_any_case_and_stays_as_it_is_written() -> None:
    found = applied(Projection(("KEY", "S.inner", "`n` + 1 AS `n 1`")), ROWS.head(1))

    assert found.columns == ["KEY", "inner", "n 1"]
    assert found.rows() == [("a", 1, 2)]


def test_a_total_of_decimals_is_added_to_and_divided() -> None:
    assert values("total + 1.5 - m")[0] == Decimal("1.50")
    assert values("CAST(total / i AS string)")[0] == "1.000000"
    assert values("total > n / 3")[0] is True


def test_the_time_of_an_instant_may_lack_seconds_and_minutes() -> None:
    rows = pl.DataFrame({"text": ["2024-02-29 12:30", "2024-2-9T7", "2024-02-29 12:30:05.5"]})

    assert values("date_format(CAST(text AS timestamp), 'MM-dd HH:mm:ss')", rows) == [
        "02-29 12:30:00",
        "02-09 07:00:00",
        "02-29 12:30:05",
    ]
    assert values("TRY_CAST(text || 'Z' AS timestamp)", rows[:2]) == [None, None]


def test_names_that_differ_in_case_alone_are_refused() -> None:
    rows = pl.DataFrame({"a": [1], "A": [2]})

    with pytest.raises(NotCompiledError, match="'a' is a or A; there are a, A"):
        values("a + 1", rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("i * 2", "i * 2 overflows int in a row with i = 2000000000"),
        ("huge + huge", f"huge + huge overflows decimal(38,2) in {HUGE}"),
        ("-huge", f"-huge takes more digits than are computed without Spark in {HUGE}"),
        ("huge / 1", f"huge / 1 takes more digits than are computed without Spark in {HUGE}"),
        ("n * 2", "n * 2 overflows bigint in a row with n = 4611686018427387904"),
        ("i + 1 > i / (n - n)", "i / (n - n) divides by zero in a row with i = 1, n = 1"),
        ("1 % 0", "1 % 0 divides by zero in a row with no columns"),
        ("CAST(n AS int)", "CAST(n AS int) overflows in a row with n = 4611686018427387904"),
        ("tags[0]", "tags[0] is beyond the array in a row with tags = []"),
        ("CAST(Key AS int)", "CAST(Key AS int) cannot read it in a row with Key = 'a'"),
        (
            "CAST(i || ':30' AS timestamp)",
            (
                "CAST(concat(i, ':30') AS timestamp) has a form that only Spark reads in a row "
                "with i = 1"
            ),
        ),
        (
            "date_add(to_date(Key, 'yyyy'), 1)",
            "to_date(Key, 'yyyy') cannot read it in a row with Key = 'a'",
        ),
    ],
)
def test_a_row_for_which_spark_would_stop_is_told(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        values(text)

    assert str(error.value) == message


@pytest.mark.parametrize(
    "text",
    [
        "last_day(day)",
        "last_day(date_add(DATE '2024-02-29', i - 2147483647))",
        "trunc(day, 'year')",
        "date_trunc('month', at)",
        "day + INTERVAL 1 MONTH",
        "at - INTERVAL 1 DAY",
        "date_format(day, 'yyyy')",
        "date_format(timestamp_micros(n), 'yyyy')",
        "CAST(day AS string)",
        "CAST(at AS string)",
    ],
)
def test_a_day_beyond_the_calendar_fails_its_row(text: str) -> None:
    """Polars panics over days that are far enough away, which ends the process."""
    far = pl.DataFrame({"day": [2**31 - 1], "at": [2**63 - 1], "n": [2**63 - 1], "i": [1]})
    rows = far.cast({"day": pl.Int32, "i": pl.Int32}).cast(
        {"day": pl.Date, "at": pl.Datetime("us", "UTC")}
    )

    with pytest.raises(ConfigurationError, match="leaves the years 1 to 9999 in a row with"):
        values(text, rows)


def test_an_instant_of_a_day_needs_no_calendar() -> None:
    days = pl.Series("day", [100_000_000, 3_000_000], pl.Int32).cast(pl.Date).to_frame()

    found = applied(Projection(("unix_seconds(CAST(day AS timestamp)) AS s",)), days)

    assert found["s"].to_list() == [100_000_000 * 86_400, 3_000_000 * 86_400]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CASE WHEN n <> 0 THEN 10 DIV n END", [10, 0, None]),
        ("n <> 0 AND 10 DIV n > 1", [True, False, False]),
        ("n = 0 OR 10 DIV n > 1", [True, False, True]),
        ("coalesce(n, 1 DIV 0)", [1, 2**62, 0]),
        ("NULL + 1 DIV 0", [None, None, None]),
        ("IF(i > 1, 0, i * 2)", [2, 0, None]),
    ],
)
def test_what_spark_does_not_compute_does_not_fail(text: str, expected: list[object]) -> None:
    assert values(text) == expected


@pytest.mark.parametrize("digits", [0, 1, 2, 6, 15, 17, -2])
def test_a_double_is_rounded_by_the_digits_it_is_written_with(digits: int) -> None:
    random = Random(digits)
    tied = [(2 * random.randrange(-(10**6), 10**6) + 1) / 2 / 10**digits for _ in range(300)]
    drawn = [random.gauss(0, 10.0 ** random.randint(-4, 18)) for _ in range(300)]
    near = [math.nextafter(x, toward) for x in tied for toward in (-math.inf, math.inf)]
    numbers = [0.0, -0.0, 1.005, 2.675, -0.004, 1e300, math.inf, *tied, *drawn, *near]
    unit, exactly = Decimal(1).scaleb(-digits), Context(prec=400)

    found = values(f"round(x, {digits})", pl.DataFrame({"x": numbers}))

    assert found == [
        x if math.isinf(x) else float(Decimal(repr(x)).quantize(unit, ROUND_HALF_UP, exactly)) + 0.0
        for x in numbers
    ]


def test_rows_that_a_filter_drops_do_not_fail_behind_it() -> None:
    kept = applied(Filter("i < 5 AND i * 2 > 0"), ROWS)

    assert applied(Projection(("i * 2 AS i",)), kept).rows() == [(2,)]
    with pytest.raises(ConfigurationError, match="overflows int"):
        applied(Filter("i * 2 > 0"), ROWS)


def test_a_value_has_the_type_that_spark_gives_it() -> None:
    types = {
        "1": pl.Int32(),
        "i + 1": pl.Int32(),
        "i + n": pl.Int64(),
        "i / 2": pl.Float64(),
        "i DIV 2": pl.Int64(),
        "n % 2Y": pl.Int64(),
        "counted + 1": pl.Int64(),
        "length(Key)": pl.Int32(),
        "1.5 + 1": pl.Decimal(3, 1),
        "d * 1.5": pl.Float64(),
        "coalesce(m, 0)": pl.Decimal(12, 2),
        "CASE WHEN true THEN i ELSE n END": pl.Int64(),
        "counted": pl.UInt32(),
    }

    assert {text: compiled(parsed(text), ROWS.schema).dtype for text in types} == types


def test_literals_are_values() -> None:
    assert values("1.50", ROWS.head(1)) == [Decimal("1.50")]
    assert values("DATE '2024-02-29'", ROWS.head(1)) == [date(2024, 2, 29)]
    instant = datetime(2024, 2, 29, 10, tzinfo=UTC)
    assert values("TIMESTAMP '2024-02-29 12:00:00+02:00'", ROWS.head(1)) == [instant]
    assert values("NULL", ROWS.head(1)) == [None]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nobody + 1", "'nobody' is no column; there are Key, i,"),
        ("s.outer", "'s' has no field 'outer'"),
        ("Key + 1", r"only Spark knows 'Key \+ 1' \(string beside int; cast one of them\)"),
        ("Key IN (1, true)", r"\(string beside int; cast one of them\)"),
        ("to_date(Key) - to_date(Key)", r"write datediff\(to_date\(Key\), to_date\(Key\)\)\)"),
        ("timestamp_micros(n) - timestamp_micros(i)", "an interval, which no column holds; write"),
        ("i = 'one'", r"only Spark knows \"CAST\('one' AS bigint\)\" \('one' is no bigint\)"),
        ("DATE '2024-02-29' > 'now'", r"\('now' is no date\)"),
        ("Key AND true", r"\(Key is string and no boolean\)"),
        ("sha2(Key, 256)", r"only Spark knows 'sha2\(Key, 256\)'; compute it in a transform"),
        ("f(x -> x)", "only Spark knows 'x -> x'"),
        ("upper(Key, Key)", "with 2 arguments"),
        ("CAST(Key AS binary)", "only Spark knows"),
        ("DATE '2023-02-29'", "only Spark knows"),
        ("abs(tags)", "of array<string>"),
        ("Key LIKE Key", "its pattern is no literal"),
        ("Key ILIKE Key", "its pattern is no literal"),
        ("Key ILIKE 'aXX' ESCAPE 'X'", "its pattern is in small letters"),
        (r"Key RLIKE '\\bx'", r"\(its pattern has \\b\); compute it in a transform"),
        ("split(Key, ',')[n]", "at a bigint; cast it to int"),
        ("element_at(Key, 1)", "of string"),
        ("size(i)", "of int"),
        ("total * m", r"of 51 digits, and there are 38; cast its decimals to fewer"),
        ("total / total", r"cast its decimals to fewer, as CAST\(total AS decimal\(18,2\)\)"),
        ("coalesce(total, CAST(m AS decimal(38,9)))", "of 45 digits, and there are 38; cast its"),
        ("m[0]", r"of decimal\(12,2\)"),
        ("split_part(Key, ',', 0)", "its parts are 1 and more"),
        ("lpad(Key, 100000)", "to more than 10000 signs"),
        ("lpad(Key, i)", "with other than literals"),
        ("substring_index(Key, 'aba', 1)", "by what may begin in itself"),
        ("array_contains(tags, 1)", r"of array<string> and int|string beside int"),
        ("power(d, 3)", r"write x \* x \* x"),
        ("trunc(DATE '2024-02-29', 'day')", "only Spark knows"),
        ("last_day(d)", "of double"),
        ("unix_timestamp(DATE '2024-02-29', 'yyyy')", "of date by a pattern"),
        ("date_trunc('day', d)", "of double"),
        ("entries[1]", "of a map"),
        ("tags[abs(-128Y)]", "its place cannot be computed"),
        ("Key LIKE 'a/' ESCAPE '/'", "its pattern escapes nothing"),
        ("i + INTERVAL 1 DAY", "only Spark knows"),
        ("count(*)", r"only Spark knows 'count\(\*\)'"),
        ("try_to_timestamp(Key, 'yyyy')", "only Spark knows"),
        ("date_format(d, 'yyyy')", "of double"),
    ],
)
def test_what_only_spark_knows_is_refused_with_its_piece(text: str, message: str) -> None:
    with pytest.raises(NotCompiledError, match=message):
        values(text)


def test_case_is_changed_once_as_by_sparks_optimizer() -> None:
    rows = pl.DataFrame({"s": ["ß"]})

    assert values("lower(upper(s))", rows) == ["ß"]
    assert values("upper(lower(upper(s)))", rows) == ["SS"]


def test_a_condition_is_a_boolean_or_null() -> None:
    with pytest.raises(NotCompiledError, match=r"'i \+ 1' is int, and no condition"):
        condition("i + 1", ROWS.schema)
    assert applied(Filter("NULL"), ROWS).height == 0


def test_two_columns_of_one_name_and_a_column_without_one_are_refused() -> None:
    with pytest.raises(NotCompiledError, match="two columns are called 'i'"):
        applied(Projection(("*", "n AS i")), ROWS)
    with pytest.raises(NotCompiledError, match=r"'n \+ 1' has no name"):
        applied(Projection(("n + 1",)), ROWS)


def test_rows_without_columns_and_columns_without_rows_are_none() -> None:
    assert applied(Projection(("1 DIV 0 AS x", "1 AS y")), ROWS.clear()).height == 0
    assert applied(Filter("n DIV 0 > 1"), ROWS.clear()).height == 0
    assert applied(Projection(("1 AS x",)), pl.DataFrame()).schema == {"x": pl.Int32()}


GIVEN = pl.DataFrame(
    {
        "n": [1, 2, 30],
        "user": ["ann", "bob", "cid"],
        "date": ["2026-01-01", "2026-01-02", None],
        "current_date": [7, 8, 9],
        "year": [1, 2, 3],
        "s": [{"user": 4}, {"user": 5}, {"user": 6}],
    }
)


def kept(*steps: Step, rows: pl.DataFrame = GIVEN) -> pl.DataFrame:
    stage = StageNode(uid="s", operation=Union(), inputs=(Input(producer="r"),), steps=steps)
    return projected_result(stage, rows)


def test_a_filter_behind_a_projection_sees_its_columns() -> None:
    steps = Projection(("user", "n * 10 AS n")), Filter("n >= 20"), Projection(("n + 1 AS n",))

    assert kept(*steps).rows() == [(21,), (301,)]
    assert kept(Filter("n >= 20"), Projection(("n * 10 AS n",))).rows() == [(300,)]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("user", ["ann", "bob", "cid"]),
        ("user AS u", ["ann", "bob", "cid"]),
        ("upper(user) AS u", ["ANN", "BOB", "CID"]),
        ("current_date", [7, 8, 9]),
        ("current_date + Year AS x", [8, 10, 12]),
        ("date", ["2026-01-01", "2026-01-02", None]),
        ("date IS NULL AND user <> 'user' AS x", [False, False, True]),
        ("s.user", [4, 5, 6]),
        ("cast(n AS double) IS NULL AS x", [False, False, False]),
        ("extract(year from date '2026-05-01') AS y", [2026, 2026, 2026]),
        ("'user' AS x", ["user", "user", "user"]),
        ('"user" AS x', ["user", "user", "user"]),
        ("`user`", ["ann", "bob", "cid"]),
        ("CASE WHEN n >= 2 THEN user ELSE 'none' END AS x", ["none", "bob", "cid"]),
    ],
)
def test_a_column_called_like_a_function_or_a_keyword_is_the_column(
    column: str, values: list[object]
) -> None:
    assert kept(Projection((column,))).to_series().to_list() == values


def test_literals_alone_are_as_many_as_the_rows() -> None:
    assert kept(Projection(("1 AS one",))).rows() == [(1,), (1,), (1,)]
    assert kept(Projection(("1 AS one",)), rows=GIVEN.clear()).height == 0


def test_a_star_is_every_column_and_weights_stay() -> None:
    rows = GIVEN.select("n", "user").with_columns(pl.lit(-1, pl.Int8()).alias(WEIGHT))

    assert kept(Projection(("*", "n + 1 AS more")), rows=rows).columns == [
        "n",
        "user",
        "more",
        WEIGHT,
    ]
    assert kept(Projection(("1 AS one",)), rows=rows).rows() == [(1, -1)] * 3


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"stage 's' cannot keep nobody > 1 of its result"):
        kept(Filter("nobody > 1"))
