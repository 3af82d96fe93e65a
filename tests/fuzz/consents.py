"""What a restore with a changed declaration must say, and a person who does what it asks for.

What is expected is of the table of transitions and the drawn change alone: fingerprints are not
asked for.
"""

from __future__ import annotations

import re

from sluice.coordinator.restore import restore
from sluice.coordinator.trigger import trigger
from sluice.core.configuration import CheckpointType
from sluice.core.restoring import Choice, RestoreOptions
from sluice.core.transitions import ROWS, Becomes, Consent, PartDifference, row_of
from sluice.declaration.changelog import Append
from sluice.errors import ConfigurationError, RestoreError
from sluice.job.job import Job
from tests.fuzz.plans import Change

_SENTENCES = re.compile(r"(?=(?:stage|sink) ')")
_KEEP = re.compile(r"--keep (\S+?)[;,]?(?=\s|$)")
_BEGIN = re.compile(r"--begin (\S+?)[;,]?(?=\s|$)")
ROUNDS = 5
WITHOUT_CONSENT = (Becomes.SAME, Becomes.TAKEN_OVER, Becomes.RECOMPUTED)


class DifferenceError(Exception):
    """A sink does not hold what it must, or a restore does not say what it must."""


def consented(job: Job, act: Change, target: Choice) -> Consent | None:
    """The consent with which the *job* was restored, as the *act* wants it; None: it was not.

    Raises DifferenceError where the table of transitions says otherwise.
    """
    expected, consent = _expected(job, act, target), Consent()
    leaves_out = any(
        path == "uid" or (path, value) == ("is_absent", True) for _, path, value in act.edits
    )
    for round_ in range(ROUNDS):
        before = job.state()
        try:
            options = RestoreOptions(consent=consent, allow_non_restored_state=leaves_out)
            restore(job, target, options)
        except RestoreError as error:
            if job.state() != before:
                raise DifferenceError(f"what was refused changed the job: {error}") from error
            if round_ == 0 and not act.from_before:
                _trigger_is_refused(job)
            more = _asked(str(error), act.consents).beside(consent)
            kept = tuple(uid for uid in more.kept if uid not in more.begun)
            more = Consent(begun=more.begun, kept=kept)
            _require(expected, act, str(error), is_first=round_ == 0)
            if not act.consents:
                return None
            if more == consent:
                _require_help(expected, act, str(error))
                return None
            consent = more
        else:
            if consent == Consent() and expected not in (None, *WITHOUT_CONSENT):
                raise DifferenceError(f"{act.part!r} of {act.uid!r} changed without a word")
            return consent
    raise DifferenceError(f"{ROUNDS} consents did not help: {consent}")


def _expected(job: Job, act: Change, target: Choice) -> Becomes | None:
    """What the table says of the change; None where the checkpoint has nothing of its stage."""
    if not act.part:
        return Becomes.SAME
    metadata = job.snapshot_metadata(target.checkpoint_id, None)
    assert metadata is not None
    if act.uid not in metadata.held:
        return None
    part = None if act.part == "column" else act.part
    row = row_of(part, PartDifference(act.difference))
    assert row is not None, f"the table has no {act.part}"
    stage = job.pipeline.stages.get(act.uid)
    inputs = stage.inputs if stage is not None else ()
    is_updated = act.uid in job.pipeline.sinks or any(one.kind != Append() for one in inputs)
    becomes = (row.updates if is_updated else row.append) or Becomes.REFUSED
    has_forgotten = stage is not None and stage.ttl_ms is not None
    if becomes is Becomes.TAKEN_OVER and row.needs_all_rows and has_forgotten:
        return Becomes.REFUSED if is_updated else Becomes.BEGUN_ANEW
    return becomes


def _require(expected: Becomes | None, act: Change, message: str, *, is_first: bool) -> None:
    if expected in (Becomes.SAME, Becomes.TAKEN_OVER):
        raise DifferenceError(f"{act.part or 'nothing'} of {act.uid!r} changed, and: {message}")
    may_be_told_of_others = expected in (None, Becomes.RECOMPUTED)
    if is_first and not may_be_told_of_others and f"{act.uid!r}" not in message:
        raise DifferenceError(f"{act.part!r} of {act.uid!r} changed, which is not said: {message}")


def _require_help(expected: Becomes | None, act: Change, message: str) -> None:
    """Consent helps wherever rows only come, but for sinks that hold what is taken back."""
    helps = expected in (Becomes.BEGUN_ANEW, Becomes.KEPT)
    is_of_sink = act.part == ROWS and act.consents == "keep"
    if helps and (is_of_sink or "sink" not in message):
        raise DifferenceError(f"{act.part!r} of {act.uid!r}: no consent helps: {message}")


def _asked(message: str, prefer: str) -> Consent:
    """All that the *message* says would help."""
    begun: dict[str, None] = {}
    kept: dict[str, None] = {}
    for sentence in _SENTENCES.split(message):
        keeps = _KEEP.findall(sentence)
        if keeps and prefer == "keep":
            kept |= dict.fromkeys(keeps)
        else:
            begun |= dict.fromkeys(_BEGIN.findall(sentence))
    begun = {t: None for t in begun if "." not in t or t.partition(".")[0] not in begun}
    return Consent(begun=tuple(begun), kept=tuple(uid for uid in kept if uid not in begun))


def _trigger_is_refused(job: Job) -> None:
    """Of a job that was not restored, before anything is read."""
    try:
        trigger(job, type=CheckpointType.CHECKPOINT, is_periodic=False, cause="changed")
    except ConfigurationError:
        return
    raise DifferenceError("a restore was refused, and a trigger was not")
