"""``sluice init``: a project in a new folder; and ``sluice check``, which asks its sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice import Upsert
from sluice.cli.from_spark import draft_of
from sluice.cli.main import main
from sluice.declaration import aggregates as agg
from sluice.declaration.operations import SparkCode
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.sinks import FilesTable
from sluice.sources import Files
from tests.cli.conftest import Sluice
from tests.docs.commands import blocks
from tests.house.test_repository import REPOSITORY
from tests.own_page import names_of_the_page


def init(folder: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["init", str(folder)])
    return int(ended.value.code or 0)


def test_a_project_has_the_layout_of_the_repository(tmp_path: Path) -> None:
    assert init(tmp_path / "shop") == 0

    found = {str(path.relative_to(tmp_path / "shop")) for path in (tmp_path / "shop").rglob("*")}
    assert found == {
        ".gitignore",
        "README.md",
        "dags",
        "dags/declarations.py",
        "dags/sluice_dags.py",
        "include",
        "include/pipelines",
        "include/pipelines/__init__.py",
        "include/pipelines/orders.py",
        "input",
        "input/orders",
        "input/orders/2026-01-01.jsonl",
        "pyproject.toml",
        "requirements.txt",
        "tests",
        "tests/test_orders.py",
    }
    written = "".join(p.read_text() for p in (tmp_path / "shop").rglob("*") if p.is_file())
    assert "PROJECT_NAME" not in written
    assert "SLUICE_VERSION" not in written
    assert "# shop\n" in written


def test_our_own_dags_are_those_of_a_project(tmp_path: Path) -> None:
    init(tmp_path / "shop")
    ours = Path(__file__).resolve().parents[2] / "dags"

    assert {path.name: path.read_text() for path in ours.glob("*.py")} == {
        path.name: path.read_text() for path in (tmp_path / "shop" / "dags").iterdir()
    }


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert init(tmp_path) == 0
    assert (tmp_path / "pyproject.toml").is_file()


@pytest.mark.parametrize("occupied", ["shop/notes.txt", "shop"])
def test_a_folder_that_has_something_is_refused_and_left_as_it_is(
    tmp_path: Path, occupied: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / occupied
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")

    assert init(tmp_path / "shop") == 1

    said = capsys.readouterr().err
    assert str(tmp_path / "shop") in said
    assert ("it has notes.txt; name a new one" in said) or ("is a file; name a folder" in said)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_the_pipeline_of_a_project_is_sound(tmp_path: Path) -> None:
    init(tmp_path / "shop")

    checked = subprocess.run(
        [sys.executable, "-c", "from sluice.cli.main import main; main()",
         "check", "orders", "--input", "input/orders", "--json"],
        check=False, cwd=tmp_path / "shop",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=120,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stderr
    assert '"cents": "Int64"' in checked.stdout


@pytest.fixture(name="scripts")
def _scripts(tmp_path: Path) -> Path:
    """The folder of the three scripts of the guide."""
    for block in blocks(REPOSITORY / "docs/guides/from-spark.md"):
        if block.title and block.title.startswith("include/shop/"):
            file = tmp_path / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.body)
    return tmp_path / "include/shop"


def test_a_draft_has_what_a_script_reads_and_writes_and_leaves_the_rest_open(scripts: Path) -> None:
    silver = draft_of(scripts / "silver.py")

    assert [line for line in silver.splitlines() if line and not line.lstrip().startswith("#")] == [
        '"""A draft of what silver.py does: decide what is ..., and read each remark."""',
        "from shop.silver import newest",
        "from sluice import Append, Pipeline, Replace, ReplacePartitions, Upsert",
        "from sluice.sinks import FilesTable",
        "from sluice.sources import Files, SparkRead",
        'pipeline = Pipeline("silver")',
        'bronze = pipeline.source("bronze", Files("bronze", "parquet", bounded=False))',
        "silver = pipeline.spark(",
        '    "silver",',
        "    newest,",
        '    reads={"orders": bronze},',
        "    schema=...,",
        "    result=...,",
        ")",
        'silver.sink("silver_out", FilesTable(upsert_key=...))',
    ]
    assert "# line 23: f\"updated_at > '{since}'\"\n# An epoch reads what is new: if" in silver
    assert "    # It overwrites all: Replace(key); or Upsert(key)," in silver
    bronze = draft_of(scripts / "bronze.py")
    assert 'Files("landing", "json", SCHEMA, bounded=False)' in bronze
    assert '    # It overwrites by dt: ReplacePartitions("dt"), or no stage' in bronze
    assert "# There is no function in bronze.py: put what it does between reading" in bronze
    gold = draft_of(scripts / "gold.py")
    assert '    reads={"silver": silver},' in gold
    assert 'Files("silver", "parquet", bounded=False)' in gold


@pytest.mark.parametrize("name", ["bronze", "silver", "gold"])
def test_a_draft_is_refused_until_what_is_open_is_decided(scripts: Path, name: str) -> None:
    text = draft_of(scripts / f"{name}.py").replace("from shop.silver import newest", "")
    filled = text.replace("schema=...", "schema='order_id bigint'").replace(
        "result=...", "result=Upsert('order_id')"
    )
    values = {"newest": lambda orders, previous: orders, "SCHEMA": "order_id bigint"}

    with pytest.raises(ConfigurationError, match="schema is"):
        exec(text.replace("    ...,\n", "    lambda **_: None,\n"), dict(values))  # noqa: S102 - a draft is code
    with pytest.raises(ConfigurationError, match="upsert_key is"):
        exec(filled.replace("    ...,\n", "    lambda **_: None,\n"), dict(values))  # noqa: S102
    decided = filled.replace("upsert_key=...", "upsert_key=('order_id',)")
    exec(decided.replace("    ...,\n", "    lambda **_: None,\n"), values)  # noqa: S102

    pipeline = values["pipeline"]
    assert isinstance(pipeline, Pipeline)
    code = pipeline.stages[name].operation
    assert isinstance(code, SparkCode)
    assert code.result == Upsert("order_id")
    assert isinstance(pipeline.sinks[f"{name}_out"].spec, FilesTable)


DRAFTED: dict[str, tuple[str, str]] = {
    "jdbc": (
        'rows = spark.read.format("jdbc").option("url", url).option("dbtable", "people").load()',
        "SparkRead(..., schema=..., by=..., every=...)",
    ),
    "a table": (
        'rows = spark.read.table("lake.orders")\nrows.write.mode("append").saveAsTable("out")',
        "# It appends: Append().",
    ),
    "a path in a variable": (
        'root = "s3://b"\npath = f"{root}/in/orders"\nrows = spark.read.csv(path)',
        'Files("s3://b/in/orders", "csv", bounded=False)',
    ),
    "files with columns of their own": (
        "rows = spark.read.schema(SCHEMA).parquet('in/orders')",
        'Files("in/orders", "parquet", bounded=False)',
    ),
}


@pytest.mark.parametrize("name", DRAFTED)
def test_a_draft_says_what_kind_of_place_is_read(tmp_path: Path, name: str) -> None:
    text, piece = DRAFTED[name]
    (tmp_path / "job.py").write_text(text)

    assert piece in draft_of(tmp_path / "job.py")


BY_NAME = '''
import argparse

QUERY = """
INSERT OVERWRITE TABLE lake.daily
SELECT day, count(*) AS n FROM delta.`/lake/sessions` GROUP BY day
"""


def parse_args():
    return argparse.ArgumentParser().parse_args()


def cut(clicks, gap):
    return clicks.dropDuplicates(["id"])


def main(spark):
    args = parse_args()
    since = spark.table("ops.watermarks").first()[0]
    clicks = spark.sql(f"select * from lake.clicks where at > '{since}'")
    users = spark.read.jdbc("jdbc:postgresql://db/crm", "public.users")
    rows = cut(clicks, 1800).merge(users.toPandas())
    table = DeltaTable.forPath(spark, "/lake/sessions")
    table.alias("t").merge(rows.alias("s"), "t.id = s.id").whenMatchedUpdateAll().execute()
    spark.sql("UPDATE ops.watermarks SET at = current_timestamp()")
    spark.sql(QUERY)
'''


def test_a_draft_has_the_tables_that_a_script_reads_and_writes_by_name(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(f"{BY_NAME}\n\nmain(spark)")

    lines = draft_of(tmp_path / "job.py").splitlines()

    assert [line for line in lines if line.startswith("# line")] == [
        "# line 22: jdbc public.users",
        "# line 21: table lake.clicks",
        "# line 25: written to /lake/sessions",
        "# line 26: written to ops.watermarks",
        "# line 27: written to lake.daily",
    ]
    assert "from job import cut" in lines
    assert '    reads={"clicks": clicks, "gap": ...},' in lines
    assert "    # It merges at line 25: Upsert(key), by the columns of its condition." in lines
    compile("\n".join(lines), "draft", "exec")


@pytest.mark.parametrize(
    ("sql", "read"),
    [
        (
            "select extract(year from at) as year from raw.orders -- from the old one",
            ["raw.orders"],
        ),
        ("with new as (select * from raw.orders) select * from new", ["raw.orders"]),
        ("select * from delta.`/lake/a` join raw.b using (id)", ["/lake/a", "raw.b"]),
        ("select * from {schema}.orders where day = '{day}'", ["{schema}.orders"]),
        ("select * from recent, lateral explode(days), range(10)", []),  # Its own view.
        ("create temp view old as select * from raw.c", ["raw.c"]),
        ("create temp view old (a, b) as select * from raw.c join OLD", ["raw.c"]),
        ("cache table kept as select * from raw.c; select * from kept", ["raw.c"]),
        ("select * from Recent", []),
        ("with New as (select * from raw.c) select * from new", ["raw.c"]),
        ("with orders as (select * from orders) select * from orders", ["orders"]),
        ("with a as (select * from b), b as (select * from a) select * from a, b", ["b"]),
        ("with recursive a as (select 1 union all select * from a) select * from a", []),
        ("with a as (select * from raw.c) insert into out select * from a", ["raw.c"]),
        ("select * from (with a as (select * from raw.c) select * from a), a", ["a", "raw.c"]),
        *((f"{words} raw.old", []) for words in ("drop table if exists", "use", "truncate table")),
        *((f"{words} raw.old", []) for words in ("create database", "refresh table", "optimize")),
        ("alter table raw.old add columns (n int)", []),
        ("analyze table raw.old compute statistics", []),
        ("select * from where", ["{spark.sql}"]),  # It cannot be read.
        ("{query}", ["{spark.sql}"]),
        ("{head} {tail}", ["{spark.sql}"]),
    ],
)
def test_a_draft_reads_the_tables_of_a_text_and_no_other_words(
    tmp_path: Path, sql: str, read: list[str]
) -> None:
    first = 'spark.table("raw.first").createOrReplaceTempView("recent")'
    (tmp_path / "job.py").write_text(f'{first}\nrows = spark.sql(f"{sql}")\n')

    lines = draft_of(tmp_path / "job.py").splitlines()

    assert sorted(line for line in lines if line.startswith("# line") and ": table" in line) == [
        "# line 1: table raw.first",
        *(f"# line 2: table {table}" for table in read),
    ]


NO_TEXTS = """
def main(source, target, spark):
    orders = spark.read.parquet(source)
    others = spark.read.format(source="csv").load(f"{target}/in/orders")
    orders.join(others, "id").write.parquet(target)
    first, second = spark.read.json("a/in"), spark.read.json("b/in")
