"""Finds declared pipelines: every ``Pipeline`` at module level in the package ``pipelines``.

A module that is broken takes no other one away: its problem is kept beside what could be loaded.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.errors import ConfigurationError
from sluice.pipeline import Pipeline

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """``pipelines`` by uid, in uid order; ``problems`` by module, in words, of those that are not
    among them.
    """

    pipelines: Mapping[str, Pipeline]
    problems: Mapping[str, str]


def load_declarations() -> Declarations:
    """What can be loaded, and what cannot.

    Of two modules that declare one uid neither counts: nobody knows whose the state is.
    """
    problems: dict[str, str] = {}
    found: dict[str, list[tuple[str, Pipeline]]] = {}
    for name in _module_names(problems):
        for pipeline in _pipelines_of(name, problems):
            known = found.setdefault(pipeline.uid, [])
            if all(pipeline is not other for _, other in known):
                known.append((name, pipeline))
    for uid, declared in found.items():
        if len(declared) > 1:
            names = [name for name, _ in declared]
            problem = (
                f"pipeline {uid!r} is declared in {' and in '.join(map(_file, names))}; "
                "give one of them another uid"
            )
            for name in dict.fromkeys(names):
                said = problems.get(_file(name))
                problems[_file(name)] = f"{said}; {problem}" if said else problem
    healthy = {uid: declared[0][1] for uid, declared in found.items() if len(declared) == 1}
    return Declarations(
        pipelines={uid: healthy[uid] for uid in sorted(healthy)},
        problems={name: problems[name] for name in sorted(problems)},
    )


def load_pipelines() -> Mapping[str, Pipeline]:
    """The pipelines that can be loaded, by uid, in uid order; of the others the log tells."""
    declarations = load_declarations()
    for name, problem in declarations.problems.items():
        log.warning("pipelines not loaded module=%s: %s", name, problem)
    return declarations.pipelines


def load_pipeline(uid: str) -> Pipeline:
    """The pipeline *uid*, whatever is wrong with others.

    Raises:
        ConfigurationError: there is none; the message lists what there is, and what is broken.
    """
    declarations = load_declarations()
    if uid in declarations.pipelines:
        return declarations.pipelines[uid]
    for name, said in declarations.problems.items():
        if name == _file(uid) or f"pipeline {uid!r}" in said:
            raise ConfigurationError(f"pipeline {uid!r} cannot be loaded: {name}, {said}")
    broken = "".join(f"; {name}: {said}" for name, said in declarations.problems.items())
    raise ConfigurationError(
        f"there is no pipeline {uid!r}; declared are "
        f"{', '.join(declarations.pipelines) or 'none'}{broken}"
    )


def _module_names(problems: dict[str, str]) -> list[str]:
    try:
        package = importlib.import_module("pipelines")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        problems["pipelines/__init__.py"] = _said(error)
        return []
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def _pipelines_of(name: str, problems: dict[str, str]) -> list[Pipeline]:
    try:
        module = importlib.import_module(f"pipelines.{name}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        problems[_file(name)] = _said(error)
        return []
    return [value for value in vars(module).values() if isinstance(value, Pipeline)]


def _file(name: str) -> str:
    return f"pipelines/{name}.py"


def _said(error: BaseException) -> str:
    """One line, with the line of the declaration where it went wrong."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    line = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").startswith("pipelines"):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f"line {line}: "
    kind = "" if isinstance(error, ConfigurationError) else f"{type(error).__name__}: "
    return f"{where}{kind}{error}"
