"""SQL without Spark has Spark's value, type and error: for all that the allow-list has.

The cases are generated from the list: each function with each of its types over extreme values and
nulls, in a few batches of Spark.  Where we say that a row fails, Catalyst has to fail, too, and
nowhere else.  The same cases are read of a source both ways: of fields of a struct in Parquet, past
Spark's JVM and through it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sluice.connectors.files.parquet import ParquetSource
from sluice.core.plan import Slice
from sluice.declaration.column_types import ColumnType
from sluice.declaration.expressions import Projection
from sluice.declaration.nodes import Input
from sluice.declaration.places import UndecidedError
from sluice.declaration.sql import parsed
from sluice.declaration.sql_functions import CASTS, FUNCTIONS, KINDS, Signature
from sluice.declaration.sql_tree import Literal, spelled
from sluice.exchange.reading import Feed, SourceRows
from sluice.operators.sql import Compiled, NotCompiledError, compiled, spark_type
from sluice.operators.sql_casts import ONLY_SPARK
from sluice.state.segments import to_frame, to_table
from tests.examples import drawn, sampled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

I64 = pa.int64()
DAY, MICROS = 86_400, 1_000_000
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False, None],
    "tinyint": [0, 1, -1, 2, 7, 127, -128, None],
    "smallint": [0, 1, -1, 3, 181, -182, 2**15 - 1, -(2**15), None],
    "int": [0, 1, -1, 2, -3, 46341, 2**31 - 1, -(2**31), None],
    "bigint": [0, 1, -1, 3, -10, 3_037_000_500, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), None],
    "float": [0.0, -0.0, 1.5, -2.5, 3.4e38, 1e-45, float("nan"), float("inf"), float("-inf"), None],
    "double": [
        *(0.0, -0.0, 0.5, -0.5, 0.49999999999999994, 2.5, -2.5, 1e308, 5e-324, 2.0**53 + 2),
        *(2.0**63, -(2.0**63), 2.0**31, float("nan"), float("inf"), float("-inf"), None),
    ],
    "string": [
        *(
            "",
            "a",
            "A",
            " ab ",
            "aB1",
            "ä",
            "ß",
            "İ",
            "ﬁ",
            "ΑΣ",
            "e\u0301",
            "😀x",
            "a\0b",
            "\t x\n",
        ),
        *("a%", "\u00a0", None),
    ],
    "date": [0, -1, 1, 19_782, -719_162, 2_932_896, -141_428, 18_628, None],  # 0001 to 9999.
    "timestamp": [
        *(0, -1, 1, 1_709_208_000 * MICROS, -62_135_596_800 * MICROS, 253_402_300_799_999_999),
        *(-12_219_379_200 * MICROS, 1_609_632_000 * MICROS, None),
    ],
    "decimal(12,2)": [*map(Decimal, ("0", "1.01", "-1.01", "0.05", "9999999999.99")), None],
    "decimal(5,0)": [*map(Decimal, ("0", "1", "-1", "99999", "-99999")), None],
    "decimal(18,6)": [*map(Decimal, ("0", "0.000001", "-1.5", "999999999999.999999")), None],
    "array<string>": [["a", "", "b"], [None], [], ["x", None], None],
    "array<int>": [[1, 2, -3], [], None, [None, 2**31 - 1], [0]],
    "array<struct<f:int,g:string>>": [
        *([{"f": 1, "g": "a"}, None], [], [{"f": None, "g": ""}, {"f": 2, "g": None}], None),
    ],
    "map<string,int>": [[("a", 1), ("", None)], [], [("aB1", 2), ("A", 0), ("ä", -1)], None],
    "map<int,string>": [[(0, "a"), (1, None)], [], [(2**31 - 1, ""), (-1, "ä")], None],
    "map<bigint,double>": [[(1, 0.5), (2**31, None)], None, [(-128, float("nan"))], []],
}
ARROW: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": I64,
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "decimal(12,2)": pa.decimal128(12, 2),
    "decimal(5,0)": pa.decimal128(5, 0),
    "decimal(18,6)": pa.decimal128(18, 6),
    "array<string>": pa.list_(pa.string()),
    "array<int>": pa.list_(pa.int32()),
    "array<struct<f:int,g:string>>": pa.list_(pa.struct([("f", pa.int32()), ("g", pa.string())])),
    "map<string,int>": pa.map_(pa.string(), pa.int32()),
    "map<int,string>": pa.map_(pa.int32(), pa.string()),
    "map<bigint,double>": pa.map_(I64, pa.float64()),
}
STOPPING = 10  # Failing rows of each case that Catalyst computes, one by one.
BATCH = 60  # Expressions that Spark compiles at once.


def column(of: str, place: int) -> str:
    return of.translate(str.maketrans("(,<:", "____", ")>")) + "_" + "abc"[place]


def an_array(of: str, values: list[Any]) -> pa.Array:
    if of == "date":
        return pa.array(values, pa.int32()).cast(ARROW[of])
    if of == "timestamp":
        return pa.array(values, I64).cast(ARROW[of])
    return pa.array(values, ARROW[of])


def rows_of_all() -> pa.Table:
    """Every value of a type with every other one, and with most of a third."""
    most = max(map(len, VALUES.values()))
    columns: dict[str, pa.Array] = {"row": pa.array(range(most * most), I64)}
    for of, values in VALUES.items():
        size = len(values)
        pairs = list(itertools.product(range(most), range(most)))
        for place, index in enumerate(
            ([i for i, _ in pairs], [j for _, j in pairs], [i * 3 + j * 5 + 1 for i, j in pairs])
        ):
            columns[column(of, place)] = an_array(of, [values[at % size] for at in index])
    return pa.table(columns)


@pytest.fixture(name="world", scope="module")
def a_world(spark: SparkSession) -> World:
    return a_world_of(spark, rows_of_all())


def a_world_of(spark: SparkSession, table: pa.Table) -> World:
    frame = to_frame(table)
    given_rows: Any = spark.createDataFrame(table).coalesce(1)
    plan = given_rows._jdf.queryExecution().executedPlan()  # noqa: SLF001 - no API has such rows
    return World(spark, given_rows, frame, plan.executeCollect())


class World:
    """Rows in Spark, in a frame, and as Catalyst has them (*internal*)."""

    def __init__(
        self, spark: SparkSession, rows: DataFrame, frame: pl.DataFrame, internal: object
    ) -> None:
        self.spark, self.rows, self.frame, self.internal = spark, rows, frame, internal

    def differences(self, texts: Sequence[str]) -> list[str]:
        """What differs between us and Spark for the expressions *texts*."""
        found: list[str] = []
        ours: dict[str, Compiled] = {}
        for text in texts:
            try:
                ours[text] = compiled(parsed(text), self.frame.schema)
            except NotCompiledError as error:
                found.append(f"{text}: {error}")
        for start in range(0, len(ours), BATCH):
            batch = list(ours)[start : start + BATCH]
            found += self._differences({text: ours[text] for text in batch})
        return found

    def _differences(self, ours: dict[str, Compiled]) -> Iterator[str]:
        fails = self.frame.select(
            "row",
            *(
                pl.any_horizontal([f.rows for f in one.value.fails] or [pl.lit(value=False)])
                .fill_null(value=False)
                .alias(f"fails_{place}")
                for place, one in enumerate(ours.values())
            ),
        )
        wide = self.spark.createDataFrame(
            pl.concat([self.frame, fails.drop("row")], how="horizontal").to_arrow()
        )
        both = wide.coalesce(1)
        texts = [f"CASE WHEN NOT fails_{n} THEN {text} END AS v_{n}" for n, text in enumerate(ours)]
        try:
            spark = to_frame(both.selectExpr(*texts).toArrow())
        except Exception as error:  # noqa: BLE001 - whatever Spark has to say
            if len(ours) == 1:
                yield f"{next(iter(ours))}: Spark stops, we do not: {str(error)[:300]}"
            else:
                for text, one in ours.items():
                    yield from self._differences({text: one})
            return
        catalyst = Catalyst(self.spark, self.rows, list(ours), self.internal)
        for place, (text, one) in enumerate(ours.items()):
            theirs = spark[f"v_{place}"]
            failing = fails[f"fails_{place}"]
            values = self.frame.select(pl.when(~failing).then(one.value.expr)).to_series()
            if values.dtype != theirs.dtype or one.dtype != values.dtype:
                yield f"{text}: {values.dtype} declared as {one.dtype}, and {theirs.dtype} in Spark"
                continue
            differ = comparable(values).ne_missing(comparable(theirs)).arg_true()
            for row in differ[:1]:
                yield (
                    f"{text}: {len(differ)} rows, {shown(values, row)} and {shown(theirs, row)} "
                    f"in Spark for {self._row(one, row)}"
                )
            stops = [
                f.rows for f in one.value.fails if f.what not in ONLY_SPARK
            ]  # Where Spark does, too.
            if not stops:
                continue
            stopping = failing & self.frame.select(pl.any_horizontal(stops)).to_series()
            for row in self._some(one, stopping.fill_null(value=False)):
                if not catalyst.fails(place, row):
                    yield f"{text}: we stop, Spark does not, for {self._row(one, row)}"
                    break

    def _some(self, one: Compiled, failing: pl.Series) -> Iterator[int]:
        """A few of the *failing* rows, of different values."""
        columns = [path.parts[0] for path in one.sql.paths]
        rows = self.frame.with_row_index("at").filter(failing)
        rows = rows.unique(columns, keep="first") if columns else rows.head(1)
        found = rows.sort("at")["at"].to_list()
        yield from found[:: max(1, len(found) // STOPPING)]

    def _row(self, one: Compiled, row: int) -> dict[str, Any]:
        columns = [path.parts[0] for path in one.sql.paths]
        return self.frame.select(columns).row(row, named=True) if columns else {}


class Catalyst:
    """Spark's own interpreter, a row at a time."""

    def __init__(
        self, spark: SparkSession, rows: DataFrame, texts: list[str], internal: Any
    ) -> None:
        jvm: Any = spark._jvm  # noqa: SLF001 - no API evaluates one row
        catalyst = jvm.org.apache.spark.sql.catalyst
        selected: Any = rows.selectExpr(*texts)
        plan = catalyst.optimizer.ReplaceExpressions.apply(
            selected._jdf.queryExecution().analyzed()  # noqa: SLF001
        )
        seq = getattr(catalyst.expressions, "package$AttributeSeq")(plan.children().head().output())
        bind = catalyst.expressions.BindReferences.bindReference
        projected = plan.projectList()
        self._bound = [bind(projected.apply(n), seq, False) for n in range(len(texts))]
        self._rows = internal

    def fails(self, text: int, row: int) -> bool:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors.exceptions.captured import CapturedException

        try:
            self._bound[text].eval(self._rows[row])
        except (Py4JJavaError, CapturedException):
            return True
        return False


