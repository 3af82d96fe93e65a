"""The pipelines of a project: the package that declares them, and those that become DAGs.

``SLUICE_PIPELINES`` names the package, or ``[tool.sluice] pipelines = "..."`` in the nearest
pyproject.toml does: a folder, or else a package that can be imported.  By default it is the package
``pipelines``.  The parent of a folder becomes part of the import path, so that modules beside the
folder can be imported, too.

A declared pipeline is every ``Pipeline`` at module level in the package.  A module that is broken
hides no other one: its problem is kept beside the pipelines that could be loaded.

All pipelines become DAGs, or those whose uids are selected by the patterns of ``SLUICE_DAGS``, or
else by ``dags`` of ``[tool.sluice]``:

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
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError

log = logging.getLogger(__name__)

PIPELINES_VARIABLE = "SLUICE_PIPELINES"
DAGS_VARIABLE = "SLUICE_DAGS"
DEFAULT_PACKAGE = "pipelines"
_EXCEPT = "!"  # A pattern of pipelines that do not become DAGs.
_HOW_TO_DECLARE = (
    f"say where they are with {PIPELINES_VARIABLE}, or in pyproject.toml with [tool.sluice] "
    'pipelines = "FOLDER"; sluice init FOLDER begins a project'
)

# The packages that this process imported as a project's pipelines, and their folders.
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
    def setting(self) -> str:
        """A value of ``SLUICE_PIPELINES`` that does not depend on the working directory."""
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
        _imported.pop(self.name, None)  # The last key is the package that was loaded last.
        _imported[self.name] = folder
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """``pipelines`` by uid, in uid order; ``problems`` by module, in words, if one has any."""

    pipelines: Mapping[str, Pipeline]
    problems: Mapping[str, str]


def find_pipelines(
    *starts: Path, setting: str | None = None, env: Mapping[str, str] = os.environ
) -> PipelinesPackage:
    """The package that *setting* names, or the environment, or the nearest pyproject.toml that
    names one, upwards from each of *starts* and then from the working directory.

    A relative folder is relative to the first start, to the working directory, or to the
    pyproject.toml that names it.

    Raises:
        ConfigurationError: a folder is not there, or its name cannot be imported.
    """
    starts = (*starts, Path.cwd())
    if setting:
        package = _named(setting, starts[0], "")
    elif text := env.get(PIPELINES_VARIABLE, ""):
        package = _named(text, starts[-1], f" (in {PIPELINES_VARIABLE})")
    else:
        nearest = (_package_in_pyproject(start.resolve()) for start in starts)
        package = next(filter(None, nearest), PipelinesPackage(name=DEFAULT_PACKAGE))
    patterns = tuple(env.get(DAGS_VARIABLE, "").replace(",", " ").split())
    return replace(package, dags=patterns) if patterns else package


def loaded_package() -> PipelinesPackage | None:
    """The package that this process loaded last."""
    last = next(reversed(_imported), None)
    return None if last is None else PipelinesPackage(name=last, folder=_imported[last])


def package_of(module: str) -> str | None:
    """The package of pipelines that *module* is in; None if it is in none."""
    owners = (name for name in _imported if f"{module}.".startswith(f"{name}."))
    return next(owners, None)


def load_declarations(package: PipelinesPackage | None = None) -> Declarations:
    """The pipelines of *package* and its problems; by default of the project that we are in.

    Of two modules that declare one uid neither counts, as the state could be either's.

    Raises:
        ConfigurationError: the environment or pyproject.toml names no package of pipelines.
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
                problems[file] = f"{problems[file]}; {problem}" if file in problems else problem
    return Declarations(
        pipelines={uid: found[uid][0][1] for uid in sorted(found) if len(found[uid]) == 1},
        problems={name: problems[name] for name in sorted(problems)},
    )


def load_pipelines() -> Mapping[str, Pipeline]:
    """The pipelines that can be loaded, by uid, in uid order; the log has the other problems."""
    declarations = load_declarations()
    for name, problem in declarations.problems.items():
        log.warning("pipelines not loaded module=%s: %s", name, problem)
    return declarations.pipelines


def load_pipeline(uid: str, package: PipelinesPackage | None = None) -> Pipeline:
    """The pipeline *uid*, even if others are broken.

    Raises:
        ConfigurationError: there is none; the message lists those that are, and what is broken.
    """
    package = package or find_pipelines()
    declarations = load_declarations(package)
    if uid in declarations.pipelines:
        return declarations.pipelines[uid]
    module = f"{package.name.replace('.', '/')}/{uid}"
    own = {
        name: problem
        for name, problem in declarations.problems.items()
        if name in (f"{module}.py", f"{module}/__init__.py") or f"pipeline {uid!r}" in problem
    }
    if why := own or (not declarations.pipelines and declarations.problems):
        reasons = "; ".join(f"{name}, {problem}" for name, problem in why.items())
        raise ConfigurationError(f"pipeline {uid!r} cannot be loaded: {reasons}")
    broken = "".join(f"; {name}: {problem}" for name, problem in declarations.problems.items())
    raise ConfigurationError(
        f"there is no pipeline {uid!r}; declared are "
        f"{', '.join(declarations.pipelines) or 'none'}{broken}"
    )


