"""What becomes of a state when its meaning changes: the one table, consent, and the words."""

from __future__ import annotations

import itertools
from dataclasses import replace

import msgspec
import pytest

from sluice.core.transitions import (
    NO_CONSENT,
    SINK,
    SOURCE,
    TRANSITIONS,
    Adoption,
    Becomes,
    Consent,
    Fingerprint,
    PartDifference,
    adoption,
    columns_begun,
    compare,
    notes_of,
    problems_of,
    recomputed,
    row_of,
    with_past,
)

# A source -> latest -> total, whose updates a sink keeps.
LATEST = Fingerprint(operator="latest", parts={"keys": "u", "input": "rows", "by": "n"})
TOTAL = Fingerprint(
    operator="aggregate",
    parts={"keys": "k", "input": "latest"},
    columns={"n": "count()", "s": "sum(x)"},
    updates_from=("latest",),
)
ALONE = Fingerprint(
    operator="aggregate",
    parts={"keys": "k", "input": "rows"},
    columns={"n": "count()", "s": "sum(x)"},
)


def told(
    before: dict[str, Fingerprint],
    now: dict[str, Fingerprint],
    consent: Consent = NO_CONSENT,
    held: set[str] | None = None,
) -> list[str]:
    held = set(before) if held is None else held
    return problems_of(compare(before, now, held), now, consent, held)


def with_part(of: Fingerprint, **parts: str) -> Fingerprint:
    named = {name.replace("_", " "): text for name, text in parts.items()}
    return replace(of, parts=of.parts | named)


def with_columns(of: Fingerprint, **columns: str) -> Fingerprint:
    return replace(of, columns=columns)


def test_what_an_error_says_is_no_meaning_also_in_what_was_written_before() -> None:
    raised = (r"raise_error('it\'s (5)')", r"raise_error('\\')", "raise_error('')")
    written = [{"parts": {"input": f"rows.select(k = {text}, x)"}} for text in raised]

    read = [msgspec.convert({"operator": "top_n", **one}, Fingerprint) for one in written]

    assert {one.parts["input"] for one in read} == {"rows.select(k = raise_error(), x)"}


def test_a_text_that_reads_like_an_error_is_a_meaning() -> None:
    texts = [f"rows.select(k = concat('raise_error(', {name}, ')'))" for name in "xy"]

    one, other = (Fingerprint(operator="top_n", parts={"input": text}) for text in texts)

    assert one != other


def test_equal_meanings_are_the_same_in_any_order() -> None:
    other = with_columns(ALONE, s="sum(x)", n="count()")

    assert told({"total": ALONE}, {"total": other}) == []


def test_a_column_of_another_meaning_is_told_with_both_and_with_what_to_do() -> None:
    now = {"total": with_columns(ALONE, n="count()", s="max(x)")}

    (problem,) = told({"total": ALONE}, now)
    assert problem == (
        "stage 'total': column 's' was sum(x) and is now max(x); put it back, or begin it anew: "
        "restore with --begin total.s"
    )
    assert told({"total": ALONE}, now, Consent(begun=("total.s",))) == []
    assert told({"total": ALONE}, now, Consent(begun=("total",))) == []
    assert told({"total": ALONE}, now, Consent(kept=("total",))) != []


def test_a_new_column_is_told_and_one_that_is_gone_is_forgotten() -> None:
    new = {"total": with_columns(ALONE, n="count()", s="sum(x)", mean="avg(x)")}
    gone = {"total": with_columns(ALONE, n="count()")}

    (problem,) = told({"total": ALONE}, new)
    assert problem.startswith("stage 'total': column 'mean' is new, avg(x); put it back, or begin")
    assert told({"total": ALONE}, gone) == []
    changes = compare({"total": ALONE}, gone, {"total"})
    (note,) = notes_of(changes, NO_CONSENT)
    assert note == (
        "stage 'total': column 's', sum(x), is gone: same, its state is dropped; the other columns "
        "stay"
    )


# Of "s" and "m" each reads a column that is computed before, and "f" goes by event time.
READING = Fingerprint(
    operator="aggregate",
    parts={
        "keys": "k",
        "input": "rows.select(x = a, y = b)",
        "event time": "at",
        "out of orderness": "1 s",
    },
    columns={"n": "count()", "s": "sum(x)", "m": "max(y)", "f": "first(z)"},
    reads={"": "rows", "s": "rows.select(x = a)", "m": "rows.select(y = b)"},
)