def shown(values: pl.Series, row: int) -> str:
    return repr(values.to_physical()[row])


def comparable(values: pl.Series) -> pl.Series:
    """Values of which two are equal only if no one can tell them apart; all NaN are one."""
    if not values.dtype.is_float():
        return values
    value = pl.col("v")
    is_negative_zero = (value == 0) & (1 / value < 0)
    return pl.DataFrame({"v": values}).select(pl.struct(value, sign=is_negative_zero)).to_series()


def cases(name: str, signature: Signature) -> Iterator[str]:
    literals = signature.literals or {}
    kinds = [
        ("",) if place in literals else KINDS[kind] for place, kind in enumerate(signature.kinds)
    ]
    for types in itertools.product(*kinds):
        if signature.same and not _are_alike(types):
            continue
        written = [
            literals.get(place, (column(of, place) if of else "",))
            for place, of in enumerate(types)
        ]
        for arguments in itertools.product(*written):
            yield call(name, arguments)
        if name in INFIX and not literals and types[0] == types[1]:
            # One number for all rows may be computed in another way than a column of them.
            for literal in LITERALS.get(types[0], ()):
                yield call(name, (column(types[0], 0), literal))
                yield call(name, (literal, column(types[0], 0)))


def _are_alike(types: Sequence[str]) -> bool:
    numbers = KINDS["number"]
    first, second, *others = types
    return all(of == first for of in others) and (
        first == second or (first in numbers and second in numbers)
    )


