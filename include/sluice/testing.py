"""Local runs of a pipeline over given rows, for unit tests and notebooks.

    result = run_local(pipeline, {"orders": [{"id": 1, "price": 7}]})
    assert result.table("totals").to_dicts() == [{"id": 1, "total": 7}]

The coordinator and the stages are the real ones; only the places are replaced: sources have the
given rows, with the declared columns and event time, and sinks are tables of the result.  See the
page "Testing a pipeline" of the documentation.
"""

from sluice.local.exactly_once import assert_exactly_once
from sluice.local.run_local import Kill, LocalEpoch, LocalRun, Restore, run_local

__all__ = ["Kill", "LocalEpoch", "LocalRun", "Restore", "assert_exactly_once", "run_local"]