def without(of: Fingerprint, column: str, **parts: str) -> Fingerprint:
    return replace(
        with_part(of, **parts),
        columns={name: text for name, text in of.columns.items() if name != column},
        reads={name: text for name, text in of.reads.items() if name != column},
    )


def test_what_only_columns_read_that_are_gone_or_new_is_no_other_input() -> None:
    less = without(READING, "m", input="rows.select(x = a)")

    assert told({"total": READING}, {"total": less}) == []
    (problem,) = told({"total": less}, {"total": READING})
    assert problem.startswith("stage 'total': column 'm' is new, max(y);")


def test_the_time_of_columns_that_are_gone_or_new_is_no_other_event_time() -> None:
    timeless = without(READING, "f", event_time="", out_of_orderness="")
    timeless = replace(timeless, parts={name: of for name, of in timeless.parts.items() if of})

    assert told({"total": READING}, {"total": timeless}) == []
    (problem,) = told({"total": timeless}, {"total": READING})
    assert problem.startswith("stage 'total': column 'f' is new, first(z);")


@pytest.mark.parametrize(
    "reads",
    [
        {"": "rows", "s": "rows.select(x = c)", "m": "rows.select(y = b)"},
        {"": "rows", "s": "rows.select(x = c)"},
        {"": "rows.where(x > 1)"},
    ],
    ids=["a column that stays", "which another does not", "all"],
)
def test_what_a_column_reads_that_stays_is_another_input(reads: dict[str, str]) -> None:
    now = replace(with_part(READING, input="rows.select(x = c)"), reads=reads)

    (problem,) = told({"total": READING}, {"total": now})
    assert problem.startswith("stage 'total': its input was rows.select(x = a, y = b) and is now")


def test_what_is_begun_anew_is_said_once() -> None:
    changes = compare({"t": ALONE}, {"t": with_columns(ALONE, n="sum(y)")}, {"t"})

    assert notes_of(changes, Consent(begun=("t",))) == (
        "'t' begins anew, with the rows from here on",
    )


def test_rows_that_are_read_otherwise_may_be_kept_or_begun() -> None:
    now = {"total": with_part(ALONE, input="rows.where(x > 1)")}

    (problem,) = told({"total": ALONE}, now)

    assert problem == (
        "stage 'total': its input was rows and is now rows.where(x > 1); put it back, or keep the "
        "state that it has of the rows so far: restore with --keep total; or begin it anew, from "
        "empty state: restore with --begin total"
    )
    assert told({"total": ALONE}, now, Consent(kept=("total",))) == []
    assert told({"total": ALONE}, now, Consent(begun=("total",))) == []


def test_over_updates_nothing_is_kept_and_all_that_send_them_begin_anew() -> None:
    before = {"latest": LATEST, "total": TOTAL}
    now = before | {"total": with_part(TOTAL, input="latest.where(x > 1)")}

    (problem,) = told(before, now)

    assert problem == (
        "stage 'total': its input was latest and is now latest.where(x > 1); rows that were sent "
        "before could not be taken back as they were sent; put it back, or begin it anew, from "
        "empty state: restore with --begin latest --begin total"
    )
    assert told(before, now, Consent(kept=("total",))) == [problem]
    assert told(before, now, Consent(begun=("latest", "total"))) == []
    (alone,) = told(before, now, Consent(begun=("total",)))
    assert alone == (
        "'total' cannot begin anew alone: it sends, or is sent, updates, and rows would be taken "
        "back that were never counted; begin anew, too: --begin latest"
    )


def test_a_sender_of_updates_does_not_begin_anew_without_its_readers() -> None:
    before = {"latest": LATEST, "total": TOTAL}
    now = before | {"latest": with_part(LATEST, by="at")}

    (problem,) = told(before, now)
    assert problem.endswith("restore with --begin latest --begin total")
    assert len(told(before, now, Consent(begun=("latest",)))) == 1
    assert told(before, now, Consent(begun=("total", "latest"))) == []


def test_a_column_over_updates_does_not_begin_anew_alone() -> None:
    before = {"latest": LATEST, "total": TOTAL}

    (problem, *_) = told(before, before, Consent(begun=("total.s",)))

    assert problem.startswith("'total.s' cannot begin anew alone")
    assert problem.endswith("--begin latest --begin total")


