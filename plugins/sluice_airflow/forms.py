"""The forms of the DAGs: a field for each that the DAG's act has on a form, and one for each
parameter of the pipeline.

    param_input, param_rate, ...    a text each; empty: as before, or the default
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.exchange.faults import FORM as FAULT_FORM
from sluice.protocol.keys import SAVEPOINT_NAME, UID
from sluice.surface.acts import CHECKPOINT, RESTORE, SAVEPOINT, Act, Face, Field, Kind
from sluice_airflow.settings import Settings

_TEXT = ["null", "string"]  # Airflow asks for a value where a plain string is empty.

# The schema of a field that may be empty, for each kind.
_SCHEMAS: dict[Kind, dict[str, Any]] = {
    Kind.TEXT: {"type": _TEXT},
    Kind.LIST: {"type": _TEXT},
    Kind.NAME: {"type": _TEXT, "pattern": f"^{SAVEPOINT_NAME}$"},
    Kind.UID: {"type": _TEXT, "pattern": f"^{UID}$"},
    Kind.URI: {
        "type": _TEXT,
        "pattern": r"^((s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]|file:///).*)$",
    },
    Kind.ID: {"type": ["null", "integer"], "minimum": 1},
    Kind.COUNT: {"type": ["null", "integer"], "minimum": 1},
}
_FAULT = Param(
    None,
    type=_TEXT,
    section="Seldom needed",
    title="Fault (for drills)",
    description=f"Empty: none. Otherwise {FAULT_FORM}. E.g. kill-task task=finalize",
)


def checkpoint_form(pipeline: Pipeline) -> dict[str, Param]:
    """The form of a checkpoint DAG; with its parameters the first run submits the job."""
    return _fields(CHECKPOINT) | parameter_fields(pipeline) | _drill()


def savepoint_form() -> dict[str, Param]:
    return _fields(SAVEPOINT) | _drill()


def restore_form(pipeline: Pipeline) -> dict[str, Param]:
    """The form of the pipeline's restore DAG, which names its stages."""
    form = _fields(RESTORE) | parameter_fields(pipeline, otherwise="as before")
    form["parallelism"] = Param(
        None,
        type=_TEXT,
        pattern=r"^\s*(([a-z][a-z0-9_]*=)?\d+([\s,]+|$))*$",
        title=RESTORE["parallelism"].label,
        description=f"{RESTORE['parallelism'].says} There are {', '.join(pipeline.stages)}.",
    )
    return form | _drill()


def _fields(act: Act) -> dict[str, Param]:
    fields = [field for field in act.on(Face.FORM) if field.kind is not Kind.PARAMETERS]
    return {field.name: _param(field) for field in fields}


def _param(field: Field) -> Param:
    match field.kind:
        case Kind.FLAG:
            schema: dict[str, Any] = {"type": "boolean"}
        case Kind.CHOICE:
            schema = {"type": "string", "enum": [*field.choices]}
        case kind:
            schema = _SCHEMAS[kind]
    if field.section:
        schema = schema | {"section": field.section}
    listed = " Separated by commas." if field.kind is Kind.LIST else ""
    return Param(
        None if field.kind is Kind.LIST else field.empty,
        title=field.label,
        description=field.says + listed,
        **schema,
    )


def _drill() -> dict[str, Param]:
    return {"fault": _FAULT} if Settings.from_environment().allows_drills else {}


def parameter_fields(pipeline: Pipeline, *, otherwise: str = "") -> dict[str, Param]:
    """A field for each declared parameter; *otherwise* says what an empty one means."""
    return {
        parameter_field(param.name): Param(
            None,
            type=_TEXT,
            section="Parameters",
            title=param.name,
            description="; ".join(
                filter(None, [param.help, f"empty: {otherwise or param.default or 'not set'}"])
            ),
        )
        for param in pipeline.params
    }


def parameter_field(name: str) -> str:
    """The form's field for the parameter *name* of the pipeline."""
    return f"param_{name}"


def given_params(pipeline: Pipeline, form: Mapping[str, Any]) -> dict[str, str]:
    """The parameters that are filled in in a run's form, by their own names."""
    fields = {param.name: form.get(parameter_field(param.name)) for param in pipeline.params}
    return {name: str(value) for name, value in fields.items() if value not in (None, "")}


def require_unchanged(
    pipeline: Pipeline, state: CoordinatorState, given: Mapping[str, str]
) -> None:
    """Raises ConfigurationError where *given* differs from what the submission journaled."""
    from sluice.coordinator.submission import reconfigure

    if not given:
        return
    journaled = state.configuration.params
    requested = reconfigure(pipeline, state.configuration, given).params
    changed = [
        f"{name} is {journaled.get(name)!r} and not {requested[name]!r}"
        for name in given
        if requested[name] != journaled.get(name)
    ]
    if changed:
        raise ConfigurationError(
            f"the parameters of a job are fixed when it is submitted: {', '.join(changed)}; leave "
            f"them empty, or change them with {RESTORE.dag_id(pipeline.uid)}"
        )
