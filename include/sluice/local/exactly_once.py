"""A test that a pipeline's tables depend neither on cuts into epochs nor on failures.

One undisturbed run is compared with others, whose cuts, kills and restores are drawn from a seed.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random, SystemRandom
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl

from sluice.core.key_groups import default_max_parallelism
from sluice.declaration.arguments import NumberLimits, checked_arguments
from sluice.declaration.changelog import ROW_KIND, RowKind
from sluice.declaration.pipeline import Pipeline
from sluice.local.given import Rows, RowsByEpoch, cut_at, local_params
from sluice.local.run_local import (
    INTERVAL,
    PARALLELISM,
    START,
    Clock,
    Happening,
    Kill,
    LocalRun,
    Restore,
    bounded_sources,
    prepared_pipeline,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# An epoch costs a Spark job per stage; another run of the test draws other numbers.
MOST_EPOCHS = 4

MOST_PARALLELISM = 4
LARGEST_SEED = 10**9
SHOWN_ROWS = 3
TOLERANCE = 1e-9  # The last digits of a float depend on the order of additions.


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


@checked_arguments
def assert_exactly_once(
    pipeline: Pipeline,
    rows: Mapping[str, Rows],
    *,
    seed: int | None = None,
    plays: Annotated[int, NumberLimits(1)] = 1,
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
    with prepared_pipeline(
        pipeline, rows, given, bounded_sources(pipeline, bounded), spark
    ) as ready:
        every = pipeline.checkpointing.interval or INTERVAL

        def run(play: Play) -> LocalRun:
            chunks = {
                uid: cut_at(whole, play.bounds[uid]) if uid in play.bounds else whole
                for uid, whole in ready.rows.items()
            }
            return ready.run(
                chunks, play.script, play.parallelism, Clock(START, every), time.monotonic()
            )

        undisturbed = run(Play(first, {}, PARALLELISM, ()))
        for number in range(first, first + plays):
            play = drawn(pipeline, ready.rows, number)
            wrong = _difference(pipeline, undisturbed, run(play))
            assert wrong is None, f"{wrong}\n{play}"


def drawn(pipeline: Pipeline, rows: Mapping[str, RowsByEpoch], seed: int) -> Play:
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
            wanted, found = applied_changelog(wanted), applied_changelog(found)
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


def applied_changelog(changelog: pl.DataFrame) -> pl.DataFrame:
    """The rows that remain after a changelog is applied.

    A row that is taken back without having been added stays, with False in place of its kind.
    """
    rows = _plain_rows(changelog.drop(ROW_KIND))
    added = {RowKind.INSERT.value, RowKind.UPDATE_AFTER.value}
    weights: Counter[tuple[Any, ...]] = Counter()
    place: dict[tuple[Any, ...], int] = {}
    kinds = changelog[ROW_KIND].to_list()
    for index, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
        weights[row] += 1 if kind in added else -1
        place.setdefault(row, index)
    left = [place[row] for row, weight in weights.items() for _ in range(abs(weight))]
    return changelog[left].with_columns(
        pl.Series(ROW_KIND, [weights[rows[index]] > 0 for index in left], pl.Boolean())
    )


def difference(expected: pl.DataFrame, got: pl.DataFrame) -> str | None:
    """The difference in words; None if the frames are equal."""
    if not expected.height and not got.height:
        return None
    if sorted(expected.columns) != sorted(got.columns):
        return f"it has the columns {got.columns} where undisturbed it has {expected.columns}"
    wanted, found = (
        Counter(_plain_rows(frame)) for frame in (expected, got.select(expected.columns))
    )
    missing, extra = _unmatched(
        list((wanted - found).elements()), list((found - wanted).elements())
    )
    if not missing and not extra:
        return None
    lines = [f"{len(missing)} rows are missing, {len(extra)} too many"]
    for sign, rows in (("-", missing), ("+", extra)):
        named = (dict(zip(expected.columns, row, strict=True)) for row in rows[:SHOWN_ROWS])
        lines += [f"    {sign} {row}" for row in named]
    return "\n".join(lines)


def _plain_rows(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(map(_plain, row)) for row in frame.rows()]


def _unmatched(
    missing: list[tuple[Any, ...]], extra: list[tuple[Any, ...]]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows that remain after pairing those that differ only in the last digits of floats."""
    left = []
    for row in missing:
        twin = next((other for other in extra if _is_near(row, other)), None)
        if twin is None:
            left.append(row)
        else:
            extra.remove(twin)
    return left, extra


def _is_near(one: Any, other: Any) -> bool:  # noqa: ANN401 - values of a row
    match one, other:
        case float(), float():
            return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        case tuple(), tuple():
            return len(one) == len(other) and all(map(_is_near, one, other))
        case _:
            return bool(one == other)


def _plain(value: Any) -> Any:  # noqa: ANN401 - a row's
    """*value* in a form that compares and hashes: NaN equals NaN, and -0.0 equals 0.0."""
    match value:
        case float():
            return "NaN" if math.isnan(value) else value + 0.0
        case list():
            return tuple(map(_plain, value))
        case dict():
            return tuple((name, _plain(one)) for name, one in value.items())
        case _:
            return value
