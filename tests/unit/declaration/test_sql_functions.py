"""The allow-list of SQL that is computed without Spark, and the page that tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.declaration.aggregates import count
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.sql import parsed
from sluice.declaration.sql_functions import CASTS, FUNCTIONS, Signature, only_sparks
from sluice.errors import ConfigurationError
from sluice.sources import Files

PAGE = Path(__file__).parents[3] / "docs/reference/sql.md"


def totals() -> Stream:
    stream = Pipeline("p").source("events", Files("events", format="json", schema="k string"))
    return stream.key_by("k").aggregate("totals", n=count())


def the_table() -> str:
    """The table of the page: functions that take the same, with the kinds of their arguments."""
    functions = _grouped({name: _signatures(FUNCTIONS[name]) for name in FUNCTIONS}, "`, `")
    casts = _grouped({of: ", ".join(to) for of, to in CASTS.items()}, ", ")
    rows = [f"| `{names}` | {kinds} |" for kinds, names in functions.items()]
    rows += [f"| `CAST`, `TRY_CAST` | {of} to {to} |" for to, of in casts.items()]
    return "\n".join(["| | of |", "|---|---|", *rows])


def _grouped(texts: Mapping[str, str], between: str) -> dict[str, str]:
    """For each text the names that have it."""
    found = dict[str, list[str]]()
    for name, text in texts.items():
        found.setdefault(text, []).append(name)
    return {text: between.join(names) for text, names in found.items()}


def _signatures(signatures: tuple[Signature, ...]) -> str:
    return "; ".join(map(_signature, signatures))


def _signature(signature: Signature) -> str:
    literals = signature.literals or {}
    kinds = ["literal" if place in literals else kind for place, kind in enumerate(signature.kinds)]
    alike = " (of one type)" if signature.same else ""
    return f"{', '.join(kinds)}{alike}"


def test_the_page_lists_what_is_computed() -> None:
    assert the_table() in PAGE.read_text(), the_table()


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("upper(k) || 'x'", None),
        ("CASE WHEN n > 1 THEN DATE '2026-01-01' END", None),
        ("n + sha2(k, 256)", "sha2(k, 256)"),
        ("CAST(k AS binary)", "CAST(k AS binary)"),
        ("transform(k, x -> x)", "x -> x"),
        ("upper(k) RLIKE '^[a-z]+$' AND split(k, ',')[0] = 'x'", None),
        ("coalesce(n, unix_timestamp())", "unix_timestamp()"),
        ("k LIKE k AND n > 1", "k LIKE k"),
        ("replace(k, 'a', k)", "replace(k, 'a', k)"),
        ("k IN (1, 2) OR round(d, 1) > 0 OR to_date(k) IS NULL", None),
        (r"k RLIKE '\\ba'", r"k RLIKE '\\ba'"),
    ],
)
def test_a_piece_that_only_spark_knows_is_named(text: str, piece: str | None) -> None:
    only = only_sparks(parsed(text))

    assert (None if only is None else only.piece) == piece


def test_behind_a_stage_it_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ConfigurationError) as error:
        totals().where("n > 1 AND sha2(k, 256) = 'x'")

    assert str(error.value) == (
        "where() of 'totals' has 'sha2(k, 256)' in \"n > 1 AND sha2(k, 256) = 'x'\", which only "
        "Spark knows; behind a stage compute it in a transform(), or before, in what is read of "
        "the source"
    )


def test_a_pattern_that_only_spark_reads_is_refused_where_it_is_declared() -> None:
    with pytest.raises(ConfigurationError) as error:
        totals().where("k RLIKE 'a(?=b)'")

    assert str(error.value) == (
        "where() of 'totals' has \"k RLIKE 'a(?=b)'\" in \"k RLIKE 'a(?=b)'\", which only Spark "
        "knows (its pattern has '(?='); behind a stage compute it in a transform(), or before, in "
        "what is read of the source"
    )


def test_behind_a_stage_what_is_computed_has_a_name() -> None:
    with pytest.raises(ConfigurationError) as error:
        totals().select("k", "n + 1")

    assert str(error.value) == (
        "select() of 'totals' computes 'n + 1' without a name; write 'n + 1 AS name'"
    )


def test_over_a_source_it_is_left_to_spark() -> None:
    stream = Pipeline("p").source("events", Files("events", format="json", schema="k string"))

    assert stream.where("sha2(k, 256) = 'x'").steps
