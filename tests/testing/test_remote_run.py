"""``sluice run --remote``: the same run on a Spark Connect server that is running already."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl
import pytest
from pyspark.sql.connect import functions
from pyspark.sql.connect.expressions import ColumnAlias
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.types import DecimalType

from harness.s3_server import own_bucket
from sluice.declaration.spark_columns import sql_text
from sluice.devstack import processes, servers
from sluice.devstack.servers import BUCKET
from sluice.errors import ConfigurationError
from sluice.spark import session
from sluice.spark.session import check_listening, check_version, remote_of, session_url
from sluice.spark.tasks import numbers
from tests.examples import slow
from tests.testing import test_spark_code

PIPELINE = """
from sluice.declaration.keyed_functions import KeyedProcessFunction
from sluice.declaration.keyed_states import ValueState
from sluice.declaration.pipeline import Pipeline
from sluice.sinks import FilesTable
from sluice.sources import Files


def louder(text):
    return text.upper()


def shouted(rows):
    from pyspark.sql.functions import udf

    return rows.withColumn("city", udf(louder, "string")("city"))


class Visits(KeyedProcessFunction):
    seen = ValueState(int)

    def process(self, row, context):
        self.seen.set(self.seen.get(0) + 1)
        yield {"city": context.key["city"], "visit": self.seen.get(0)}


pipeline = Pipeline("clicks")
clicks = pipeline.source("clicks", Files("clicks.csv", format="csv", schema="id int, city string"))
clicks.transform("shouted", shouted).key_by("city").process_keyed(
    "visits", Visits(), result={"city": str, "visit": int}
).sink("out", FilesTable())
"""
SPARK_CODE = '''
from sluice import Pipeline, Replace
from sluice.sinks import FilesTable
from sluice.sources import Files


def twice(amount):
    return 2 * amount


def totals(orders, previous):
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    new = orders.withColumn("spent", F.udf(twice, "bigint")("amount")).select("customer", "spent")
    both = previous.select("customer", "spent").unionByName(new)
    spent = both.groupBy("customer").agg(F.sum("spent").alias("spent"))
    best = Window.orderBy(F.desc("spent"), "customer")
    return spent.withColumn("rank", F.row_number().over(best))


pipeline = Pipeline("orders")
orders = pipeline.source(
    "orders", Files("orders.csv", format="csv", schema="customer string, amount bigint")
)
ranked = pipeline.spark(
    "totals",
    totals,
    reads={"orders": orders},
    schema="customer string, spent bigint, rank int",
    result=Replace("customer"),
)
places = Files("places.csv", format="csv", schema="place int")
pipeline.spark_sql(
    "placed",
    """
    WITH now AS (
        SELECT customer, spent, rank FROM ranked WHERE _change = 'insert'
        UNION ALL SELECT customer, spent, rank FROM previous ANTI JOIN ranked USING (customer)
    )
    SELECT now.* FROM now JOIN places ON rank = place
    """,
    changes={"ranked": ranked},
    tables={"places": pipeline.source("places", places, table=True)},
    schema="customer string, spent bigint, rank int",
    result=Replace("customer"),
).sink("out", FilesTable(upsert_key=("customer",)))
'''
VIEWS = """
import time

from sluice import Pipeline, Replace, Upsert
from sluice.sinks import FilesTable
from sluice.sources import Files


def named(orders, name):
    orders.createOrReplaceTempView("orders")
    time.sleep(1)  # So that the other stage has a view of that name, too.
    return orders.sparkSession.sql(f"SELECT '{name}' AS name, customer, amount FROM orders")


def ann(orders):
    return named(orders, "ann")


def bob(orders):
    return named(orders, "bob")


def cyd(orders):
    return named(orders, "cyd")