def test_a_new_stage_does_not_read_updates_of_rows_that_it_was_not_sent() -> None:
    now = {"latest": LATEST, "total": TOTAL}

    (problem,) = told({"latest": LATEST}, now)
    assert problem == (
        "stage 'total' is new, aggregate, and reads updates of rows that it was not sent; leave it "
        "out, or begin it anew, from empty state: restore with --begin latest --begin total"
    )
    assert told({"latest": LATEST}, now, held=set()) == [], "nothing was sent"


def test_another_operator_has_one_problem() -> None:
    now = {"total": with_part(LATEST, keys="other")}

    (problem,) = told({"total": ALONE}, now)

    assert problem.startswith("stage 'total': its operator was aggregate and is now latest;")


def test_where_nothing_is_kept_nothing_has_a_meaning() -> None:
    assert told({"t": ALONE}, {"t": with_part(ALONE, keys="other")}, held=set()) == []


@pytest.mark.parametrize("part", ["ttl", "out of orderness"])
def test_some_options_are_taken_over_and_said(part: str) -> None:
    before = {"latest": LATEST, "total": with_part(TOTAL, **{part: "1 h"})}
    now = before | {"total": with_part(TOTAL, **{part: "2 h"})}

    assert told(before, now) == []
    (note,) = notes_of(compare(before, now, {"total"}), NO_CONSENT)
    assert f"its {part} was 1 h and is now 2 h: taken over" in note


def test_a_join_cannot_be_made_to_know_which_partners_it_has_forgotten() -> None:
    kept = Fingerprint(operator="join", parts={"how": "left"}, updates_from=("latest",))
    forgets = with_part(kept, ttl="1 h", partners="remembered")

    assert told({"join": kept}, {"join": forgets}) == []
    assert adoption("join", kept, forgets) == Adoption(parts={"partners": ""})
    (problem,) = told({"join": forgets}, {"join": kept})
    assert problem.startswith("stage 'join': its ttl is gone, ")
    assert "put it back, or declare a longer one, or begin it anew" in problem


def test_a_ttl_that_stays_is_not_said_to_be_gone_where_a_join_is_of_another_kind() -> None:
    forgets = {"how": "left", "partners": "remembered", "ttl": "1 h"}
    left = Fingerprint(operator="join", parts=forgets, updates_from=("latest",))
    inner = Fingerprint(operator="join", parts={"how": "inner", "ttl": "1 h"})

    (problem,) = told({"join": left}, {"join": inner})

    assert problem.startswith("stage 'join': its how was left and is now inner; ")


def test_a_part_that_the_table_does_not_know_is_refused() -> None:
    now = {"t": with_part(ALONE, colour="red")}

    (problem,) = told({"t": ALONE}, now)

    assert problem.startswith("stage 't': its colour was none and is now red; rows that were sent")
    assert row_of("colour", PartDifference.CHANGED) is None
    assert notes_of(compare({"t": ALONE}, now, {"t"}), Consent(begun=("t",))) == (
        "'t' begins anew, with the rows from here on",
    )


def a_source(*places: str) -> Fingerprint:
    return Fingerprint(operator=SOURCE, places=places)


def test_a_source_of_another_place_needs_another_uid_or_consent() -> None:
    before = {"t": ALONE, "rows": a_source("topic a", "topic b")}
    now = before | {"rows": a_source("topic b", "topic c")}

    (problem,) = told(before, now)
    assert problem == (
        "source 'rows': its place was topic a, topic b and is now topic b, topic c; put it back, "
        "or give the source another uid; if the same records are there, keep its positions: "
        "restore with --keep rows"
    )
    kept = Consent(kept=("rows",))
    assert told(before, now, kept) == []
    (note,) = notes_of(compare(before, now, {"rows"}), kept)
    assert note == (
        "source 'rows': its place was topic a, topic b and is now topic b, topic c: kept with "
        "consent, its positions are of records in that place"
    )
    assert told(before, now, held={"t"}) == []


def test_a_source_reads_further_places_from_their_beginning() -> None:
    now = {"rows": a_source("topic a", "topic b")}

    assert told({"rows": a_source("topic a")}, now) == []
    assert told({"rows": a_source()}, now) == []
    assert told({}, now, held={"rows"}) == []


def test_a_source_does_not_begin_anew() -> None:
    now = {"rows": a_source("topic a")}

    assert told(now, now, Consent(begun=("rows",))) == [
        "source 'rows' cannot begin anew: give it another uid, and it reads all that is there"
    ]


def test_a_source_under_the_uid_of_a_stage_is_another_operator() -> None:
    (problem,) = told({"rows": ALONE}, {"rows": a_source("topic a")})

    assert problem == (
        "source 'rows': its operator was aggregate and is now source; put it back, or give the "
        "source another uid"
    )


