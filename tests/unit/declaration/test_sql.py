"""SQL of one row as a tree: what is read, and which functions and patterns need no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from sluice.declaration.aggregates import count
from sluice.declaration.column_types import ColumnType
from sluice.declaration.pipeline import Pipeline, Stream
from sluice.declaration.sql import parsed
from sluice.declaration.sql_functions import CASTS, FUNCTIONS, Signature, only_sparks
from sluice.declaration.sql_regexes import RegexError, regex, searched
from sluice.declaration.sql_tree import LITERAL, Call, Column, Expression, Literal, spelled
from sluice.errors import ConfigurationError
from sluice.sources import Files
from tests.sql_keywords import KEYWORDS


@pytest.mark.parametrize(
    ("text", "value", "of"),
    [
        ("1", 1, "int"),
        ("- 2147483648", -(2**31), "int"),
        ("2147483648", 2**31, "bigint"),
        ("-9223372036854775808", -(2**63), "bigint"),
        ("9223372036854775808", Decimal(2**63), "decimal(19,0)"),
        ("1l", 1, "bigint"),
        ("1S", 1, "smallint"),
        ("-1y", -1, "tinyint"),
        ("1.50", Decimal("1.50"), "decimal(3,2)"),
        (".5", Decimal("0.5"), "decimal(1,1)"),
        ("5.", Decimal(5), "decimal(1,0)"),
        ("1BD", Decimal(1), "decimal(1,0)"),
        ("1E2bd", Decimal(100), "decimal(3,0)"),
        ("1e0", 1.0, "double"),
        ("-1.5D", -1.5, "double"),
        ("1F", 1.0, "float"),
        ("true", True, "boolean"),
        ("NULL", None, "void"),
        ("'it''s'", "it's", "string"),
        ("'a' /* and */ \"b\"", "ab", "string"),
        (r"'a\'\n\q\u0041\101\0'", "a'\nqAA\0", "string"),
        (r"'\%\_'", r"\%\_", "string"),
        (r"r'\n'", r"\n", "string"),
        ("INTERVAL '2' DAYS", 2, "interval day"),
        ("INTERVAL -3 MONTH", -3, "interval month"),
    ],
)
def test_a_literal_has_the_value_and_the_type_that_spark_gives_it(
    text: str, value: object, of: str
) -> None:
    tree = parsed(text).tree

    assert isinstance(tree, Literal)
    assert (tree.value, type(tree.value), str(tree.type)) == (value, type(value), of)
    assert parsed(spelled(tree)).tree == tree, "what is shown of it, and told, has all of it"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a OR b AND NOT c = d", "((NOT (c = d)) AND b) OR a"),
        ("a = b IS NOT NULL", "NOT ((a = b) IS NULL)"),
        ("-a * b + c", "((-a) * b) + c"),
        ("-(1)", "-1"),
        ("a - b - c", "(a - b) - c"),
        ("a || b || c", "concat(concat(a, b), c)"),
        ("a NOT IN (2, 1, 2)", "NOT (a IN (1, 2))"),
        ("a NOT LIKE 'x%' ESCAPE '/'", "NOT like(a, 'x%', '/')"),
        ("a BETWEEN 1 AND b", "a BETWEEN 1 AND b"),
        ("a IS DISTINCT FROM b", "NOT (a <=> b)"),
        ("a IS NOT TRUE", "NOT (a <=> TRUE)"),
        ("CASE a WHEN 1 THEN b END", "CASE WHEN a = 1 THEN b ELSE NULL END"),
        ("IF(a, b, c)", "CASE WHEN a THEN b ELSE c END"),
        ("CAST(a AS DECIMAL(10, 2))", "CAST(a AS decimal(10,2))"),
        ("TRY_CAST(a AS INTEGER)", "TRY_CAST(a AS int)"),
        ("a::long + 1", "CAST(a AS bigint) + 1"),
        ("DATE '2026-01-01'", "CAST('2026-01-01' AS date)"),
        ("extract(year FROM at)", "extract('year', at)"),
        ("timestampdiff(HOUR, a, b)", "timestampdiff('hour', a, b)"),
        ("`a b`.`c``d`.e", "`a b`.`c``d`.e"),
        ("a -- b\n", "a"),
        ("upper(all)", "upper(all)"),
        ("NOT -a > 1", "NOT ((-a) > 1)"),
    ],
)
def test_operators_bind_as_in_spark(text: str, tree: str) -> None:
    assert parsed(text).canonical() == tree


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a > 1 AND b < 2", "B < 2 and (1 < A)"),
        ("a AND (b AND c)", "(c AND a) AND b"),
        ("nvl(a, 'x')", "COALESCE(a,  'x')"),
        ("substr(a, 1)", "substring(a, 1)"),
        ("a <> 1", "NOT (1 = a)"),
        ("'a\\'b'", '"a\'b"'),
        ("f(x ->  X + 1)", "F(x -> x + 1)"),  # Only Spark reads it.
    ],
)
def test_two_spellings_of_one_meaning_are_equal(one: str, other: str) -> None:
    assert parsed(one).canonical() == parsed(other).canonical()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a + 1", "a + 1L"),
        ("a - b", "b - a"),
        ("a = 'X'", "a = 'x'"),
        ("a = '1'", "a = 1"),
        ("a = 1", "a = 1BD"),
        ("a = 1.5", "a = 1.5D"),
        ("a = 1e0", "a = 1BD"),
        ("at + INTERVAL 7 DAYS", "at + INTERVAL 7 MONTHS"),
        ("at + INTERVAL 7 DAYS", "at + 7"),
        ("`true`", "true"),
        ("a < b", "a <= b"),
        ("a.b", "`a.b`"),
        ("a AND b OR c", "a AND (b OR c)"),
        ("CAST(a AS int)", "TRY_CAST(a AS int)"),
        ("f(x -> 'A')", "f(x -> 'a')"),
    ],
)
def test_two_meanings_are_different(one: str, other: str) -> None:
    assert parsed(one).canonical() != parsed(other).canonical()


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("a || b + c", "b + c"),  # Spark's || binds as + does, sqlglot's less.
        ("a = b < c", "b < c"),
        ("1 + f(x -> x + 1)", "x -> x + 1"),
        ("sum(a) OVER (PARTITION BY b) AS s", "sum(a) OVER (PARTITION BY b)"),
        ("a IN (SELECT b FROM c)", "a IN (SELECT b FROM c)"),
        ("a[0:1]", "0:1"),
        ("a = 'x${b}'", "${b}"),  # Spark puts a setting in its place.
        ("struct(a AS x)", "a AS x"),
        ("f(a => 1)", "a => 1"),
        ("count(DISTINCT a)", "DISTINCT a"),
        ("CAST(a AS text)", "text"),
        ("position('a' IN (b, c))", "'a' IN (b, c)"),
        ("a.f(b)", "a"),
        ("300Y", "300Y"),
        ("a < 1e309", "1e309"),  # Spark refuses it, and has no infinity.
        ("a < -3.5e38F", "3.5e38F"),
        ("a & b", "a & b"),
        ("a; b", "a; b"),
        ("a, b", "a, b"),
        ("a b c", "a b c"),
        ("", ""),
    ],
)
def test_what_the_tree_has_no_node_for_is_unread(text: str, piece: str) -> None:
    sql = parsed(text)

    assert (sql.tree, sql.unread, sql.columns) == (None, piece, None)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a", "a"),
        ("A.b", "b"),
        ("a + 1 AS `b c`", "b c"),
        ("a b", "b"),
        ("f(x -> x) AS y", "y"),
        ("a + 1", None),
        ("*", None),
        ("f(x -> x)", None),
    ],
)
def test_a_selected_column_has_the_name_that_is_written(text: str, name: str | None) -> None:
    assert parsed(text).name == name


def test_every_word_may_be_a_name() -> None:
    for word in KEYWORDS:
        if LITERAL.fullmatch(word):
            continue
        texts = {
            word: word,
            f"{word} IS NOT NULL": f"NOT ({word} IS NULL)",
            f"b > 0 AND {word} = 'x'": f"(b > 0) AND ({word} = 'x')"
            if word > "b"
            else f"({word} = 'x') AND (b > 0)",
            f"upper({word}) AS loud": f"upper({word})",
            f"CASE WHEN {word} IS NULL THEN b END AS c": (
                f"CASE WHEN {word} IS NULL THEN b ELSE NULL END"
            ),
            f"s.{word}": f"s.{word}",
        }
        assert {text: parsed(text).canonical() for text in texts} == texts
        assert parsed(f"b AS {word}").name == word


def test_a_tree_knows_what_it_reads() -> None:
    sql = parsed("A.b + c > CASE WHEN a.B IS NULL THEN coalesce(d, 1) ELSE CAST(c AS int) END")

    assert sql.columns == frozenset({"a", "c", "d"})
    assert [".".join(path.parts) for path in sql.paths] == ["A.b", "c", "a.B", "d"]
    assert parsed("count(*)").columns is None


def test_a_tree_is_read_back_from_what_is_shown_of_it() -> None:
    """So no part of a meaning is lost in a text of it, of which fingerprints are made."""
    listed = {
        text
        for signatures in FUNCTIONS.values()
        for one in signatures
        for texts in (one.literals or {}).values()
        for text in texts
    }
    operators = ("a + {}", "{} - a", "a * -b / {}", "NOT a = {}", "f(a, {})", "a IN ({}, b)")

    for text in (form.format(literal) for form in operators for literal in sorted(listed)):
        tree = parsed(text).tree
        assert tree is not None, text
        assert parsed(spelled(tree)).tree == tree, (text, spelled(tree))


def test_a_tree_is_a_value() -> None:
    assert parsed("a +  1").tree == Call("+", (Column(("a",)), Literal(1, ColumnType("int"))))
    assert hash(parsed("a +  1").tree) == hash(parsed("a + 1").tree)


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


def a_call(function: str, *given: str | int) -> Call:
    of = {str: ColumnType("string"), int: ColumnType("int")}
    arguments: list[Expression] = [Column(("t",))]
    return Call(function, (*arguments, *(Literal(one, of[type(one)]) for one in given)))


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("", "is empty"),
        ("(?i)", "is empty"),
        (r"\bword", r"has \b"),
        (r"\p{Alpha}", r"has \p"),
        (r"(a)\1", r"has \1"),
        ("\\ä", r"has \ä"),
        ("a\\", "has nothing behind its last backslash"),
        ("a(?=b)", "has '(?='"),
        ("(?<name>a)", "has '(?<'"),
        ("(?m)^a", "has '(?m'"),
        ("a(?i)b", "has '(?i'"),
        ("(a", "does not close a group"),
        ("a)b", "closes a group that is not open"),
        ("[a", "does not close a class"),
        ("[]a]", "has an empty class"),
        ("[a[bc]]", "has [ in a class"),
        ("[a-z&&[^b]]", "has & in a class"),
        ("[z-a]", "has no range behind z-"),
        (r"[a-\d]", "has no range behind a-"),
        ("[a-c-e]", "has - behind a range in a class"),
        (r"[\d-e]", "has - behind a class in a class"),
        ("[--a]", "has - behind - in a class"),
        ("*a", "repeats nothing with *"),
        ("a|{2}", "repeats nothing with {"),
        ("a{,2}", r"has { without a count; write \{"),
        ("a{3,2}", "repeats with {3,2} what may be nothing"),
        ("(a*)*", "repeats with * what may be nothing"),
        ("^+a", "repeats with + what may be nothing"),
        ("a*+", "has *+"),
        ("a+??", "has +??"),
        ("a{2}{3}", "has {2}{"),
        ("(.{40}){40}", "repeats more than 1000 signs"),
        ("a{600}b{600}", "repeats more than 1000 signs"),
        ("a$b", "has $ before its end"),
        ("(a$)", "has $ before its end"),
        ("a|b$", "has $ in one of several; write (?:…|…)$"),
    ],
)
def test_a_pattern_that_may_mean_something_else_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(RegexError) as error:
        regex(pattern)

    assert str(error.value) == why


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (Call("rlike", (Column(("t",)), Column(("p",)))), "is no literal"),
        (a_call("regexp_extract", "a", 1), "has 0 groups"),
        (a_call("regexp_extract", "(a)", -1), "has 1 groups"),
        (a_call("regexp_extract", "(a)+", 1), "repeats with + the group that is asked for"),
        (a_call("regexp_extract", "(a)", "1"), "is no literal"),
        (a_call("regexp_replace", "(a)", "$10"), "is replaced by more than texts, $0 to $9"),
        (a_call("regexp_replace", "(a)", "$"), "is replaced by more than texts, $0 to $9"),
        (a_call("regexp_replace", "(a)", "$2"), "has 1 groups"),
        (a_call("regexp_replace", "a*", ""), "may be nothing"),
        (a_call("regexp_replace", r"\s$", ""), "has $, and something that may end a line"),
        (a_call("split", "a?"), "may be nothing"),
        (a_call("split", "a$"), "has $"),
    ],
)  # fmt: skip
def test_a_search_that_may_find_something_else_is_refused(call: Call, why: str) -> None:
    with pytest.raises(RegexError) as error:
        searched(call)

    assert str(error.value) == why


def test_the_largest_pattern_is_compiled() -> None:
    text = pl.Series(["😀" * 1000])

    assert text.str.contains(regex("[^a]{1000}$").ways()[0]).all()
    assert text.str.contains(regex(r"\W{1000}").body).all()
    assert text.str.contains(regex("(?s).{1000}").body).all()


def test_a_text_without_signs_of_a_pattern_is_a_literal() -> None:
    assert regex(r"a\.b|").literal is None
    assert regex(r"a\.\|b").literal == "a.|b"
    assert regex("a$").literal is None
    assert regex("a", {0}).literal is None
