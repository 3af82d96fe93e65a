"""Sluice and its peers side by side: wall and CPU seconds, bytes, and whether they agree.

    python -m bench.run [--quick] [--workload a,b] [--engines a,b] [--repetitions N] [--scale 0.01]
                        [--record]

The environment's QUICK, WORKLOAD, ENGINES, REPETITIONS, SCALE and RECORD are the defaults.
Repetitions are interleaved: every engine has its turn before any has its second.  Each run is a
new process, on the same files; see ``bench.protocol`` for what it does, ``bench.workloads`` for
what is measured, and ``bench.forms`` for what ``--quick`` leaves out.  Everything goes to
``bench/results/latest.json``; the exit code is 1 when an engine failed, or did not agree with the
others.  ``--record`` appends the figures to the history of the repository (``bench.history``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from bench.disturbance import DISTURBED_SHARE
from bench.engines.registry import ENGINES
from bench.forms import Form, form_of
from bench.history import HISTORY, CannotRecord, append_history, measured_commit, records_of
from bench.measuring import REPOSITORY, measure
from bench.results import Row
from bench.table import print_table
from bench.workloads import WORKLOADS

CACHE = REPOSITORY / ".sluice" / "bench"
RESULTS = REPOSITORY / "bench" / "results" / "latest.json"


def main() -> int:
    given = _arguments()
    try:
        # Before, not after some hours.
        commit = measured_commit(REPOSITORY) if given.record else ""
    except CannotRecord as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    form = form_of(quick=given.quick, scale=given.scale, repetitions=given.repetitions)
    if form.differs():
        print(f"{form.name} form: {form.differs()}", flush=True)
    rows: list[Row] = []
    started = time.monotonic()

    def is_over() -> bool:
        return form.limit_s is not None and time.monotonic() - started > form.limit_s

    for name in form.in_order(given.workload):
        rows += measure(form.of(WORKLOADS[name]), given.engines, form, given.cache, is_over)
        write_results(rows, form, time.monotonic() - started, given.output)
    print_table(rows, form)
    print(f"\nwritten to {given.output}")
    if given.record:
        records = records_of(rows, form, commit, datetime.now(UTC).date())
        append_history(records, given.history)
        print(f"{len(records)} records appended to {given.history}; commit them")
    return int(any(row.error or row.agrees is False for row in rows))


def write_results(rows: list[Row], form: Form, took_s: float, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "processors": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
    document = {
        "form": form.name,
        "scale": form.scale,
        "repetitions": form.repetitions,
        "differs": form.differs(),
        "took_s": round(took_s, 1),
        "machine": machine,
        "disturbed_share": DISTURBED_SHARE,
        "rows": [row.document() for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    environment = os.environ

    def names(known: Iterable[str]) -> Callable[[str], list[str]]:
        def parsed(text: str) -> list[str]:
            chosen = [name for name in text.replace(",", " ").split() if name] or list(known)
            for name in chosen:
                if name not in known:
                    raise argparse.ArgumentTypeError(f"{name}: choose from {', '.join(known)}")
            return chosen

        return parsed

    parser.add_argument(
        "--workload", type=names(WORKLOADS), default=environment.get("WORKLOAD", "")
    )
    parser.add_argument("--engines", type=names(ENGINES), default=environment.get("ENGINES", ""))
    for flag in ("quick", "record"):
        is_set = environment.get(flag.upper(), "") not in ("", "0")
        parser.add_argument(f"--{flag}", action="store_true", default=is_set)
    # As text, which argparse reads as if it had been typed.
    parser.add_argument("--repetitions", type=int, default=environment.get("REPETITIONS") or None)
    parser.add_argument("--scale", type=float, default=environment.get("SCALE") or None)
    parser.add_argument("--history", type=Path, default=HISTORY)
    parser.add_argument("--cache", type=Path, default=CACHE)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.cache = given.cache.resolve()
    return given


if __name__ == "__main__":
    sys.exit(main())
