"""The comparison of each sink's table against what a job would continue, and what becomes of it.

A table shows what is continued and no more, is ahead of it, lacks it, or is of another life
(docs/adr/0016-time-line-of-a-table.md).  A restore or a submission decides once, from these
comparisons, and the decision is journaled: no commit guesses again from ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.core.ids import CheckpointId, CheckpointIdCounter
from sluice.core.timeline import TimelineComparison, writer_named

MANY = 5  # Ids that a message names; the table itself has the rest.


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAhead:
    """A sink's table shows what these later ``checkpoints`` published, oldest first."""

    sink: str
    checkpoints: tuple[int, ...]
    can_roll_back: bool
    rolls_back_by_itself: bool  # By its next commit, also when it was not asked for.

    def __str__(self) -> str:
        count = len(self.checkpoints)
        ids = ", ".join([*map(str, self.checkpoints[:MANY]), *(["..."] if count > MANY else [])])
        plural = "s" if count > 1 else ""
        return f"table {self.sink!r} is ahead by {count} checkpoint{plural} ({ids})"

    def sentence(self, *, rolls_back: bool) -> str:
        """A sentence for a person about what becomes of the table."""
        if rolls_back:
            return f"{self}, and is rolled back"
        if self.rolls_back_by_itself:
            return f"{self}; its next commit rolls it back, rolling tables back does so at once"
        cure = "rolling tables back takes them away" if self.can_roll_back else "it cannot go back"
        return f"{self}, whose rows will be published again; {cure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """A sink's table as it is, beside the ``version`` that the job would continue.

    ``shown`` is the newest checkpoint that readers see, ``owed`` the one that is still to be
    published here.  ``is_of_earlier_life``: the other life that wrote it last had the same journal,
    and wrote it as the same sink.
    A person gets no report of one that ``is_side_output``.
    """

    sink: str
    version: int | None
    comparison: TimelineComparison
    shown: int | None = None
    is_empty: bool = False
    is_of_earlier_life: bool = False
    is_side_output: bool = False
    owed: CheckpointId | None = None
    can_roll_back: bool = True
    rolls_back_by_itself: bool = False

    @property
    def newest(self) -> int:
        """The greatest id that must not be handed out again.

        In a files table, whose fences sort by generation, a gap of one makes the first fence of
        this life sort behind those of another journal's.
        """
        is_foreign = self.comparison.other_life != "" and not self.is_of_earlier_life
        return self.comparison.newest + (is_foreign and self.rolls_back_by_itself)

    @property
    def is_of_others(self) -> bool:
        """Whether it has rows of another life that do not give way by themselves."""
        gives_way = self.is_empty or (self.is_of_earlier_life and self.rolls_back_by_itself)
        return bool(self.comparison.other_life) and not gives_way

    @property
    def ahead(self) -> TableAhead | None:
        if not self.comparison.ahead:
            return None
        return TableAhead(
            sink=self.sink,
            checkpoints=self.comparison.ahead,
            can_roll_back=self.can_roll_back,
            rolls_back_by_itself=self.rolls_back_by_itself,
        )

    def problem(self, *, roll_back: bool, accepts: bool, takes_over: bool = False) -> str | None:
        """The reason why the job cannot continue with the table, and the fix; None if it can."""
        shows = f"shows checkpoint {self.shown}" if self.shown is not None else "shows nothing"
        if roll_back and (self.ahead or self.is_of_others) and not self.can_roll_back:
            what = str(self.ahead or f"table {self.sink!r} {shows}")
            return f"{what}, and it cannot be rolled back; restore without rolling tables back"
        if (
            self.comparison.other_life
            and self.owed is not None
            and self.owed <= self.comparison.newest
        ):
            return (
                f"checkpoint {self.owed} was not published to table {self.sink!r} before "
                f"{self._other} took it over, which may have used its id; restore an earlier "
                "checkpoint"
            )
        if takes_over and not self.is_of_others:
            return (
                f"table {self.sink!r} shows no rows of another job, so there is nothing to take "
                "over; leave it out"
            )
        if accepts:
            return None
        if self.comparison.lacks:
            return (
                f"table {self.sink!r} lacks checkpoint {self.version}, which the job would "
                f"continue: it {shows}; restore a checkpoint that it shows, or accept tables as "
                "they are, which leaves the missing rows out"
            )
        if self.is_of_others and not roll_back and not takes_over:
            return (
                f"table {self.sink!r} {shows}, which {self._other} wrote; give each sink a table "
                f"of its own, take table {self.sink!r} over, which goes on behind those rows, or "
                "roll tables back, which takes them away: either way that job is refused from then "
                "on"
            )
        return None

    def taking_over(self, *, roll_back: bool) -> str | None:
        """The consent that a person gives where another job's rows do not give way."""
        if not self.is_of_others:
            return None
        shows = f"shows checkpoint {self.shown}" if self.shown is not None else "has rows"
        rows = "its rows go" if roll_back else "its rows stay, and this job goes on behind them"
        return (
            f"table {self.sink!r} {shows}, which {self._other} wrote, and is taken over: {rows}, "
            "and that job is refused from then on"
        )

    @property
    def _other(self) -> str:
        return writer_named(self.comparison.other_life, self.comparison.other_sink)

    def continued(self, *, accepts: bool) -> int | None:
        """The version that the job continues, where there is no ``problem``."""
        # A table that goes back by its next commit would lose the rows behind its own version.
        goes_back = self.is_of_others and self.rolls_back_by_itself
        is_behind_others = bool(self.comparison.other_life) and (self.version is None or goes_back)
        if accepts and (self.comparison.lacks or is_behind_others):
            return self.shown
        return self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDecision:
    """The journaled decision about the tables.

    ``versions`` is per sink what the job continues; a sink without one begins anew.  ``newest`` is
    the newest id that any table knows.  The rest is as in ``timeline.Recovery``, with ``replaces``
    per sink.
    """

    versions: dict[str, int] = field(default_factory=dict[str, int])
    newest: int = 0
    continues: CheckpointId | None = None
    roll_back: bool = False
    accepts: bool = False
    replaces: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRecovery:
    """A ``timeline.Recovery`` that is owed to every sink; the state's ``tables`` have versions."""

    through: CheckpointId
    continues: CheckpointId | None = None
    roll_back: bool = False
    accepts: bool = False
    replaces: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def decide_tables(
    tables: Sequence[TableComparison],
    *,
    undeclared: Mapping[str, int] | None = None,
    continues: CheckpointId | None = None,
    roll_back: bool = False,
    accepts: bool = False,
    take_over: Collection[str] = (),
) -> TableDecision:
    """The decision about *tables*, none of which has a problem.

    Versions of *undeclared* sinks stay in it, for the day when they are declared again.
    """
    versions = dict(undeclared or {}) | {
        table.sink: version
        for table in tables
        if (version := table.continued(accepts=accepts or table.sink in take_over)) is not None
    }
    return TableDecision(
        versions=versions,
        newest=max((table.newest for table in tables), default=0),
        continues=continues,
        roll_back=roll_back,
        accepts=accepts,
        replaces={
            table.sink: (table.comparison.other_life,)
            for table in tables
            if table.comparison.other_life
        },
    )


def owed_recovery(decision: TableDecision, ids: CheckpointIdCounter) -> TableRecovery | None:
    """The recovery that is owed; None where no id was ever handed out, so no commit can be late."""
    through = CheckpointId(ids.get() - 1)
    if through == 0:
        return None
    return TableRecovery(
        through=through,
        continues=decision.continues,
        roll_back=decision.roll_back,
        accepts=decision.accepts,
        replaces=decision.replaces,
    )


def table_problems(
    tables: Sequence[TableComparison],
    *,
    roll_back: bool = False,
    accepts: bool = False,
    take_over: Collection[str] = (),
) -> list[str]:
    """The reasons why the job cannot continue with *tables*, of which a person has those of the
    sinks in *take_over* taken over from another job, and no other one.
    """
    if roll_back and (accepts or take_over):
        return ["tables are either rolled back or accepted as they are: choose one"]
    known = sorted(table.sink for table in tables)
    unknown = [
        f"there is no sink {sink!r} whose table could be taken over; there are {', '.join(known)}"
        for sink in take_over
        if sink not in known
    ]
    found = (
        table.problem(roll_back=roll_back, accepts=accepts, takes_over=table.sink in take_over)
        for table in tables
    )
    return unknown + [problem for problem in found if problem is not None]