APPENDED = Fingerprint(operator=SINK, parts={"rows": "appended"})


def a_sink(rows: str, *, of: str = "total", keeps_changes: bool = False) -> Fingerprint:
    return Fingerprint(
        operator=SINK,
        parts={"rows": rows},
        updates_from=(of,),
        sent_by=(of,),
        keeps_changes=keeps_changes,
    )


def test_a_sink_of_updates_keeps_its_rows_and_their_key() -> None:
    before = {"total": ALONE, "out": a_sink("total as upsert by k")}
    now = before | {"out": a_sink("total.where(n > 1) as upsert by k")}

    (problem,) = told(before, now)
    assert problem == (
        "sink 'out': its rows were total as upsert by k and are now total.where(n > 1) as upsert "
        "by k; put it back, or give the sink another uid and a table of its own"
    )


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (a_sink("total as upsert by k"), a_sink("other as upsert by k", of="other")),
        (APPENDED, a_sink("total as upsert by k")),
        (a_sink("total as upsert by k"), APPENDED),
        (
            Fingerprint(operator=SINK, parts={"rows": "first as upsert by k"}),
            Fingerprint(operator=SINK, parts={"rows": "first as upsert by k, u"}),
        ),
    ],
)
def test_a_sink_is_not_moved_to_other_rows(before: Fingerprint, now: Fingerprint) -> None:
    """The rows of before would stay in its table."""
    (problem,) = told({"total": ALONE, "out": before}, {"total": ALONE, "out": now})

    said = f"its rows were {before.parts['rows']} and are now {now.parts['rows']}; put it back, or"
    assert problem == f"sink 'out': {said} give the sink another uid and a table of its own"
    assert told({"total": ALONE}, {"total": ALONE, "out": now}) == []


def test_a_sink_whose_sender_is_gone_keeps_its_rows_by_consent() -> None:
    before = {"gone": ALONE, "out": a_sink("gone as upsert by k", of="gone")}
    now = {"total": ALONE, "out": a_sink("total as upsert by k")}
    kept = Consent(kept=("out",))
    changes = compare(before, now, {"gone", "out"})

    what = (
        "stage 'gone' is not declared any more, and sink 'out': its rows were gone as upsert by k "
        "and are now total as upsert by k"
    )
    (problem,) = told(before, now, held={"gone", "out"})
    assert problem == (
        f"{what}; put it back, or give the sink another uid and a table of its own; or keep the "
        "rows of 'gone' in it, which nothing takes back: restore with --keep out"
    )
    assert told(before, now, kept, held={"gone", "out"}) == []
    (note,) = notes_of(changes, kept)
    assert note == (
        f"{what}: kept with consent, a removed stage takes no row back: its rows stay until their "
        "key comes again, and in a table of changes for ever"
    )


def test_what_a_table_shows_of_a_stage_that_is_gone_is_said_once() -> None:
    before = with_part(a_sink("gone as upsert by k", of="gone"), columns="k, s")
    now = with_part(a_sink("total as upsert by k"), columns="k, total")

    changes = compare({"gone": ALONE, "out": before}, {"total": ALONE, "out": now}, {"gone", "out"})
    assert [change.part for change in changes if change.uid == "out"] == ["rows"]


def test_a_sink_whose_sender_is_gone_does_not_go_on_by_another_key() -> None:
    before = a_sink("gone as upsert by k", of="gone")
    now = a_sink("total as upsert by n")

    (problem,) = told({"out": before}, {"total": ALONE, "out": now})
    assert problem.startswith("stage 'gone' is not declared any more, and sink 'out': its rows")
    assert problem.endswith("put it back, or give the sink another uid and a table of its own")


def test_a_sink_that_was_left_out_for_a_while_goes_on_by_consent() -> None:
    """The checkpoint has its table, and nothing that its rows were: it was taken without it."""
    again = {"total": ALONE, "out": a_sink("total as upsert by k")}
    kept = Consent(kept=("out",))
    what = "sink 'out' was not declared for a while, and its table lacks what was sent meanwhile"

    (problem,) = told({"total": ALONE}, again, held={"total", "out"})
    assert problem == (
        f"{what}; give the sink another uid and a table of its own, or go on without these rows: "
        "restore with --keep out"
    )
    assert told({"total": ALONE}, again, kept, held={"total", "out"}) == []
    (note,) = notes_of(compare({"total": ALONE}, again, {"total", "out"}), kept)
    assert note == (
        f"{what}: kept with consent, what was sent meanwhile is missing in it, and what was taken "
        "back stays until its key comes again"
    )


