"""Parameters of a pipeline, which a person sets when a job is submitted, and secrets.

A submission resolves the parameters once and the journal keeps them, so that every task of the job,
on whatever machine, uses the same values.  A secret is read from the environment where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from sluice.declaration.arguments import checked_arguments
from sluice.errors import ConfigurationError
from sluice.store.redaction import SECRET_VARIABLES

ENVIRONMENT_PREFIX = "SLUICE_PARAM_"
_PLACEHOLDER = "given.rows"  # In place of a parameter or a secret of a place never opened.
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    name: str
    default: str | None = None
    required: bool = True
    is_path: bool = False
    help: str = ""

    def __format__(self, spec: str) -> str:
        """The value's place in an f-string, as in SQL; a submission sets it later.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"parameter {self.name!r} has no value yet where a text is made of it; give it to a "
            f"function that makes the text: transform('uid', function, {self.name}=...)"
        )


@checked_arguments
def param(
    name: str,
    default: str | int | None = None,
    *,
    required: bool = True,
    is_path: bool = False,
    help: str = "",  # noqa: A002 - click's word
) -> Param:
    """A value that the submission sets: ``--param name=value``, or ``SLUICE_PARAM_NAME``.

    The submission makes a path absolute, as tasks of the job run in other working directories.

    Raises:
        ConfigurationError: *name* cannot be written where a submission gives it.
    """
    if not name.isidentifier():
        raise ConfigurationError(
            f"parameter {name!r} is no name: letters, digits and _ alone can be given as "
            f"--param name=value and as {ENVIRONMENT_PREFIX}NAME"
        )
    return Param(
        name=name,
        default=None if default is None else str(default),
        required=required and default is None,
        is_path=is_path,
        help=help,
    )


@dataclass(frozen=True, slots=True)
class Env:
    """An environment variable of every process of the job, whose value must not be journaled."""

    name: str

    def __post_init__(self) -> None:
        SECRET_VARIABLES.add(self.name)


@checked_arguments
def env(name: str) -> Env:
    """A secret: unlike a parameter, it is never written to the bucket.

    Airflow's tasks and Spark's workers both need the variable.
    """
    return Env(name)


def said_of(spec: str | int | Param | Env, params: Mapping[str, str]) -> str:
    """``value_of`` for people and for comparisons: an environment variable is its name."""
    if isinstance(spec, Env):
        return f"${{{spec.name}}}"
    if isinstance(spec, Param):
        return params.get(spec.name, spec.default or "")
    return str(spec)


def value_of(spec: str | int | Param | Env, params: Mapping[str, str]) -> str:
    """The text of a literal, of a parameter, or of an environment variable; empty for an optional
    parameter that is not set.
    """
    if isinstance(spec, Env):
        SECRET_VARIABLES.add(spec.name)  # Not declared in a worker, which got it by pickle.
        if spec.name not in os.environ:
            raise ConfigurationError(
                f"the environment variable {spec.name} is not set here; Airflow's tasks and "
                "Spark's workers both need it"
            )
        return os.environ[spec.name]
    if not isinstance(spec, Param):
        return str(spec)
    value = params.get(spec.name, spec.default)
    if value is None and spec.required:
        raise _missing(spec)
    return value or ""


def resolve_params(
    declared: Iterable[Param], given: Mapping[str, str], pipeline: str
) -> dict[str, str]:
    """The values that a submission fixes: those *given*, else the environment's, else defaults.

    Raises:
        ConfigurationError: a required one is missing, or a given one is not declared.
    """
    by_name = {spec.name: spec for spec in declared}
    require_declared(by_name, given, pipeline)
    resolved: dict[str, str] = {}
    for name, spec in by_name.items():
        value = given.get(name, os.environ.get(ENVIRONMENT_PREFIX + name.upper()))
        value = spec.default if value is None else value
        if value is None:
            if spec.required:
                raise _missing(spec)
            continue
        is_path = spec.is_path and "://" not in value
        resolved[name] = str(Path(value).expanduser().resolve()) if is_path else value
    return resolved


def require_declared(declared: Iterable[str], given: Iterable[str], pipeline: str) -> None:
    """Raises ConfigurationError: a name that is *given* is not one of the *declared*."""
    names = sorted(declared)
    unknown = sorted({*given} - {*names})
    if unknown:
        raise ConfigurationError(
            f"pipeline {pipeline!r} has no parameter {unknown[0]!r}; "
            f"it has {', '.join(names) or 'none'}"
        )


def of_place(spec: str | Param | Env, params: Mapping[str, str]) -> str:
    """``value_of``, for comparing places: a variable that is not set here is its name."""
    if isinstance(spec, Env) and spec.name not in os.environ:
        return f"${spec.name}"
    return value_of(spec, params)


def placed(spec: _T, *, keeps: tuple[str, ...] = ()) -> _T:
    """*spec* with parameters and secrets replaced by a stand-in, except for the fields *keeps*."""
    assert is_dataclass(spec)
    assert not isinstance(spec, type)
    changed = {
        part.name: _without_params(value)
        for part in fields(spec)
        if part.init and part.name not in keeps
        if (value := getattr(spec, part.name)) is not None
    }
    return replace(spec, **changed)


def _without_params(value: Any) -> Any:  # noqa: ANN401 - whatever a spec holds
    match value:
        case Param():
            return value.default or _PLACEHOLDER
        case Env():
            return _PLACEHOLDER
        case Mapping():
            return {name: _without_params(part) for name, part in value.items()}
        case tuple():
            return tuple(map(_without_params, value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return placed(value)
        case _:
            return value


def _missing(spec: Param) -> ConfigurationError:
    return ConfigurationError(
        f"parameter {spec.name!r} is not set"
        + (f" ({spec.help})" if spec.help else "")
        + f"; pass --param {spec.name}=VALUE or set {ENVIRONMENT_PREFIX}{spec.name.upper()}"
    )
