"""The names of places by OpenLineage's rules, one for one place however it is declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice import sinks, sources
from sluice.declaration.params import env, param
from sluice.declaration.places import Dataset

SHOP = "postgresql://ann:secret@db.example:5433/shop"
REST = {"type": "rest", "uri": "https://catalog.example/", "warehouse": "w"}
SQL = {"type": "sql", "uri": "postgresql://ann:secret@db.example/catalog"}


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        (sources.Files("s3a://shop/raw/orders/"), [("s3://shop", "raw/orders")]),
        (sources.Files(param("at")), [("file", "/data/x")]),
        (sources.Files("s3://shop"), [("s3://shop", "/")]),
        (sinks.FilesTable("file:///data/out/"), [("file", "/data/out")]),
        (sinks.FilesTable(), []),
        (sources.DeltaTable("s3://shop/d"), [("s3://shop", "d")]),
        (sinks.DeltaTable("s3://shop/d"), [("s3://shop", "d")]),
        (sources.IcebergTable("shop.orders", REST), [("https://catalog.example", "shop.orders")]),
        (
            sinks.IcebergTable("shop.orders", SQL),
            [("postgresql://db.example/catalog", "shop.orders")],
        ),
        (sources.IcebergTable("a.b", {"warehouse": "s3://w"}), [("s3://w", "a.b")]),
        (
            sinks.PostgresTable(SHOP, "public.orders"),
            [("postgres://db.example:5433", "shop.public.orders")],
        ),
        (
            sources.PostgresTable("dbname=shop password=secret", "s.orders", "id"),
            [("postgres://localhost:5432", "shop.s.orders")],
        ),
        (sources.PostgresTable(env("NO_SUCH_DSN"), "s.o", "id"), [("postgres", "s.o")]),
        (
            sources.Kafka("b:9092, a:9092", topics=("x", "y")),
            [("kafka://a:9092", "x"), ("kafka://a:9092", "y")],
        ),
        (sinks.KafkaTopic("b:9092,a:9092", "x"), [("kafka://a:9092", "x")]),
    ],
)
def test_a_place_has_the_names_that_others_know(spec: Any, found: list[tuple[str, str]]) -> None:
    datasets = spec.datasets({"at": "/data/x"})

    assert [*datasets] == [Dataset(*one) for one in found]
    assert "secret" not in repr(datasets)


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql+psycopg2://ann:sec/ret@db.example/catalog",
        "postgresql+psycopg2://ann:sec@ret@db.example/catalog",
        "postgresql+psycopg2://ann:sec?ret@db.example/catalog",
        "postgresql://db.example/catalog?user=ann&password=secret",
    ],
)
def test_no_password_of_a_catalog_is_told_however_it_is_written(uri: str) -> None:
    (found,) = sources.IcebergTable("a.b", {"type": "sql", "uri": uri}).datasets({})

    assert found.namespace.partition("://")[2] == "db.example/catalog"


def test_a_path_is_one_place_wherever_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    here, there = (sources.Files(at).datasets({}) for at in ("orders", f"file://{tmp_path}/orders"))

    assert here == there
