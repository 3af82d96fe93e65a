"""Local runs of a pipeline over given rows, for unit tests and notebooks.

    result = run_local(pipeline, {"orders": [{"id": 1, "price": 7}]})
    assert result.table("totals").to_dicts() == [{"id": 1, "total": 7}]

The coordinator and the stages are the real ones; only places outside are replaced: sources have the
given rows, with the declared columns and event time, and sinks are tables of the result.  The page
"Testing a pipeline" of the documentation describes it.
"""

from sluice.testing.exactly_once import assert_exactly_once
from sluice.testing.local import run_local
from sluice.testing.result import LocalEpoch, LocalRun
from sluice.testing.script import Kill, Restore

__all__ = ["Kill", "LocalEpoch", "LocalRun", "Restore", "assert_exactly_once", "run_local"]
