"""The folder of a project's pipelines, and the import of their package.

``SLUICE_PIPELINES`` says it, or ``[tool.sluice] pipelines = "..."`` in the nearest pyproject.toml:
a folder, or else the name of a package that can be imported.  By default it is the package
``pipelines``.  The parent of a folder becomes part of the import path, so modules beside the folder
can be imported, too.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from sluice.declaration.selection import patterns_in
from sluice.errors import ConfigurationError

PIPELINES_VARIABLE = "SLUICE_PIPELINES"
DEFAULT_PACKAGE = "pipelines"
_HOW_TO_SAY = (
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
                f"package: {_HOW_TO_SAY}"
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
                f"there is no folder and no package {self.name!r} with pipelines; {_HOW_TO_SAY}"
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
    nearest = (_said_in_pyproject(start.resolve()) for start in starts)
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


def _said_in_pyproject(start: Path) -> PipelinesPackage | None:
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
