"""The acts of a play, drawn: rows arrive, checkpoints are taken, processes die, jobs restore."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.fuzz.plans import Act, Checkpoint, Feed, InputPlan, Plan, Restore, StagePlan


def draw_acts(random: Random, plan: Plan) -> tuple[Act, ...]:
    from tests.fuzz.world import POINTS

    acts: list[Act] = []
    batch = 0
    is_quiet = random.random() < 0.4
    for _ in range(random.choice((1, 2, 2, 3, 3, 4, 6))):
        for source in plan.sources:
            for _ in range(random.choice((0, 1, 1, 1, 2))):
                batch += 1
                count = random.choice((0, 1, 3, 8, 8, 20, 40))
                if source.is_table:
                    count = min(count, 8)
                acts.append(
                    Feed(
                        source=source.uid,
                        batch=batch,
                        rows=tuple(range(count)),
                        partition=random.randrange(2) if source.grows else 0,
                    )
                )
        dies = not is_quiet and random.random() < 0.3
        acts.append(
            Checkpoint(
                fate=random.choice(POINTS) if dies else "",
                at=random.randrange(6) if dies else 0,
            )
        )
        if not is_quiet and random.random() < 0.2:
            parallelism = random.choice((None, 1, 2, 3, 4))
            acts.append(Restore(back=random.choice((0, 0, 1, 2)), parallelism=parallelism))
    if random.random() < 0.5:
        acts.append(Checkpoint(drains=True))
    return tuple(acts)


def unaligned(random: Random, plan: Plan) -> Plan:
    """The plan, of some seeds with unaligned checkpoints; *random* is not that of all else."""
    kind = random.choice(("", "", "start", "timeout"))
    if not kind:
        return plan
    for _ in range(random.choice((0, 1, 1, 2))):
        plan = _farther(random, plan)
    acts = [
        replace(act, overtakes=random.randrange(len(plan.stages) + 1))
        if isinstance(act, Checkpoint) and kind == "timeout"
        else act
        for act in plan.acts
    ]
    return replace(plan, unaligned=kind, acts=tuple(acts))


def _farther(random: Random, plan: Plan) -> Plan:
    """One stage more between a source, or what was put there before, and a reader of it: inputs of
    different depth are what unaligned checkpoints are about.
    """
    columns = {one.uid: one.columns for one in plan.sources if not one.is_table}
    columns |= {one.uid: columns[one.inputs[0].producer] for one in plan.stages if _is_put(one)}
    readers = [
        (place, side)
        for place, stage in enumerate(plan.stages)
        for side, given in enumerate(stage.inputs)
        if given.producer in columns
    ]
    if not readers:
        return plan
    place, side = random.choice(readers)
    reader = plan.stages[place]
    given = reader.inputs[side]
    names = "\n".join(name for name, _ in columns[given.producer])
    number = sum(map(_is_put, plan.stages))
    put = StagePlan(
        uid=f"far{number}",
        op="transform",
        inputs=(InputPlan(producer=given.producer),),
        args={"columns": names},
    )
    inputs = list(reader.inputs)
    inputs[side] = replace(given, producer=put.uid)
    behind = replace(reader, inputs=tuple(inputs))
    return replace(plan, stages=(*plan.stages[:place], put, behind, *plan.stages[place + 1 :]))


def _is_put(stage: StagePlan) -> bool:
    return stage.uid.startswith("far")
