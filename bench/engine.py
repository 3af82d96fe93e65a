"""One engine, one workload, in a process of its own.

python -m bench.engine REQUEST.json REPORT.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.cpu import adopt_orphans
from bench.engines.registry import engine_of
from bench.protocol import read_request, write_report


def main() -> int:
    request_path, report_path = map(Path, sys.argv[1:])
    adopt_orphans()
    request = read_request(request_path)
    report = engine_of(request.engine).run(request)
    write_report(report, report_path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
