"""Rows and options that do not fit the declaration are refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluice.declaration.params import Param, param
from sluice.declaration.pipeline import Pipeline
from sluice.declaration.places import Sink
from sluice.errors import CheckpointFailure, ConfigurationError, StageFailed
from sluice.sinks import FilesTable, KafkaTopic
from sluice.sources import Files, PostgresTable
from sluice.testing import Kill, Restore, run_local
from tests.testing.shop import named, order, totals, visits

ROWS = {"orders": [order("a", 1)]}


def refusal(pipeline: Pipeline, rows: dict[str, Any], **how: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        run_local(pipeline, rows, **how)
    return str(refused.value)


def test_names_that_the_declaration_has_not_are_refused_with_those_that_it_has() -> None:
    assert refusal(totals(), {"order": []}) == (
        "rows are given for 'order', which is no source of pipeline 'totals'; those are orders"
    )
    assert refusal(named(), ROWS) == (
        "no rows are given for source 'names' of pipeline 'named'; if it has none, say so: "
        '{"names": []}'
    )
    assert refusal(totals(), ROWS, bounded=["order"]) == (
        "bounded= names 'order', which is no source of pipeline 'totals'; those are orders"
    )
    assert refusal(totals(), ROWS, params={"topics": "x"}) == (
        "params= names 'topics', which is no parameter of pipeline 'totals'; those are table, topic"
    )
    assert refusal(named(), {**ROWS, "names": []}) == (
        "parameter 'least' is not set (what an order is worth); pass params={\"least\": ...}"
    )


@pytest.mark.parametrize(
    ("table", "params"),
    [("s3://lake/t", {}), (param("where"), {}), (param("where"), {"where": "s3://lake/t"})],
    ids=["a place", "a parameter without a value", "a parameter with a value"],
)
def test_two_sinks_of_one_table_are_refused_though_neither_is_written(
    table: str | Param, params: dict[str, str]
) -> None:
    pipeline = totals()
    orders = pipeline.source("more", Files("more", format="json", schema="n int"))
    orders.transform("one", lambda rows: rows).sink("first", FilesTable(table))
    orders.transform("other", lambda rows: rows).sink("second", FilesTable(table))

    said = refusal(pipeline, {**ROWS, "more": []}, params=params)

    assert said.startswith("sinks 'first' and 'second' write one table, "), said


def test_a_table_for_more_epochs_than_there_are_is_refused() -> None:
    rows = {"orders": [order("a", 1)], "names": [["a,Ada"], ["a,Bo"]]}

    assert refusal(named(), rows, params={"least": 1}) == (
        "the table 'names' is given for 2 epochs, and rows come in 1; give [] for an epoch of a "
        "stream in which nothing comes"
    )


def test_what_would_never_happen_is_refused() -> None:
    assert refusal(totals(), ROWS, script=[Kill(stage="per_shops", epoch=1)]) == (
        "Kill(stage='per_shops', epoch=1) names stage 'per_shops'; those of pipeline 'totals' are "
        "per_shop"
    )
    assert refusal(totals(), ROWS, script=[Kill(stage="per_shop", epoch=2)]) == (
        "Kill(stage='per_shop', epoch=2) never comes: the run has 1 epochs; give their rows as a "
        "list of chunks, or epochs="
    )
    assert refusal(totals(), ROWS, script=[Restore(to_epoch=1, after_epoch=1)]) == (
        "Restore(to_epoch=1, after_epoch=1, parallelism=None) never comes: the job ends with epoch "
        "1; give more chunks, or epochs=, or bounded=False"
    )


def test_a_column_that_no_row_has_is_found_before_the_first_epoch() -> None:
    rows = visits("visits")
    rows.where("usr = 'x'").transform("same", lambda rows: rows).sink("out", FilesTable())

    said = refusal(rows.pipeline, {"visits": [{"id": 1, "user": "x"}]})

    assert said.startswith(
        "stage 'same' has no column 'usr' in what it reads of 'visits', \"usr = 'x'\"; did you "
        "mean 'user'? its columns are: id, user (tests/testing/test_refusals.py:"
    )


def test_a_condition_that_cannot_be_read_is_told_as_it_was_written() -> None:
    rows = visits("visits")
    rows.where("id > 1 && id < 3").transform("same", lambda rows: rows).sink("out", FilesTable())

    said = refusal(rows.pipeline, {"visits": [{"id": 1, "user": "x"}]})

    assert said.startswith("stage 'same' cannot be run: ")
    assert "'&'" in said
    assert "malformed" not in said


def test_a_function_that_raises_fails_the_run_with_its_stage_epoch_and_cause() -> None:
    def shouted(rows: Any) -> Any:
        from pyspark.sql.functions import udf

        return rows.withColumn("shop", udf(lambda text: text.upper(), "string")("shop"))

    orders = Pipeline("shouting").source("orders", PostgresTable("dsn", "public.orders", "id"))
    orders.transform("shouted", shouted).sink("out", FilesTable())

    with pytest.raises(StageFailed) as failed:
        run_local(orders.pipeline, {"orders": [[{"shop": "a"}], [{"shop": None}]]})

    assert str(failed.value).startswith("epoch 2: stage 'shouted' failed over records 2 to 2")
    assert "'NoneType' object has no attribute 'upper'" in failed.value.cause


def test_what_a_declared_sink_would_not_take_fails_its_epoch_though_it_is_not_there() -> None:
    rows = visits("keyless")
    rows.transform("same", lambda rows: rows).sink(
        "out", KafkaTopic("brokers", "topic", key="user")
    )

    with pytest.raises(CheckpointFailure) as failed:
        run_local(rows.pipeline, {"visits": [{"id": 1, "name": "x"}]})

    assert str(failed.value).startswith("epoch 1: checkpoint 1 could not be completed")
    assert "'user'" in failed.value.cause


def test_a_value_that_the_declared_database_cannot_hold_fails_its_epoch() -> None:
    with pytest.raises(StageFailed) as failed:
        run_local(totals(), {"orders": [order("a\x00b", 1)]})

    assert str(failed.value).startswith("epoch 1: stage 'per_shop' failed")
    assert "'shop'" in failed.value.cause


class OwnSink:
    """A custom ``SinkSpec``, for which there is no stand-in."""

    params: tuple[Param, ...] = ()
    upsert_key = ("id",)
    changelog = False

    def open(self, uid: str, params: object, default: object) -> Sink:
        raise AssertionError("nobody opens it")


def test_a_sink_of_one_s_own_is_a_table_with_its_key() -> None:
    rows = visits("own")
    rows.key_by("id").latest("newest", by="n").sink("out", OwnSink())

    result = run_local(rows.pipeline, {"visits": [[{"id": 1, "n": 1}], [{"id": 1, "n": 2}]]})

    assert result.table("out").rows() == [(1, 2)]


def test_results_that_are_not_there_are_refused_with_those_that_are() -> None:
    result = run_local(totals(), ROWS)

    asking: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: result.table("total"), "the run has no sink 'total'; it has totals"),
        (
            lambda: result.side_output("per_shop", "lat"),
            "the run has no side output 'per_shop.lat'; it has per_shop.malformed, per_shop.late",
        ),
        (
            lambda: result.state("orders"),
            "the run has no stage with keyed state 'orders'; it has per_shop",
        ),
        (
            lambda: result.epochs[0].published("total"),
            "the run has no sink 'total'; it has totals",
        ),
    )
    for asked, said in asking:
        with pytest.raises(ConfigurationError) as refused:
            asked()
        assert str(refused.value) == said


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "_weight",
            "the function of stage 'same' computes the column '_weight', which is sluice's",
        ),
        (
            "_Weight",
            "the function of stage 'same' computes the column '_Weight', which is sluice's",
        ),
        ("_hash", "the result of stage 'same' has a column '_hash', a name that sluice gives"),
        ("_record", "the result of stage 'same' has a column '_record', a name that sluice gives"),
    ],
)
def test_a_function_that_yields_a_column_of_our_own_is_refused_by_its_name(
    name: str, told: str
) -> None:
    rows = visits("visits")
    rows.transform("same", lambda rows: rows.selectExpr("*", f"2 AS {name}")).sink(
        "out", FilesTable()
    )

    said = refusal(rows.pipeline, {"visits": [{"id": 1, "user": "x"}]})

    assert told in said


def test_columns_of_a_function_that_differ_only_in_case_are_refused_by_their_names() -> None:
    rows = visits("visits")
    rows.transform("same", lambda rows: rows.selectExpr("*", "2 AS ID")).sink("out", FilesTable())

    said = refusal(rows.pipeline, {"visits": [{"id": 1, "user": "x"}]})

    assert "has the columns 'id' and 'ID', which differ only in case: to SQL they are one" in said
    assert len(said) < 400


def test_a_function_that_drops_what_is_taken_back_is_refused() -> None:
    rows = visits("visits")
    newest = rows.key_by("user").latest("newest", by="id")
    newest.transform("named", lambda rows: rows.select("id", "user")).sink(
        "out", FilesTable(upsert_key=("user",))
    )

    said = refusal(rows.pipeline, {"visits": [{"id": 1, "user": "x"}]})

    assert "the function of stage 'named' drops the column '_weight'; keep it" in said


def test_a_function_that_draws_is_refused_over_updates() -> None:
    rows = visits("visits")
    newest = rows.key_by("user").latest("newest", by="id")
    newest.transform("drawn", lambda rows: rows.selectExpr("*", "rand() AS r")).sink(
        "out", FilesTable(upsert_key=("user",))
    )

    said = refusal(rows.pipeline, {"visits": [{"id": 1, "user": "x"}]})

    assert "the function of stage 'drawn' has rand(), which answers otherwise when a row" in said


def test_a_function_that_forgets_to_return_is_refused_by_that_name() -> None:
    rows = visits("visits")
    rows.transform("same", lambda rows: None).sink("out", FilesTable())  # type: ignore[arg-type, return-value]

    said = refusal(rows.pipeline, {"visits": [{"id": 1, "user": "x"}]})

    assert said.startswith(
        "the function of stage 'same' returns NoneType; have it return a DataFrame"
    )
