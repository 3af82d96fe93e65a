"""The parameters of a pipeline as fields of a form: of a first run, and of a restore.

param_input, param_rate, ...    a text each; empty: as before, or the default
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError

_PREFIX = "param_"


def parameter_fields(pipeline: Pipeline, *, otherwise: str = "") -> dict[str, Param]:
    """A field for each declared parameter; *otherwise* says what an empty one means."""
    return {
        f"{_PREFIX}{param.name}": Param(
            None,
            type=["null", "string"],
            section="Parameters",
            title=param.name,
            description="; ".join(
                filter(None, [param.help, f"empty: {otherwise or param.default or 'not set'}"])
            ),
        )
        for param in pipeline.params
    }


def given_params(pipeline: Pipeline, form: Mapping[str, Any]) -> dict[str, str]:
    """The parameters that the form of a run has, by their own names."""
    fields = {param.name: form.get(f"{_PREFIX}{param.name}") for param in pipeline.params}
    return {name: str(value) for name, value in fields.items() if value not in (None, "")}


def require_unchanged(
    pipeline: Pipeline, state: CoordinatorState, given: Mapping[str, str]
) -> None:
    """Raises ConfigurationError where *given* differs from what the submission journaled."""
    from sluice.coordinator.submission import reconfigure

    if not given:
        return
    journaled = state.configuration.params
    asked = reconfigure(pipeline, state.configuration, given).params
    changed = [
        f"{name} is {journaled.get(name)!r} and not {asked[name]!r}"
        for name in given
        if asked[name] != journaled.get(name)
    ]
    if changed:
        raise ConfigurationError(
            f"the parameters of a job are fixed when it is submitted: {', '.join(changed)}; leave "
            f"them empty, or change them with {pipeline.uid}__restore"
        )