def test_a_table_of_changes_has_to_see_all_of_them() -> None:
    now = {"total": ALONE, "log": a_sink("total as changelog", keeps_changes=True)}

    for target in ("total", "total.s"):
        (problem,) = told(now, now, Consent(begun=(target,)))
        assert problem.startswith(
            f"'{target}' cannot begin anew while sink 'log' keeps its changes"
        )
        assert told(now, now, Consent(begun=(target,)), held={"total"}) == [], "a new table"


def test_a_table_of_changes_is_not_continued_by_rows_that_are_never_taken_back() -> None:
    before = {"total": ALONE, "log": a_sink("total as changelog", keeps_changes=True)}

    (problem,) = told(before, {"total": ALONE, "log": APPENDED})

    assert problem.startswith(
        "sink 'log': its rows were total as changelog and are now appended; put it back"
    )


def test_rows_that_would_stay_in_a_table_for_ever_do_not_begin_anew() -> None:
    left = replace(a_sink("total as upsert by k"), leaves_rows_of=("total",))
    followed = replace(left, deletes_by_key=True)

    for sink, begun in ((left, "total"), (left, "total.s"), (followed, "total")):
        now = {"total": ALONE, "out": sink}
        (problem,) = told(now, now, Consent(begun=(begun,)))
        assert problem == (
            f"'{begun}' cannot begin anew while sink 'out' has its rows behind a filter, or by "
            "more than its key: where a key comes again, the row of before could stay there for "
            "ever; give the sink another uid and a table of its own"
        )
        assert told(now, now, Consent(begun=(begun,)), held={"total"}) == [], "a new table"
    now = {"total": ALONE, "out": followed}
    assert told(now, now, Consent(begun=("total.s",))) == []


@pytest.mark.parametrize(
    ("consent", "said"),
    [
        (Consent(begun=("other",)), "'other' cannot begin anew or be kept: the pipeline has no"),
        (Consent(kept=("gone",)), "no such source, sink or stage with state; leave it out, or"),
        (Consent(begun=("out",)), "sink 'out' cannot begin anew: give it another uid and a table"),
        (Consent(kept=("out",)), "sink 'out' is not one to keep: only one whose rows were those"),
        (Consent(begun=("total.x",)), "'total.x' cannot begin anew: stage 'total' computes n, s"),
        (Consent(kept=("total.s",)), "'total.s' cannot begin anew: stage 'total' computes n, s"),
        (Consent(begun=("latest.x",)), "stage 'latest' computes no columns that can begin anew"),
    ],
)
def test_a_consent_to_nothing_is_a_mistake(consent: Consent, said: str) -> None:
    now = {"total": ALONE, "latest": LATEST, "out": a_sink("total")}

    assert any(said in problem for problem in told(now, now, consent))


def test_a_column_of_a_stage_that_begins_anew_needs_no_more() -> None:
    now = {"total": ALONE}

    assert told(now, now, Consent(begun=("total.s", "total"))) == []


def test_consents_add_up_and_end_with_what_they_are_for() -> None:
    first, second = Consent(begun=("a", "a.x"), kept=("b",)), Consent(begun=("a", "c"))

    both = first.beside(second)

    assert both == Consent(begun=("a", "a.x", "c"), kept=("b",))
    assert both.within({"a": ALONE}) == Consent(begun=("a",))


def test_columns_that_begin_anew_are_found_by_their_stage() -> None:
    assert columns_begun(["a", "a.x", "b.y", "a.z"], "a") == ("x", "z")


def test_every_difference_of_a_part_has_one_row() -> None:
    found = [(row.part, difference) for row in TRANSITIONS for difference in row.differences]

    assert len(found) == len(set(found))
    assert {one for row in TRANSITIONS for one in (row.append, row.updates)} == {*Becomes, None}


# latest, which holds its rows -> total -> sizes, and beside total another; a table behind total.
SENDER = replace(LATEST, holds=("u",))
READER = replace(TOTAL, holds=("k",), recomputed_from="latest")


def a_chain(**changed: Fingerprint | None) -> dict[str, Fingerprint]:
    chain: dict[str, Fingerprint | None] = {
        "latest": SENDER,
        "total": READER,
        "other": with_columns(READER, x="max(x)"),
        "sizes": replace(READER, holds=("n",), updates_from=("total",), recomputed_from="total"),
        "out": a_sink("total as upsert by k"),
    }
    return {uid: one for uid, one in (chain | changed).items() if one is not None}


