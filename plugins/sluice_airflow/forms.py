"""The forms of the DAGs: each field has a description, a default and a check.

A pipeline's parameters are fields of two of them, of checkpoints and of restores:

    param_input, param_rate, ...    a text each; empty: as before, or the default
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk import Param

from sluice.core.configuration import CheckpointType, ClaimMode
from sluice.core.state import CoordinatorState
from sluice.declaration.pipeline import Pipeline
from sluice.errors import ConfigurationError
from sluice.exchange.faults import FORM as FAULT_FORM
from sluice.protocol.keys import SAVEPOINT_NAME as _SAVEPOINT_NAME
from sluice.protocol.keys import UID as _UID
from sluice_airflow.settings import Settings

_PREFIX = "param_"

_TEXT = ["null", "string"]  # Airflow asks for a value where a plain string is empty.
_URI = r"^((s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]|file:///).*)$"
SAVEPOINT_NAME, UID = f"^{_SAVEPOINT_NAME}$", f"^{_UID}$"
_ELSEWHERE, _SELDOM = "From another root", "Seldom needed"

CONFIGURED = "CONFIGURED"
# Flink's org.apache.flink.core.execution.CheckpointType -> whether it is full: checkpoints here are
# configured to be incremental.
CHECKPOINT_TYPES = {CONFIGURED: False, "FULL": True, "INCREMENTAL": False}
SAVEPOINT_TYPES = {
    "none": CheckpointType.SAVEPOINT,
    "suspend": CheckpointType.SAVEPOINT_SUSPEND,
    "drain": CheckpointType.SAVEPOINT_TERMINATE,
}
RESUME, STAY_SUSPENDED = "resume", "stay suspended"

_FAULT = Param(
    None,
    type=_TEXT,
    section=_SELDOM,
    title="Fault (for drills)",
    description=f"Empty: none. Otherwise {FAULT_FORM}. E.g. kill-task task=finalize",
)
_CHECKPOINT = {
    "checkpoint_type": Param(
        CONFIGURED,
        type="string",
        enum=[*CHECKPOINT_TYPES],
        title="Checkpoint type",
        description=(
            "FULL: all state is written anew, and shares no file with the checkpoints before; "
            "CONFIGURED and INCREMENTAL: only what changed"
        ),
    ),
}
_SAVEPOINT = {
    "name": Param(
        None,
        type=_TEXT,
        pattern=SAVEPOINT_NAME,
        title="Name",
        description="Up to 128 of A-Z a-z 0-9 _ . - ; empty: made of the run's id",
    ),
    "stop": Param(
        "none",
        type="string",
        enum=[*SAVEPOINT_TYPES],
        title="Then stop the job",
        description=(
            "none: it goes on; suspend: it stops, and event time stays where it is; drain: every "
            "window fires and the job is FINISHED, for good"
        ),
    ),
    "format": Param(
        "native",
        type="string",
        enum=["native", "canonical"],
        title="Format",
        description=(
            "native: the files of the state as they are, the faster one; canonical: the state of "
            "every subtask merged to one sorted run"
        ),
    ),
    "forced": Param(
        default=False,
        type="boolean",
        title="Forced",
        description=(
            "Do not wait for a pending checkpoint, above the limit of concurrent ones; unaligned "
            "ones may not overlap, and wait all the same"
        ),
    ),
    "target": Param(
        None,
        type=_TEXT,
        pattern=_URI,
        title="Copy to another root",
        description="s3://bucket/prefix or file:///folder; empty: it stays in the job's own root",
    ),
}
_SNAPSHOT = {
    "target": Param(
        "latest",
        type="string",
        enum=["latest", "checkpoint", "savepoint", "path"],
        title="Restore from",
        description=(
            "latest: the checkpoint that the job stands at; the others are named below. "
            "Everything is verified before anything changes"
        ),
    ),
    "checkpoint_id": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        title="Checkpoint",
        description="For target checkpoint: the id of a retained one",
    ),
    "savepoint": Param(
        None,
        type=_TEXT,
        pattern=SAVEPOINT_NAME,
        title="Savepoint",
        description="For target savepoint: its name, of up to 128 of A-Z a-z 0-9 _ . -",
    ),
    "path": Param(
        None,
        type=_TEXT,
        title="Path",
        description=(
            "For target path: the folder of a checkpoint or savepoint, or the _metadata in it, as "
            "a URI, an absolute path or a path in the job's own root"
        ),
    ),
    "root": Param(
        None,
        type=_TEXT,
        section=_ELSEWHERE,
        pattern=_URI,
        title="In another root",
        description=(
            "s3://bucket/prefix or file:///folder where the checkpoint or savepoint lies; "
            "empty: in the job's own root"
        ),
    ),
}
_CONSENT = {
    "allow_non_restored_state": Param(
        default=False,
        type="boolean",
        title="Allow non-restored state",
        description="Drop the state of stages that the pipeline no longer has",
    ),
    "begin": Param(
        None,
        type=_TEXT,
        title="Begin anew",
        description=(
            "Stages, or columns as stage.column, whose state begins anew, as the declaration "
            "means something else by now: totals, totals.mean"
        ),
    ),
    "keep": Param(
        None,
        type=_TEXT,
        title="Keep",
        description=(
            "Stages whose state stays what it was of the rows so far, though rows from now on are "
            "read otherwise; sources that keep their positions, as their place was moved"
        ),
    ),
    "roll_back_tables": Param(
        default=False,
        type="boolean",
        title="Roll tables back",
        description=(
            "Put the sinks' tables back to what the checkpoint pinned, too, now. A dry run "
            "says which are ahead, and which cannot go back"
        ),
    ),
    "accept_tables": Param(
        default=False,
        type="boolean",
        title="Accept tables",
        description=(
            "Take the sinks' tables as they are, where they lack rows, which stay missing, or "
            "show those of another life of a job, behind which this one goes on"
        ),
    ),
    "take_over": Param(
        None,
        type=_TEXT,
        title="Take tables over",
        description=(
            "Sinks, separated by commas, whose tables another job wrote: their rows stay, this "
            "job goes on behind them, and that one is refused from then on"
        ),
    ),
}
_MANNER = {
    "compare_checksums": Param(
        default=True,
        type="boolean",
        title="Compare checksums",
        description=(
            "Read every file and compare its bytes with what was written. Without it the "
            "first look at damaged state may be that of a later checkpoint"
        ),
    ),
    "claim_mode": Param(
        ClaimMode.NO_CLAIM.value,
        type="string",
        enum=[mode.value for mode in ClaimMode],
        title="Claim mode",
        description=(
            "NO_CLAIM: the savepoint stays yours. CLAIM: the job owns it, and deletes it once "
            "nothing uses it"
        ),
    ),
    "then": Param(
        RESUME,
        type="string",
        enum=[RESUME, STAY_SUSPENDED],
        title="Then",
        description=(
            "resume: the next checkpoint goes on from there; stay suspended: look first, and "
            "restore latest to go on"
        ),
    ),
    "dry_run": Param(
        default=False,
        type="boolean",
        title="Dry run",
        description="Only say what would be restored, and what is missing; change nothing",
    ),
}
_LAST_RESORTS = {
    "ignore_in_flight_of": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        section=_SELDOM,
        title="UNSAFE: ignore in-flight data of checkpoint",
        description="Last resort: the rows that this checkpoint left in flight are lost",
    ),
    "only_generation": Param(
        None,
        type=["null", "integer"],
        minimum=1,
        section=_SELDOM,
        title="Only generation",
        description="Set by a failure: a late or repeated restore does nothing; leave empty",
    ),
}


def checkpoint_form(pipeline: Pipeline) -> dict[str, Param]:
    """The form of a checkpoint DAG; with its parameters the first run submits the job."""
    return {**_CHECKPOINT, **parameter_fields(pipeline), **_drill()}


def savepoint_form() -> dict[str, Param]:
    return {**_SAVEPOINT, **_drill()}


def restore_form(pipeline: Pipeline) -> dict[str, Param]:
    """The form of the pipeline's restore DAG, which names its stages."""
    stages, example = ", ".join(pipeline.stages), next(iter(pipeline.stages), "stage")
    return {
        **_SNAPSHOT,
        "root_pipeline": Param(
            None,
            type=_TEXT,
            section=_ELSEWHERE,
            pattern=UID,
            title="Pipeline there",
            description=f"If the uid in that root is another; empty: {pipeline.uid}",
        ),
        "parallelism": Param(
            None,
            type=_TEXT,
            pattern=r"^\s*(([a-z][a-z0-9_]*=)?\d+([\s,]+|$))*$",
            title="Parallelism",
            description=(
                f"Empty: as before. 4 is for every stage, {example}=8 for one; there are {stages}. "
                "Up to the max parallelism, which is fixed for life"
            ),
        ),
        **parameter_fields(pipeline, otherwise="as before"),
        **_CONSENT,
        **_MANNER,
        **_LAST_RESORTS,
        **_drill(),
    }


def _drill() -> dict[str, Param]:
    return {"fault": _FAULT} if Settings.from_environment().allows_drills else {}


def parameter_fields(pipeline: Pipeline, *, otherwise: str = "") -> dict[str, Param]:
    """A field for each declared parameter; *otherwise* says what an empty one means."""
    return {
        f"{_PREFIX}{param.name}": Param(
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


def given_params(pipeline: Pipeline, form: Mapping[str, Any]) -> dict[str, str]:
    """The parameters that are filled in in a run's form, by their own names."""
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
    requested = reconfigure(pipeline, state.configuration, given).params
    changed = [
        f"{name} is {journaled.get(name)!r} and not {requested[name]!r}"
        for name in given
        if requested[name] != journaled.get(name)
    ]
    if changed:
        raise ConfigurationError(
            f"the parameters of a job are fixed when it is submitted: {', '.join(changed)}; leave "
            f"them empty, or change them with {pipeline.uid}__restore"
        )
