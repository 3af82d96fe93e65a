"""Every key in the bucket, built here and nowhere else.  Keys are relative to the root.

    {pipeline}/
      begun                                                  which journal is the job's, create-only
      {journal}/                                             of one journal, as no other one has it:
        journal/{seq}                                        the coordinator's log, create-only
        checkpoints/{id}/plan                                immutable
        checkpoints/{id}/answers/{stage}.{attempt}-{plan}    all acks of the stage, create-only
        checkpoints/{id}/declines/{stage}/{subtask}.{attempt}-{plan}  create-only
        checkpoints/{id}/failures/{task}.{attempt}           why a task failed; create-only
        checkpoints/{id}/_metadata                           immutable
        checkpoints/{id}/committing/{token}                  written again and again by a commit
                                                             that lasts: its owner is alive
        shared/{stage}/{id}-{content}.arrow                  state segments, shared by checkpoints
        shared/{source}/{id}-{content}.position              layers of a source's position, too
        shared/{source}/{id}-{content}.copy                  input that may be replaced, as read
        compactions/{stage}/{id}/record, {content}.arrow     state merged behind checkpoint {id}
        streams/{stream}/{id}/{content}.arrow                stream segments of one epoch
        early/{id}/{sink}                                    its rows may be shown before {id} is
                                                             completed, so no abort deletes them
        statistics/{id}                                      what is kept of {id} when it has ended,
                                                             create-only; the newest ones stay
      tables/{sink}/...                                      a sink's table, unless it names a place
      side/{stage}.{name}/...                                side outputs, published like a table
      savepoints/{name}/pointers/{seq}                       which token the name means, create-only
      savepoints/{name}/{token}/_metadata + files            self-contained, owned by the user
      probes/{token}                                         written and deleted at start-up
    sluice-doctor/{token}/{name}                             of no job: written and deleted to try
                                                             a store out; no uid has a hyphen

``{journal}`` is the journal's token, ``j-`` and random digits, drawn when it begins and noted in
``begun``.  What one journal's coordinators write, and delete, lies below it, so whoever slept while
the root was emptied hits nothing of the next journal there.  Beside it is what is addressed by its
name, and keeps its own record of who wrote it: a table has a time line, a savepoint a pointer.

Numbers are zero-padded, so that listing order is their order.  ``{plan}`` is the plan's token: an
answer to another plan of that id lies under another key.

Keys are built of uids, of names that people choose, and of numbers.  Text from the bucket or from a
form is none of these until a function of this file has checked it; each refusal names the limits.
No check is an ``assert``: they guard input, and hold under ``python -O``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sluice.core.ids import CheckpointId, SavepointId, SubtaskId
from sluice.errors import ConfigurationError, ProtocolViolation

SEQ_DIGITS = 12
ID_DIGITS = 10
COMPACTION_RECORD = "record"
POSITION_LAYER = ".position"
COPY_OF_INPUT = ".copy"
TEMPORARY_PREFIX = ".sluice-tmp-"  # FileStore writes these beside the objects; no key may.

UID = r"[a-z][a-z0-9_]{0,62}"  # It becomes a key, a task id and a column-safe name.
SAVEPOINT_NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
INCARNATION = r"(?!pointers(?:/|\Z))[a-z0-9-]{1,32}"  # A token, and no name of a folder beside it.
JOURNAL_PREFIX = "j-"  # With a hyphen, so it is no uid, and no other folder's name.
JOURNAL_TOKEN = rf"{JOURNAL_PREFIX}[a-z0-9]{{1,32}}"
_BEHIND_SLASH = chr(ord("/") + 1)

_UID, _SAVEPOINT = re.compile(UID), re.compile(SAVEPOINT_NAME)
_PART = rf"(?!\.\.?(?:/|\Z))(?!{re.escape(TEMPORARY_PREFIX)})[^/]+"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_JOURNAL_TOKEN = re.compile(JOURNAL_TOKEN)
_SEQ = re.compile(rf"[0-9]{{{SEQ_DIGITS}}}")
_ID = rf"([0-9]{{{ID_DIGITS}}})"
_OF_A_CHECKPOINT = re.compile(
    rf"(?:checkpoints|(?:streams|compactions)/[^/]+)/{_ID}/.+|shared/[^/]+/{_ID}-.+"
)
_COMPACTION = re.compile(rf"[^/]+/{_ID}/{COMPACTION_RECORD}")
_EARLY = re.compile(rf"{_ID}/([^/]+)")
_STATISTICS = re.compile(_ID)
_PLAN = r"[a-z0-9]{0,32}"
_ANSWER = re.compile(rf"({UID})\.([0-9]+)-({_PLAN})")
_DECLINE = re.compile(rf"({UID})/([0-9]+)\.([0-9]+)-({_PLAN})")
_INCARNATION = re.compile(rf"({SAVEPOINT_NAME})/({INCARNATION})/.+")
_POINTER = re.compile(rf"({SAVEPOINT_NAME})/pointers/([0-9]{{{SEQ_DIGITS}}})")
_SNAPSHOT = re.compile(
    rf"(?:(?P<root>.*)/)?(?P<pipeline>{UID})"
    rf"/(?:(?:(?P<journal>{JOURNAL_TOKEN})/)?checkpoints/(?P<id>[0-9]{{1,{ID_DIGITS}}})"
    rf"|savepoints/(?P<savepoint>{SAVEPOINT_NAME})(?:/(?P<token>{INCARNATION}))?)"
    r"(?:/_metadata|/)?"
)


@dataclass(frozen=True, slots=True)
class PipelinePaths:
    """Keys of one pipeline under a root that are addressed by name, whatever its journal is.

    Raises:
        ConfigurationError: the uid, or the name of a savepoint, cannot be part of a key.
    """

    pipeline: str

    def __post_init__(self) -> None:
        check_uid(self.pipeline, "pipeline")

    def begun(self) -> str:
        """The pointer to the job's journal."""
        return f"{self.pipeline}/begun"

    def of_journal(self, token: str) -> JournalPaths:
        """Raises ProtocolViolation where *token* is none of a journal."""
        return JournalPaths(self.pipeline, token)

    def journals(self) -> str:
        """The beginning of the keys of all journals, of which one at most is the job's."""
        return f"{self.pipeline}/{JOURNAL_PREFIX}"

    def all_journals(self) -> str:
        """The prefix of all journals, with a token or without; other names may begin so, too."""
        return f"{self.pipeline}/{JOURNAL_PREFIX[0]}"

    def journal_of(self, key: str) -> JournalPaths | None:
        """The journal that *key* is of; None for any other key."""
        token, slash, _ = key.removeprefix(f"{self.pipeline}/").partition("/")
        is_token = bool(slash) and _JOURNAL_TOKEN.fullmatch(token) is not None
        return self.of_journal(token) if is_token else None

    def journal_without_token(self) -> str:
        """The prefix of the journal in format versions before 8."""
        return f"{self.pipeline}/journal/"

    def table(self, sink: str) -> str:
        return f"{self.pipeline}/tables/{sink}"

    def side_output(self, name: str) -> str:
        return f"{self.pipeline}/side/{name}"

    def savepoints(self) -> str:
        return f"{self.pipeline}/savepoints/"

    def savepoint(self, name: str) -> str:
        """The folder of the name: of its pointers, and of every incarnation."""
        return f"{self.savepoints()}{check_savepoint_name(name)}/"

    def savepoint_pointers(self, name: str) -> str:
        return f"{self.savepoint(name)}pointers/"

    def savepoint_pointer(self, name: str, seq: int) -> str:
        return f"{self.savepoint_pointers(name)}{seq:0{SEQ_DIGITS}d}"

    def savepoint_pointer_of(self, key: str) -> tuple[str, int] | None:
        """The name and the number of the pointer at *key*; None for any other key."""
        found = self._below_savepoints(_POINTER, key)
        return None if found is None else (found[1], int(found[2]))

    def incarnation(self, savepoint: SavepointId) -> str:
        """The folder of one incarnation, which no other one writes or deletes."""
        if not re.fullmatch(INCARNATION, savepoint.token):
            raise ConfigurationError(f"{savepoint.token!r} is no token of a savepoint")
        return f"{self.savepoint(savepoint.name)}{savepoint.token}/"

    def savepoint_metadata(self, savepoint: SavepointId) -> str:
        return f"{self.incarnation(savepoint)}_metadata"

    def savepoint_file(self, savepoint: SavepointId, content: str, *, copy_of: str = "") -> str:
        """A file named by its *content*, of the same kind as the key that it is a *copy_of*."""
        kinds = (kind for kind in (POSITION_LAYER, COPY_OF_INPUT) if copy_of.endswith(kind))
        kind = next(kinds, ".arrow")
        return f"{self.incarnation(savepoint)}{content}{kind}"

    def savepoint_of(self, key: str) -> SavepointId | None:
        """The incarnation that *key* is a file of; None for any other key."""
        found = self._below_savepoints(_INCARNATION, key)
        return None if found is None else SavepointId(found[1], found[2])

    def _below_savepoints(self, name: re.Pattern[str], key: str) -> re.Match[str] | None:
        folder = self.savepoints()
        return name.fullmatch(key, len(folder)) if key.startswith(folder) else None

    def probes(self) -> str:
        return f"{self.pipeline}/probes/"

    def probe(self, token: str) -> str:
        return f"{self.probes()}{token}"