CHANGED = with_columns(READER, n="count()", s="max(x)")
READERS = {"total", "other", "sizes"}


def anew(
    before: dict[str, Fingerprint], now: dict[str, Fingerprint], in_flight: str = ""
) -> frozenset[str]:
    return recomputed(before, now, {*before}, {in_flight})


RANKED = Fingerprint(operator="top_n", parts={"keys": "k", "n": "3", "by": "x"})


@pytest.mark.parametrize(
    ("part", "now", "of_added_rows", "of_updates"),
    [
        ("n", "2", Becomes.TAKEN_OVER, Becomes.TAKEN_OVER),
        ("n", "10", Becomes.BEGUN_ANEW, Becomes.TAKEN_OVER),
        ("by", "y", Becomes.BEGUN_ANEW, Becomes.TAKEN_OVER),
    ],
)
def test_rows_are_ranked_again_where_all_are_kept(
    part: str, now: str, of_added_rows: Becomes, of_updates: Becomes
) -> None:
    def becomes(before: Fingerprint) -> Becomes:
        (change,) = compare({"top": before}, {"top": with_part(before, **{part: now})}, {"top"})
        return change.becomes

    assert becomes(RANKED) is of_added_rows
    assert becomes(replace(RANKED, updates_from=("latest",))) is of_updates


def test_rows_that_are_computed_anew_need_not_be_ranked_again() -> None:
    before = replace(RANKED, updates_from=("latest",))

    (change,) = compare({"top": before}, {"top": with_part(before, n="2")}, {"top"})
    assert replace(change, recomputed_from="latest").becomes is Becomes.RECOMPUTED


def test_rows_that_a_ttl_has_forgotten_are_not_ranked_again() -> None:
    before = replace(with_part(RANKED, ttl="1 h"), updates_from=("latest",))

    def becomes(**parts: str) -> Becomes:
        (change,) = compare({"top": before}, {"top": with_part(before, **parts)}, {"top"})
        return change.becomes

    assert becomes(by="y") is becomes(n="4") is Becomes.REFUSED
    assert becomes(n="2") is Becomes.TAKEN_OVER


SUMMED = with_columns(ALONE, n="count(x) where x > 1", s="sum(x) where x > 1")
AVERAGED = with_columns(SUMMED, **SUMMED.columns, m="avg(x) where x > 1")


def test_a_mean_is_taken_over_from_the_sum_and_the_count_of_its_rows() -> None:
    (change,) = compare({"total": SUMMED}, {"total": AVERAGED}, {"total"})

    assert change.becomes is Becomes.TAKEN_OVER
    assert change.what == (
        "stage 'total': column 'm' is new, avg(x) where x > 1, of columns 's' and 'n'"
    )
    assert adoption("total", SUMMED, AVERAGED) == Adoption(means={"m": ("s", "n")})


@pytest.mark.parametrize(
    "before",
    [
        with_columns(SUMMED, n="count() where x > 1", s="sum(x) where x > 1"),
        with_columns(SUMMED, n="count(x)", s="sum(x) where x > 1"),
        with_columns(SUMMED, s="sum(x) where x > 1"),
        replace(SUMMED, partial=("s",)),
        replace(SUMMED, operator="window"),
        with_part(SUMMED, ttl="1 h"),
    ],
)
def test_a_mean_of_other_rows_is_not(before: Fingerprint) -> None:
    columns = before.columns | {"m": "avg(x) where x > 1"}
    (change,) = compare({"total": before}, {"total": with_columns(before, **columns)}, {"total"})

    assert change.becomes is Becomes.BEGUN_ANEW


def test_a_mean_begins_anew_with_the_sum_that_it_is_of() -> None:
    before, now = {"total": SUMMED}, {"total": AVERAGED}

    assert told(before, now) == []
    assert told(before, now, Consent(begun=("total.s",))) == [
        (
            "stage 'total': column 'm' is new, avg(x) where x > 1, of columns 's' and 'n', of "
            "which 's' begins anew; begin it anew, too: restore with --begin total.m"
        )
    ]
    assert told(before, now, Consent(begun=("total.s", "total.m"))) == []


