"""The two forms of the benchmark: the full one, whose figures count, and a quick one.

The quick form has every row and every engine, and is over within a quarter of an hour: when its
time is up it starts nothing more, and names what it left out.  It answers whether everything runs
and agrees, and shows a change that is large.  What costs the same at any size weighs more in it,
and its engines are hardly warm: compare it with itself only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.workloads import WORKLOADS, Workload

FormName = Literal["full", "quick"]

QUICK_SCALE = 0.05
QUICK_REPETITIONS = 1
QUICK_S = 14 * 60  # The sample that is under way then has a minute.
# Nexmark's epochs are five seconds of event time each at this scale: three of them reach beyond its
# longest window.
QUICK_WARM_UP = 1
QUICK_MEASURED = 2

FULL_REPETITIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    name: FormName
    scale: float
    repetitions: int

    @property
    def limit_s(self) -> float | None:
        return QUICK_S if self.name == "quick" else None

    @property
    def repeats_disturbed(self) -> bool:
        """The quick form has no time for it: it marks them."""
        return self.name == "full"

    def in_order(self, names: Sequence[str]) -> list[str]:
        """The rows as they are run: where time may run out, those of Sluice alone come last."""
        if self.limit_s is None:
            return list(names)
        return sorted(names, key=lambda name: WORKLOADS[name].is_growth)

    def of(self, workload: Workload) -> Workload:
        if self.name == "full":
            return workload
        return replace(
            workload,
            warm_up=min(workload.warm_up, QUICK_WARM_UP),
            measured=min(workload.measured, QUICK_MEASURED),
        )

    def differs(self) -> str:
        """What is not as in the full form; empty if nothing is."""
        sentences = []
        if self.scale != 1:
            sentences.append(
                f"{self.scale:g} of the events and of the keys, so what costs the same at any size "
                "weighs more."
            )
        if self.name == "quick":
            sentences.append(
                f"At most {QUICK_WARM_UP} epoch to warm up and {QUICK_MEASURED} measured ones: JIT "
                "compilers are hardly warm."
            )
        if self.repetitions < FULL_REPETITIONS:
            sentences.append(f"Repetitions: {self.repetitions}; there is no spread to see.")
        if sentences:
            sentences.append(
                "Its figures and ratios are to be compared with those of its like only."
            )
        return " ".join(sentences)


def form_of(*, quick: bool, scale: float | None, repetitions: int | None) -> Form:
    """The form that was asked for; *scale* and *repetitions* are its own if they are None."""
    default = (QUICK_SCALE, QUICK_REPETITIONS) if quick else (1.0, FULL_REPETITIONS)
    return Form(
        name="quick" if quick else "full",
        scale=default[0] if scale is None else scale,
        repetitions=default[1] if repetitions is None else repetitions,
    )