pipeline = Pipeline("orders")
schema = "customer string, amount bigint"
orders = pipeline.source("orders", Files("orders.csv", format="csv", schema=schema))
of_ann = pipeline.spark(
    "ann",
    ann,
    reads={"orders": orders.where("customer = 'ann'")},
    schema=f"name string, {schema}",
    result=Replace(),
)
of_bob, of_cyd = (
    orders.where(f"customer = '{function.__name__}'").transform(function.__name__, function)
    for function in (bob, cyd)
)
pipeline.spark(
    "all",
    lambda ann, bob, cyd: ann.drop("_change").union(bob).union(cyd),
    changes={"ann": of_ann},
    reads={"bob": of_bob, "cyd": of_cyd},
    schema=f"name string, {schema}",
    result=Upsert(("name", "customer")),
).sink("out", FilesTable(upsert_key=("name", "customer")))
"""
INCLUDE = str(Path(__file__).parents[2] / "include")


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port, ui_port = processes.free_ports(2)
    settings = servers.SparkSettings(port=port, ui_port=ui_port, driver_memory="1g", cores=2)
    env = {**os.environ, "PYTHONPATH": INCLUDE}  # The workers have sluice, and not the pipeline.
    launch = servers.spark_launch(settings, sluice_dir=tmp_path_factory.mktemp("server"), env=env)
    record = processes.start(launch)
    try:
        processes.wait_until_ready(
            record,
            lambda: processes.accepts_connections(port),
            timeout_s=servers.SPARK_START_TIMEOUT_S,
            cancelled=Event(),
        )
        yield f"sc://127.0.0.1:{port}"
    finally:
        processes.stop_all([record], stack_id=None, grace_s=10)


@pytest.mark.spark
def test_a_pipeline_with_state_and_functions_runs_on_a_server_that_has_not_its_code(
    tmp_path: Path, remote: str
) -> None:
    package = tmp_path / "pipelines"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "clicks.py").write_text(PIPELINE)
    (tmp_path / "clicks.csv").write_text("1,Rome\n2,Oslo\n3,rome\n4,ROME\n")
    command = [sys.executable, "-c", "from sluice.cli.main import main; main()", "run", "clicks"]

    options = ["--remote", remote, "--max-records-per-epoch", "2", "--json"]

    result = subprocess.run(
        [*command, *options, "--output", "out.parquet"],
        check=False,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "SLUICE_ROOT"}
        | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{INCLUDE}"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert [one["status"] for one in summary["checkpoints"]] == ["COMPLETED"] * 2
    assert sorted(pl.read_parquet(tmp_path / "out.parquet").rows()) == [
        ("OSLO", 1),
        ("ROME", 1),
        ("ROME", 2),
        ("ROME", 3),
    ]


@pytest.mark.spark
@pytest.mark.parametrize("place", ["a server, over a folder", "this machine, over S3"])
def test_spark_code_goes_on_from_its_previous_result(
    tmp_path: Path, remote: str, place: str
) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    (tmp_path / "pipelines" / "orders.py").write_text(SPARK_CODE)
    (tmp_path / "orders.csv").write_text("a,1\nb,5\na,2\nc,x\na,3\n")
    (tmp_path / "places.csv").write_text("1\n2\n")
    command = [sys.executable, "-c", "from sluice.cli.main import main; main()", "run", "orders"]
    env = {name: value for name, value in os.environ.items() if name != "SLUICE_ROOT"}
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{INCLUDE}"

    with ExitStack() as stack:
        options = ["--max-records-per-epoch", "2", "--json", "--output", "out.parquet"]
        if "server" in place:
            options += ["--remote", remote]
        else:
            env |= stack.enter_context(own_bucket(tmp_path / "s3"))
            env["SLUICE_ROOT"] = f"s3://{BUCKET}/orders"
        result = subprocess.run(
            [*command, *options],
            check=False,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )

    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert [one["status"] for one in summary["checkpoints"]] == ["COMPLETED"] * 3
    out = pl.read_parquet(tmp_path / "out.parquet").select("customer", "spent", "rank")
    assert sorted(out.rows()) == [("a", 12, 1), ("b", 10, 2)]


@pytest.mark.spark
def test_a_column_that_is_not_there_is_told_with_the_line_that_asks_for_it(
    tmp_path: Path, remote: str
) -> None:
    """A server is asked for columns later than the function asks, outside of its lines."""
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    code = SPARK_CODE.replace('F.sum("spent")', 'F.sum("spnet")')
    (tmp_path / "pipelines" / "orders.py").write_text(code)
    (tmp_path / "orders.csv").write_text("a,1\n")
    (tmp_path / "places.csv").write_text("1\n")
    command = [sys.executable, "-c", "from sluice.cli.main import main; main()", "run", "orders"]
    env = {name: value for name, value in os.environ.items() if name != "SLUICE_ROOT"}

    result = subprocess.run(
        [*command, "--remote", remote, "--json"],
        check=False,
        cwd=tmp_path,
        env=env | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{INCLUDE}"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert result.returncode == 1
    line = 1 + code[: code.index("spnet")].count("\n")
    assert "spnet" in result.stderr
    assert f"pipelines/orders.py line {line}" in result.stderr


@pytest.mark.spark
def test_a_view_is_that_of_the_call_on_a_server_too(tmp_path: Path, remote: str) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "__init__.py").touch()
    (tmp_path / "pipelines" / "orders.py").write_text(VIEWS)
    (tmp_path / "orders.csv").write_text("ann,1\nbob,2\ncyd,3\n")
    command = [sys.executable, "-c", "from sluice.cli.main import main; main()", "run", "orders"]

    result = subprocess.run(
        [*command, "--remote", remote, "--json", "--output", "out.parquet"],
        check=False,
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "SLUICE_ROOT"}
        | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{INCLUDE}"},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert result.returncode == 0, result.stderr
    out = pl.read_parquet(tmp_path / "out.parquet").select("name", "customer", "amount")
    assert sorted(out.rows()) == [("ann", "ann", 1), ("bob", "bob", 2), ("cyd", "cyd", 3)]


@slow
@pytest.mark.spark
def test_several_results_on_a_server_are_those_of_a_plain_loop(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark would leave it to other tests.
    name = "test_several_results_are_those_of_a_plain_loop_over_kills_restores_and_rescales"

    with session.remote_session(remote) as spark:
        getattr(test_spark_code, name)(spark, 1)


ROWS = (
    "SELECT * FROM VALUES "
    "(1, 2, 1.5D, 'a%b', true, named_struct('f', 7, 'a b', 'x'), timestamp_micros(0)), "
    "(-3, null, double('NaN'), \"it's\\\\\", false, null, timestamp '2026-02-03 04:05:06'), "
    "(null, 9, -0.0D, null, null, named_struct('f', -7, 'a b', null), null) "
    "AS r(n, m, d, t, b, s, at)"
)
NAN = float("nan")
COLUMNS: Sequence[Callable[[Any], Any]] = (
    lambda f: f.col("n"),
    lambda f: f.col("s.f"),
    lambda f: f.col("`s`.`a b`"),
    lambda f: f.col("s")["a b"],
    lambda f: f.col("s").getField("f") + 1,
    lambda f: f.col("n") - f.col("m") * 2,
    lambda f: (f.col("n") - f.col("m")) * 2,
    lambda f: -(f.col("n") - 1),
    lambda f: 10 - f.col("n"),
    lambda f: f.col("n") / 2,
    lambda f: f.col("m") % -2,
    lambda f: f.col("n").bitwiseAND(1),
    lambda f: f.col("d") == NAN,
    lambda f: f.col("d") <= 1.5,
    lambda f: f.col("d") + f.lit(Decimal("1.50")),
    lambda f: f.lit(1e300) * f.lit(-0.0),
    lambda f: f.lit(float("-inf")) + f.col("d"),
    lambda f: f.lit(-(2**31)) + f.lit(3_000_000_000),
    lambda f: ~(f.col("b") & (f.col("n") > 0) | f.col("m").isNull()),
    lambda f: f.col("n").eqNullSafe(None),
    lambda f: f.col("n").isNotNull(),
    lambda f: f.col("n").isin(1, -3),
    lambda f: f.col("n").between(-5, 0),
    lambda f: f.col("t").like("a\\%b"),
    lambda f: f.col("t").rlike("^a."),
    lambda f: f.col("t") == "it's\\",
    lambda f: f.col("t").startswith("a"),
    lambda f: f.col("t").substr(2, 2),
    lambda f: f.concat(f.col("t"), f.lit("'\n\\n")),
    lambda f: f.when(f.col("n") > 0, "up").when(f.col("n") < 0, "down"),
    lambda f: f.when(f.col("n") > 0, f.col("m")).otherwise(0),
    lambda f: f.col("n").cast("string"),
    lambda f: f.col("d").cast(DecimalType(10, 2)).isNull(),
    lambda f: f.col("t").try_cast("int"),
    lambda f: f.col("at") < datetime(2020, 1, 1, tzinfo=UTC),
    lambda f: f.to_date("at") == date(2026, 2, 3),
    lambda f: f.date_trunc("hour", "at"),
    lambda f: f.coalesce("m", f.lit(None), "n"),
    lambda f: f.expr("n + 1") * 2,
    lambda f: f.lit(b"\x00\xff"),
    lambda f: f.array("n", "m")[0],
    lambda f: f.upper("t").alias("T `x`"),
)


@pytest.mark.spark
def test_a_column_of_spark_connect_is_what_its_text_is(remote: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    try:
        rows = spark.sql(ROWS)
        for column in (made(functions) for made in COLUMNS):
            name = column._expr._alias[0] if type(column._expr) is ColumnAlias else "it"  # noqa: SLF001
            whole = column if name != "it" else column.alias(name)
            told = rows.selectExpr(sql_text(whole))

            assert told.schema == rows.select(whole).schema, column
            assert repr(told.collect()) == repr(rows.select(whole).collect()), column
    finally:
        spark.stop()


def test_a_stage_asks_a_server_neither_for_columns_that_it_knows_nor_for_progress(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are requests of each checkpoint, and each report of progress is one."""
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark would leave it to other tests.
    with session.remote_session(remote) as spark:
        of_server = spark.range(0, 3, 1, 3).schema
        reports: list[bool] = []  # Of each, whether the query is done.
        ours = session.with_our_settings(spark)
        ours.registerProgressHandler(lambda **of: reports.append(of["done"]))  # type: ignore[arg-type]
        monkeypatch.setattr(spark.client, "_analyze", pytest.fail)

        rows = numbers(ours, 3)

        assert rows.schema == of_server
        assert rows.toArrow().column(0).to_pylist() == [0, 1, 2]
        assert reports == [True]  # The client's own, at the end.


