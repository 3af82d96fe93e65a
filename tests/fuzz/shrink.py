"""From a plan that fails to a declaration that fits a screen and fails in the same way.

Whole parts are left out first, stages and sinks and acts, then rows by halves, then what is left of
each part is made plain.  Leaving out one changes no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from sluice.errors import ConfigurationError
from tests.fuzz.drawing import draw
from tests.fuzz.plans import Act, Checkpoint, Feed, Plan, Restore, only_used, to_json, without
from tests.fuzz.play import Failure, play, playing

MAX_RUNS = 600
Change = Callable[[Plan], Iterator[Plan]]


class Shrinker:
    def __init__(
        self, plan: Plan, failure: Failure, player: Callable[[Plan], Failure | None]
    ) -> None:
        self.best, self.failure = plan, failure
        self._kind = failure.kind
        self._play = player
        self._runs = 0

    def shrink(self) -> Plan:
        is_smaller = True
        while is_smaller and self._runs < MAX_RUNS:
            is_smaller = False
            for change in CHANGES:
                is_smaller |= self._exhaust(change)
        return self.best

    def _exhaust(self, change: Change) -> bool:
        """Take what makes the plan smaller, and begin anew from there."""
        has_changed, is_smaller = False, True
        while is_smaller:
            is_smaller = False
            for smaller in change(self.best):
                if self._runs >= MAX_RUNS:
                    return has_changed
                if smaller != self.best and self._still_fails(smaller):
                    has_changed = is_smaller = True
                    break
        return has_changed

    def _still_fails(self, plan: Plan) -> bool:
        self._runs += 1
        try:
            failure = self._play(plan)
        except (ConfigurationError, AssertionError):
            return False
        if failure is None or failure.kind != self._kind:
            return False
        self.best, self.failure = plan, failure
        return True


def explain(seed: int) -> str:
    """Play the seed, shrink it, and say all that a person needs."""
    with playing():
        plan = draw(seed)
        failure = play(plan)
        if failure is None:
            return f"seed {seed} fails no more"
        shrinker = Shrinker(plan, failure, play)
        shrunk = shrinker.shrink()
    return report(seed, shrunk, shrinker.failure)


def report(seed: int, plan: Plan, failure: Failure) -> str:
    return "\n".join(
        [
            f"seed {seed} fails: {failure.message}",
            to_json(plan),
            f"again: python -m tests.fuzz --seed {seed}, or save the plan: --plan FILE",
        ]
    )


def _stages(plan: Plan) -> Iterator[Plan]:
    for stage in reversed(plan.stages):
        yield without(plan, stage.uid)


def _sinks(plan: Plan) -> Iterator[Plan]:
    if len(plan.sinks) > 1:
        for sink in plan.sinks:
            kept = tuple(one for one in plan.sinks if one is not sink)
            yield only_used(replace(plan, sinks=kept))
    for place, sink in enumerate(plan.sinks):
        plain = replace(sink, where=(), partition_by=(), compact_when_files=0, format="parquet")
        for one in (plain, replace(plain, delta_log=False)):
            yield replace(plan, sinks=(*plan.sinks[:place], one, *plan.sinks[place + 1 :]))


def _acts(plan: Plan) -> Iterator[Plan]:
    for size in (len(plan.acts) // 2, len(plan.acts) // 4, 1):
        for start in range(0, len(plan.acts), max(1, size)):
            kept = plan.acts[:start] + plan.acts[start + max(1, size) :]
            if any(isinstance(act, Checkpoint) for act in kept):
                yield replace(plan, acts=kept)


def _fates(plan: Plan) -> Iterator[Plan]:
    for place, act in enumerate(plan.acts):
        if isinstance(act, Checkpoint) and act.fate:
            yield _with_act(plan, place, replace(act, fate="", at=0))
        if isinstance(act, Checkpoint) and act.overtakes:
            yield _with_act(plan, place, replace(act, overtakes=0))
        if isinstance(act, Restore) and (act.back or act.parallelism):
            yield _with_act(plan, place, Restore())


def _rows(plan: Plan) -> Iterator[Plan]:
    for place, act in enumerate(plan.acts):
        if not isinstance(act, Feed):
            continue
        for size in (len(act.rows), len(act.rows) // 2, len(act.rows) // 4, 1):
            for start in range(0, len(act.rows), max(1, size)):
                kept = act.rows[:start] + act.rows[start + max(1, size) :]
                yield _with_act(plan, place, replace(act, rows=kept))


def _settings(plan: Plan) -> Iterator[Plan]:
    plain: dict[str, Any] = {
        "parallelism": 1, "max_records": None, "max_runs": 16, "spills": False, "tuning": (),
        "way": "plain", "unaligned": "", "values": (),
    }  # fmt: skip
    for name, value in plain.items():
        if getattr(plan, name) != value:
            yield replace(plan, **{name: value})


def _parts(plan: Plan) -> Iterator[Plan]:
    """Conditions, projections, parallelism and single aggregates of a stage."""
    for place, stage in enumerate(plan.stages):
        simpler = [replace(stage, where=()), replace(stage, select=())]
        simpler += [replace(stage, parallelism=None)]
        for side, given in enumerate(stage.inputs):
            for changed in (replace(given, where=()), replace(given, select=())):
                inputs = (*stage.inputs[:side], changed, *stage.inputs[side + 1 :])
                simpler.append(replace(stage, inputs=inputs))
        aggregates = stage.args.get("aggregates", {})
        for name, (kind, column, where, by) in aggregates.items():
            rest = {other: one for other, one in aggregates.items() if other != name}
            if rest:
                simpler.append(replace(stage, args={**stage.args, "aggregates": rest}))
            if where:
                plain = {**aggregates, name: [kind, column, None, by]}
                simpler.append(replace(stage, args={**stage.args, "aggregates": plain}))
        for one in simpler:
            yield replace(plan, stages=(*plan.stages[:place], one, *plan.stages[place + 1 :]))


def _columns(plan: Plan) -> Iterator[Plan]:
    for place, source in enumerate(plan.sources):
        for column in source.columns:
            if column[0] not in ("id", source.event_time) and not source.is_table:
                kept = tuple(one for one in source.columns if one != column)
                sources = list(plan.sources)
                sources[place] = replace(source, columns=kept)
                yield replace(plan, sources=tuple(sources))
        if source.format != "parquet":
            sources = list(plan.sources)
            sources[place] = replace(source, format="parquet")
            yield replace(plan, sources=tuple(sources))
        if source.idle_after_ms is not None:
            sources = list(plan.sources)
            sources[place] = replace(source, idle_after_ms=None)
            yield replace(plan, sources=tuple(sources))
        if source.grows or source.out_of_orderness_ms:
            sources = list(plan.sources)
            sources[place] = replace(source, grows=False, out_of_orderness_ms=0)
            yield replace(plan, sources=tuple(sources))


def _with_act(plan: Plan, place: int, act: Act) -> Plan:
    return replace(plan, acts=(*plan.acts[:place], act, *plan.acts[place + 1 :]))


CHANGES: tuple[Change, ...] = (
    _stages, _sinks, _acts, _fates, _settings, _rows, _parts, _columns, _acts
)  # fmt: skip
