"""The acts of a play, drawn: rows arrive, checkpoints are taken, processes die, jobs restore."""

from __future__ import annotations

from random import Random

from tests.fuzz.plans import Act, Checkpoint, Feed, Plan, Restore


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