def is_selected(uid: str, patterns: tuple[str, ...]) -> bool:
    """Whether the pipeline *uid* becomes DAGs; without patterns each one does."""
    selected = not patterns or patterns[0].startswith(_EXCEPT)
    for pattern in patterns:
        if fnmatchcase(uid, pattern.removeprefix(_EXCEPT)):
            selected = not pattern.startswith(_EXCEPT)
    return selected


def idle_patterns(patterns: tuple[str, ...], uids: Iterable[str]) -> tuple[str, ...]:
    """The patterns that fit none of *uids*, such as misspelt ones."""
    known = tuple(uids)
    return tuple(
        pattern
        for pattern in patterns
        if not any(fnmatchcase(uid, pattern.removeprefix(_EXCEPT)) for uid in known)
    )


def _named(text: str, base: Path, where: str) -> PipelinesPackage:
    folder = Path(os.path.normpath(base / Path(text).expanduser()))
    if folder.is_dir():
        if not folder.name.isidentifier():
            raise ConfigurationError(
                f"the folder {folder}{where} cannot be imported as a package; give it a name "
                "of letters, digits and _"
            )
        return PipelinesPackage(name=folder.name, folder=folder)
    if all(part.isidentifier() for part in text.split(".")):
        return PipelinesPackage(name=text)
    raise ConfigurationError(
        f"there is no folder {folder}{where}; name the folder that has the pipelines, or "
        "their package"
    )


def _package_in_pyproject(start: Path) -> PipelinesPackage | None:
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if not os.path.isfile(file):  # noqa: PTH113 - Path's raises where a folder is not ours
            continue
        try:
            content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{file} cannot be read: {error}") from error
        section = content.get("tool", {}).get("sluice")
        if section is None:
            continue
        if not isinstance(section, dict) or not isinstance(section.get("pipelines"), str):
            raise ConfigurationError(
                f"[tool.sluice] in {file} says no folder or package; write "
                'pipelines = "include/pipelines"'
            )
        if unknown := section.keys() - {"pipelines", "dags"}:
            raise ConfigurationError(
                f"[tool.sluice] in {file} has {', '.join(sorted(unknown))}; it knows pipelines and "
                "dags only"
            )
        dags = section.get("dags", [])
        if not isinstance(dags, list) or not all(isinstance(each, str) for each in dags):
            raise ConfigurationError(
                f"dags of [tool.sluice] in {file} is no list of patterns; write "
                'dags = ["orders_*", "!orders_draft"]'
            )
        package = _named(section["pipelines"], folder, f" (in {file})")
        return replace(package, dags=tuple(dags))
    return None


def _imported_from(name: str, folder: Path) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None:
        paths = getattr(known, "__path__", ())
        if not any(Path(path).resolve() == folder.resolve() for path in paths):
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
    """A spec of the package in *folder*, even if the import path has another one of that name."""
    file = folder / "__init__.py"
    if file.is_file():
        spec = spec_from_file_location(name, file, submodule_search_locations=[str(folder)])
        if spec is not None:
            return spec
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec


def _module_names(package: PipelinesPackage, problems: dict[str, str]) -> list[str]:
    try:
        imported = package.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        file = f"{package.name.replace('.', '/')}/__init__.py"
        problems[file] = _error_line(error, package.name, file)
        return []
    return sorted(module.name for module in pkgutil.iter_modules(imported.__path__))


def _pipelines_of(package: str, name: str, problems: dict[str, str]) -> Iterator[Pipeline]:
    try:
        module = importlib.import_module(f"{package}.{name}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's code may raise anything
        file = _file(package, name)
        problems[file] = _error_line(error, package, file)
        return
    yield from (value for value in vars(module).values() if isinstance(value, Pipeline))


def _file(package: str, name: str) -> str:
    spec = find_spec(f"{package}.{name}")
    is_folder = spec is not None and spec.submodule_search_locations is not None
    return f"{package.replace('.', '/')}/{name}{'/__init__' * is_folder}.py"


def _error_line(error: BaseException, package: str, file: str) -> str:
    """One line of text, with the line in the user's *package* where *error* was raised, and the
    file that has it, unless that is *file*.
    """
    if isinstance(error, SyntaxError):
        return f"{_where(error.filename, error.lineno, package, file)}{error.msg}"
    where = ""
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if f"{module}.".startswith(f"{package}."):
            where = _where(trace.tb_frame.f_code.co_filename, trace.tb_lineno, package, file)
        trace = trace.tb_next
    kind = "" if isinstance(error, ConfigurationError) else f"{type(error).__name__}: "
    return f"{where}{kind}{error}"


def _where(path: str | None, line: int | None, package: str, file: str) -> str:
    if path is None or path.endswith(f"/{file}"):
        return f"line {line}: "
    folder = f"/{package.replace('.', '/')}/"
    _, is_in_package, rest = path.rpartition(folder)
    name = f"{folder[1:]}{rest}" if is_in_package else path
    return f"{name}, line {line}: "
