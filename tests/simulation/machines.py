"""The machines that coordinators run on: a handle on the job, and a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from harness.jobs import ManualClock
from sluice.core.events import Transition, Verdict
from sluice.job.job import Job
from sluice.protocol.keys import PipelinePaths
from sluice.store.journal import Journal
from tests.simulation.bucket import LossyStore, RepeatingStore

Tried = list[tuple[str, bytes]]  # An attempted write: its key and bytes.


@dataclass(slots=True)
class SkewedClock:
    """A machine's clock: minutes off, and set at times; a process keeps its ``steady`` copy."""

    time: ManualClock
    skew_ms: int

    def __call__(self) -> int:
        return self.time.now_ms + self.skew_ms

    def steady(self) -> SkewedClock:
        return SkewedClock(self.time, self.skew_ms)


@dataclass(slots=True)
class Coordinator:
    """Its handle on the job lives until it dies, with whatever the handle remembers."""

    job: Job
    clock: SkewedClock


class WatchedJournal(Journal):
    """A journal whose answers are checked: an append counts if, and only if, it says so.

    *tried* is what the act under way tried to write so far; *check* is asked after each append.
    """

    def __init__(
        self,
        store: RepeatingStore,
        names: PipelinePaths,
        tried: Callable[[], Tried],
        check: Callable[[Tried, bool], None],
    ) -> None:
        super().__init__(store, names, probes=True)
        self._tried = tried
        self._check = check

    def append(self, *given: Any, **options: Any) -> Transition:
        tried = self._tried()
        before = len(tried)
        transition = super().append(*given, **options)
        self._check(tried[before:], transition.verdict is Verdict.APPLIED)
        return transition


def a_coordinator(
    template: Job,
    clock: SkewedClock,
    store: LossyStore,
    tried: Callable[[], Tried],
    check: Callable[[Tried, bool], None],
) -> Coordinator:
    patient = RepeatingStore(store, lambda key, body: tried().append((key, body)))
    job = replace(
        template,
        store=patient,
        journal=WatchedJournal(patient, template.names, tried, check),
        clock=clock.steady(),
    )
    return Coordinator(job, clock)
