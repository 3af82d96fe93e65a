"""Finds declared pipelines: every ``Pipeline`` at module level in the project's package of them.

A module that is broken takes no other one away: its problem is kept beside what could be loaded.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sluice.declaration.pipeline import Pipeline
from sluice.declaration.project import PipelinesPackage, find_pipelines
from sluice.errors import ConfigurationError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """``pipelines`` by uid, in uid order; ``problems`` by module, in words, of those that are not
    among them.
    """

    pipelines: Mapping[str, Pipeline]
    problems: Mapping[str, str]


def load_declarations(package: PipelinesPackage | None = None) -> Declarations:
    """What can be loaded, and what cannot; by default of the project that we are in.

    Of two modules that declare one uid neither counts, as the state could be either's.

    Raises:
        ConfigurationError: what says where the pipelines are is wrong.
    """
    package = package or find_pipelines()
    problems: dict[str, str] = {}
    found: dict[str, list[tuple[str, Pipeline]]] = {}
    for name in _module_names(package, problems):
        file = _file(package.name, name)
        for pipeline in _pipelines_of(package.name, name, problems):
            known = found.setdefault(pipeline.uid, [])
            if all(pipeline is not other for _, other in known):
                known.append((file, pipeline))
    for uid, declared in found.items():
        if len(declared) > 1:
            files = [file for file, _ in declared]
            problem = (
                f"pipeline {uid!r} is declared in {' and in '.join(files)}; "
                "give one of them another uid"
            )
            for file in dict.fromkeys(files):
                said = problems.get(file)
                problems[file] = f"{said}; {problem}" if said else problem
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


def load_pipeline(uid: str, package: PipelinesPackage | None = None) -> Pipeline:
    """The pipeline *uid*, whatever is wrong with others.

    Raises:
        ConfigurationError: there is none; the message lists what there is, and what is broken.
    """
    package = package or find_pipelines()
    declarations = load_declarations(package)
    if uid in declarations.pipelines:
        return declarations.pipelines[uid]
    for name, said in declarations.problems.items():
        if name == _file(package.name, uid) or f"pipeline {uid!r}" in said:
            raise ConfigurationError(f"pipeline {uid!r} cannot be loaded: {name}, {said}")
    broken = "".join(f"; {name}: {said}" for name, said in declarations.problems.items())
    raise ConfigurationError(
        f"there is no pipeline {uid!r}; declared are "
        f"{', '.join(declarations.pipelines) or 'none'}{broken}"
    )


def _module_names(package: PipelinesPackage, problems: dict[str, str]) -> list[str]:
    try:
        imported = package.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        problems[_file(package.name, "__init__")] = _said(error, package.name)
        return []
    return sorted(module.name for module in pkgutil.iter_modules(imported.__path__))


def _pipelines_of(package: str, name: str, problems: dict[str, str]) -> Iterator[Pipeline]:
    try:
        module = importlib.import_module(f"{package}.{name}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        problems[_file(package, name)] = _said(error, package)
        return
    yield from (value for value in vars(module).values() if isinstance(value, Pipeline))


def _file(package: str, name: str) -> str:
    return f"{package.replace('.', '/')}/{name}.py"


def _said(error: BaseException, package: str) -> str:
    """One line, with the line of the declaration where it went wrong."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    line = None
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if f"{module}.".startswith(f"{package}."):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f"line {line}: "
    kind = "" if isinstance(error, ConfigurationError) else f"{type(error).__name__}: "
    return f"{where}{kind}{error}"