def call(name: str, arguments: Sequence[str]) -> str:
    match name, arguments:
        case "is_null", (value,):
            return f"{value} IS NULL"
        case "negate", (value,):
            return f"-{value}"
        case "not", (value,):
            return f"NOT {value}"
        case "between", (value, low, high):
            return f"{value} BETWEEN {low} AND {high}"
        case "in", (value, *listed):
            return f"{value} IN ({', '.join(listed)})"
        case "field", (value, name):
            return f"get({value}, 0).{name[1:-1]}"
        case "[]", (value, place):
            return f"{value}[{place}]"
        case "extract", (part, value):
            return f"extract({part[1:-1]} FROM {value})"
        case _, (one, other) if name in INFIX:
            return f"{one} {name} {other}"
        case _:
            return f"{name}({', '.join(arguments)})"


class RowsOfSource:
    """The rows of *world* in Parquet: columns are fields of a struct, which is null at times."""

    def __init__(self, world: World, folder: Path) -> None:
        self._spark, self._folder = world.spark, folder
        inside = pl.when(pl.col("row") % 7 != 3).then(pl.struct(pl.exclude("row")))
        self._frame = world.frame.select("row", inside.alias("s"))

    def differences(self, texts: Sequence[str]) -> Iterator[str]:
        """What differs between the two ways for the expressions *texts* over fields of ``s``."""
        inside = [_NAME.sub(r"S.\g<0>", text) for text in texts]
        for start in range(0, len(inside), BATCH):
            yield from self._differences(inside[start : start + BATCH])

    def _differences(self, texts: list[str]) -> Iterator[str]:
        fails = [
            pl.any_horizontal([f.rows for f in one.value.fails] or [pl.lit(value=False)])
            .fill_null(value=False)
            .alias(f"fails_{place}")
            for place, one in enumerate(
                compiled(parsed(text), self._frame.schema) for text in texts
            )
        ]
        rows = self._frame.with_columns(pl.struct(fails).alias("f"))
        columns = [
            f"CASE WHEN NOT F.FAILS_{n} THEN {text} END AS v_{n}" for n, text in enumerate(texts)
        ]
        past, paths = self._past(rows, columns)
        through = to_frame(
            self._spark.createDataFrame(rows.to_arrow(compat_level=pl.CompatLevel.oldest()))
            .selectExpr("row", *columns)
            .toArrow()
        )
        assert not {"s", "f"} & {*paths}, "only the fields that are used are read"
        for n, text in enumerate(texts):
            one, other = past[f"v_{n}"], through.sort("row")[f"v_{n}"]
            if one.dtype != other.dtype or comparable(one).ne_missing(comparable(other)).any():
                yield f"{text} is not the same past the JVM and through it"
            try:
                a_feed(rows, [f"{text} AS v"]).prepared(rows)
            except UndecidedError:
                stops = True
            else:
                stops = False
            if stops != rows["f"].struct.field(f"fails_{n}").any():
                yield f"{text} is {'' if stops else 'not '}left to Spark"

    def _past(self, rows: pl.DataFrame, columns: list[str]) -> tuple[pl.DataFrame, list[str]]:
        rows.write_parquet(self._folder / "rows.parquet")
        source = ParquetSource(str(self._folder))
        slices = source.plan((), max_records=None, parallelism=1).slices
        feed = a_feed(rows, columns, source, slices)
        assert feed.compiled.is_possible
        read = [batch for _, batch in feed.rows.read(0, feed.compiled.paths)]
        chunk = to_frame(pa.Table.from_batches(read))
        return feed.keyed(chunk, is_hashed=False).sort("row"), feed.compiled.paths