def test_a_state_that_had_a_ttl_has_forgotten_rows_until_it_begins_anew() -> None:
    """Also where that is gone since an earlier checkpoint."""
    first = Fingerprint(operator="top_n", parts={"n": "1", "by": "x", "ttl": "1 h"})
    first = replace(first, updates_from=("latest",))
    endless = replace(first, parts={"n": "1", "by": "x"})
    more = replace(first, parts={"n": "3", "by": "x"})

    known = with_past("top", with_past("top", None, first, ()), endless, ())
    anew = with_past("top", known, endless, ["top"])

    for before, is_refused in ((first, True), (known, True), (endless, False), (anew, False)):
        changes = compare({"top": before}, {"top": more}, {"top"})
        assert bool(problems_of(changes, {"top": more}, NO_CONSENT, {"top"})) == is_refused


def test_a_column_that_began_anew_is_partial_until_its_stage_begins_anew() -> None:
    known = replace(SUMMED, partial=("s",))

    assert with_past("total", SUMMED, AVERAGED, ["total.m"]).partial == ("m",)
    assert with_past("total", known, AVERAGED, []).partial == ("s",)
    assert with_past("total", known, AVERAGED, ["total"]).partial == ()
    assert with_past("total", known, with_columns(SUMMED, n="count()"), []).partial == ()
    assert known == SUMMED, "no declaration says so"


def test_a_column_that_is_renamed_is_named() -> None:
    named = with_columns(ALONE, n="count()", total="sum(x)")

    assert told({"total": ALONE}, {"total": named}) == [
        (
            "stage 'total': column 'total', sum(x), was called 's'; call it 's' again, and rename "
            "it behind the stage: select('s AS total'), or begin it anew: "
            "restore with --begin total.total"
        )
    ]
    assert told({"total": ALONE}, {"total": named}, Consent(begun=("total.total",))) == []


def test_what_a_join_renames_is_the_same_in_the_case_in_which_it_was_told_before() -> None:
    text = "rows | others.where(x = 'A').rename(right_At = At)"
    before = replace(TOTAL, parts={"input": text}, reads={"": text})
    text = "rows | others.where(x = 'A').rename(right_at = at)"
    now = replace(TOTAL, parts={"input": text}, reads={"": text})

    assert told({"total": before}, {"total": now}) == []


def test_a_number_of_days_and_an_interval_of_each_unit_are_three_things() -> None:
    texts = [f"rows.where(at + {of} < due)" for of in ("7", "INTERVAL 7 DAY", "INTERVAL 7 MONTH")]
    told_so = [
        replace(TOTAL, parts={"input": text}, reads={"": text}, columns={"s": f"max({text})"})
        for text in texts
    ]

    for before, now in itertools.combinations(told_so, 2):
        assert len(told({"total": before}, {"total": now})) == 2


def test_a_column_that_is_called_so_in_another_case_is_the_same() -> None:
    before = replace(TOTAL, reads={"": "rows", "s": "rows.where(s)"}, partial=("s",))
    now = replace(TOTAL, columns={"N": "count()", "S": "sum(x)"})
    now = replace(now, reads={"": "rows", "S": "rows.where(s)"})

    assert told({"total": before}, {"total": now}) == []
    assert with_past("total", before, now, ()).partial == ("S",)


def test_columns_that_could_each_be_another_are_not_renamed() -> None:
    twice = with_columns(ALONE, a="sum(x)", b="sum(x)")
    named = with_columns(ALONE, c="sum(x)", d="sum(x)")

    changes = compare({"total": twice}, {"total": named}, {"total"})
    assert {(c.column, c.difference) for c in changes} == {
        ("a", PartDifference.REMOVED),
        ("b", PartDifference.REMOVED),
        ("c", PartDifference.ADDED),
        ("d", PartDifference.ADDED),
    }


@pytest.mark.parametrize(
    ("before", "now", "of_added_rows", "of_updates"),
    [
        ("left", "full", Becomes.TAKEN_OVER, Becomes.TAKEN_OVER),
        ("inner", "left", Becomes.BEGUN_ANEW, Becomes.TAKEN_OVER),
        ("full", "inner", Becomes.BEGUN_ANEW, Becomes.TAKEN_OVER),
        ("inner", "semi", Becomes.BEGUN_ANEW, Becomes.REFUSED),
    ],
)
def test_a_join_that_keeps_both_sides_is_another_kind_of_them(
    before: str, now: str, of_added_rows: Becomes, of_updates: Becomes
) -> None:
    def becomes(operator: str = "join", **more: str) -> tuple[Becomes, ...]:
        of = Fingerprint(operator=operator, parts={"how": before, **more})
        found = []
        for joined in (of, replace(of, updates_from=("latest",))):
            (change,) = compare({"j": joined}, {"j": with_part(joined, how=now)}, {"j"})
            found.append(change.becomes)
        return tuple(found)

    assert becomes() == (of_added_rows, of_updates)
    assert becomes(ttl="1 h") == (Becomes.BEGUN_ANEW, Becomes.REFUSED)
    assert becomes("window_join") == (Becomes.BEGUN_ANEW, Becomes.REFUSED)