@dataclass(frozen=True, slots=True)
class JournalPaths(PipelinePaths):
    """Keys of one pipeline under a root, with those of one journal, which no other one ever has.

    Raises:
        ConfigurationError: as ``PipelinePaths``.
        ProtocolViolation: the token is none of a journal.
    """

    token: str

    def __post_init__(self) -> None:
        PipelinePaths.__post_init__(self)
        if not _JOURNAL_TOKEN.fullmatch(self.token):
            raise ProtocolViolation(f"{self.token!r} is no token of a journal")

    @property
    def folder(self) -> str:
        return f"{self.pipeline}/{self.token}/"

    @property
    def owner(self) -> str:
        """Whose a thing is that lies outside the root, beside those of others: this journal's."""
        return self.token.removeprefix(JOURNAL_PREFIX)

    def checkpoint_token(self, plan: str) -> str:
        """The identity of a checkpoint in the files that a sink stages, beside its number: the
        journal and the token of its *plan*.
        """
        return f"{self.owner}_{plan}"

    def is_of_journal(self, checkpoint_token: str) -> bool:
        """Whether a ``checkpoint_token`` is of a checkpoint of this journal."""
        return checkpoint_token.startswith(f"{self.owner}_")

    def behind(self) -> str:
        """A text that sorts behind all keys of this journal, and before those of the next."""
        return f"{self.pipeline}/{self.token}{_BEHIND_SLASH}"

    def journal(self) -> str:
        return f"{self.folder}journal/"

    def journal_entry(self, seq: int) -> str:
        return f"{self.journal()}{seq:0{SEQ_DIGITS}d}"

    def is_journal_entry(self, key: str) -> bool:
        return _is_below(self.journal(), key, _SEQ)

    def journal_seq(self, key: str) -> int:
        """The number of the entry at *key*; the inverse of ``journal_entry``."""
        return int(key.removeprefix(self.journal()))

    def checkpoints(self) -> str:
        return f"{self.folder}checkpoints/"

    def checkpoint(self, checkpoint_id: int) -> str:
        return f"{self.checkpoints()}{checkpoint_id:0{ID_DIGITS}d}/"

    def plan(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}plan"

    def metadata(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}_metadata"

    def committing(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}committing/"

    def answers(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}answers/"

    def answer(self, checkpoint_id: int, stage: str, attempt: int, plan: str) -> str:
        """The key of the acks of a stage's attempt; *plan* is the plan's token."""
        return f"{self.answers(checkpoint_id)}{stage}.{attempt}-{plan}"

    def is_answer(self, key: str) -> bool:
        return _is_in_checkpoint(self.checkpoints(), "answers/", key, _ANSWER)

    def declines(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}declines/"

    def decline(self, checkpoint_id: int, subtask: SubtaskId, attempt: int, plan: str) -> str:
        return f"{self.declines(checkpoint_id)}{subtask.stage}/{subtask.index}.{attempt}-{plan}"

    def is_decline(self, key: str) -> bool:
        return _is_in_checkpoint(self.checkpoints(), "declines/", key, _DECLINE)

    def failures(self, checkpoint_id: int) -> str:
        return f"{self.checkpoint(checkpoint_id)}failures/"

    def failure(self, checkpoint_id: int, task: str, attempt: int) -> str:
        return f"{self.failures(checkpoint_id)}{task}.{attempt}"

    def all_shared(self) -> str:
        return f"{self.folder}shared/"

    def shared_segments(self, stage: str, checkpoint_id: int) -> str:
        """The prefix of the segments of checkpoint *checkpoint_id*, which no other one writes."""
        return f"{self.all_shared()}{stage}/{checkpoint_id:0{ID_DIGITS}d}-"

    def shared_segment(self, stage: str, checkpoint_id: int, content: str) -> str:
        return f"{self.shared_segments(stage, checkpoint_id)}{content}.arrow"

    def position_layer(self, source: str, checkpoint_id: int, content: str) -> str:
        return f"{self.shared_segments(source, checkpoint_id)}{content}{POSITION_LAYER}"

    def copy_of_input(self, source: str, checkpoint_id: int, content: str) -> str:
        return f"{self.shared_segments(source, checkpoint_id)}{content}{COPY_OF_INPUT}"

    def all_compactions(self) -> str:
        return f"{self.folder}compactions/"

    def compactions(self, stage: str) -> str:
        return f"{self.all_compactions()}{stage}/"

    def compaction(self, stage: str, checkpoint_id: int) -> str:
        """The record of what was merged; create-only."""
        return f"{self.compactions(stage)}{checkpoint_id:0{ID_DIGITS}d}/{COMPACTION_RECORD}"

    def compacted_segment(self, stage: str, checkpoint_id: int, content: str) -> str:
        return f"{self.compactions(stage)}{checkpoint_id:0{ID_DIGITS}d}/{content}.arrow"

    def compaction_of(self, key: str) -> tuple[str, CheckpointId]:
        """The stage and the checkpoint of a ``compacted_segment``, or of a record."""
        stage, checkpoint_id, _ = key.removeprefix(self.all_compactions()).split("/")
        return stage, CheckpointId(int(checkpoint_id))

    def is_compaction(self, key: str) -> bool:
        """Whether *key* is a compaction's record."""
        return _is_below(self.all_compactions(), key, _COMPACTION)

    def all_streams(self) -> str:
        return f"{self.folder}streams/"

    def streams(self, stream: str, checkpoint_id: int) -> str:
        return f"{self.all_streams()}{stream}/{checkpoint_id:0{ID_DIGITS}d}/"

    def stream_segment(self, stream: str, checkpoint_id: int, content: str) -> str:
        return f"{self.streams(stream, checkpoint_id)}{content}.arrow"

    def early_publishes(self, checkpoint_id: int | None = None) -> str:
        folder = f"{self.folder}early/"
        return folder if checkpoint_id is None else f"{folder}{checkpoint_id:0{ID_DIGITS}d}/"

    def early_publish(self, checkpoint_id: int, sink: str) -> str:
        return f"{self.early_publishes(checkpoint_id)}{sink}"

    def is_early_publish(self, key: str) -> bool:
        return _is_below(self.early_publishes(), key, _EARLY)

    def early_publish_of(self, key: str) -> tuple[CheckpointId, str]:
        """The checkpoint and the sink that *key* notes; the inverse of ``early_publish``."""
        checkpoint_id, _, sink = key.removeprefix(self.early_publishes()).partition("/")
        return CheckpointId(int(checkpoint_id)), sink

    def all_statistics(self) -> str:
        return f"{self.folder}statistics/"

    def statistics(self, checkpoint_id: int) -> str:
        return f"{self.all_statistics()}{checkpoint_id:0{ID_DIGITS}d}"

    def is_statistics(self, key: str) -> bool:
        return _is_below(self.all_statistics(), key, _STATISTICS)

    def statistics_of(self, key: str) -> CheckpointId:
        """The checkpoint that *key* is about; the inverse of ``statistics``."""
        return CheckpointId(int(key.removeprefix(self.all_statistics())))

    def checkpoint_of(self, key: str) -> CheckpointId | None:
        """The checkpoint that wrote *key*; None for a name that none of the functions above builds,
        and for a key of another journal.

        Of keys below ``checkpoints``, ``shared``, ``compactions`` and ``streams``.
        """
        is_below = key.startswith(self.folder)
        found = _OF_A_CHECKPOINT.fullmatch(key, len(self.folder)) if is_below else None
        return CheckpointId(int(found[1] or found[2])) if found is not None else None


