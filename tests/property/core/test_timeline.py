"""Readers of a table see what its job continues, under any order of commits and restores.

Jobs of several lives share a table.  Each call that a coordinator was about to make may come late,
and again: from an older generation, from before another restore, or from another life.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluice.core.timeline import Recovery, Timeline, Writer
from sluice.errors import FencedError, TableMismatch
from tests.examples import examples

LIVES = ("a", "b", "c")
Pick = st.integers(0, 10**6)


@dataclass
class Job:
    """A life of a job as its journal has it.  ``owed_commit`` and ``owed`` are yet to be done.

    It was told of *extra* rows, which it does not continue.
    """

    life: str
    generation: int = 1
    newest: int = 0
    parents: dict[int, int | None] = field(default_factory=dict)
    published: set[int] = field(default_factory=set)
    continues: int | None = None
    owed_commit: int | None = None
    owed: Recovery | None = None
    extra: set[int] = field(default_factory=set)

    @property
    def writer(self) -> Writer:
        return Writer(life=self.life, generation=self.generation)

    @property
    def version(self) -> int | None:
        """What the table is to show at least."""
        return self.continues if self.owed_commit is None else self.parents[self.owed_commit]

    def line(self, version: int | None) -> set[int]:
        found: set[int] = set()
        while version is not None:
            found.add(version)
            version = self.parents[version]
        return found


class Table(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.timeline = Timeline()
        self.rows: set[int] = set()
        self.accepted: set[int] = set()  # As missing, by a person.
        self.jobs: dict[str, Job] = {}
        self.suspended: list[Callable[[], bool]] = []
        self.backup = (self.timeline, frozenset(self.rows))
        self.is_put_back = self.was_put_back = False

    # The place: rows and note change in one step.

    def publish(self, writer: Writer, checkpoint_id: int, parent: int | None) -> bool:
        try:
            after = self.timeline.publishing(writer, checkpoint_id, parent)
        except (FencedError, TableMismatch):
            return False
        if after is not None:
            assert checkpoint_id not in self.rows, "published twice"
            self.rows.add(checkpoint_id)
            self.timeline = after
        return True

    def recover(self, writer: Writer, recovery: Recovery) -> bool:
        before = self.timeline
        if recovery.roll_back and before.is_cut and (recovery.version or 0) < before.oldest:
            return False  # The sinks refuse: they do not know which rows these are.
        try:
            after = before.recovered(writer, recovery)
        except (FencedError, TableMismatch):
            return False
        job = self.jobs[writer.life]
        if after is not None:
            self.rows -= {*before.after(recovery.version)} if recovery.roll_back else set()
            self.timeline = after
            if recovery is job.owed:
                self.is_put_back = False
                job.extra = {one for one in self.rows if one not in job.line(recovery.version)}
                if recovery.accepts:
                    self.accepted |= job.line(recovery.version) - self.rows
        return True

    # What jobs do.

    @precondition(lambda self: len(self.jobs) < len(LIVES) and not self.was_put_back)
    @rule(accepts=st.booleans())
    def begin(self, accepts: bool) -> None:
        """A life over an emptied root; a person says what is to become of another one's rows."""
        job = self.jobs[LIVES[len(self.jobs)]] = Job(LIVES[len(self.jobs)])
        self._look(job, version=None, continues=None, roll_back=not accepts, accepts=accepts)

    @precondition(lambda self: self.jobs)
    @rule(which=Pick, choice=Pick, roll_back=st.booleans(), accepts=st.booleans())
    def restore(self, which: int, choice: int, roll_back: bool, accepts: bool) -> None:
        job = self._job(which)
        chosen = [None, *job.parents][choice % (len(job.parents) + 1)]
        is_published = chosen is None or chosen in job.published
        version = chosen if chosen is None or is_published else job.parents[chosen]
        comparison = self.timeline.compare(job.life, version)
        if not accepts and (comparison.lacks or (comparison.other_life and not roll_back)):
            return  # The person was told.
        job.generation += 1
        job.continues = chosen
        job.owed_commit = None if is_published else chosen
        continues = None if is_published else chosen
        self._look(job, version, continues, roll_back=roll_back, accepts=accepts)

    @precondition(lambda self: self.jobs)
    @rule(which=Pick)
    def fail_over(self, which: int) -> None:
        """The usual restore, of what is continued anyway: no table is asked."""
        self._job(which).generation += 1

    @precondition(lambda self: self.jobs)
    @rule(which=Pick, aborted=st.integers(0, 2))
    def complete(self, which: int, aborted: int) -> None:
        job = self._job(which)
        if job.owed is None and job.owed_commit is None:
            job.newest += 1 + aborted
            job.parents[job.newest] = job.continues
            job.continues = job.owed_commit = job.newest

    @precondition(lambda self: self.jobs)
    @rule(which=Pick, is_late=st.booleans())
    def act(self, which: int, is_late: bool) -> None:
        """Recover, or else commit, what is owed; or be suspended just before."""
        job = self._job(which)
        if job.owed is not None:
            call = partial(self.recover, job.writer, job.owed)
            self.suspended.append(call)
            if not is_late and call():
                job.owed = None
        elif job.owed_commit is not None:
            one = job.owed_commit
            call = partial(self.publish, job.writer, one, job.parents[one])
            self.suspended.append(call)
            if not is_late and call():
                job.published.add(one)
                job.owed_commit = None
                assert job.line(one) - self.rows <= self.accepted, "published over a hole"

    @precondition(lambda self: self.suspended)
    @rule(which=Pick)
    def wake(self, which: int) -> None:
        """A suspended coordinator goes on, or another one repeats its act."""
        self.suspended[which % len(self.suspended)]()

    @precondition(lambda self: not self.was_put_back)
    @rule(spans=st.integers(1, 3))
    def shorten(self, spans: int) -> None:
        """What is forgotten is taken as shown, which is true as long as nothing is put back."""
        self.timeline = self.timeline.shortened(spans)

    @rule()
    def back_up(self) -> None:
        self.backup = (self.timeline, frozenset(self.rows))

    @precondition(lambda self: len(self.jobs) == 1)
    @rule()
    def put_back(self) -> None:
        """Put the place back, as an operator does with a database.  Its fences are put
        back, too, so they do not stop suspended coordinators.
        """
        self.timeline, self.rows = self.backup[0], {*self.backup[1]}
        self.is_put_back = self.was_put_back = True
        self.suspended.clear()

    @invariant()
    def the_note_is_true(self) -> None:
        spans = self.timeline.published
        noted = {one for first, last in spans for one in range(first, last + 1)}
        forgotten = {one for one in self.rows if spans and one < spans[0][0]}
        assert self.rows - noted == (forgotten if self.timeline.is_cut else set())

    @invariant()
    def readers_see_what_the_job_continues(self) -> None:
        job = self.jobs.get(self.timeline.life)
        if job is None or job.owed is not None or self.is_put_back:
            return  # It does nothing before its table has followed; nor over a hole, see ``act``.
        line = job.line(job.version)
        assert line - self.rows <= self.accepted, "rows are missing"
        owed = set() if job.owed_commit is None else {job.owed_commit}
        assert self.rows - line - owed <= job.extra, "rows of nobody"

    def _job(self, which: int) -> Job:
        return [*self.jobs.values()][which % len(self.jobs)]

    def _look(
        self,
        job: Job,
        version: int | None,
        continues: int | None,
        *,
        roll_back: bool,
        accepts: bool,
    ) -> None:
        """What a restore owes to the table as it stands."""
        comparison = self.timeline.compare(job.life, version)
        job.newest = max(job.newest, comparison.newest)
        job.owed = Recovery(
            version=version,
            through=job.newest,
            continues=continues,
            roll_back=roll_back,
            accepts=accepts,
            replaces=(comparison.other_life,) if comparison.other_life else (),
        )


TestTable = Table.TestCase
TestTable.settings = settings(examples(80), stateful_step_count=40)
