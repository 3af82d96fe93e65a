"""The acts of a person on a job: each with its fields, declared once.

The command line, the forms of the DAGs, and the bodies of the REST API are rendered from here:
``sluice.cli.options``, ``sluice_airflow.forms``, ``sluice_airflow.rest.acts``.  A field's ``name``
is the form's; the command line and the API write it with hyphens, unless it says otherwise.

The module is light, as every DAG file imports it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any, TypeAlias

from sluice.core.configuration import CheckpointType, ClaimMode
from sluice.core.ids import CheckpointId
from sluice.core.restoring import RestoreOptions
from sluice.core.transitions import Consent
from sluice.declaration.checkpointing import CHANGEABLE, OPTIONS, limits_of
from sluice.declaration.durations import LEAST_WAIT, DurationLimits, duration_of
from sluice.errors import ConfigurationError
from sluice.job.snapshots import LATEST, parsed_checkpoint_id

if TYPE_CHECKING:
    from sluice.coordinator.requests import NewTimes
    from sluice.coordinator.restore import RestoreRequest

Given: TypeAlias = Mapping[str, Any]  # The values of an act's fields, by their names.

RESUME, STAY_SUSPENDED = "resume", "stay suspended"
STOPS = {
    "none": CheckpointType.SAVEPOINT,
    "suspend": CheckpointType.SAVEPOINT_SUSPEND,
    "drain": CheckpointType.SAVEPOINT_TERMINATE,
}
_ELSEWHERE, _SELDOM = "From another root", "Seldom needed"


class Face(Flag):
    """The place where a person acts: command line, form of a DAG, REST API and its pages."""

    COMMAND = auto()
    FORM = auto()
    ROUTE = auto()


ALL = Face.COMMAND | Face.FORM | Face.ROUTE


class Kind(Enum):
    """The kind of a field's value; all but a flag and a choice are None where nothing is given."""

    FLAG = "flag"
    CHOICE = "choice"
    TEXT = "text"
    NAME = "name"  # Of a savepoint.
    UID = "uid"
    URI = "uri"  # s3://bucket/prefix or file:///folder
    ID = "id"  # Of a checkpoint.
    COUNT = "count"
    PERIOD = "period"  # A text as 90s, or milliseconds; given on as a timedelta.
    LIST = "list"  # Words, or a text with commas or blanks between them; given on as a tuple.
    PARAMETERS = "parameters"  # Of the pipeline: values by names.


