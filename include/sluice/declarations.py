"""Finds declared pipelines: every ``Pipeline`` at module level in the package ``pipelines``."""

from __future__ import annotations

import importlib
import pkgutil

from sluice.errors import ConfigurationError
from sluice.pipeline import Pipeline


def load_pipelines() -> dict[str, Pipeline]:
    """All pipelines by uid, in uid order.

    Raises:
        ConfigurationError: two modules declare the same uid, or one cannot be imported.
    """
    import pipelines

    found: dict[str, tuple[str, Pipeline]] = {}
    for module_info in sorted(pkgutil.iter_modules(pipelines.__path__), key=lambda m: m.name):
        module = importlib.import_module(f"pipelines.{module_info.name}")
        for value in vars(module).values():
            if not isinstance(value, Pipeline):
                continue
            first_module, first = found.setdefault(value.uid, (module_info.name, value))
            if first is not value:
                raise ConfigurationError(
                    f"pipeline {value.uid!r} is declared in pipelines/{first_module}.py and in "
                    f"pipelines/{module_info.name}.py; give one of them another uid"
                )
    return {uid: found[uid][1] for uid in sorted(found)}


def load_pipeline(uid: str) -> Pipeline:
    """The pipeline *uid*; raises ConfigurationError that lists what there is."""
    known = load_pipelines()
    if uid not in known:
        raise ConfigurationError(
            f"there is no pipeline {uid!r}; declared are {', '.join(known) or 'none'}"
        )
    return known[uid]
