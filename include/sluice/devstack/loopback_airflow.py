"""``python -m sluice.devstack.loopback_airflow scheduler``: ``airflow scheduler`` on loopback.

Airflow's log servers listen on every interface, and no option of Airflow says otherwise.
"""

from __future__ import annotations

import runpy
from typing import Any

import uvicorn

from sluice.devstack.ports import LOOPBACK


def main() -> None:
    run = uvicorn.run

    def on_loopback(app: Any, *, host: str = "", **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        run(app, host=host or LOOPBACK, **options)

    vars(uvicorn)["run"] = on_loopback  # Airflow calls it by this name, in a fork of this process.
    runpy.run_module("airflow", run_name="__main__")


if __name__ == "__main__":
    main()
