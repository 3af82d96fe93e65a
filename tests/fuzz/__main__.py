"""``python -m tests.fuzz PLANS`` plays random plans, and exits with 1 when one fails.

PLANS                    how many to play; --from N begins at another seed than 0
--processes N            how many at once; by default one for each processor
--keep-going             does not end at the first that fails
--seed N                 one plan, shrunk if it fails
--plan FILE              a plan as it was printed, played again
--show N                 prints the plan of a seed, and plays nothing
--refusals N             as many mistakes, each of which is to be refused by name
--spark N                as many on a real Spark, through its JVM and past it
--mutations [NAME...]    plants faults in the product, and says how many plans see each; --write
                         writes it to planted.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.seeds import check_refusals, play_seeds

DEFAULT_PLANS = 2_500  # 0.5 s of a processor each.


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("plans", nargs="?", type=int, default=DEFAULT_PLANS, metavar="PLANS")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    parser.add_argument("--processes", type=int, metavar="N")
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--plan", type=Path, metavar="FILE")
    parser.add_argument("--show", type=int, metavar="N")
    parser.add_argument("--refusals", type=int, metavar="N")
    parser.add_argument("--spark", type=int, metavar="N")
    parser.add_argument("--mutations", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    if given.mutations is not None:
        from tests.fuzz.mutations import PAGE, hunt_all, page

        hunted = hunt_all(given.mutations, given.processes, _progress)
        say(page(hunted))
        if given.write:
            PAGE.write_text(page(hunted, PAGE.read_text()))
        return int(any(caught is None for caught in hunted.values()))
    if given.spark is not None:
        return _on_spark(range(given.first, given.first + given.spark))
    if given.refusals is not None:
        missed = check_refusals(range(given.refusals), given.processes)
        say("\n".join([*missed, f"fuzz: {given.refusals} mistakes, {len(missed)} not refused"]))
        return int(bool(missed))
    if given.seed is not None or given.plan is not None or given.show is not None:
        return _one(given)
    seeds = range(given.first, given.first + given.plans)
    played = play_seeds(seeds, given.processes, keep_going=given.keep_going, report=_progress)
    say("")
    if played.failed and not given.keep_going:
        from tests.fuzz.shrink import explain

        say(explain(min(played.failed)))
    for seed, message in sorted(played.failed.items()):
        say(f"seed {seed}: {message}")
    say(str(played))
    return int(bool(played.failed))


def say(text: str) -> None:
    print(text)  # noqa: T201 - this is a command


def _progress(text: str) -> None:
    end = "\r" if sys.stderr.isatty() else "\n"
    print(text, end=end, file=sys.stderr, flush=True)  # noqa: T201 - this is a command


def _one(given: argparse.Namespace) -> int:
    from tests.fuzz.drawing import draw
    from tests.fuzz.plans import from_json, to_json
    from tests.fuzz.play import play, playing
    from tests.fuzz.seeds import quiet
    from tests.fuzz.shrink import explain

    if given.show is not None:
        say(to_json(draw(given.show)))
        return 0
    quiet()
    if given.plan is not None:
        with playing():
            failure = play(from_json(given.plan.read_text()))
        say("every sink holds what it must" if failure is None else failure.message)
        return int(failure is not None)
    with playing():
        failure = play(draw(given.seed))
    say(explain(given.seed) if failure is not None else f"seed {given.seed}: every sink is right")
    return int(failure is not None)


def _on_spark(seeds: range) -> int:
    from sluice.spark.session import local_session
    from tests.fuzz.on_spark import play_on_spark, spark_plan
    from tests.fuzz.plans import to_json
    from tests.fuzz.seeds import quiet

    quiet()
    failed = 0
    with local_session(cores=2, driver_memory="2g") as spark:
        for seed in seeds:
            plan = spark_plan(seed)
            failure = play_on_spark(plan, spark)
            if failure is not None:
                failed += 1
                say(f"seed {seed}, on Spark: {failure.message}\n{to_json(plan)}")
    say(f"fuzz on Spark: {len(seeds)} plans, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
