"""The folder of a project's pipelines, and the import of their package.

``SLUICE_PIPELINES`` says it, or ``[tool.sluice] pipelines = "..."`` in the nearest pyproject.toml:
a folder, or else the name of a package that can be imported.  By default it is the package
``pipelines``.  The parent of a folder becomes part of the import path, so modules beside the folder
can be imported, too.

Finds declared pipelines: every ``Pipeline`` at module level in the project's package of them.

A module that is broken takes no other one away: its problem is kept beside what could be loaded.

The pipelines that become DAGs: all, or those whose uids a project's patterns select.

``dags`` of ``[tool.sluice]`` has the patterns, and ``SLUICE_DAGS`` comes before it:

    auctions ssh_*       these alone
    !nexmark_* !draft    all but these
    orders_* !orders_v1  those, without this one

The last pattern that fits a uid decides.  The command line knows every pipeline.
"""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError

PIPELINES_VARIABLE = "SLUICE_PIPELINES"
DEFAULT_PACKAGE = "pipelines"
_HOW_TO_DECLARE = (
    f"say where they are with {PIPELINES_VARIABLE}, or in pyproject.toml with [tool.sluice] "
    'pipelines = "FOLDER"; sluice init FOLDER begins a project'
)

# Of this process: what it imported as a project's pipelines, and where from.
_imported: dict[str, Path | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinesPackage:
    """The package *name*; in *folder*, or wherever the import path has it.

    *dags* are the patterns of the pipelines that become DAGs; without any, all do.
    """

    name: str
    folder: Path | None = None
    dags: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """As ``SLUICE_PIPELINES`` would say it, whatever the working directory is."""
        return self.name if self.folder is None else str(self.folder)

    def load(self) -> ModuleType:
        """The imported package, from which its modules can be imported by name.

        Raises:
            ConfigurationError: there is no such package, or another one has its name.
        """
        folder = self.folder
        package = self._by_name() if folder is None else _imported_from(self.name, folder)
        if not hasattr(package, "__path__"):
            raise ConfigurationError(
                f"{self.name} is a module, {package.__file__}; pipelines are the modules of a "
                f"package: {_HOW_TO_DECLARE}"
            )
        _imported.pop(self.name, None)  # The last one that was loaded is the last one here.
        _imported[self.name] = self.folder
        return package

    def _by_name(self) -> ModuleType:
        try:
            return importlib.import_module(self.name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.name}.".startswith(f"{error.name}."):
                raise
            raise ConfigurationError(
                f"there is no folder and no package {self.name!r} with pipelines; {_HOW_TO_DECLARE}"
            ) from None


def find_pipelines(
    *starts: Path, said: str | None = None, env: Mapping[str, str] = os.environ
) -> PipelinesPackage:
    """What *said* names, else the environment, else the nearest pyproject.toml that says it,
    upwards from each of *starts* and then from the working directory.  A relative folder begins
    where it is said: at the first start, in the working directory, beside pyproject.toml.

    Raises:
        ConfigurationError: a folder is not there, or its name cannot be imported.
    """
    found = _find(starts, said, env)
    patterns = patterns_in(env)
    return found if patterns is None else replace(found, dags=patterns)


def _find(starts: tuple[Path, ...], said: str | None, env: Mapping[str, str]) -> PipelinesPackage:
    starts = (*starts, Path.cwd())
    if said:
        return _named(said, starts[0], "")
    if text := env.get(PIPELINES_VARIABLE, ""):
        return _named(text, starts[-1], f" (in {PIPELINES_VARIABLE})")
    nearest = (_package_in_pyproject(start.resolve()) for start in starts)
    return next(filter(None, nearest), PipelinesPackage(name=DEFAULT_PACKAGE))


def loaded_package() -> PipelinesPackage | None:
    """What this process loaded last."""
    last = next(reversed(_imported), None)
    return None if last is None else PipelinesPackage(name=last, folder=_imported[last])


def package_of(module: str) -> str | None:
    """The package of pipelines that *module* is of; None when it is of none."""
    owners = (name for name in _imported if f"{module}.".startswith(f"{name}."))
    return next(owners, None)


def _named(text: str, base: Path, said_where: str) -> PipelinesPackage:
    folder = Path(os.path.normpath(base / Path(text).expanduser()))
    if folder.is_dir():
        if not folder.name.isidentifier():
            raise ConfigurationError(
                f"the folder {folder}{said_where} cannot be imported as a package; give it a name "
                "of letters, digits and _"
            )
        return PipelinesPackage(name=folder.name, folder=folder)
    if all(part.isidentifier() for part in text.split(".")):
        return PipelinesPackage(name=text)
    raise ConfigurationError(
        f"there is no folder {folder}{said_where}; name the folder that has the pipelines, or "
        "their package"
    )


def _package_in_pyproject(start: Path) -> PipelinesPackage | None:
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not os.path.isfile(file):  # noqa: PTH113 - Path's raises where a folder is not ours
            continue
        try:
            known: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from error
        ours = known.get("tool", {}).get("sluice")
        if ours is None:
            continue
        if not isinstance(ours, dict) or not isinstance(ours.get("pipelines"), str):
            raise ConfigurationError(
                f"[tool.sluice] in {file} says no folder or package; write "
                'pipelines = "include/pipelines"'
            )
        if unknown := ours.keys() - {"pipelines", "dags"}:
            raise ConfigurationError(
                f"[tool.sluice] in {file} has {', '.join(sorted(unknown))}; it knows pipelines and "
                "dags only"
            )
        dags = ours.get("dags", [])
        if not isinstance(dags, list) or not all(isinstance(each, str) for each in dags):
            raise ConfigurationError(
                f"dags of [tool.sluice] in {file} is no list of patterns; write "
                'dags = ["orders_*", "!orders_draft"]'
            )
        found = _named(ours["pipelines"], folder, f" (in {file})")
        return replace(found, dags=tuple(dags))
    return None


def _imported_from(name: str, folder: Path) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None:
        if not any(Path(path).resolve() == folder.resolve() for path in _paths(known)):
            raise ConfigurationError(
                f"the folder {folder} with pipelines has the name of a module that is imported "
                f"already, {getattr(known, '__file__', None) or name}; rename the folder"
            )
        return known
    parent = str(folder.parent)
    if parent not in sys.path:
        sys.path.append(parent)
    spec = _spec(name, folder)
    package = module_from_spec(spec)
    sys.modules[name] = package
    if spec.loader is not None:
        try:
            spec.loader.exec_module(package)
        except BaseException:
            del sys.modules[name]
            raise
    return package


def _spec(name: str, folder: Path) -> ModuleSpec:
    """Of this folder, whatever else of that name there is on the import path."""
    file = folder / "__init__.py"
    if file.is_file():
        spec = spec_from_file_location(name, file, submodule_search_locations=[str(folder)])
        if spec is not None:
            return spec
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec


def _paths(module: ModuleType) -> list[str]:
    return [*getattr(module, "__path__", ())]


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
        problems[_file(package.name, "__init__")] = _error_line(error, package.name)
        return []
    return sorted(module.name for module in pkgutil.iter_modules(imported.__path__))


def _pipelines_of(package: str, name: str, problems: dict[str, str]) -> Iterator[Pipeline]:
    try:
        module = importlib.import_module(f"{package}.{name}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        problems[_file(package, name)] = _error_line(error, package)
        return
    yield from (value for value in vars(module).values() if isinstance(value, Pipeline))


def _file(package: str, name: str) -> str:
    return f"{package.replace('.', '/')}/{name}.py"


def _error_line(error: BaseException, package: str) -> str:
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


DAGS_VARIABLE = "SLUICE_DAGS"
_EXCEPT = "!"


def patterns_in(env: Mapping[str, str]) -> tuple[str, ...] | None:
    """Those of the environment; None where it says nothing."""
    return tuple(env.get(DAGS_VARIABLE, "").replace(",", " ").split()) or None


def is_selected(uid: str, patterns: tuple[str, ...]) -> bool:
    """Whether the pipeline becomes DAGs; without patterns each one does."""
    verdict = not patterns or patterns[0].startswith(_EXCEPT)
    for pattern in patterns:
        if fnmatchcase(uid, pattern.removeprefix(_EXCEPT)):
            verdict = not pattern.startswith(_EXCEPT)
    return verdict


def idle_patterns(patterns: tuple[str, ...], uids: Iterable[str]) -> tuple[str, ...]:
    """The patterns that fit none of *uids*, such as misspelt ones."""
    known = tuple(uids)
    return tuple(
        pattern
        for pattern in patterns
        if not any(fnmatchcase(uid, pattern.removeprefix(_EXCEPT)) for uid in known)
    )