_NAME = re.compile("|".join(rf"\b{column(of, place)}\b" for of in VALUES for place in range(3)))


def a_feed(
    rows: pl.DataFrame,
    columns: Sequence[str],
    source: ParquetSource | None = None,
    slices: tuple[Slice, ...] = (),
) -> Feed:
    types = to_table(rows).schema if source is None else source.schema()
    schema = types.serialize().to_pybytes()
    return Feed(
        rows=SourceRows(source or ParquetSource(""), (slices,), schema),
        schema=schema,
        given=Input(producer="rows", steps=(Projection(("row", *columns)),), keys=("row",)),
        hashed=("row",),
    )


@pytest.fixture(name="source", scope="module")
def a_source(world: World, tmp_path_factory: pytest.TempPathFactory) -> RowsOfSource:
    return RowsOfSource(world, tmp_path_factory.mktemp("source"))


INFIX = (
    *("+", "-", "*", "/", "%", "=", "<=>", "<", "<=", ">", ">=", "and", "or", "div"),
    *("like", "ilike", "rlike"),
)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_value_the_type_and_the_error_of_spark(world: World, name: str) -> None:
    texts = sampled([text for of in FUNCTIONS[name] for text in cases(name, of)])

    assert texts
    assert world.differences(texts) == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_the_same_past_the_jvm_and_through_it(
    source: RowsOfSource, name: str
) -> None:
    texts = sampled([text for of in FUNCTIONS[name] for text in cases(name, of)])

    assert texts
    assert [*source.differences(texts)] == []


def casts() -> list[str]:
    pairs = [
        (of, to)
        for kind, targets in CASTS.items()
        for of in KINDS.get(kind, (kind,))
        for target in targets
        for to in KINDS.get(target, (target,))
    ]
    forms = [(how, of, to) for of, to in pairs for how in ("CAST", "TRY_CAST")]
    return [f"{how}({column(of, 0)} AS {to})" for how, of, to in sampled(forms)]


def test_a_cast_has_the_value_the_type_and_the_error_of_spark(world: World) -> None:
    assert world.differences(casts()) == []


def test_a_cast_is_the_same_past_the_jvm_and_through_it(source: RowsOfSource) -> None:
    assert [*source.differences(casts())] == []


