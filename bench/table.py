"""The table of a run, for people.

A ratio is a row's median over that of the best exactly-once peer.  If either of them is disturbed
there is none: the other processes would be measured with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.disturbance import DISTURBED_SHARE
from bench.engines.registry import ENGINES
from bench.forms import Form
from bench.results import Row


def print_table(rows: Sequence[Row], form: Form) -> None:
    from rich.console import Console
    from rich.table import Table

    title = "minimum / median over repetitions; ratios to the best exactly-once peer"
    if form.differs():
        title = f"{form.name.upper()}, {form.scale:g} of the size: {title}"
    table = Table(title=title)
    for heading in ("workload", "engine"):
        table.add_column(heading, no_wrap=True)
    headings = ("wall s", "CPU s", "events/s", "events/CPU s", "MB up", "MB changed", "agrees")
    for heading in (*headings, "wall ratio", "CPU ratio"):
        table.add_column(heading, justify="right")
    for row in rows:
        wall, cpu = row.wall_s(), row.cpu_s()
        if wall is None or cpu is None:
            table.add_row(row.workload, row.engine, "failed" if row.error else "")
            continue
        peers = [one for one in rows if one.workload == row.workload and one.samples]
        peers = [one for one in peers if ENGINES[one.engine].role == "peer"]
        table.add_row(
            row.workload,
            f"{row.engine} *" if row.is_disturbed else row.engine,
            f"{wall[0]:.2f} / {wall[1]:.2f}",
            f"{cpu[0]:.2f} / {cpu[1]:.2f}",
            f"{row.events / wall[1]:,.0f}",
            f"{row.events / max(cpu[1], 1e-9):,.0f}",
            _megabytes(row.bytes_uploaded()),
            _megabytes(row.bytes_changed),
            {None: "", True: "yes", False: "[red]NO"}[row.agrees],
            *_ratios(row, peers),
        )
    console = Console(width=160)
    console.print(table)
    if form.differs():
        console.print(f"{form.name} form: {form.differs()}")
    if any(row.is_disturbed for row in rows):
        console.print(
            "* disturbed: in each of its samples, repeated ones too, other processes had more"
            f" than {DISTURBED_SHARE:.0%} of the machine.  Nothing is compared with it; measure it"
            " anew when nothing else runs."
        )
    reasons = dict.fromkeys(
        (row.engine, row.workload if row.error or row.workload in row.refused else "", why)
        for row in rows
        if (why := row.error or row.refused)
    )
    for engine, workload, why in reasons:
        console.print(f"{engine} {workload}: {why}", markup=False)


def _ratios(row: Row, peers: Sequence[Row]) -> tuple[str, str]:
    if not peers:
        return "", ""
    # Also a peer that is not the best: undisturbed, it might be.
    if row.is_disturbed or any(peer.is_disturbed for peer in peers):
        return "disturbed", "disturbed"
    wall, cpu = row.wall_s(), row.cpu_s()
    assert wall is not None
    assert cpu is not None
    return (
        _ratio(wall[1], [peer.wall_s() for peer in peers]),
        _ratio(cpu[1], [peer.cpu_s() for peer in peers]),
    )


def _megabytes(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 1e6:.1f}"


def _ratio(own: float, of_peers: Sequence[tuple[float, float] | None]) -> str:
    medians = [both[1] for both in of_peers if both is not None]
    return f"{own / max(min(medians), 1e-9):.2f}" if medians else ""