def test_an_epoch_takes_over_at_once_what_the_table_says_so_of() -> None:
    smaller, later = with_part(RANKED, n="2"), with_part(RANKED, ttl="1 h")

    assert adoption("top", RANKED, smaller) == Adoption(parts={"n": "3"})
    assert adoption("top", smaller, RANKED) is None, "a person consents"
    assert adoption("top", RANKED, later) is adoption("top", None, RANKED) is None


def test_a_change_over_rows_that_are_held_needs_no_consent() -> None:
    before, now = a_chain(), a_chain(total=CHANGED)

    found = anew(before, now)
    (change,) = compare(before, now, {*before}, found)
    assert found == READERS, "those that read the same rows, and those behind, too"
    assert change.becomes is Becomes.RECOMPUTED
    assert problems_of([change], now, NO_CONSENT, {*before}) == []
    (note,) = notes_of([change], NO_CONSENT)
    assert note == (
        "stage 'total': column 's' was sum(x) and is now max(x): recomputed from the rows of stage "
        "'latest'"
    )


def test_what_did_not_change_is_not_recomputed() -> None:
    fewer = with_columns(READER, n="count()")

    assert anew(a_chain(), a_chain()) == frozenset()
    assert anew(a_chain(), a_chain(total=fewer)) == frozenset()
    assert anew({"total": ALONE}, {"total": with_columns(ALONE, n="max(x)")}) == frozenset()


def test_a_stage_behind_one_that_is_recomputed_reads_all_that_it_sends() -> None:
    sizes = with_columns(a_chain()["sizes"], n="max(n)")

    assert anew(a_chain(), a_chain(total=CHANGED, sizes=sizes)) == READERS
    assert anew(a_chain(), a_chain(sizes=sizes)) == {"sizes"}


def test_a_new_stage_reads_all_rows_that_are_held() -> None:
    before = a_chain(other=None, sizes=None)

    assert anew(before, a_chain(sizes=None)) == {"total", "other"}
    assert anew(before, a_chain(other=None)) == {"sizes"}


@pytest.mark.parametrize(
    ("why", "before", "now"),
    [
        ("no stage before it holds its rows", {}, {"total": replace(CHANGED, recomputed_from="")}),
        ("nor can another follow", {}, {"other": replace(READER, recomputed_from="")}),
        ("the sender changed", {}, {"latest": with_part(SENDER, by="at")}),
        ("the sender is new", {"latest": None}, {}),
        ("the sender did not hold them", {"latest": replace(SENDER, holds=())}, {}),
        ("the sender forgot rows", {"latest": with_part(SENDER, ttl="1 h")}, {}),
        ("it has forgotten rows", {"total": with_part(READER, ttl="1 h")}, {}),
        ("a table has it by other keys", {"total": replace(READER, holds=("u",))}, {}),
        ("a table had another stage's", {"out": a_sink("total as upsert by k", of="other")}, {}),
    ],
)
def test_what_cannot_be_computed_anew_is_refused(
    why: str, before: dict[str, Fingerprint | None], now: dict[str, Fingerprint]
) -> None:
    was, declared = a_chain(**before), a_chain(**{"total": CHANGED} | now)

    found = anew(was, declared)

    assert found == frozenset(), why
    problems = problems_of(compare(was, declared, {*was}, found), declared, NO_CONSENT, {*was})
    assert any("could not be taken back as they were sent" in problem for problem in problems)


def test_where_no_table_has_the_rows_the_keys_may_change() -> None:
    before = {"latest": SENDER, "total": replace(READER, holds=("u",))}

    assert anew(before, {"latest": SENDER, "total": with_part(READER, keys="u")}) == {"total"}


def test_rows_in_flight_are_not_read_twice() -> None:
    now = a_chain(total=CHANGED)

    assert anew(a_chain(), now, in_flight="sizes") == frozenset()
    assert anew(a_chain(), now, in_flight="latest") == READERS