def test_a_list_is_computed_up_to_the_first_that_is_equal(world: World) -> None:
    listed = ("1", "tinyint_b div tinyint_c", "int_a % int_b", "NULL", "int_c")
    texts = [
        f"int_a {negated}IN ({', '.join(among)})"
        for negated in ("", "NOT ")
        for among in itertools.permutations(listed, 3)
    ]

    assert world.differences(sampled(texts)) == []


def test_a_part_is_found_by_all_names_of_the_function(world: World) -> None:
    texts = ["position('a' IN string_a)", "position(string_b IN (string_a))"]
    texts += ["position('B', string_a)", "position(string_b, string_a, 2)"]

    assert world.differences(texts) == []


def doubles() -> Iterator[float]:
    random = Random(6)
    for exponent in range(-1074, 1024):
        yield from (2.0**exponent, random.uniform(1, 2) * 2.0**exponent)
    for exponent in range(-320, 309):
        yield from (float(f"{digits}e{exponent}") for digits in (1, 5, 9, 12, 125, 9.99))
    yield from (at / 1000 for at in range(0, 20_000_000, 9_999))
    for exponent in range(16, 24):
        yield from (float(random.randrange(10**7) * 10**exponent) for _ in range(100))
        yield from (float(random.randrange(2**61, 2**63) >> 64 - exponent) for _ in range(100))
    yield from (float(10**7 - 1), 9_999_999.999, 1e-3, 9.999e-4, -1.5, -1e10, 2.0**53 - 1)


def test_a_number_is_written_as_by_java_or_its_row_is_sparks(spark: SparkSession) -> None:
    found = [*doubles()]
    table = pa.table(
        {
            "row": pa.array(range(len(found)), I64),
            "d": pa.array(found, pa.float64()),
            "f": pa.array([x if abs(x) < 3.4e38 else None for x in found]).cast(pa.float32()),
        }
    )
    world = a_world_of(spark, table)
    stops = compiled(parsed("CAST(d AS string)"), world.frame.schema).value.fails[0].rows

    assert world.differences(["CAST(d AS string)", "CAST(f AS string)"]) == []
    stopped = world.frame.filter(stops)["d"]
    assert stopped.is_between(2.0**-20, 2.0**53, closed="left").sum() == 0
    assert not stopped.is_in([1e16, 1e17, 1e18, 5e18]).any()
    assert 0 < stopped.is_between(2.0**53, 2.0**90, closed="left").sum() < stopped.len()


NUMBERS_AS_TEXTS = re.findall(
    r"\S+",
    """
    0 1 -1 +1 007 -0 127 128 -128 -129 32767 32768 2147483647 2147483648 -2147483649 +-1 --1 + - .
    9223372036854775807 9223372036854775808 -9223372036854775808 -9223372036854775809 1_000 1,000
    00000000000000000000000000000000000000000000000012 1.5 1. .5 -.5 0.005 0.0049999 1e3 1E3 1e
    1e+2 1.5e-3 e5 1e400 -1e400 1e-400 4.9e-324 2.4e-324 1.7976931348623159e308
    3.4028235677973366e38 1.00000017881393432617187499 0.1 1d 1D 1f 1F 1L 1.5d .d d NaN nan NAN
    -NaN +NaN -nan Infinity infinity INF inf +inf -inf -Infinity infinit 0x10 0x1p3 0x1.8p1
    -0X1P-2 1 1٣ ٣ ٣.5 ½ 99.995 9999999999.99 9999999999.994 9999999999.995 10000000000
    -9999999999.995 99999 99999.5 -99999.49 123456789012345678901234567890123456789
    0.00000000000000000000000000000000000000000000001 99999999999999999999999999999999999999 1.2.3
    .. 1..2 $1 1% true t TRUE True f False yes y Y no N on off tru İ ß 0.0 -0.0 1e0 1.0 00.10 1e-2
    12e1
    """,
)
DAYS_AS_TEXTS = re.findall(
    r"\S+",
    """
    2024-02-29 2023-02-29 2024-2-9 2024-02 2024-13-01 2024-00-01 2024-01-00 2024-01-32 2024 202
    20240 20240229 2024- 2024-02- 2024-2-9T 2024-02-29T12:30 0000-01-01 0001-01-01 9999-12-31
    10000-01-01 -0001-01-01 +2024-01-01 -2024-01-01 24-01-01 2024/02/29 29.02.2024 02-29-2024
    2024-02-29Z now today 1900-02-29 2000-02-29 2024-02-30 2024-02-29T12:00:00
    2024-02-29T12:00:00Z 12:30 T12:30 2024-02-29T12:00:00+02:00 2024-02-29T12:00:00-18:00
    2024-02-29T12:00:00+18:01 epoch 1700000000 2024-02-29T12:00:00+2:00 2024-02-29T12:00:00.5
    2024-02-29T12:00:00.123456789 2024-02-29T12:00:00. 2024-02-29T12:00:00.5Z 2024-02-29T24:00:00
    2024-02-29T23:60:00 2024-02-29T23:59:60 2024-2-9T1:2:3 2024-02-29T12:00:00+0200
    2024-02-29T12:00:00UTC 2024-02-29T12:00:00UTC+1 9999-12-31T23:59:59.999999
    9999-12-31T23:00:00-02:00 0001-01-01T00:00:00+02:00 2024-02-29T120000 2024-02-29t12:00:00
    2024-02-29T12 2024-02-29T12: 2024-02-29T:00:00 2024-02-29T123:00:00
    2024-02-29T12:00:00Europe/Paris 2024022912 2024-02-29T12:00:00x 24.02.2024T12:00:00
    02024-01-01 2024-002-01 20240-02-29
    """,
)
WITH_BLANKS = [
    "2024-02-29 12:00:00",
    "2024-02-29 12:00",
    "2024-02-29 12:00:00.000001",
    "2024-02-29 ",
    "",
    " 2024-02-29",
    "2024-02-29\n",
    "2024-02-29 x",
    "2024-02-29  12:00:00",
    "2024-02-29 12:00:00 Z",
    "29.02.2024 12:00:00",
    "2024-02-29 12:00:00 UTC",
    "2024-02-29 12:00:00 +02:00",
    "2024-02-29 y\nz",
    "2024-02-29 12:00:00 garbage here",
    "30.02.2024 12:00:00",
    "29.02.2024 24:00:00",
    "2024-02-29 12:00:00.1234567",
    "2024-02-29 25:00",
    "29.02.+12024 12:00:00",
    "\uff11",
]


