"""``python -m tests.soak [--seconds 3600] [--every 110] [--rests 0.3] [--seed 7]``: ``make soak``.

What became of it is in ``.sluice/soak``: ``soak.json`` with each sample, and ``soak.svg``, which
draws memory, descriptors, files, the journal, and requests and length of an epoch over the hour,
with a line for each kill.  The exit code is 1 when rows are wrong, or something has grown that has
an owner.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.soak.play import Soak, Soaked

FOLDER = Path(__file__).resolve().parents[2] / ".sluice" / "soak"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--every", type=float, default=110, help="seconds between two kills")
    parser.add_argument("--rests", type=float, default=0.3, help="seconds between two files")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:  # In no other project.
        project = Path(folder) / "soak"
        found = Soak(
            project,
            seconds=given.seconds,
            every_s=given.every,
            rests_s=given.rests,
            epochs=40,
            seed=given.seed,
        ).play()
    (FOLDER / "soak.json").write_text(json.dumps(asdict(found), indent=1))
    draw(found, FOLDER / "soak.svg")
    for at_s, what in found.events:
        print(f"{at_s:8.0f} s  {what}")
    print(f"{len(found.epochs)} checkpoints; rows: {found.rows}; drawn in {FOLDER / 'soak.svg'}")
    for problem in found.problems:
        print(f"problem: {problem}", file=sys.stderr)
    return int(bool(found.problems))


def draw(found: Soaked, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib.figure import Figure

    times = [one.at_s / 60 for one in found.samples]
    figure = Figure(figsize=(10, 12), layout="constrained")
    sides = figure.subplots(6, 1, sharex=True)
    drawn = (
        ("memory, MB", [one.memory_mb for one in found.samples]),
        ("descriptors", [one.descriptors for one in found.samples]),
        ("files of the root", [one.files for one in found.samples]),
        ("entries of the journal", [one.journal for one in found.samples]),
    )
    for side, (title, values) in zip(sides, drawn, strict=False):
        side.plot(times, values, linewidth=1)
        side.set_ylabel(title)
    if found.epochs:
        moments = [at_s / 60 for at_s, _ in found.epochs]
        counted = [at_s / 60 for at_s, _ in found.requests]
        sides[-2].plot(counted, [asked for _, asked in found.requests], ".", markersize=3)
        sides[-1].plot(moments, [took_s for _, took_s in found.epochs], ".", markersize=3)
    sides[-2].set_ylabel("requests of its subtasks")
    sides[-1].set_ylabel("seconds of a checkpoint")
    sides[-1].set_xlabel("minutes")
    for side in sides:
        side.set_ylim(bottom=0)
        for at_s, what in found.events:
            if what.startswith("kill"):
                side.axvline(at_s / 60, color="red", linewidth=0.4)
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
