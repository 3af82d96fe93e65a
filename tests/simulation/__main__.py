"""``python -m tests.simulation SEEDS`` plays seeds, and exits with 1 when one fails.

SEEDS                    how many to play; --from N begins at another than 0
--seed N [--keep A,B]    one seed, or what is kept of it, with its history
--mutations [NAME...]    plants faults in the core, and says what catches each
--mutation NAME --seed N explains how a planted fault is caught
"""

from __future__ import annotations

import argparse
import sys

from tests.simulation.mutations import MUTATIONS, hunt_all, remember, table
from tests.simulation.seeds import explain, play_seeds, replay

DEFAULT_SEEDS = 10_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("seeds", nargs="?", type=int, default=DEFAULT_SEEDS, metavar="SEEDS")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    parser.add_argument("--processes", type=int, metavar="N")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument("--keep", default="", metavar="A,B")
    parser.add_argument("--mutation", choices=[*MUTATIONS], metavar="NAME")
    parser.add_argument("--mutations", nargs="*", metavar="NAME")
    given = parser.parse_args(arguments)
    if given.mutations is not None:
        hunted = hunt_all(given.mutations)
        say(table(hunted))
        remember(hunted)
        return int(any(caught is None for caught in hunted.values()))
    if given.seed is not None:
        return _one(given)
    played = play_seeds(range(given.first, given.first + given.seeds), given.processes)
    if played.failed is not None:
        say(explain(played.failed))
    say(str(played))
    return int(played.failed is not None)


def say(text: str) -> None:
    print(text)  # noqa: T201 - this is a command


def _one(given: argparse.Namespace) -> int:
    plant = MUTATIONS[given.mutation].plant if given.mutation else None
    history, fails = replay(given.seed, given.keep.split(",") if given.keep else [], plant)
    if fails and not given.keep:
        history = explain(given.seed, plant, f" --mutation {given.mutation}" if plant else "")
    say(history)
    return int(fails)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