@pytest.fixture(name="texts", scope="module")
def a_world_of_texts(spark: SparkSession) -> World:
    random = Random(7)
    blanks = [" ", "\t", "\n", "\0", "\x7f", "\u00a0", "  ", "\x1f"]
    given = [*NUMBERS_AS_TEXTS, *DAYS_AS_TEXTS, *WITH_BLANKS, None]
    whole = [one for one in given if one]
    given += [random.choice(blanks) + random.choice(whole) for _ in range(150)]
    given += [random.choice(whole) + random.choice(blanks) for _ in range(150)]
    for _ in range(1500):
        one = random.choice(whole)
        at = random.randrange(len(one) + 1)
        sign = random.choice(["", *"0159-+.: TZeEdU"])
        given.append(one[:at] + sign + one[at + random.randrange(2) :])
    return a_world_of(spark, pa.table({"row": range(len(given)), "string_a": given}))


@pytest.mark.parametrize("to", [*CASTS["string"], "decimal(38,10)"])
def test_a_text_is_cast_as_spark_casts_it(texts: World, to: str) -> None:
    found = [
        f"{how}(string_a AS {of})" for of in KINDS.get(to, (to,)) for how in ("CAST", "TRY_CAST")
    ]

    assert texts.differences(found) == []


@pytest.mark.parametrize("name", ["to_date", "to_timestamp", "try_to_timestamp"])
def test_a_day_in_a_text_is_read_as_spark_reads_it(texts: World, name: str) -> None:
    calls = [text for signature in FUNCTIONS[name] for text in cases(name, signature)]

    assert texts.differences([text for text in calls if "string_a" in text]) == []


@pytest.fixture(name="lines", scope="module")
def a_world_of_lines(spark: SparkSession) -> World:
    random = Random(11)
    given = ["".join(random.choices(SIGNS, k=random.randrange(9))) for _ in range(900)]
    ended = [one + end for one in given[:200] for end in ("\n", "\r\n", "\r", "\n\r", "\u2029")]
    rows = ["", "\n", "\r\n", *given, *ended, None]
    return a_world_of(spark, pa.table({"row": range(len(rows)), "string_a": rows}))


SIGNS = [*"aabABc12 .-_äÄkKs😀٣$\\\n\r\t", "\x85", "\u2028", "\u212a", "\u017f", "\u00a0"]


ATOMS = [
    *("a", "a", "b", "A", "B", "1", "c", " ", ".", "k", "K", "s", "ä", "Ä", "😀", "^"),
    *(r"\d", r"\w", r"\s", r"\D", r"\W", r"\S", r"\.", r"\-", r"\n", r"\r", r"\t", r"\$", r"\\"),
    *("[ab]", "[^a]", "[a-c]", "[^A-C1]", r"[\w.-]", r"[^\s]", r"[\D]", "[k-s]", "[Ä\n]", "[-a]"),
    *("[.$|]", r"[^\n]", "[]", "x{", r"\b"),
]
TIMES = ["", "", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "??", "{0,2}?"]