"""


def test_a_draft_has_each_place_of_a_script_whatever_names_it(tmp_path: Path) -> None:
    (tmp_path / "2 jobs.py").write_text(f"{NO_TEXTS}\nmain(*ours)")

    lines = draft_of(tmp_path / "2 jobs.py").splitlines()

    assert [line for line in lines if "Files(" in line and "=" in line.partition("(")[0]] == [
        'source_in_2 = pipeline.source("source_in_2", Files("b/in", "json", bounded=False))',
        'source_in = pipeline.source("source_in", Files("a/in", "json", bounded=False))',
        'orders = pipeline.source("orders", Files("in/orders", "csv", bounded=False))',
        'source = pipeline.source("source", Files(..., "parquet", bounded=False))',
    ]
    assert "# line 3: parquet {source}" in lines
    assert "# line 5: written to {target}" in lines
    assert 'pipeline = Pipeline("job_2_jobs")' in lines
    assert not [line for line in lines if line.startswith("from 2")]
    compile("\n".join(lines), "draft", "exec")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def (", "job.py is not Python that can be read: "),
        ("print(1)", "job.py reads nothing by spark.read, spark.table or spark.sql of which"),
        (None, "job.py cannot be read: "),
    ],
)
def test_what_is_no_script_of_spark_is_refused(
    tmp_path: Path, text: str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.py"
    if text is not None:
        script.write_text(text)

    with pytest.raises(SystemExit) as ended:
        main(["init", "--from-spark", str(script)])

    assert ended.value.code == 1
    assert sentence in capsys.readouterr().err


def test_a_place_of_ones_own_where_nothing_is_is_named(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: object) -> None:
        raise ConfigurationError("there is no table events in /nowhere; create it")

    source = names_of_the_page()["Rows"]
    pipeline = Pipeline("auctions")
    rows = pipeline.source("events", source("/nowhere"))
    rows.key_by("id").aggregate("counts", n=agg.count()).sink("out", FilesTable(upsert_key=("id",)))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)

    assert "counts" in sluice("check", "auctions", "--root", "memory://own").out
    monkeypatch.setattr(source, "check_place", missing, raising=False)
    assert (
        "there is no table events in /nowhere"
        in sluice("check", "auctions", "--root", "memory://own").error
    )


def test_a_stage_whose_sums_depend_on_the_order_of_its_rows_is_named(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipeline = Pipeline("auctions")
    pq.write_table(pa.table({"id": [1], "paid": [0.5]}), tmp_path / "orders.parquet")
    orders = pipeline.source("orders", Files(str(tmp_path), format="parquet")).key_by("id")
    for uid, total in (("counts", agg.count()), ("spent", agg.sum("paid"))):
        orders.aggregate(uid, total=total).sink(f"{uid}_table", FilesTable(upsert_key=("id",)))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)

    said = sluice("check", "auctions", "--root", "memory://floats").err

    assert [line.partition(",")[0] for line in said.splitlines()] == [
        "note: auctions: stage 'spent' computes with floats"
    ]


@pytest.mark.parametrize("command", [("check",), ("run", "--epochs", "1")], ids=["check", "run"])
def test_a_table_at_another_sinks_default_folder_is_that_table(
    sluice: Sluice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: tuple[str, ...]
) -> None:
    pipeline = Pipeline("auctions")
    (tmp_path / "orders.csv").write_text("1\n")
    source = Files(str(tmp_path), format="csv", schema="id int")
    counts = pipeline.source("orders", source).key_by("id").aggregate("counts", n=agg.count())
    counts.sink("one", FilesTable(upsert_key=("id",)))
    counts.sink("other", FilesTable("memory://tables/auctions/tables/one", upsert_key=("id",)))
    monkeypatch.setattr("sluice.cli.options.load_pipeline", {"auctions": pipeline}.__getitem__)

    name, *options = command
    said = sluice(name, "auctions", *options, "--root", "memory://tables").error

    assert said.startswith(
        "error: sinks 'one' and 'other' write one table, memory://tables/auction"
    )
