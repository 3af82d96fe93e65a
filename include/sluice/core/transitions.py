"""The meaning of a state, and the fate of the state when the declaration says otherwise.

A checkpoint holds the ``Fingerprint`` of each operator with state, source and sink: the meaning of
its parts, and of each column that it computes.  ``TRANSITIONS`` is the one table of what becomes of
a state when a part changes; a change that is not in it is refused.  Whoever continues a checkpoint
(a trigger, a restore, ``sluice check``) compares its fingerprints with the declared ones by
``compare`` and asks ``problems_of``, so all say the same, before anything is read.

Over an input that only grows a person may consent to two things.  *Begun anew*: the state of an
operator, or of one column, is empty, and it says what came since.  *Kept*: the state stays what it
was of the rows so far, and rows from then on are read as they are declared now.

A stage that reads updates takes rows back as they were sent.  What was sent before the change is in
no state but the sender's.  Where that holds its rows as it sends them, the stage is *recomputed*:
it reads all of them once, from empty state (``recomputed``).  Elsewhere it begins anew with all
that send it updates, or not at all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum

OPERATOR = "operator"
AGGREGATE = "aggregate"
SINK = "sink"  # The operator of a sink's fingerprint.
SOURCE = "source"  # That of a source's.
PLACE = "place"
ROWS = "rows"  # Those that a sink publishes, and how.
SHOWN = "columns"  # What a sink shows of rows that a stage holds.
INPUT, TIME, BOUND = "input", "event time", "out of orderness"
PARTNERS = "partners"
_PLURAL = ("bounds", PARTNERS, SHOWN, "keys", ROWS)  # Parts.
_RENAMED = re.compile(r"\.rename\([^()]*\)")
# What an error says, or any other text, which may read like one.
_RAISED = re.compile(
    r"""(?P<raised>raise_error\('(?:[^'\\]|\\.)*'\))|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""",
    re.DOTALL,
)


class Becomes(StrEnum):
    """The fate of a state when a part of its operator changes."""

    SAME = "same"
    TAKEN_OVER = "taken over"
    RECOMPUTED = "recomputed"
    BEGUN_ANEW = "begun anew with consent"
    KEPT = "kept with consent"
    REFUSED = "refused"


_WITHOUT_CONSENT = (Becomes.SAME, Becomes.TAKEN_OVER, Becomes.RECOMPUTED)


class PartDifference(StrEnum):
    """The difference of a part from what it was; *changed* where nothing more is known of it."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    SMALLER = "smaller"  # A number.
    LARGER = "larger"
    MEAN = "mean"  # A column, of the rows of which a sum and a count are beside it.
    RENAMED = "renamed"  # A column.
    SENDER = "sender"  # A sink's rows: what sent them is not declared any more.
    ABSENT = "absent"  # A sink's rows: it was not declared for a while.
    OUTER = "outer"  # A join: both kinds keep rows without a partner.
    INNER = "inner"  # A join: one of them, and the other keeps all rows with one.


EVERY = (PartDifference.ADDED, PartDifference.REMOVED, PartDifference.CHANGED)
_NUMBERS = (("top_n", "n"),)  # Operators and their parts.
_OUTER_KINDS = frozenset({"left", "right", "full"})
_MEAN, _SUM, _COUNT = "avg", "sum", "count"  # The functions of columns, before their arguments.


def _without_message(found: re.Match[str]) -> str:
    return "raise_error()" if found["raised"] else found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The meaning of an operator's state, a source's position or a sink's table.

    ``parts`` are the meanings of the operator's parts in canonical words, ``columns`` those of the
    columns that it computes; what an error says is none, and is left out, also of one that was
    written with it.  ``updates_from`` are the stages with state whose updates reach it.  A sink
    that ``keeps_changes`` has a row for each change, so none may be left out.

    ``leaves_rows_of`` are the stages with state of whose rows some would stay in the table of a
    sink for ever, if they began anew: when the key of one comes again, its row may be filtered
    away, or not replace the old one.  If it ``deletes_by_key``, the rows that such a stage of
    aggregates has of all keys are published anew, and others of these keys deleted.

    The input of an aggregate is compared by what its columns read: ``reads`` is the input as each
    column has it, where that is not the one of "", as all have it.

    A sink's rows are ``sent_by`` stages with state, whatever is between.

    ``places`` are those in which the positions of a source are; none if it does not say.

    No declaration tells that ``partial`` columns have begun anew while others went on, and that a
    state ``has_forgotten`` rows since it began, though it may have no ttl by now.

    ``holds`` are the columns by which the state of a stage has each row that it has sent; empty if
    it does not have them all.  ``recomputed_from`` is the stage whose rows are all that this one
    reads, if it, and what is behind it, can follow when these are sent again; else empty.
    """

    operator: str
    parts: dict[str, str] = field(default_factory=dict[str, str])
    columns: dict[str, str] = field(default_factory=dict[str, str])
    reads: dict[str, str] = field(default_factory=dict[str, str])
    updates_from: tuple[str, ...] = ()
    keeps_changes: bool = False
    leaves_rows_of: tuple[str, ...] = ()
    deletes_by_key: bool = False
    holds: tuple[str, ...] = ()
    recomputed_from: str = ""
    places: tuple[str, ...] = ()
    sent_by: tuple[str, ...] = ()
    partial: tuple[str, ...] = field(default=(), compare=False)
    has_forgotten: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        for texts in ("parts", "columns", "reads"):
            told = getattr(self, texts).items()
            meant = {name: _RAISED.sub(_without_message, text) for name, text in told}
            object.__setattr__(self, texts, meant)


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """A row of the table: what a difference of a *part* makes of the state.

    ``part`` None is any column that the operator computes.  ``append`` holds where all inputs only
    grow, ``updates`` where rows are taken back; None where no operator has that part.  What is
    *recomputed* is refused where it cannot be.  Where a ttl has forgotten rows, what is *taken
    over* and ``needs_all_rows`` is refused over updates, and else begun anew with consent.  What is
    taken over ``at_once`` needs an epoch that reads all state.  ``because`` says why, for people.
    """

    part: str | None
    append: Becomes | None
    updates: Becomes | None
    because: str
    differences: tuple[PartDifference, ...] = EVERY
    at_once: bool = False
    needs_all_rows: bool = False


