"""The error for an invariant that does not hold."""

from __future__ import annotations

INVARIANTS = {
    0: "without faults the job comes to itself and takes a checkpoint",
    1: "at most one canonical outcome per checkpoint id, whatever the number of coordinators",
    2: "completed implies every planned ack, of the planned attempts, and readable files",
    3: "a restore set is one consistent cut",
    4: "a file that a retained checkpoint or a savepoint names is never deleted",
    5: "an effect of epoch n only after n is completed, exactly once, before that of n + 1",
    6: "ids grow, and are never reused",
    7: "a late ack, a duplicate, a zombie, a second scheduler change nothing visible",
    8: "the output under any schedule of kills is the output without failures",
    9: "a savepoint's bytes never change, and the job needs it no more after its first checkpoint",
    12: "who sees that a chained stage has acknowledged sees that all stages behind it have",
    11: "what readers see in a table is what the job continues, or the call said otherwise",
    13: "what people pause, change or abort of a running job is in force, and touches no more",
    14: "what a job is resumed from stays until the job ends for good, whatever its retention",
    15: "an application is ended only when no attempt awaits it, and never by a copy of the root",
    16: "no decision rests on two machines' clocks, and processing time is the checkpoint's",
    17: "what rests on conditional writes begins in a store that was probed for them",
    10: "after a generation is fenced nothing of an older one becomes true",
}


class Broken(AssertionError):
    """Invariant *number* does not hold: *what* happened, to which thing."""

    def __init__(self, number: int, what: str, detail: str = "") -> None:
        super().__init__(number, what, detail)
        self.number = number
        self.what = what
        self.detail = detail

    def __str__(self) -> str:
        return f"invariant {self.number} ({INVARIANTS[self.number]}): {self.what}: {self.detail}"
