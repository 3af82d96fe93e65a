"""Patterns of Java that Rust reads alike; what they find is compared in ``tests/spark``."""

from __future__ import annotations

import polars as pl
import pytest

from sluice.declaration.column_types import ColumnType
from sluice.declaration.sql_regexes import RegexError, regex, searched
from sluice.declaration.sql_tree import Call, Column, Expression, Literal


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
