"""What a user's function makes of its rows is refused where a row of it depends on others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from sluice.errors import ConfigurationError
from sluice.spark.row_wise import analysed_plan, check_row_wise_plan, marked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[["DataFrame", "DataFrame"], "DataFrame"]
ROWS = "name string, n bigint, tags array<string>"


def sql(text: str) -> Function:
    return lambda rows, table: rows.sparkSession.sql(text, v=rows, t=table)


def totalled(rows: DataFrame) -> DataFrame:
    return rows.groupBy("name").sum("n")


def grouped(rows: DataFrame, table: DataFrame) -> DataFrame:
    def function(frame: Any) -> Any:
        return frame

    return rows.groupBy("name").applyInPandas(function, ROWS).join(table, "name")


OF_MANY: dict[str, tuple[Function, str]] = {
    "deduplicated below a join": (
        lambda rows, table: rows.dropDuplicates(["name"]).join(table, "name", "left"),
        "dropDuplicates(), whose result",
    ),
    "deduplicated above a join": (
        lambda rows, table: table.join(rows, "name").distinct(),
        "dropDuplicates(), whose result",
    ),
    "totals of the epoch": (
        lambda rows, _: rows.join(totalled(rows), "name"),
        "an aggregate (groupBy), whose result",
    ),
    "totals behind two joins": (
        lambda rows, table: table.join(rows, "name").join(table, "name").groupBy("name").count(),
        "an aggregate (groupBy)",
    ),
    "a limit below a join": (
        lambda rows, table: rows.orderBy("n").limit(3).join(table, "name"),
        "limit()",
    ),
    "an offset": (lambda rows, _: rows.offset(1), "offset()"),
    "groups of pandas": (grouped, "a function of groups (applyInPandas)"),
    "a difference": (
        lambda rows, table: rows.select("name").exceptAll(table.select("name")),
        "except()",
    ),
    "an intersection": (
        lambda rows, table: table.select("name").intersect(rows.select("name")),
        "intersect()",
    ),
    "rows beside themselves": (
        lambda rows, _: rows.join(rows.select("name"), "name"),
        "a join of its rows with themselves",
    ),
    "rows that a table has not": (
        lambda rows, table: rows.join(table, "name", "full"),
        "a join (FullOuter) that yields rows",
    ),
    "a table's rows": (
        lambda rows, table: rows.join(table, "name", "right"),
        "a join (RightOuter) that yields",
    ),
    "a table's rows that came": (
        lambda rows, table: table.join(rows, "name", "left_semi"),
        "a join (LeftSemi) that yields",
    ),
    "a table beside the rows": (
        lambda rows, table: rows.select("name").union(table.select("name")),
        "a union with a table",
    ),
    "a mean in a subquery": (
        sql("SELECT * FROM {v} WHERE n > (SELECT avg(n) FROM {v})"),
        "an aggregate (groupBy)",
    ),
    "other rows in a subquery": (
        sql("SELECT * FROM {v} a WHERE EXISTS (SELECT 1 FROM {v} b WHERE b.n > a.n)"),
        "a subquery over its rows",
    ),
    "a common table expression": (
        sql("WITH s AS (SELECT * FROM {v}) SELECT a.* FROM s a JOIN s b ON a.name = b.name"),
        "a join of its rows with themselves",
    ),
    "lateral totals": (
        sql("SELECT * FROM {t} t, LATERAL (SELECT max(n) FROM {v} v WHERE v.name = t.name)"),
        "an aggregate (groupBy)",
    ),
}
ROW_WISE: dict[str, Function] = {
    "a static table": lambda rows, table: rows.join(table, "name", "left"),
    "a table's totals": lambda rows, table: rows.join(table.groupBy("name").count(), "name"),
    "a table's newest rows": lambda rows, table: table.distinct().join(rows, "name", "right"),
    "rows that a table has": lambda rows, table: rows.join(table, "name", "left_semi"),
    "rows that a table has not": lambda rows, table: rows.join(table, "name", "left_anti"),
    "every row of a table": lambda rows, table: rows.crossJoin(table.limit(1)),
    "two tables": lambda rows, table: rows.join(table, "name").join(
        table.selectExpr("name", "town AS other").distinct(), "name", "left"
    ),
    "rows in two parts": lambda rows, _: rows.where("n > 0").union(rows.where("n <= 0")),
    "a table's maximum": sql("SELECT *, (SELECT max(town) FROM {t}) AS most FROM {v}"),
    "names in a table": sql("SELECT * FROM {v} WHERE name IN (SELECT name FROM {t} GROUP BY name)"),
    "a table's expression": sql(
        "WITH s AS (SELECT name, max(town) AS town FROM {t} GROUP BY name) "
        "SELECT v.*, town FROM {v} v LEFT JOIN s ON v.name = s.name"
    ),
    "elements": sql("SELECT name, tag FROM {v} LATERAL VIEW explode(tags) AS tag"),
}


@pytest.fixture
def given(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    table = spark.createDataFrame([("ann", "Ulm")], "name string, town string")
    return marked(spark.createDataFrame([], ROWS)), table


@pytest.mark.parametrize("case", OF_MANY)
def test_many_rows_are_found_behind_joins_and_in_subqueries(
    given: tuple[DataFrame, DataFrame], case: str
) -> None:
    function, what = OF_MANY[case]

    with pytest.raises(ConfigurationError) as refused:
        check_row_wise_plan("it", function(*given))

    assert f"the function of stage 'it' has {what}" in str(refused.value)


@pytest.mark.parametrize("case", ROW_WISE)
def test_a_table_beside_the_rows_may_be_computed_and_joined(
    given: tuple[DataFrame, DataFrame], case: str
) -> None:
    check_row_wise_plan("it", ROW_WISE[case](*given))


def test_stages_that_run_at_once_get_their_own_plans(
    given: tuple[DataFrame, DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    rows, _ = given
    names = [f"of_{number}" for number in range(4)] * 10
    with ThreadPoolExecutor(4) as stages:
        plans = list(stages.map(lambda name: analysed_plan(rows.selectExpr(f"n AS {name}")), names))

    assert all(f"AS {name}#" in plan for name, plan in zip(names, plans, strict=True))
    assert "Logical Plan" not in capsys.readouterr().out
    assert rows.sparkSession.conf.get("spark.sql.debug.maxToStringFields") == "25"
