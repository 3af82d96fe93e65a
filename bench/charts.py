"""Charts of the history, as SVG: ``python -m bench.charts [--history FILE] [--output FOLDER]``.

The same history gives the same bytes, so a commit shows what changed.  What was disturbed is not
drawn, and nothing is compared with it; a chart without any record says so.

    bench-ratio.svg    best peer / Sluice in CPU seconds, by row, over the commits
    bench-state.svg    seconds against the size of the state: a small epoch, and a restore
    bench-change.svg   against what an epoch brings: seconds, and the bytes of its checkpoint
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.engines.registry import ENGINES
from bench.history import HISTORY, Record, read_history
from bench.workloads import WORKLOADS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
COLORS = dict(zip(ENGINES, (f"C{number}" for number in range(len(ENGINES))), strict=True))
OWN_MARK, PEER_MARK = "o", "s"

SMALL_EPOCHS = ("small_delta_1m", "small_delta", "small_delta_50m")
RESTORES = ("restore_1m", "restore_5m", "restore_50m")
CHANGES = ("delta_10k", "small_delta", "delta_1m", "keyed_5m_5m")  # All with 5 million keys.


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--output", type=Path, default=IMAGES)
    given = parser.parse_args()
    for path in draw(read_history(given.history), given.output):
        print(path.name)
    return 0


def draw(history: Sequence[Record], folder: Path) -> list[Path]:
    """Write every chart into *folder*; the paths of the files."""
    import matplotlib as mpl

    mpl.use("svg")
    folder.mkdir(parents=True, exist_ok=True)
    charts: dict[str, Callable[[Sequence[Record]], Figure]] = {
        "bench-ratio.svg": _ratio_chart,
        "bench-state.svg": _state_chart,
        "bench-change.svg": _change_chart,
    }
    with mpl.rc_context(
        {
            "svg.hashsalt": "sluice",  # Ids of clips are random otherwise.
            "svg.fonttype": "none",  # Text stays text: small, and it can be searched.
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "legend.fontsize": 8,
            "legend.frameon": False,
        }
    ):
        for name, chart in charts.items():
            figure = chart(history)
            # Neither the time nor the library's version is in the file.
            figure.savefig(folder / name, metadata={"Date": None, "Creator": None})
    return [folder / name for name in charts]


def comparable(history: Iterable[Record]) -> list[Record]:
    """The records of the full form, at its own scale."""
    return [one for one in history if one.form == "full" and one.scale == 1]


def ratios(history: Iterable[Record], engine: str) -> dict[str, dict[str, float]]:
    """By row and commit, the CPU seconds of the best exactly-once peer over those of *engine*.

    Where *engine* or a peer was disturbed, or one of them is missing, there is none.  Of a commit
    that was measured more than once the last figures count.
    """
    newest = {(one.row, one.commit, one.engine): one for one in comparable(history)}
    found: dict[str, dict[str, float]] = {}
    for row, commit in dict.fromkeys((row, commit) for row, commit, _ in newest):
        own = newest.get((row, commit, engine))
        peers = [
            one
            for name, entry in ENGINES.items()
            if entry.role == "peer" and (one := newest.get((row, commit, name))) is not None
        ]
        if own is None or not peers or any(one.disturbed for one in (own, *peers)):
            continue
        best = min(one.cpu_median_s for one in peers)
        found.setdefault(row, {})[commit] = best / own.cpu_median_s
    return found


def latest(history: Iterable[Record], rows: Sequence[str]) -> dict[str, dict[str, Record]]:
    """By engine and row, the last undisturbed record of the full form."""
    found: dict[str, dict[str, Record]] = {}
    for one in comparable(history):
        if one.row in rows and not one.disturbed:
            found.setdefault(one.engine, {})[one.row] = one
    return {name: found[name] for name in ENGINES if name in found}


def _ratio_chart(history: Sequence[Record]) -> Figure:
    figure, sides = _two("Best exactly-once peer / Sluice, CPU seconds: above 1 Sluice needs less")
    engines = (("sluice", "as a DAG's task runs it"), ("sluice_run", "sluice run"))
    dates = {one.commit: one.date for one in history}
    for side, (engine, title) in zip(sides, engines, strict=True):
        found = ratios(history, engine)
        commits = list(dict.fromkeys(one.commit for one in comparable(history)))
        side.set_title(title, fontsize=10)
        if not found:
            _say_empty(side)
            continue
        for number, row in enumerate(name for name in WORKLOADS if name in found):
            places = [commits.index(commit) for commit in found[row]]
            mark = "os^vD<>pX*hPd"[number % 13]
            side.plot(places, list(found[row].values()), f"{mark}-", color=f"C{number}", label=row)
        side.axhline(1, color="black", linewidth=0.8)
        side.set(yscale="log")
        _say_numbers(side.yaxis)
        side.set_xticks(
            range(len(commits)), [f"{commit[:7]}\n{dates[commit]}" for commit in commits]
        )
        side.set_xlim(-0.5, len(commits) - 0.5)
        side.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _state_chart(history: Sequence[Record]) -> Figure:
    figure, (epoch, restore) = _two("Cost against the size of the state")
    _plot_seconds(epoch, latest(history, SMALL_EPOCHS), lambda row: WORKLOADS[row].keys)
    _plot_seconds(restore, latest(history, RESTORES), lambda row: WORKLOADS[row].keys)
    epoch.set_title("an epoch of 100,000 events", fontsize=10)
    restore.set_title("a restore, to the first output", fontsize=10)
    for side in (epoch, restore):
        side.set_xlabel("keys in the state")
    return figure


def _change_chart(history: Sequence[Record]) -> Figure:
    figure, (seconds, written) = _two("Cost against the change")
    _plot_seconds(seconds, latest(history, CHANGES), lambda row: WORKLOADS[row].events_per_epoch)
    seconds.set_title("a state of 5 million keys", fontsize=10)
    seconds.set_xlabel("events of the epoch")
    written.set_title("bytes of a checkpoint, all keyed rows", fontsize=10)
    _plot_bytes(written, latest(history, [name for name in WORKLOADS if WORKLOADS[name].keys]))
    return figure


def _plot_seconds(
    side: Axes, found: dict[str, dict[str, Record]], size_of: Callable[[str], int]
) -> None:
    if not found:
        _say_empty(side)
        return
    for engine, by_row in found.items():
        points = sorted((size_of(row), one.wall_median_s) for row, one in by_row.items())
        sizes, seconds = zip(*points, strict=True)
        side.plot(sizes, seconds, f"{_mark(engine)}-", color=COLORS[engine], label=engine)
    side.set(xscale="log", yscale="log")
    _say_numbers(side.xaxis)
    _say_numbers(side.yaxis)
    side.set_ylabel("wall seconds, median")
    side.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _plot_bytes(side: Axes, found: dict[str, dict[str, Record]]) -> None:
    known = {
        engine: [
            (one.bytes_changed, one.bytes_written)
            for one in by_row.values()
            if one.bytes_changed and one.bytes_written
        ]
        for engine, by_row in found.items()
    }
    known = {engine: points for engine, points in known.items() if points}
    if not known:
        _say_empty(side)
        return
    for engine, points in known.items():
        changed, written = zip(*points, strict=True)
        side.plot(changed, written, _mark(engine), color=COLORS[engine], label=engine)
    least = sorted(changed for points in known.values() for changed, _ in points)
    ends = [least[0], least[-1]]
    side.plot(ends, ends, "-", color="black", linewidth=0.8, label="what changed")
    side.set(xscale="log", yscale="log")
    _say_numbers(side.xaxis)
    _say_numbers(side.yaxis)
    side.set_xlabel("bytes changed")
    side.set_ylabel("bytes written")
    side.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def _two(title: str) -> tuple[Figure, tuple[Axes, Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=11)
    return figure, (left, right)


def _say_numbers(axis: Axis) -> None:
    """Ticks of a logarithmic scale as numbers, not as powers: 0.5, 20, 5M."""
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    large = EngFormatter(sep="")
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: large(value) if value >= 1_000 else f"{value:g}")
    )
    axis.set_minor_formatter(NullFormatter())


def _say_empty(side: Axes) -> None:
    side.set_axis_off()
    side.text(0.5, 0.5, "nothing recorded yet", ha="center", transform=side.transAxes)


def _mark(engine: str) -> str:
    return OWN_MARK if ENGINES[engine].role == "ours" else PEER_MARK


if __name__ == "__main__":
    sys.exit(main())