def test_a_session_ends_when_the_threads_that_its_client_began_have_ended() -> None:
    before = {*threading.enumerate()}
    last_words = threading.Thread(target=time.sleep, args=(0.3,), daemon=True)
    last_words.start()

    session._wait_for_daemons(before)  # noqa: SLF001 - the race is too rare to be met

    assert not last_words.is_alive()


def test_a_server_that_is_not_running_is_refused_at_once_with_its_address() -> None:
    (port,) = processes.free_ports(1)

    with pytest.raises(ConfigurationError) as refused:
        check_listening(f"sc://127.0.0.1:{port}")

    assert str(refused.value) == (
        f"no server listens at 127.0.0.1:{port}, where --remote sc://127.0.0.1:{port} names a "
        "Spark Connect server (Connection refused); start one there, or correct the address"
    )


def test_what_listens_and_is_no_spark_connect_server_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 0.5)
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]

        with pytest.raises(ConfigurationError) as refused:
            check_listening(f"sc://127.0.0.1:{port}")

    assert str(refused.value).startswith(
        f"what listens at 127.0.0.1:{port} is no Spark Connect server; name its gRPC port"
    )


@pytest.mark.spark
def test_a_named_session_is_found_again_and_has_views_of_its_own(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")  # PySpark would leave it to other tests.
    attached: list[Any] = []

    named = session.named_session
    with named(remote, "ann") as ann, named(remote, "bob") as bob:
        attached += [ann, bob]
        for spark, orders in ((ann, 1), (bob, 2)):
            spark.range(orders).createOrReplaceTempView("orders")
        assert (ann.table("orders").count(), bob.table("orders").count()) == (1, 2)
    with named(remote, "ann") as ann:
        assert ann.table("orders").count() == 1
        attached.append(ann)
        assert attached[-1] is SparkSession.builder.getOrCreate()
    with named(remote, None) as spark:
        assert not spark.catalog.tableExists("orders")
        attached.append(spark)

    # Python would wait for ever at its end for the threads of one that is open.
    assert all(spark.is_stopped for spark in attached)
    ended = SparkSession(remote_of(remote, user_id="sluice", session_id=attached[-1].session_id))
    with closing(ended.client), pytest.raises(Exception, match="SESSION_CLOSED"):
        assert ended.version


def test_a_server_of_another_version_is_refused_and_another_patch_is_not() -> None:
    check_version("sc://spark:15002", "4.3.9")

    with pytest.raises(ConfigurationError) as refused:
        check_version("sc://spark:15002", "3.5.1")

    assert str(refused.value) == (
        "the Spark Connect server at sc://spark:15002 is Spark 3.5.1, and PySpark is 4.3.0 here; "
        "install pyspark==3.5.* here, or start a server of Spark 4.3"
    )


@pytest.mark.parametrize("remote", ["spark:15002", "http://spark", "sc://", "sc://host:port"])
def test_an_address_of_another_form_is_refused(remote: str) -> None:
    with pytest.raises(ConfigurationError, match="write sc://host:port"):
        remote_of(remote)


def test_options_of_an_address_stay_before_ours() -> None:
    given = "sc://spark:15002/;use_ssl=true;token=t"

    assert remote_of(given, user_id="me") == f"{given};user_id=me"
    assert remote_of("sc://spark:15002/", user_id="me") == "sc://spark:15002/;user_id=me"
    assert session_url("sc://spark", "a").startswith("sc://spark/;session_id=")
