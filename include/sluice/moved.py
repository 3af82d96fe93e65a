"""Earlier names of the modules that declarations import: each is the module of today.

Pipelines that were written before the modules moved still load, with a DeprecationWarning.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_DECLARATION = ("aggregates", "config", "hooks", "keyed_process", "params", "pipeline", "schedules")
_PLACES = ("files", "iceberg", "kafka", "postgres")
MODULES = (
    {
        f"sluice.{name}": f"sluice.declaration.{name}"
        for name in (*_DECLARATION, "streams", "windows")
    }
    | {f"sluice.sources.{one}": f"sluice.connectors.{one}.declared_source" for one in _PLACES}
    | {"sluice.sources.nexmark": "sluice.connectors.nexmark.declared_source"}
    | {f"sluice.sinks.{one}": f"sluice.connectors.{one}.declared_sink" for one in _PLACES}
    | {"sluice.sinks.files": "sluice.connectors.files_table.declared_sink"}
    | {
        "sluice.sources.spec": "sluice.declaration.source_spec",
        "sluice.sinks.spec": "sluice.declaration.sink_spec",
    }
)


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the finder's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def create_module(self, spec: ModuleSpec) -> None:
        """The import system's own, which ``exec_module`` puts aside."""

    def exec_module(self, module: ModuleType) -> None:
        now = MODULES[module.__name__]
        warnings.warn(
            f"{module.__name__} has moved to {now}; import from sluice, sluice.sources or "
            "sluice.sinks",
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[module.__name__] = import_module(now)


def install() -> None:
    """Find modules by their earlier names, once per process."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