_at_once = functools.partial(TransitionRow, at_once=True)
_of_all_rows = functools.partial(TransitionRow, at_once=True, needs_all_rows=True)
_SAME, _TAKEN, _RECOMPUTED, _ANEW, _KEPT, _REFUSED = Becomes


TRANSITIONS: tuple[TransitionRow, ...] = (
    TransitionRow(OPERATOR, _ANEW, _RECOMPUTED, "operators cannot read each other's state"),
    TransitionRow(
        None,
        _SAME,
        _SAME,
        "its state is dropped; the other columns stay",
        (PartDifference.REMOVED,),
    ),
    TransitionRow(
        None,
        _ANEW,
        _RECOMPUTED,
        "the rows so far are not in it",
        (PartDifference.ADDED, PartDifference.CHANGED),
    ),
    _of_all_rows(
        None, _TAKEN, _TAKEN, "the sum and the count have all rows so far", (PartDifference.MEAN,)
    ),
    TransitionRow(
        None,
        _ANEW,
        _RECOMPUTED,
        "state and sent rows have the column by its name; rename it in a select() behind the stage",
        (PartDifference.RENAMED,),
    ),
    TransitionRow("keys", _ANEW, _RECOMPUTED, "state is found by the values of the keys"),
    TransitionRow(
        INPUT, _KEPT, _RECOMPUTED, "the rows so far passed other filters, columns and functions"
    ),
    TransitionRow("function", _KEPT, None, "the other function made the state of the rows so far"),
    TransitionRow(
        TIME,
        _KEPT,
        _RECOMPUTED,
        "the rows so far were ordered, or put into windows, by another time",
    ),
    TransitionRow(
        BOUND, _TAKEN, _TAKEN, "the watermark changes from the next epoch on, and never goes back"
    ),
    TransitionRow("window", _ANEW, None, "the rows so far are in other windows"),
    TransitionRow(
        "allowed lateness", _ANEW, None, "dropped windows would come back with late rows alone"
    ),
    TransitionRow(
        "ttl",
        _TAKEN,
        _TAKEN,
        "a longer one begins one epoch later, so expired state does not come back",
    ),
    _at_once(
        "n", _TAKEN, _TAKEN, "rows beyond n are taken back, and dropped", (PartDifference.SMALLER,)
    ),
    _of_all_rows(
        "n",
        _ANEW,
        _TAKEN,
        "rows beyond n are not kept; over updates all are, and are ranked again",
        (PartDifference.LARGER,),
    ),
    TransitionRow(
        "n", _ANEW, None, "rows beyond n are not kept, and ended windows stay as they are"
    ),
    _of_all_rows(
        "by", _ANEW, _TAKEN, "rows that would be first now were not kept; over updates all are"
    ),
    _of_all_rows(
        "ties", _ANEW, _TAKEN, "rows that would be kept now were not; over updates all are"
    ),
    _of_all_rows(
        "unique",
        _ANEW,
        _TAKEN,
        "other rows replace one another; over updates all are kept, and it orders ties",
    ),
    _of_all_rows(
        "how",
        _TAKEN,
        _TAKEN,
        "both sides are kept: rows without a partner are sent, or taken back",
        (PartDifference.OUTER,),
    ),
    _of_all_rows(
        "how",
        _ANEW,
        _TAKEN,
        "both sides are kept: rows without a partner are sent, or taken back; rows that an "
        "inner join of added rows has sent are never taken back",
        (PartDifference.INNER,),
    ),
    TransitionRow("how", _ANEW, _REFUSED, "the other kind would have sent other rows so far"),
    _at_once(
        PARTNERS,
        _TAKEN,
        _TAKEN,
        "both sides are kept, and say which rows have a partner",
        (PartDifference.ADDED,),
    ),
    TransitionRow(
        PARTNERS,
        _ANEW,
        _REFUSED,
        "it would take back what it never sent of rows whose partners it has forgotten; a "
        "longer ttl is taken over",
        (PartDifference.REMOVED,),
    ),
    TransitionRow(
        "bounds", _ANEW, None, "the rows so far were paired, and dropped, by the other bounds"
    ),
    TransitionRow("table", None, _REFUSED, "the rows so far were looked up in another way"),
    TransitionRow(PLACE, _KEPT, None, "its positions are of records in that place"),
    _at_once(SHOWN, None, _TAKEN, "all rows are published anew"),
    TransitionRow(
        ROWS,
        _KEPT,
        _KEPT,
        "a removed stage takes no row back: its rows stay until their key comes again, and "
        "in a table of changes for ever",
        (PartDifference.SENDER,),
    ),
    TransitionRow(
        ROWS,
        _KEPT,
        _KEPT,
        "what was sent meanwhile is missing in it, and what was taken back stays until its "
        "key comes again",
        (PartDifference.ABSENT,),
    ),
    TransitionRow(
        ROWS,
        _REFUSED,
        _REFUSED,
        "rows of the table have to be replaced, or taken back, as they were sent",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consent:
    """A person's consent: uids, or ``uid.column``, that begin anew, and uids that are kept.

    ``meant`` is what these were declared as when it was given.
    """

    begun: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    meant: dict[str, Fingerprint] = field(default_factory=dict[str, Fingerprint])

    def beside(self, other: Consent) -> Consent:
        """The consent to all that either consents to."""
        return Consent(
            begun=tuple(dict.fromkeys((*self.begun, *other.begun))),
            kept=tuple(dict.fromkeys((*self.kept, *other.kept))),
            meant=other.meant | self.meant,
        )

    def given_for(self, declared: Mapping[str, Fingerprint]) -> Consent:
        """The same, given when this was *declared*."""
        uids = {target.partition(".")[0] for target in (*self.begun, *self.kept)}
        return replace(self, meant={uid: declared[uid] for uid in sorted(uids & declared.keys())})

    def within(self, declared: Mapping[str, Fingerprint]) -> Consent:
        """The consent to what is still *declared*; to nothing if some of that is declared otherwise
        by now, as where a change was put back.
        """
        if any(declared.get(uid, meant) != meant for uid, meant in self.meant.items()):
            return NO_CONSENT
        return replace(
            self,
            begun=tuple(target for target in self.begun if _is_declared(target, declared)),
            kept=tuple(uid for uid in self.kept if uid in declared),
        )


NO_CONSENT = Consent()


def _is_declared(target: str, declared: Mapping[str, Fingerprint]) -> bool:
    uid, _, column = target.partition(".")
    return uid in declared and (not column or column in declared[uid].columns)


def columns_begun(begun: Iterable[str], uid: str) -> tuple[str, ...]:
    """The columns of the stage *uid* that begin anew while its other ones go on."""
    named = (target.partition(".") for target in begun)
    return tuple(column for stage, _, column in named if stage == uid and column)


def with_past(
    uid: str, before: Fingerprint | None, now: Fingerprint, begun: Iterable[str]
) -> Fingerprint:
    """The stage *uid* as it is declared *now*, with what is left of its past where that is not
    *begun* anew as a whole: columns that do not say what others say, those that are begun with the
    next epoch among them, and that rows were forgotten.
    """
    begun = [*begun]
    is_anew = uid in begun
    past = Fingerprint(operator="") if before is None or is_anew else _spelt_as(before, now)
    partial = {*past.partial, *(() if is_anew else columns_begun(begun, uid))}
    return replace(
        now,
        partial=tuple(column for column in now.columns if column in partial),
        has_forgotten=_forgets(now) or _forgets(past),
    )


def _forgets(state: Fingerprint) -> bool:
    return state.has_forgotten or "ttl" in state.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """A part of an operator, or a *column* of it, that is not what it was.

    ``before`` and ``now`` are empty where there was, or is, none; ``recomputed_from`` is the stage
    of whose rows the state is computed anew, if it is.  The state ``has_forgotten`` rows if it had
    a ttl.  ``of`` are the columns of the sum and the count whose mean a new column is, or the name
    that it had; of a sink the stages that sent its rows, where none of them is declared any more.
    """

    uid: str
    operator: str
    part: str | None
    column: str | None
    before: str
    now: str
    reads_updates: bool
    row: TransitionRow | None
    has_forgotten: bool = False
    of: tuple[str, ...] = ()
    recomputed_from: str = ""

    @property
    def becomes(self) -> Becomes:
        if self.row is None:
            return Becomes.REFUSED
        found = self.row.updates if self.reads_updates else self.row.append
        if self.recomputed_from and found is Becomes.TAKEN_OVER:
            return Becomes.RECOMPUTED
        if found is Becomes.RECOMPUTED and not self.recomputed_from:
            return Becomes.REFUSED
        if self.row.needs_all_rows and self.has_forgotten and found is Becomes.TAKEN_OVER:
            return Becomes.REFUSED if self.reads_updates else Becomes.BEGUN_ANEW
        return found or Becomes.REFUSED

    @property
    def difference(self) -> PartDifference:
        if self.operator == SINK and not self.before:
            return PartDifference.ABSENT
        if self.operator == SINK:
            goes_on = self.of and _mode(self.before) == _mode(self.now)
            return PartDifference.SENDER if goes_on else PartDifference.CHANGED
        if len(self.of) > 1:
            return PartDifference.MEAN
        if self.of:
            return PartDifference.RENAMED
        return difference_of(self.operator, self.part, self.before, self.now)

    @property
    def target(self) -> str:
        """The text that ``--begin`` takes for this change alone."""
        return self.uid if self.column is None else f"{self.uid}.{self.column}"

    @property
    def what(self) -> str:
        """The operator, the part and both meanings, in words."""
        is_stage = self.operator not in (SINK, SOURCE)
        owner = f"{'stage' if is_stage else self.operator} {self.uid!r}"
        name = f"its {self.part}" if self.column is None else f"column {self.column!r}"
        if self.operator == SINK and self.of:
            gone, is_gone = _quoted(self.of), "are" if len(self.of) > 1 else "is"
            owner = f"stage {gone} {is_gone} not declared any more, and {owner}"
        match self.difference:
            case PartDifference.ABSENT:
                return (
                    f"{owner} was not declared for a while, and its table lacks what was sent "
                    "meanwhile"
                )
            case PartDifference.MEAN:
                return f"{owner}: {name} is new, {self.now}, of columns {_quoted(self.of)}"
            case PartDifference.RENAMED:
                return f"{owner}: {name}, {self.now}, was called {_quoted(self.of)}"
            case PartDifference.ADDED if self.column is not None:
                return f"{owner}: {name} is new, {self.now}"
            case PartDifference.REMOVED if self.column is not None:
                return f"{owner}: {name}, {self.before}, is gone"
            case PartDifference.REMOVED if self.part == PARTNERS:
                return f"{owner}: its ttl is gone, and partners of its rows are forgotten"
            case PartDifference.ADDED if self.part == OPERATOR:
                return f"{owner} is new, {self.now}, and reads updates of rows that it was not sent"
            case _:
                was, now = self.before or "none", self.now or "none"
                verbs = ("were", "are") if self.part in _PLURAL else ("was", "is")
                return f"{owner}: {name} {verbs[0]} {was} and {verbs[1]} now {now}"


def _quoted(names: Iterable[str]) -> str:
    return " and ".join(map(repr, names))


def difference_of(operator: str, part: str | None, before: str, now: str) -> PartDifference:
    """The difference between *before* and *now* of a part; either is empty where there is none."""
    if not before:
        return PartDifference.ADDED
    if not now:
        return PartDifference.REMOVED
    if (operator, part) == ("join", "how") and {before, now} <= _OUTER_KINDS:
        return PartDifference.OUTER
    if (operator, part) == ("join", "how") and {before, now} <= _OUTER_KINDS | {"inner"}:
        return PartDifference.INNER
    if (operator, part) in _NUMBERS:
        return PartDifference.SMALLER if int(now) < int(before) else PartDifference.LARGER
    return PartDifference.CHANGED


def row_of(part: str | None, difference: PartDifference) -> TransitionRow | None:
    """The row of the table for a *difference* of a *part*; None: there is none."""
    return next(
        (row for row in TRANSITIONS if row.part == part and difference in row.differences), None
    )


def compare(
    before: Mapping[str, Fingerprint],
    now: Mapping[str, Fingerprint],
    held: AbstractSet[str],
    recomputed: AbstractSet[str] = frozenset(),
) -> tuple[PartChange, ...]:
    """Every part that is not what it was, of the operators and sinks in both.

    *held* are the uids with state, or a table, in the checkpoint; others are compared only if they
    read updates of these, which may be of rows that they never got: they are new, or a filter has
    dropped the rows.  *recomputed* are those that ``recomputed`` finds.
    """
    return tuple(
        replace(change, recomputed_from=declared.recomputed_from) if uid in recomputed else change
        for uid, declared in now.items()
        if uid in held or (declared.operator != SINK and not held.isdisjoint(declared.updates_from))
        for change in _changes_of(
            uid, before.get(uid, Fingerprint(operator="")), declared, now.keys()
        )
    )


def recomputed(
    before: Mapping[str, Fingerprint],
    now: Mapping[str, Fingerprint],
    held: AbstractSet[str],
    in_flight: AbstractSet[str],
) -> frozenset[str]:
    """The stages that the next epoch computes anew: those whose change needs it, those that read
    the same stream, as its rows are sent to all readers, and those behind them.

    *held* is that of ``compare``.  *in_flight* are the uids with unread rows: they have not read
    all rows that the stage before them has sent, so they cannot be recomputed.
    """
    changes = compare(before, now, held)
    changed = {one.uid for one in changes if not _is_same(one)}
    found: set[str] = set()
    for change in changes:
        if change.reads_updates and change.row and change.row.updates is Becomes.RECOMPUTED:
            together = _recomputed_with(change.uid, now)
            if in_flight.isdisjoint(together) and all(
                _can_be_recomputed(uid, before, now, together, changed) for uid in together
            ):
                found |= together
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The former meaning of an operator's state, where the next epoch takes it over at once.

    ``parts`` are those that changed so, by what they were; ``means`` are new columns, by those of
    the sum and the count that they are the mean of.
    """

    parts: Mapping[str, str] = field(default_factory=dict[str, str])
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def adoption(uid: str, before: Fingerprint | None, now: Fingerprint | None) -> Adoption | None:
    """The change of a stage's or a sink's state that the next epoch makes at once, if any."""
    if before is None or now is None:
        return None
    changes = [
        change
        for change in _changes_of(uid, before, now, frozenset(before.sent_by))
        if change.row is not None and change.row.at_once and change.becomes is Becomes.TAKEN_OVER
    ]
    parts = {change.part: change.before for change in changes if change.part is not None}
    means = {change.column: change.of for change in changes if change.column is not None}
    return Adoption(parts=parts, means=means) if changes else None


def _is_same(change: PartChange) -> bool:
    return change.becomes is Becomes.SAME


def _recomputed_with(uid: str, now: Mapping[str, Fingerprint]) -> set[str]:
    found, waiting = {uid}, [uid]
    while waiting:
        one = waiting.pop()
        sender = now[one].recomputed_from
        for other in (*_readers_of_updates(one, now), *_readers_of_updates(sender, now)):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def _can_be_recomputed(
    uid: str,
    before: Mapping[str, Fingerprint],
    now: Mapping[str, Fingerprint],
    together: AbstractSet[str],
    changed: AbstractSet[str],
) -> bool:
    """Whether the stage *uid* can be, if all *together* are."""
    own, sender = now[uid], now[uid].recomputed_from
    is_sent_all = sender in together or (
        sender in before and sender not in changed and before[sender].holds == now[sender].holds
    )
    known = before.get(uid, Fingerprint(operator=""))
    sinks = {
        sink: declared
        for sink, declared in now.items()
        if declared.operator == SINK and uid in declared.updates_from
    }
    # A key that the new result has not is found by what the old state held.
    is_taken_back = not sinks or not known.operator or known.holds == own.holds
    has_same_sinks = all(
        sink not in before or before[sink].updates_from == declared.updates_from
        for sink, declared in sinks.items()
    )
    is_whole = not _forgets(known)
    return bool(sender) and is_sent_all and is_taken_back and has_same_sinks and is_whole


def _mode(rows: str) -> str:
    """The way in which a sink writes its *rows*, as words of their meaning."""
    return rows.rpartition(" as ")[2]


def _changes_of(
    uid: str, before: Fingerprint, now: Fingerprint, uids: AbstractSet[str]
) -> Iterator[PartChange]:
    reads_updates = bool(before.updates_from or now.updates_from)
    before = _spelt_as(before, now)

    def change(
        part: str | None, column: str | None, was: str, is_now: str, of: tuple[str, ...] = ()
    ) -> PartChange:
        found = PartChange(
            uid=uid,
            operator=now.operator,
            part=part,
            column=column,
            before=was,
            now=is_now,
            reads_updates=reads_updates,
            row=None,
            has_forgotten=_forgets(before),
            of=of,
        )
        return replace(found, row=row_of(part, found.difference))

    if now.operator in (SINK, SOURCE) and not before.operator:
        if now.operator == SINK:  # A place of before is not known, and a table is.
            yield change(ROWS, None, "", now.parts[ROWS])
        return
    gone = before.sent_by if uids.isdisjoint(before.sent_by) else ()
    if before.operator != now.operator:
        yield change(OPERATOR, None, before.operator, now.operator)
        return
    if not {*before.places} <= {*now.places}:  # Others begin at their beginning.
        yield change(PLACE, None, ", ".join(before.places), ", ".join(now.places))
    for part in dict.fromkeys((*before.parts, *now.parts)):
        was, is_now = before.parts.get(part, ""), now.parts.get(part, "")
        if was != is_now and _is_told_by_itself(part, before, now):
            yield change(part, None, was, is_now, gone)
    names = {new: old for old, new in _renamed(before.columns, now.columns)}
    for column in dict.fromkeys((*before.columns, *now.columns)):
        was, is_now = before.columns.get(column, ""), now.columns.get(column, "")
        if was != is_now and column not in names.values():
            of: tuple[str, ...] = (names[column],) if column in names else ()
            if not (was or of) and now.operator == AGGREGATE:
                known = before.columns.items() & now.columns.items()
                of = _addends(is_now, {pair for pair in known if pair[0] not in before.partial})
            yield change(None, column, was, is_now, of)


def _spelt_as(before: Fingerprint, now: Fingerprint) -> Fingerprint:
    """*before* with its columns in the case in which they are called *now*; what a join renames was
    told as it was declared, and is in lower case now.
    """

    def spelt_as(texts: Mapping[str, str]) -> dict[str, str]:
        return {name: _RENAMED.sub(lambda found: found[0].lower(), texts[name]) for name in texts}

    names = {name.lower(): name for name in now.columns}
    spelt = {name: names.get(name.lower(), name) for name in before.columns}
    return replace(
        before,
        columns=spelt_as({spelt[name]: text for name, text in before.columns.items()}),
        parts=spelt_as(before.parts),
        reads=spelt_as({spelt.get(name, name): text for name, text in before.reads.items()}),
        partial=tuple(spelt.get(name, name) for name in before.partial),
    )


def _is_told_by_itself(part: str, before: Fingerprint, now: Fingerprint) -> bool:
    """Whether nothing else says that a *part* is another."""
    was, is_now = before.parts.get(part), now.parts.get(part)
    if part == PARTNERS and before.parts.get("how") != now.parts.get("how"):
        return "ttl" not in now.parts or not was  # That the join is of another kind says it.
    if part == SHOWN:  # Other rows say it, or no row can be published anew.
        return before.parts.get(ROWS) == now.parts.get(ROWS) and bool(was and is_now)
    if not (before.reads and now.reads):
        return True
    if part in (TIME, BOUND):  # No column goes by event time any more, or all that do are new.
        return bool(was and is_now)
    return part != INPUT or _reads_otherwise(before, now)


def _reads_otherwise(before: Fingerprint, now: Fingerprint) -> bool:
    """Whether the input is another of a column that was there and is the same."""
    was, is_now = before.reads[""], now.reads[""]
    stays = [name for name, text in before.columns.items() if now.columns.get(name) == text]
    return was != is_now or any(
        before.reads.get(name, was) != now.reads.get(name, is_now) for name in stays
    )


def _renamed(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The columns that are gone, each with the only new one that is computed alike."""
    gone = {name: text for name, text in before.items() if name not in now}
    new = {name: text for name, text in now.items() if name not in before}
    for old, text in gone.items():
        alike = [name for name, other in new.items() if other == text]
        if len(alike) == 1 and [*gone.values()].count(text) == 1:
            yield old, alike[0]


def _addends(text: str, known: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The columns of the *known* that are the sum and the count of which *text* is the mean."""
    function, bracket, argument = text.partition("(")
    names = {text: name for name, text in sorted(known)}
    found = [names.get(f"{of}{bracket}{argument}") for of in (_SUM, _COUNT)]
    if function != _MEAN or None in found:
        return ()
    return tuple(filter(None, found))


def problems_of(
    changes: Sequence[PartChange],
    now: Mapping[str, Fingerprint],
    consent: Consent,
    held: AbstractSet[str],
) -> list[str]:
    """The changes that the *consent* does not cover, each in a sentence that says what to do; and
    what the consent itself would break. *held* is that of ``compare``.
    """
    uncovered = [
        f"{change.what}; {_fix(change, now)}"
        for change in changes
        if not _is_covered(change, consent)
    ]
    of_begun = [
        f"{change.what}, of which {of!r} begins anew; begin it anew, too: restore with "
        f"--begin {change.target}"
        for change in changes
        if change.difference is PartDifference.MEAN and _is_covered(change, NO_CONSENT)
        for of in change.of
        if f"{change.uid}.{of}" in consent.begun and not _begins(change, consent)
    ]
    return [*uncovered, *of_begun, *_broken_by(changes, now, consent, held)]


def notes_of(changes: Iterable[PartChange], consent: Consent) -> tuple[str, ...]:
    """The fate of the state by each change that is covered, and by each consent, in words."""
    lines = [
        f"{change.what}: {_told(change, change.row, becomes)}"
        for change in changes
        if change.row is not None
        and _is_covered(change, consent)
        and (becomes := _covered_as(change, consent)) is not Becomes.BEGUN_ANEW
    ]
    lines += [f"{target!r} begins anew, with the rows from here on" for target in consent.begun]
    return tuple(lines)


def _told(change: PartChange, row: TransitionRow, becomes: Becomes) -> str:
    if becomes is Becomes.RECOMPUTED:
        return f"recomputed from the rows of stage {change.recomputed_from!r}"
    return f"{becomes}, {row.because}"


def _is_covered(change: PartChange, consent: Consent) -> bool:
    if change.becomes in _WITHOUT_CONSENT or change.uid in consent.begun:
        return True
    if change.becomes is Becomes.BEGUN_ANEW:
        return change.column is not None and change.target in consent.begun
    return change.becomes is Becomes.KEPT and change.uid in consent.kept


def _covered_as(change: PartChange, consent: Consent) -> Becomes:
    return Becomes.BEGUN_ANEW if _begins(change, consent) else change.becomes


def _begins(change: PartChange, consent: Consent) -> bool:
    return change.uid in consent.begun or change.target in consent.begun


def _fix(change: PartChange, now: Mapping[str, Fingerprint]) -> str:
    """The fix of a change that was not consented to."""
    if change.difference is PartDifference.ABSENT:
        return (
            "give the sink another uid and a table of its own, or go on without these rows: "
            f"restore with --keep {change.uid}"
        )
    if change.operator == SINK:
        keep = (
            f"; or keep the rows of {_quoted(change.of)} in it, which nothing takes back: restore "
            f"with --keep {change.uid}"
        )
        return (
            "put it back, or give the sink another uid and a table of its own"
            f"{keep if change.becomes is Becomes.KEPT else ''}"
        )
    if change.operator == SOURCE:
        keep = (
            f"; if the same records are there, keep its positions: restore with --keep {change.uid}"
        )
        return f"put it back, or give the source another uid{keep if change.part == PLACE else ''}"
    together = " ".join(f"--begin {uid}" for uid in sorted(begins_with(change.uid, now)))
    whole = f"begin it anew, from empty state: restore with {together}"
    back = "put it back, or declare a longer one" if change.part == PARTNERS else "put it back"
    if change.difference is PartDifference.RENAMED:
        (name,) = change.of
        back = (
            f"call it {name!r} again, and rename it behind the stage: select('{name} AS "
            f"{change.column}')"
        )
    match change.becomes:
        case Becomes.KEPT:
            return (
                "put it back, or keep the state that it has of the rows so far: "
                f"restore with --keep {change.uid}; or {whole}"
            )
        case Becomes.BEGUN_ANEW if not _readers_of_updates(change.uid, now):
            return f"{back}, or begin it anew: restore with --begin {change.target}"
        case Becomes.BEGUN_ANEW:
            return f"{back}, or {whole}"
        case _ if change.part == OPERATOR and change.difference is PartDifference.ADDED:
            return f"leave it out, or {whole}"
        case _:
            return (
                "rows that were sent before could not be taken back as they were sent; "
                f"{back}, or {whole}"
            )


def begins_with(uid: str, now: Mapping[str, Fingerprint]) -> frozenset[str]:
    """The stages that begin anew if *uid* does: those whose updates it reads, those that read its
    updates, and so on.
    """
    found, waiting = {uid}, [uid]
    while waiting:
        one = waiting.pop()
        others = [*now[one].updates_from, *_readers_of_updates(one, now)] if one in now else []
        for other in others:
            if other not in found:
                found.add(other)
                waiting.append(other)
    return frozenset(found)


def _readers_of_updates(uid: str, now: Mapping[str, Fingerprint]) -> list[str]:
    return [
        reader
        for reader, declared in now.items()
        if uid in declared.updates_from and declared.operator != SINK
    ]


def _of_wrong_things(
    now: Mapping[str, Fingerprint], consent: Consent, may_be_kept: AbstractSet[str]
) -> Iterator[str]:
    """The problems of a consent that names what is not there, or cannot have it."""
    for target in (*consent.begun, *consent.kept):
        uid, _, column = target.partition(".")
        stage = now.get(uid)
        if stage is None:
            yield (
                f"{uid!r} cannot begin anew or be kept: the pipeline has no such source, sink or "
                "stage with state; leave it out, or correct its name"
            )
        elif stage.operator == SOURCE:
            if target in consent.begun:
                yield (
                    f"source {uid!r} cannot begin anew: give it another uid, and it reads all that "
                    "is there"
                )
        elif stage.operator == SINK:
            if target in consent.begun:
                yield f"sink {uid!r} cannot begin anew: give it another uid and a table of its own"
            elif target not in may_be_kept:
                yield (
                    f"sink {uid!r} is not one to keep: only one whose rows were those of a removed "
                    "stage is; leave it out"
                )
        elif column and (column not in stage.columns or target in consent.kept):
            named = ", ".join(stage.columns) or "no columns that can begin anew alone"
            yield f"{target!r} cannot begin anew: stage {uid!r} computes {named}"


def _broken_by(
    changes: Iterable[PartChange],
    now: Mapping[str, Fingerprint],
    consent: Consent,
    held: AbstractSet[str],
) -> Iterator[str]:
    """The problems that a person's consent would make."""
    may_be_kept = {change.uid for change in changes if change.becomes is Becomes.KEPT}
    yield from _of_wrong_things(now, consent, may_be_kept)
    for target in consent.begun:
        uid, _, column = target.partition(".")
        is_stage = uid in now and now[uid].operator not in (SINK, SOURCE)
        if not is_stage or (column and uid in consent.begun):
            continue
        missing = sorted(begins_with(uid, now) - {*consent.begun})
        if missing and not (column and missing == [uid]):
            yield (
                f"{target!r} cannot begin anew alone: it sends, or is sent, updates, and rows "
                "would be taken back that were never counted; begin anew, too: "
                f"{' '.join(f'--begin {other}' for other in missing)}"
            )
        for sink in (sink for sink in now if sink in held):
            why = _kept_by(now[sink], uid, column)
            if why:
                yield (
                    f"{target!r} cannot begin anew while sink {sink!r} {why}; give the sink "
                    "another uid and a table of its own"
                )


def _kept_by(sink: Fingerprint, uid: str, column: str) -> str:
    """The reason why rows of stage *uid* would stay in *sink*'s table for ever; else empty.

    Of other tables each is replaced when its key comes again, or taken away.
    """
    if sink.keeps_changes and uid in sink.updates_from:
        return "keeps its changes: what it sent would never be taken back there"
    if uid in sink.leaves_rows_of and not (column and sink.deletes_by_key):
        return (
            "has its rows behind a filter, or by more than its key: where a key comes again, "
            "the row of before could stay there for ever"
        )
    return ""
