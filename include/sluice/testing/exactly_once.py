"""A test that a pipeline's tables depend neither on cuts into epochs nor on failures."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import TYPE_CHECKING

from sluice.core.key_groups import default_max_parallelism
from sluice.declaration.pipeline import Pipeline
from sluice.testing.comparing import difference, left_by
from sluice.testing.local import INTERVAL, PARALLELISM, START, Clock, names_of, prepared
from sluice.testing.result import LocalRun
from sluice.testing.rows import Rows, SourceRows, cut_at
from sluice.testing.script import Happening, Kill, Restore
from sluice.testing.stand_ins import local_params

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each costs a Spark job per stage and epoch; another run of the test draws other ones.
MOST_EPOCHS = 4
MOST_PARALLELISM = 4
LARGEST_SEED = 10**9


@dataclass(frozen=True, slots=True)
class Play:
    """A run's cuts, parallelism, kills and restores, which are drawn from a seed."""

    seed: int
    bounds: Mapping[str, tuple[int, ...]]  # By source: the numbers of the rows that begin an epoch.
    parallelism: int
    script: tuple[Happening, ...]

    def __str__(self) -> str:
        cuts = ", ".join(f"{uid} cut at rows {list(at)}" for uid, at in self.bounds.items())
        script = ", ".join(map(str, self.script)) or "nothing else"
        return (
            f"seed={self.seed}: {cuts or 'cut as given'}; parallelism {self.parallelism}; {script}"
        )


def assert_exactly_once(
    pipeline: Pipeline,
    rows: Mapping[str, Rows],
    *,
    seed: int | None = None,
    plays: int = 1,
    params: Mapping[str, object] | None = None,
    bounded: bool | Collection[str] = True,
    spark: SparkSession | None = None,
) -> None:
    """Fail unless *pipeline*'s tables are the same under all cuts, kills and restores.

    One run is undisturbed.  Each of *plays* others draws from its seed where the rows are cut into
    epochs, if they are given in one piece, how many subtasks the stages have, an attempt that is
    killed and a restore with another parallelism.  Then every sink's table is compared, and every
    side output: as sets of rows, a changelog after it is applied, floats up to a billionth.

    Rows that are given by epoch keep their epochs, for pipelines whose result depends on them, as
    the epoch decides which rows are late.

    Without *seed* one is drawn; the failure names it.  *params* and *bounded* are ``run_local``'s.

    Raises:
        AssertionError: a table differs; the message names it, a few rows, and the play.
        ConfigurationError, StageFailed: see ``run_local``.
    """
    first = SystemRandom().randrange(LARGEST_SEED) if seed is None else seed
    given = local_params(pipeline, params or {})
    with prepared(pipeline, rows, given, names_of(pipeline, bounded), spark) as ready:
        every = pipeline.checkpointing.interval or INTERVAL

        def run(play: Play) -> LocalRun:
            chunks = {
                uid: cut_at(one, play.bounds[uid]) if uid in play.bounds else one
                for uid, one in ready.rows.items()
            }
            return ready.run(
                chunks, play.script, play.parallelism, Clock(START, every), time.monotonic()
            )

        undisturbed = run(Play(first, {}, PARALLELISM, ()))
        for number in range(first, first + plays):
            play = drawn(pipeline, ready.rows, number)
            wrong = _difference(pipeline, undisturbed, run(play))
            assert wrong is None, f"{wrong}\n{play}"


def drawn(pipeline: Pipeline, rows: Mapping[str, SourceRows], seed: int) -> Play:
    random = Random(seed)  # noqa: S311 - nothing secret
    epochs = random.randint(2, MOST_EPOCHS)
    bounds = {
        uid: tuple(sorted(random.randint(0, one.chunks[0].num_rows) for _ in range(epochs - 1)))
        for uid, one in rows.items()
        if not one.is_cut and not pipeline.sources[uid].is_table
    }
    cut = [len(one.chunks) for uid, one in rows.items() if not pipeline.sources[uid].is_table]
    last = max([*cut, epochs] if bounds else cut)
    most = min(MOST_PARALLELISM, pipeline.max_parallelism or default_max_parallelism(PARALLELISM))
    script: list[Happening] = [
        Kill(stage=random.choice([*pipeline.stages]), epoch=random.randint(1, last))
    ]
    if last > 1:
        after = random.randint(1, last - 1)
        script.append(
            Restore(
                to_epoch=random.randint(1, after),
                after_epoch=after,
                parallelism=random.randint(1, most),
            )
        )
    return Play(seed, bounds, random.randint(1, most), tuple(script))


def _difference(pipeline: Pipeline, expected: LocalRun, got: LocalRun) -> str | None:
    for uid, node in pipeline.sinks.items():
        wanted, found = expected.table(uid), got.table(uid)
        if node.spec.changelog:
            wanted, found = left_by(wanted), left_by(found)
        wrong = difference(wanted, found)
        if wrong is not None:
            return f"the table of sink {uid!r} depends on what happened: {wrong}"
    for uid in expected.side_outputs:
        wrong = difference(expected.side_output(uid), got.side_output(uid))
        if wrong is not None:
            return (
                f"the side output {uid!r} depends on what happened: {wrong}\nrows are late or not "
                "by the epoch in which they come; give rows by epoch, or a larger out_of_orderness"
            )
    return None
