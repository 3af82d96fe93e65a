"""A job that is restored again and again, on a table of any sink, and what readers are to see."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations

import pytest

from sluice.core.timeline import Recovery, Writer
from sluice.declaration.places import RollBack
from sluice.errors import ConfigurationError, TableMismatch
from tests.contract.sink_case import JOB, SinkCase, publish, rows, seen


@dataclass
class Job:
    """A job on the table, and what readers are to see in it."""

    case: SinkCase
    how: RollBack
    generation: int = 1
    newest: int = 0
    continues: int | None = None
    parents: dict[int, int | None] = field(default_factory=dict)
    shown: set[int] = field(default_factory=set)

    def publish(self) -> None:
        parent, self.newest = self.continues, self.newest + 1
        publish(self.case.open(), self.newest, parent, rows(self.newest), self._writer)
        self.parents[self.newest] = parent
        self.continues = self.newest
        goes_back = self.how is RollBack.BY_NEXT_COMMIT
        self.shown = self._line(self.newest) if goes_back else self.shown | {self.newest}

    def restore(self, version: int, *, does_roll_back: bool) -> None:
        """As a person does it: a restore that the table refuses leaves the job where it was."""
        self.generation += 1
        recovery = Recovery(version=version, through=self.newest, roll_back=does_roll_back)
        lacks = self.how is not RollBack.BY_NEXT_COMMIT and version not in self.shown
        ahead = {one for one in self.shown if one > version}
        assert self.case.open().compare(JOB.life, version).lacks == lacks
        if lacks:
            with pytest.raises(TableMismatch, match=f"does not show checkpoint {version}"):
                self.case.open().recover(self._writer, recovery)
        elif self.how is RollBack.NEVER and does_roll_back and ahead:
            with pytest.raises(ConfigurationError, match="cannot be rolled back"):
                self.case.open().recover(self._writer, recovery)
        else:
            self.case.open().recover(self._writer, recovery)
            self.continues = version
            self.shown -= ahead if does_roll_back else set()

    @property
    def _writer(self) -> Writer:
        return Writer(life=JOB.life, generation=self.generation)

    def _line(self, version: int | None) -> set[int]:
        if version is None:
            return set()
        return {version} | self._line(self.parents[version])


def two_restores_one_after_the_other_leave_what_the_job_continues(case: SinkCase) -> None:
    """Back with the table, back without it, or forward: each before each other, on one table."""
    job = Job(case, case.open().rolls_back)
    for _ in range(3):
        job.publish()
    choices = ((-2, True), (-2, False), (0, False))
    for pair in permutations(choices, 2):
        newest = job.newest
        for behind, does_roll_back in pair:
            job.restore(newest + behind, does_roll_back=does_roll_back)
        job.publish()
        assert {row["id"] for row in seen(case)} == job.shown, pair