def _is_in_checkpoint(folder: str, kind: str, key: str, name: re.Pattern[str]) -> bool:
    """Whether *key* is *name* below the folder *kind* of some checkpoint."""
    if not key.startswith(folder):
        return False
    _, _, path = key.removeprefix(folder).partition("/")
    return path.startswith(kind) and name.fullmatch(path, len(kind)) is not None


def _is_below(folder: str, key: str, name: re.Pattern[str]) -> bool:
    return key.startswith(folder) and name.fullmatch(key, len(folder)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPath:
    """The parts of a snapshot's path: ``checkpoint_id`` or ``savepoint``, of a pipeline in a root.

    ``root`` None: the path is a key.  With a ``token`` it is of that incarnation of the savepoint,
    or of that journal.
    """

    root: str | None
    pipeline: str
    checkpoint_id: CheckpointId | None
    savepoint: str | None
    token: str | None = None


def parse_snapshot_path(path: str) -> SnapshotPath | None:
    """The path of a snapshot's folder, or of the ``_metadata`` in it; None for another form.

    That of a savepoint's name means what the name means, and of a checkpoint's number what the
    journal there says.
    """
    found = _SNAPSHOT.fullmatch(path)
    if found is None:
        return None
    return SnapshotPath(
        root=found["root"],
        pipeline=found["pipeline"],
        checkpoint_id=None if found["id"] is None else CheckpointId(int(found["id"])),
        savepoint=found["savepoint"],
        token=found["journal"] or found["token"],
    )


def scratch_folder(token: str) -> str:
    """A folder of no job, as no pipeline can have this uid."""
    return f"sluice-doctor/{token}/"


def scratch(token: str, name: str) -> str:
    return f"{scratch_folder(token)}{name}"


def snapshot_task(stage: str) -> str:
    """The name of the task that runs a *stage*, in Airflow and in the record of its failure."""
    return f"{stage}.snapshot"


def stage_of_task(task: str) -> str | None:
    """The stage that a task of ``snapshot_task`` runs; None of any other task."""
    stage = task.removesuffix(snapshot_task(""))
    return None if stage == task else stage


def stage_of_answer(key: str) -> tuple[str, int, str]:
    """The stage, the execution attempt and the plan that an answer's key names."""
    name, _, plan = key.rpartition("/")[2].partition("-")
    stage, _, attempt = name.partition(".")
    return stage, int(attempt), plan


def subtask_of_decline(key: str) -> tuple[SubtaskId, int, str]:
    """The subtask, the execution attempt and the plan that a decline's key names."""
    folder, _, leaf = key.rpartition("/")
    name, _, plan = leaf.partition("-")
    index, _, attempt = name.partition(".")
    return SubtaskId(folder.rpartition("/")[2], int(index)), int(attempt), plan


def is_uid(uid: str) -> bool:
    return _UID.fullmatch(uid) is not None


def check_uid(uid: str, what: str = "uid") -> str:
    """Raises ConfigurationError unless *uid* is usable; the message calls it *what*."""
    if not is_uid(uid):
        raise ConfigurationError(
            f"{what} {uid!r} is not usable; use up to 63 of a-z, 0-9 and _, starting with a letter"
        )
    return uid


def is_savepoint_name(name: str) -> bool:
    return _SAVEPOINT.fullmatch(name) is not None


def check_savepoint_name(name: str) -> str:
    """Raises ConfigurationError unless a savepoint may have that name."""
    if not is_savepoint_name(name):
        raise ConfigurationError(
            f"savepoint name {name!r} is not usable; use up to 128 of A-Z a-z 0-9 _ . - "
            "and start with a letter or digit"
        )
    return name


def is_key(key: str) -> bool:
    """Whether it is relative, ``/``-separated, without empty, ``.``, ``..`` or reserved parts."""
    return _KEY.fullmatch(key) is not None


def check_key(key: str) -> None:
    """Raises ProtocolViolation for a key that leads out of its root, or is a store's own file."""
    if not is_key(key):
        raise ProtocolViolation(
            f"{key!r} is no key: it is to be relative, without empty, '.' and '..' parts and "
            f"without parts that begin with {TEMPORARY_PREFIX!r}"
        )


def check_prefix(prefix: str) -> None:
    """Check the beginning of a key, which may end with a slash or within a part."""
    folder, slash, _ = prefix.rpartition("/")
    if slash:
        check_key(folder)