def a_pattern(random: Random, depth: int = 2) -> str:
    """A regular expression, of which most are among those that are computed."""

    def one(depth: int) -> str:
        if depth and random.random() < 0.3:
            opens = random.choice(["(", "(", "(?:"])
            return f"{opens}{alternatives(depth - 1)})"
        return random.choice(ATOMS)

    def sequence(depth: int) -> str:
        return "".join(one(depth) + random.choice(TIMES) for _ in range(random.randint(1, 3)))

    def alternatives(depth: int) -> str:
        several = 1 if random.random() < 0.75 else random.randint(2, 3)
        return "|".join(sequence(depth) for _ in range(several))

    flags = random.choice(["", "", "", "(?i)", "(?s)", "(?is)"])
    return flags + random.choice(["", "", "^"]) + alternatives(depth) + random.choice(["", "", "$"])


def searches(random: Random, schema: pl.Schema, count: int) -> list[str]:
    """*count* calls that look for patterns."""
    found: list[str] = []
    while len(found) < count:
        pattern = spelled(Literal(a_pattern(random), ColumnType("string")))
        by = random.choice(["''", "'<$0>'", "'$1$1'", "'\\\\$1'", "'[$2|$1]'"])
        text = random.choice(
            [
                f"string_a RLIKE {pattern}",
                f"regexp_extract(string_a, {pattern}, {random.choice('0012')})",
                f"regexp_replace(string_a, {pattern}, {by})",
                f"split(string_a, {pattern})",
            ]
        )
        try:
            compiled(parsed(text), schema)
        except NotCompiledError:
            continue
        found.append(text)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_pattern_finds_what_it_finds_in_spark(lines: World, seed: int) -> None:
    texts = searches(Random(seed), lines.frame.schema, 4 * BATCH)

    assert lines.differences(texts) == []


COMPOSED = r"""
string_a ILIKE 'A/%%' ESCAPE '/'
string_a NOT ILIKE '%B_%'
CAST(decimal_12_2_a AS decimal(38,2)) + decimal_12_2_b
1 - CAST(decimal_12_2_a AS decimal(38,2))
bigint_a - CAST(decimal_18_6_a AS decimal(38,6))
CAST(decimal_12_2_a AS decimal(38,2)) / bigint_b
CAST(decimal_12_2_a AS decimal(38,2)) / -7
CAST(decimal_12_2_a AS decimal(38,2)) / decimal_12_2_b
CAST(decimal_18_6_a AS decimal(38,6)) / int_b
CAST('99999999999999999999999999999999.99' AS decimal(38,2)) / int_a
CAST(decimal_12_2_a AS decimal(38,2)) + 1.5 > 2
upper(string_a) ILIKE 'ß%'
string_a ILIKE '%Σ'
string_a REGEXP 'a$'
string_a RLIKE '(?i)[k-\u017f]|\u212a'
regexp_replace(string_a, 'a$', '\\$')
regexp_extract(NULL, 'a', 0)
split('a,b', ',')[1]
split(string_a, 'a')[size(split(string_a, 'a')) - 1]
get(split(string_a, 'b'), 1)
element_at(split(string_a, ' '), -1)
size(coalesce(array_string_a, split(string_b, 'a')))
CASE WHEN size(array_int_a) > 1 THEN array_int_a[1] + 1 END
CASE WHEN boolean_a THEN array_string_a ELSE array_string_b END
split_part(concat(string_a, '..', string_b), '..', -1)
split_part(string_a, '', 2)
concat_ws('-', string_a, NULL, string_b, 'x')
concat_ws(',', NULL, NULL)
lpad(CAST(int_a AS string), 8, '0')
lpad('x', 3, '0')
rpad(string_a, 12, '😀ä')
instr('abc', string_a)
locate('', string_a)
sqrt(power(double_a, 2) + pow(double_b, 2))
power(2, 2)
unix_timestamp('2024-02-29 12:00:00')
from_unixtime(0)
array_contains(split(string_a, ' '), string_b)
array_contains(array_int_a, tinyint_a)
substring_index('www.a.b', '.', 2)
substring_index(concat(string_a, '.x.', string_b), '.', -2)
int_a = '1' AND bigint_b <=> ' -10 ' OR double_a IN ('2.5', 'NaN') OR boolean_a = 'n'
decimal_12_2_a > '1.01' AND '1' < tinyint_b AND NULL = '1'
int_a IN ('1', 2, bigint_b)
CASE WHEN boolean_a THEN date_a WHEN boolean_b THEN '2024-02-29' ELSE timestamp_a END
CASE WHEN boolean_a THEN int_a WHEN boolean_b THEN '7' END
if(boolean_a, '2.5', decimal_12_2_a)
nvl2(string_a, date_a, '2021')
coalesce(date_a, '2021', timestamp_b)
date_a BETWEEN '1970' AND date_b
timestamp_a NOT IN ('1970-01-01', date_b)
trunc(to_date(timestamp_a), 'week')
last_day(DATE '2024-02-10')
"""