# The field that names the snapshot, for each target.
_NAMED_IN = {
    "latest": None,
    "checkpoint": "checkpoint_id",
    "savepoint": "savepoint",
    "path": "path",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """An option of an act.

    ``command`` is its option where that is not ``--name``; with ``flag_for`` that is a flag, which
    means this value, as ``flag_says``.  One that ``is_argument`` is an argument of the command.
    ``route`` is its name in a body, where it must be given if it ``is_required``.  ``empty_word``
    means the same as nothing.  A period is ``least`` or more.  ``on`` says which faces have it, and
    ``why_not`` why the others do not.
    """

    name: str
    says: str
    kind: Kind = Kind.FLAG
    default: Any = None
    choices: tuple[str, ...] = ()
    title: str = ""
    section: str = ""
    command: str = ""
    flag_for: Any = None
    flag_says: str = ""
    is_argument: bool = False
    is_required: bool = False
    empty_word: str = ""
    least: timedelta = timedelta(0)
    metavar: str = ""
    route: str = ""
    on: Face = ALL
    why_not: str = ""

    @property
    def empty(self) -> Any:  # noqa: ANN401 - of the field's kind
        """The value where nothing is given."""
        if self.kind is Kind.LIST:
            return ()
        if self.kind is Kind.PARAMETERS:
            return {}
        return bool(self.default) if self.kind is Kind.FLAG else self.default

    @property
    def label(self) -> str:
        return self.title or self.name.replace("_", " ").capitalize()

    def value(self, given: Any) -> Any:  # noqa: ANN401 - of the field's kind
        """*given* as the act takes it.

        Raises:
            ConfigurationError: it is no such value; the faces refuse most before.
        """
        if given in (None, "", self.empty_word):
            if given is not None and self.is_required and self.empty is None:
                what = f"{self.says[0].lower()}{self.says[1:].rstrip('.')}"
                raise ConfigurationError(f"{self.name} is empty; give {what}")
            return self.empty
        match self.kind:
            case Kind.LIST:
                words = given if isinstance(given, str) else " ".join(map(str, given))
                return tuple(re.findall(r"[^\s,]+", words))
            case Kind.PERIOD if isinstance(given, str):
                option = self.command or f"--{self.name.replace('_', '-')}"
                return duration_of(option, "0s" if given == "0" else given, least=self.least)
            case Kind.PERIOD:
                return timedelta(milliseconds=given)
            case Kind.ID if isinstance(given, str):
                return parsed_checkpoint_id(given)
            case Kind.ID:
                return CheckpointId(given)
            case Kind.CHOICE if given not in self.choices:
                raise ConfigurationError(
                    f"{self.name} is {given!r}; choose {', '.join(self.choices)}"
                )
            case _:
                return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """``says`` is its sentence, ``details`` what a person should know besides.

    ``dag`` is the suffix of the DAG whose run carries it out.  One that ``is_immediate`` has no
    run: it is in force at once, for every coordinator, also where no worker is free; whoever may
    run that DAG by hand may do it.
    """

    name: str
    says: str
    details: str = ""
    dag: str = ""
    is_immediate: bool = False
    fields: tuple[Field, ...] = ()

    def dag_id(self, uid: str) -> str:
        """The id of its DAG, for the pipeline *uid*."""
        return f"{uid}__{self.dag}" if self.dag else uid

    def on(self, face: Face) -> tuple[Field, ...]:
        """The fields that *face* has."""
        return tuple(field for field in self.fields if face in field.on)

    def choices_on(self, face: Face, field: Field) -> tuple[str, ...]:
        """Those of *field*, but for a target that *face* has no field to name."""
        named = {None, *(one.name for one in self.on(face))}
        return tuple(one for one in field.choices if _NAMED_IN.get(one) in named)

    def given(self, values: Given) -> dict[str, Any]:
        """A value for each field: of *values*, or what is meant where it has none.

        Raises:
            ConfigurationError: a value is not of its field's kind.
        """
        return {field.name: field.value(values.get(field.name)) for field in self.fields}

    def __getitem__(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)


_ONE_AT_A_TIME = "a DAG run waits by itself"
_OWN_ROOT = "it would have the API server's rights: use the form"

FORCED = Field(
    name="forced",
    command="--force",
    says="Do not wait for a pending checkpoint, even above the limit of concurrent ones. "
    "Unaligned checkpoints always wait.",
)
_WAITING = (
    Field(
        name="no_wait",
        says="Return once the request is queued.",
        on=Face.COMMAND,
        why_not=_ONE_AT_A_TIME,
    ),
    Field(
        name="wait_for",
        kind=Kind.PERIOD,
        least=LEAST_WAIT,
        says="Drop the request if nothing takes it up for 90s, 10m, 2h. "
        "[default: the checkpoint timeout]",
        on=Face.COMMAND,
        why_not=_ONE_AT_A_TIME,
    ),
)
_FORMAT = Field(
    name="format",
    kind=Kind.CHOICE,
    default="native",
    choices=("native", "canonical"),
    command="--canonical",
    flag_for="canonical",
    flag_says="Merge each subtask's state to one sorted run.",
    route="format-type",
    says="canonical: merge each subtask's state to one sorted run. native: its files as they are, "
    "which is faster.",
)
_NEW_NAME = Field(
    name="name",
    kind=Kind.NAME,
    title="Name",
    route="savepoint-name",
    is_argument=True,
    says="The savepoint's name: up to 128 of A-Z a-z 0-9 _ . - An existing savepoint is never "
    "overwritten. Empty in a form: made of the run's id.",
)

_PARAMETERS = Field(
    name="params",
    kind=Kind.PARAMETERS,
    command="--param",
    flag_says="A parameter of the pipeline as name=value; or simply --name value.",
    says="Parameters of the pipeline, by their names. Empty: as before.",
)

CHECKPOINT = Act(
    name="checkpoint",
    says="Take a checkpoint of PIPELINE now, even without new input or during the minimum pause.",
    details="The process that runs the job takes it: 'sluice run', or Airflow.",
    fields=(
        Field(
            name="checkpoint_type",
            kind=Kind.CHOICE,
            default="CONFIGURED",
            choices=("CONFIGURED", "FULL", "INCREMENTAL"),  # Flink's CheckpointType.
            command="--full",
            flag_for="FULL",
            flag_says="Write all state anew: it shares no file with those before.",
            route="checkpointType",
            says="FULL: write all state anew; it shares no file with the checkpoints before. "
            "CONFIGURED and INCREMENTAL: only what changed.",
        ),
        FORCED,
        replace(
            _PARAMETERS,
            says="The parameters of the pipeline, if the job is not submitted yet.",
            on=Face.FORM | Face.ROUTE,
            why_not="'sluice run' submits a job",
        ),
        *_WAITING,
    ),
)
SAVEPOINT = Act(
    name="savepoint",
    says="Take a savepoint of PIPELINE; the job goes on.",
    dag="savepoint",
    fields=(
        _NEW_NAME,
        Field(
            name="stop",
            kind=Kind.CHOICE,
            default="none",
            choices=tuple(STOPS),
            title="Then stop the job",
            says="none: it goes on. suspend: it stops, and event time stays where it is. drain: "
            "every window fires and the job is FINISHED, for good.",
            on=Face.FORM,
            why_not="there 'stop' is a separate act",
        ),
        _FORMAT,
        FORCED,
        Field(
            name="target",
            kind=Kind.URI,
            title="Copy to another root",
            command="--copy-to",
            says="Copy it to another root: s3://bucket/prefix or file:///folder. Empty: it stays "
            "in the job's own root.",
            on=Face.FORM | Face.COMMAND,
            why_not=_OWN_ROOT,
        ),
        *_WAITING,
    ),
)
STOP = Act(
    name="stop",
    says="Stop PIPELINE with a savepoint. Everything before it is published; nothing after it is "
    "read.",
    details="'sluice cancel' ends a job at once, without one.",
    dag="savepoint",
    fields=(
        Field(
            name="drain",
            says="Fire all windows first; the job is then FINISHED for good, not SUSPENDED.",
            on=Face.COMMAND | Face.ROUTE,
            why_not="in the form: stop = drain",
        ),
        Field(
            name="name",
            kind=Kind.NAME,
            command="--savepoint",
            route="savepoint-name",
            says="The savepoint's name. Empty: made of the time, or of the run's id.",
        ),
        _FORMAT,
        FORCED,
        *_WAITING,
    ),
)
CANCEL = Act(
    name="cancel",
    says="End the job. Pending checkpoints are aborted; retained ones are kept or deleted, as "
    "configured.",
    dag="cancel",
)
ABORT = Act(
    name="abort",
    says="Abort the pending checkpoint ID. Its files are deleted, and the next checkpoint reads "
    "its records.",
    details="The job does not fail over, and the abort does not count as a failure.",
    is_immediate=True,
    fields=(
        Field(
            name="checkpoint",
            kind=Kind.TEXT,
            is_argument=True,
            metavar="ID",
            says="A pending checkpoint, or 'latest'.",
            on=Face.COMMAND,
            why_not="it is in the route",
        ),
        Field(
            name="because",
            kind=Kind.TEXT,
            says="Why; the history shows it.",
        ),
    ),
)
DISPOSE = Act(
    name="dispose",
    says="Delete savepoint NAME of PIPELINE. Refused while the job needs it.",
    details="A missing savepoint is no error. Jobs of other roots are not checked: a job that was "
    "restored from it needs it until its first checkpoint.",
    dag="savepoint",
    is_immediate=True,
    fields=(
        Field(
            name="name",
            kind=Kind.NAME,
            route="savepoint-name",
            is_argument=True,
            is_required=True,
            says="The savepoint's name.",
        ),
    ),
)
PAUSE = Act(
    name="pause",
    says="Stop the periodic checkpoints of PIPELINE; a pending one completes.",
    details="The job reads nothing until 'sluice resume'. 'sluice checkpoint' and 'sluice "
    "savepoint' still work.",
    is_immediate=True,
)
RESUME_CHECKPOINTING = Act(
    name="resume", says="Take periodic checkpoints of PIPELINE again.", is_immediate=True
)
RETIME = Act(
    name="config",
    says="Show how PIPELINE takes its checkpoints: declared, in force, default; or change it.",
    details="A change takes effect with the next checkpoint, survives restores, and ends with a "
    "reset or a new submission.",
    is_immediate=True,
    fields=(
        *(
            Field(
                name=name,
                kind=Kind.PERIOD if isinstance(limits_of(name), DurationLimits) else Kind.COUNT,
                command="--tolerable" if name == "tolerable_failed_checkpoints" else "",
                says=OPTIONS[name].says,
            )
            for name in CHANGEABLE
        ),
        Field(name="reset", says="Undo all changes; a pause stays."),
    ),
)

BACKFILL = Act(
    name="backfill",
    says="Read partitions of input again in an epoch of their own: their old rows are taken back, "
    "and the present ones are read.",
    details="For sources with replaced='by partition'. The process that runs the job takes it, and "
    "'sluice checkpoints abort' cancels it.",
    is_immediate=True,
    fields=(
        Field(
            name="input",
            kind=Kind.LIST,
            is_required=True,
            metavar="FOLDERS",
            says="Folders of columns: dt=2026-03-01, all days from dt=2026-03-01..02, or "
            "dt=2026-03-01/country=de.",
        ),
        Field(
            name="dry_run",
            says="Only say which files and rows would be taken back and read, and which stages "
            "get them.",
        ),
        *_WAITING,
    ),
)

_SNAPSHOT = (
    Field(
        name="target",
        kind=Kind.CHOICE,
        default="latest",
        choices=("latest", "checkpoint", "savepoint", "path"),
        title="Restore from",
        says="latest: the checkpoint from which the job continues. For another one, name it "
        "below. Everything is verified before anything changes.",
        on=Face.FORM | Face.ROUTE,
        why_not="the options below name it",
    ),
    Field(
        name="checkpoint_id",
        kind=Kind.ID,
        title="Checkpoint",
        command="--checkpoint",
        empty_word=LATEST,
        says="The id of a retained checkpoint.",
    ),
    Field(name="savepoint", kind=Kind.NAME, says="A savepoint, by its name."),
    Field(
        name="path",
        kind=Kind.TEXT,
        command="--from",
        metavar="PATH",
        says="A snapshot by its path: its folder or the _metadata in it, as a URI, an absolute "
        "path, or a path in the job's own root.",
        on=Face.FORM | Face.COMMAND,
        why_not=_OWN_ROOT,
    ),
    Field(
        name="root",
        kind=Kind.URI,
        section=_ELSEWHERE,
        title="In another root",
        command="--from-root",
        says="The root that has the checkpoint or savepoint, if it is another one: "
        "s3://bucket/prefix or file:///folder.",
        on=Face.FORM | Face.COMMAND,
        why_not=_OWN_ROOT,
    ),
    Field(
        name="root_pipeline",
        kind=Kind.UID,
        section=_ELSEWHERE,
        title="Pipeline there",
        command="--from-pipeline",
        metavar="UID",
        says="The pipeline's uid in that root, if it differs.",
        on=Face.FORM | Face.COMMAND,
        why_not=_OWN_ROOT,
    ),
)
_CHANGES = (
    Field(
        name="parallelism",
        kind=Kind.LIST,
        metavar="[STAGE=]N",
        says="Subtasks of every stage (4) or of one stage (stage=8) from now on, up to the max "
        "parallelism. Empty: as before.",
    ),
    _PARAMETERS,
)
_CONSENT = (
    Field(
        name="allow_non_restored_state",
        says="Drop the state of stages that the pipeline no longer has.",
    ),
    Field(
        name="begin",
        kind=Kind.LIST,
        title="Begin anew",
        metavar="STAGE[.COLUMN]",
        says="Stages, or columns as stage.column, that begin again with empty state, because the "
        "declaration means something else now.",
    ),
    Field(
        name="keep",
        kind=Kind.LIST,
        metavar="STAGE",
        says="Stages that keep their state although new rows are read differently; sources that "
        "keep their positions because their place was moved; sinks that keep the rows of a "
        "removed stage.",
    ),
    Field(
        name="roll_back_tables",
        title="Roll tables back",
        says="Roll the sinks' tables back to their versions in the checkpoint at once. A dry run "
        "says which tables are ahead, and which cannot go back.",
    ),
    Field(
        name="accept_tables",
        says="Accept the sinks' tables as they are: missing rows stay missing, and rows of another "
        "life of a job stay.",
    ),
    Field(
        name="take_over",
        kind=Kind.LIST,
        title="Take tables over",
        metavar="SINK",
        says="Sinks whose tables another job wrote. The rows stay; that job is refused from now "
        "on.",
    ),
)
_MANNER = (
    Field(
        name="compare_checksums",
        default=True,
        command="--no-checksums",
        flag_for=False,
        flag_says="Compare only names and sizes of files, not their checksums.",
        says="Read every file and compare its checksum. Otherwise only names and sizes are "
        "compared, and a later checkpoint may be the first to find damage.",
    ),
    Field(
        name="claim_mode",
        kind=Kind.CHOICE,
        default=ClaimMode.NO_CLAIM.value,
        choices=tuple(mode.value for mode in ClaimMode),
        says="NO_CLAIM: the savepoint stays yours. CLAIM: the job owns it, and deletes it once no "
        "checkpoint reads it.",
    ),
    Field(
        name="then",
        kind=Kind.CHOICE,
        default=RESUME,
        choices=(RESUME, STAY_SUSPENDED),
        command="--stay-suspended",
        flag_for=STAY_SUSPENDED,
        flag_says="Leave the job SUSPENDED, to look first; restore latest to go on.",
        says="resume: the job goes on. stay suspended: look first, then restore latest to go on.",
    ),
    Field(
        name="dry_run",
        says="Only say what would be restored, and what is missing; change nothing.",
    ),
    Field(
        name="ignore_in_flight_of",
        kind=Kind.ID,
        section=_SELDOM,
        title="UNSAFE: ignore in-flight data of checkpoint",
        says="Last resort: the rows that this checkpoint left in flight are lost.",
    ),
    Field(
        name="only_generation",
        kind=Kind.COUNT,
        section=_SELDOM,
        says="Leave empty: a failover sets it, so that a late or repeated restore does nothing.",
        on=Face.FORM,
        why_not="only a failover sets it",
    ),
)
RESTORE = Act(
    name="restore",
    says="Continue PIPELINE from its latest checkpoint, or from the one that is named.",
    details="Everything it needs is verified first. Older coordinators of the job are fenced.",
    dag="restore",
    fields=(*_SNAPSHOT, *_CHANGES, *_CONSENT, *_MANNER),
)

ACTS = (
    CHECKPOINT,
    SAVEPOINT,
    STOP,
    RESTORE,
    CANCEL,
    ABORT,
    DISPOSE,
    PAUSE,
    RESUME_CHECKPOINTING,
    RETIME,
    BACKFILL,
)


def dag_ids(uid: str) -> tuple[str, ...]:
    """The ids of the DAGs of pipeline *uid*: that of its checkpoints, then those of other acts."""
    return tuple(dict.fromkeys(act.dag_id(uid) for act in ACTS))


def restore_request(given: Given, *, may_submit: bool = False) -> RestoreRequest:
    """The request that the values of ``RESTORE`` make, as ``Act.given`` returns them.

    A job that was never submitted begins with the empty state if it *may_submit*.

    Raises:
        ConfigurationError: the field of the chosen target is empty, or that of another one is not;
            or other fields contradict each other.
    """
    from sluice.coordinator.restore import RestoreRequest

    if given["dry_run"] and given["then"] == STAY_SUSPENDED:
        raise ConfigurationError(
            "a dry run changes nothing, so the job cannot stay suspended after it; choose one"
        )
    return RestoreRequest(
        checkpoint=given["checkpoint_id"],
        savepoint=given["savepoint"],
        root=given["root"],
        pipeline=given["root_pipeline"],
        pointer=given["path"],
        parallelism=given["parallelism"],
        params=given["params"],
        options=RestoreOptions(
            allow_non_restored_state=given["allow_non_restored_state"],
            claim_mode=ClaimMode[given["claim_mode"]],
            ignore_in_flight_of=given["ignore_in_flight_of"],
            roll_back_tables=given["roll_back_tables"],
            accept_tables=given["accept_tables"],
            take_over=given["take_over"],
            compare_checksums=given["compare_checksums"],
            consent=Consent(begun=given["begin"], kept=given["keep"]),
        ),
        only_generation=given["only_generation"],
        may_submit=may_submit,
    )


def require_named(given: Given) -> None:
    """The chosen ``target`` of a restore is named, and nothing beside it.

    Raises:
        ConfigurationError: it is not.
    """
    target = given["target"]
    field = _NAMED_IN[target]
    filled = {name: given[name] for name in _NAMED_IN.values() if name and given[name] is not None}
    if field is not None and field not in filled:
        raise ConfigurationError(f"target is {target!r}, but {field} is empty; give one")
    for other, value in filled.items():
        if other != field:
            raise ConfigurationError(
                f"target is {target!r}, but {other} is {value!r}; empty it, or choose the target "
                f"{other.removesuffix('_id')!r}"
            )


def new_times(given: Given) -> NewTimes:
    """The changes that the values of ``RETIME`` ask for.

    Raises:
        ConfigurationError: a value is out of the limits that a declaration has.
    """
    from sluice.coordinator.requests import NewTimes

    return NewTimes(resets=given["reset"], **{name: given[name] for name in CHANGEABLE})
