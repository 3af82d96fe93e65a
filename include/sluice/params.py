"""Parameters of a pipeline: what a person sets when a job is submitted.

A submission resolves them once and the journal keeps them, so that every task of the job, on
whatever machine, uses the same values.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import ConfigurationError

ENVIRONMENT_PREFIX = "SLUICE_PARAM_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    name: str
    default: str | None = None
    required: bool = True
    is_path: bool = False
    help: str = ""


def param(
    name: str,
    default: str | int | None = None,
    *,
    required: bool = True,
    is_path: bool = False,
    help: str = "",  # noqa: A002 - click's word
) -> Param:
    """A value to be named at submission: ``--param name=value``, or ``SLUICE_PARAM_NAME``.

    A path is made absolute then, as every task of the job reads it from another folder.
    """
    return Param(
        name=name,
        default=None if default is None else str(default),
        required=required and default is None,
        is_path=is_path,
        help=help,
    )


def value_of(spec: str | int | Param, params: Mapping[str, str]) -> str:
    """The text of a literal, or of a parameter; empty for an optional one that nobody set."""
    if not isinstance(spec, Param):
        return str(spec)
    value = params.get(spec.name, spec.default)
    if value is None and spec.required:
        raise ConfigurationError(missing(spec))
    return value or ""


def resolve(declared: Iterable[Param], given: Mapping[str, str], pipeline: str) -> dict[str, str]:
    """What the submission fixes: given values, then the environment's, then defaults.

    Raises:
        ConfigurationError: a required one is missing, or a given one is not declared.
    """
    by_name = {declared_param.name: declared_param for declared_param in declared}
    unknown = sorted(set(given) - set(by_name))
    if unknown:
        raise ConfigurationError(
            f"pipeline {pipeline!r} has no parameter {unknown[0]!r}; "
            f"it has {', '.join(sorted(by_name)) or 'none'}"
        )
    resolved: dict[str, str] = {}
    for name, declared_param in by_name.items():
        value = given.get(name, os.environ.get(ENVIRONMENT_PREFIX + name.upper()))
        value = declared_param.default if value is None else value
        if value is None and declared_param.required:
            raise ConfigurationError(missing(declared_param))
        if value is not None and declared_param.is_path and "://" not in value:
            value = str(Path(value).expanduser().resolve())
        if value is not None:
            resolved[name] = value
    return resolved


def missing(spec: Param) -> str:
    return (
        f"parameter {spec.name!r} is not set"
        + (f" ({spec.help})" if spec.help else "")
        + f"; pass --param {spec.name}=VALUE or set {ENVIRONMENT_PREFIX}{spec.name.upper()}"
    )