MOST = f"CAST('{'9' * 36}.99' AS decimal(38,2))"
TOTALS = [
    f"{MOST} + decimal_12_2_a",
    f"-{MOST}",
    f"0 - {MOST} - {MOST}",
    "-CAST(decimal_12_2_a AS decimal(38,2))",
    f"{MOST} / bigint_b",
]


def test_what_people_compose_has_the_value_that_spark_gives_it(world: World) -> None:
    assert world.differences([*COMPOSED.strip().splitlines(), *TOTALS]) == []


LITERALS = {
    "boolean": ["true", "false", "CAST(NULL AS boolean)"],
    "tinyint": ["1Y", "-128Y"],
    "smallint": ["3S"],
    "int": ["0", "-7", "-2147483648", "CAST(NULL AS int)"],
    "bigint": ["3L", "9223372036854775807"],
    "float": ["1.5F"],
    "double": ["0e0", "1.5D", "0.1D", "-1e308"],
    "string": ["''", "'a'", "'ß'", "CAST(NULL AS string)"],
    "date": ["DATE '2024-02-29'"],
    "timestamp": ["TIMESTAMP '2024-02-29 12:00:00'"],
}
DEPTH = 3


def random_expressions(random: Random, schema: pl.Schema, count: int) -> list[str]:
    """*count* expressions of functions of functions, DEPTH levels deep at most."""
    levels: list[dict[str, list[str]]] = [
        {of: [column(of, place) for place in range(3)] + LITERALS.get(of, []) for of in VALUES}
    ]
    found: list[str] = []
    while len(found) < count:
        level = 1 + len(found) * DEPTH // count
        below = levels[min(level, len(levels)) - 1]
        text = _random_call(random, {of: below.get(of, levels[0][of]) for of in VALUES})
        try:
            of = spark_type(compiled(parsed(text), schema).dtype)
        except NotCompiledError:
            continue  # Decimals of more digits than there are.
        while len(levels) <= level:
            levels.append({})
        if of in VALUES:
            levels[level].setdefault(of, []).append(f"({text})")
        found.append(text)
    return found


def _random_call(random: Random, pool: dict[str, list[str]]) -> str:
    name = random.choice([*FUNCTIONS, "case"])
    if name == "case":
        of = random.choice(KINDS["any"])
        when, other = (random.choice(pool["boolean"]) for _ in range(2))
        one, two, three = (random.choice(pool[of]) for _ in range(3))
        return f"CASE WHEN {when} THEN {one} WHEN {other} THEN {two} ELSE {three} END"
    signature = random.choice(FUNCTIONS[name])
    literals = signature.literals or {}
    types = [random.choice(KINDS[kind]) for kind in signature.kinds]
    if signature.same:
        types = types[:1] * len(types)
    arguments = [
        random.choice(literals.get(place, ())) if place in literals else random.choice(pool[of])
        for place, of in enumerate(types)
    ]
    return call(name, arguments)


@settings(
    max_examples=drawn(12),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # A difference names its expression.
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_functions_of_functions_have_the_value_the_type_and_the_error_of_spark(
    world: World, seed: int
) -> None:
    texts = random_expressions(Random(seed), world.frame.schema, 60)

    assert world.differences(texts) == []


def test_the_seconds_of_a_day_beyond_the_calendar_stop_its_row_alone(world: World) -> None:
    """Polars panics where it is to say which day it cannot cast."""
    texts = [f"unix_timestamp(date_sub(date_b, {days}))" for days in ("-2147483648", "2147483647")]

    assert world.differences(texts) == []


def test_spark_counts_the_digits_of_literals_beside_decimals_but_of_a_tinyint(world: World) -> None:
    texts = [f"decimal_5_0_b {by}" for by in ("* 1Y", "+ 1Y", "* 1S", "* 1", "* 1L")]

    assert world.differences(texts) == []


def test_spark_computes_each_argument_of_concat_whichever_is_null(world: World) -> None:
    texts = ["concat(right(string_c, tinyint_c), 3L div bigint_b)", "string_c || 3L div bigint_b"]

    assert world.differences(texts) == []
