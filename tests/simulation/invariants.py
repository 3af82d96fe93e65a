"""The invariants of DESIGN section 8, checked on every change of the bucket as it happens.

 1. One canonical outcome per checkpoint id: ``_appended`` (a fold, each number once), ``_ended``;
    a coordinator that is told an outcome is told that one (``was_told_...``, ``was_answered``).
 2. Completed implies every planned ack, of one attempt that counted, and files that are readable
    with their checksums: ``snapshots.check_completed``; what a pending checkpoint will need stays:
    ``deletes``.
 3. A restore set is one consistent cut, every stage at the barrier of the sources:
    ``snapshots.check_cut``, when it completes, when it is restored, and at the end; no stage has
    consumed what its upstream has not produced: ``check_consumed``; only damage is passed over.
 4. What a retained checkpoint or a savepoint names is never deleted, nor what a record of merged
    state assigns to epochs that continue one: ``deletes``.
 5. An effect of epoch n only once n is completed, exactly once, after its parent's:
    ``tables.check_published``; a restore has replayed the commit: ``was_told_restored``.
 6. Ids grow and are never reused: ``_triggered``, and plans are never rewritten (``wrote``).
 7. Zombies and duplicates change nothing visible: the first ack stays (``wrote``), the metadata and
    the manifest hold exactly what the acks that count staged (``check_completed``, ``_published``).
 8. The output is that without failures: row by row for every manifest (``check_published``), and as
    a reader sees the whole table, at any moment and at the end (``tables.published_rows``).
 9. A savepoint's bytes never change: ``wrote``, ``deletes``, ``at_the_end``; it is complete and
    names nothing of the job (``snapshots.check_savepoint``); the job needs it no more after its
    first checkpoint (``check_completed``); its name means one incarnation, until that is released,
    and none that is gone ever again (``snapshots.check_pointer``).
10. Nothing of a fenced generation becomes true: ``_appended``; nor at a table: ``readers``.
11. What readers see is what the job continues, or the call said otherwise: ``readers``, for a table
    in a place outside and, when it is rolled back and at the end, for the table of files.
12. When an ack says that its stage is chained, all stages behind it, to the end of the chain, have
    acknowledged: ``snapshots.check_chained``.
13. What people ask of a running job, a pause, other times, the end of one checkpoint, is in force
    for every coordinator until a person says otherwise, and does no more: ``timing``.
14. What a job is resumed from stays until it is subsumed or the job ends for good, whatever its
    retention: ``_kept_to_resume``.
15. An application is ended only when no attempt awaits it, and never by a copy of the root:
    ``submitted``.
16. No decision rests on the difference of two machines' clocks: ``clocks``.
17. What rests on conditional writes begins in a store that was probed for them: ``clocks``.

 0. Not one of them, but without it they are cheap: when the faults end, the job comes to itself
    and takes checkpoints.  See ``liveness``.

To add one, give it a number and a sentence in ``INVARIANTS``, and raise ``Broken`` where it shows.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.jobs import SINK
from sluice.coordinator.garbage import of_earlier_journals
from sluice.core import coordinator
from sluice.core.answers import StageAnswer
from sluice.core.compaction import Compaction
from sluice.core.completed import CheckpointMetadata
from sluice.core.events import (
    AcksReceived,
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointTriggered,
    Event,
    JobRestored,
    JobSubmitted,
    TablesRecovered,
    Verdict,
)
from sluice.core.ids import SavepointId
from sluice.core.plan import CheckpointPlan, SnapshotOrigin, journaled
from sluice.core.savepoints import SavepointPointer
from sluice.core.state import CoordinatorState
from sluice.protocol.records import (
    JournalEntry,
    decode_answer,
    decode_begun,
    decode_compaction,
    decode_entry,
    decode_metadata,
    decode_plan,
    decode_pointer,
)
from tests.simulation.broken import Broken
from tests.simulation.clocks import LATE, ClockChecks
from tests.simulation.damage import check_passed_over
from tests.simulation.dataflow import Row
from tests.simulation.deletions import check_deleted
from tests.simulation.machines import Tried
from tests.simulation.noted import NOTED
from tests.simulation.snapshots import (
    NAMES,
    absorbed_by_the_last,
    check_chained,
    check_completed,
    check_cut,
    check_pointer,
    check_savepoint,
    files_of_ack,
    in_flight_to,
    is_complete,
    meant_by,
)
from tests.simulation.tables import Manifest, check_published, check_shown, published_rows
from tests.simulation.timing import TimingChecks

if TYPE_CHECKING:
    from sluice.coordinator.restore import RestoredJob
    from tests.simulation.world import World

SAVEPOINTS = NAMES.savepoints()
MANIFESTS = f"{NAMES.table(SINK)}/_manifests/"
NONE_BEGUN = "j-0"


class Invariants:
    """Knows all that ever became true, and refuses what must not."""

    world: World

    def __init__(self) -> None:
        # Lives, with their generation, in which one took the place over: also of a root that was
        # emptied since, as who overslept that goes on with what it was told.
        self.takes_over: set[tuple[str, int]] = set()
        self.begin_anew()

    def begin_anew(self) -> None:
        """The bucket is empty."""
        self.paths = NAMES.of_journal(NONE_BEGUN)
        self.lives: set[str] = set()  # Of the job in this bucket.
        self.was_just_restored = False
        self.accepts = False  # A person once took a table as it was.
        self.head = CoordinatorState()
        self.entries: dict[str, bytes] = {}  # Of the journal, also those that are gone.
        self.plans: dict[int, CheckpointPlan] = {}
        self.ended: dict[int, str] = {}
        self.committed: set[int] = set()
        self.metadata: dict[int, CheckpointMetadata] = {}
        self.consumed: dict[int, int] = {}
        self.in_flight: dict[tuple[int | None, str], list[Row]] = {}  # By checkpoint and reader.
        self.attempts: dict[int, list[dict[str, int]]] = {}  # That ever counted, per checkpoint.
        self.ack_files: dict[tuple[int, str, int], set[str]] = {}  # By id, stage and attempt.
        # By plan, stage and driver, what a chained one handed on.
        self.handed: dict[tuple[str, str, str], tuple[Row, ...]] = {}
        self.chained: set[tuple[int, str, int]] = set()
        self.acknowledged: dict[tuple[int, str, int], set[int]] = {}
        self.restored: set[tuple[int | None, SnapshotOrigin | None]] = set()
        self.served: set[str] = set()  # Requests for a restore.
        self.pointers: dict[str, tuple[int, SavepointPointer]] = {}  # The newest ever, by name.
        self.tokens_gone: set[str] = set()
        self.savepoints: dict[SavepointId, CheckpointMetadata] = {}
        self.savepoint_bytes: dict[str, bytes] = {}
        self.manifests: dict[int, Manifest] = {}
        self.compactions: dict[str, Compaction] = {}  # By the key of their record.
        self.needed: dict[str, tuple[int, str]] | None = None
        self.timing = TimingChecks()
        self.clocks = ClockChecks()

    def wrote(self, key: str, body: bytes, before: bytes | None) -> None:
        if before is not None and before != body:
            raise Broken(self._number_of(key), "an object was rewritten with other bytes", key)
        if key == NAMES.begun():
            self.paths = NAMES.of_journal(decode_begun(body, key).token)
        elif key.startswith(self.paths.journal()):
            if before is not None:
                raise Broken(1, "a journal entry was written twice", key)
            if key not in self.entries:  # Otherwise it is a stray, which must not count.
                self.entries[key] = body
                self._appended(decode_entry(body, key), self.paths.journal_seq(key))
        elif self.paths.is_answer(key):
            self._answered(decode_answer(body, key), key)
        elif self.paths.is_compaction(key):
            self.compactions[key] = decode_compaction(body, key)
        elif key.startswith(SAVEPOINTS):
            self._wrote_savepoint(key, body)
        elif key.startswith(MANIFESTS) and before is None and "_" not in key[len(MANIFESTS) :]:
            self._published(json.loads(body))

    def _wrote_savepoint(self, key: str, body: bytes) -> None:
        pointer = NAMES.savepoint_pointer_of(key)
        if pointer is not None:
            check_pointer(self, *pointer, decode_pointer(body, key))
            self.needed = None
        elif (savepoint := meant_by(self, key)) is not None:  # Else it is late, and garbage.
            self.savepoint_bytes[key] = body
            if key.endswith("/_metadata"):
                metadata = decode_metadata(body, key)
                self.savepoints[savepoint] = check_savepoint(self, savepoint, metadata)

    def _answered(self, answer: StageAnswer, key: str) -> None:
        plan = self.plans.get(answer.checkpoint_id)
        if plan is None or plan.token != answer.plan:
            return  # Of an earlier life of the job, and nobody asks for it.
        whose = (answer.checkpoint_id, answer.stage, answer.attempt)
        for ack in answer.acks:
            self.ack_files.setdefault(whose, set()).update({key}, files_of_ack(ack))
            self.acknowledged.setdefault(whose, set()).add(ack.subtask.index)
            self.chained |= {whose} if ack.is_chained else set()
            check_chained(self, ack)

    def deletes(self, key: str) -> None:
        check_deleted(self, key)

    def was_answered(self, tried: Tried, was_told_applied: bool) -> None:
        """A coordinator *tried* to create these objects, and was told what became of its event."""
        mine = {key for key, body in tried if self.entries.get(key) == body}
        # A coordinator that slept through a truncation steps again, and finds it done.
        if not was_told_applied:
            mine = {key for key in mine if self.read(key) is not None}
        wrote = len(mine)
        if wrote != int(was_told_applied):
            told = "applied" if was_told_applied else "not applied"
            raise Broken(1, "an append's answer is not true", f"wrote {wrote}, told {told}")

    def was_told_triggered(self, plan: CheckpointPlan) -> None:
        if self.world.is_orphaned:
            return
        if self.plans.get(plan.checkpoint_id) != plan:
            raise Broken(1, "triggered, but not journaled", f"{plan.checkpoint_id}")

    def was_told_completed(self, checkpoint_id: int) -> None:
        if self.world.is_orphaned:
            return
        if self.ended.get(checkpoint_id) != "completed":
            raise Broken(1, "finalized, but not completed", f"{checkpoint_id}")

    def was_told_committed(self, checkpoint_id: int) -> None:
        is_subsumed = self.head.completed_checkpoint(checkpoint_id) is None
        if checkpoint_id not in self.manifests:
            raise Broken(1, "committed, but not published", f"{checkpoint_id}")
        if checkpoint_id not in self.committed and not is_subsumed:
            raise Broken(1, "committed, but not journaled", f"{checkpoint_id}")
        if self.metadata[checkpoint_id].tables.get(NOTED) == checkpoint_id:
            self.world.readers.was_told_committed(checkpoint_id)

    def was_told_restored(self, restored: RestoredJob) -> None:
        checkpoint_id, origin = restored.checkpoint_id, restored.origin
        if (checkpoint_id, origin) not in self.restored:
            raise Broken(1, "restored, but not journaled", f"{checkpoint_id} {origin}")
        if origin is None and checkpoint_id not in (None, *self.committed):
            raise Broken(5, "a restore did not replay the commit", f"{checkpoint_id}")

    def was_found_elsewhere(self, origin: SnapshotOrigin) -> None:
        """A job of another root was told that it can begin from *origin*."""
        savepoint = origin.incarnation
        if savepoint is None:
            is_true = self.head.completed_checkpoint(origin.checkpoint_id) is not None
        else:
            is_true = is_complete(self, savepoint)
        if not is_true:
            raise Broken(3, "another root begins from what is not completed", str(origin))

    def at_the_end(self) -> None:
        """Check that checkpoints can be restored, commits are published, savepoints are whole, and
        that what earlier journals left is found.
        """
        every = self.world.bucket.keys(NAMES.journals())
        left = [key for key in every if not key.startswith(self.paths.folder)]
        if [found.key for found in of_earlier_journals(self.world.job)] != left:
            raise Broken(7, "what an earlier journal left is not found", f"{len(left)} files")
        for retained in self.head.completed:
            check_cut(self, self.metadata[retained.checkpoint_id])
            if retained.is_committed and retained.checkpoint_id not in self.manifests:
                raise Broken(5, "committed, but not published", f"{retained.checkpoint_id}")
        for savepoint, metadata in self.savepoints.items():
            if is_complete(self, savepoint):
                check_cut(self, metadata)
        for key, body in self.savepoint_bytes.items():
            if meant_by(self, key) is not None and self.read(key) != body:
                raise Broken(9, "a savepoint's file is not what was written", key)
        published_rows(self.world)
        newest = max(self.committed)
        if max(self.manifests) != newest or self.head.base not in (None, newest):
            raise Broken(8, "the newest version is not the latest checkpoint", f"{self.head.base}")

    def read(self, key: str) -> bytes | None:
        return self.world.bucket.written(key)

    def _appended(self, entry: JournalEntry, seq: int) -> None:
        before, event, after = self.head, entry.event, entry.state
        transition = coordinator.step(before, event)
        if (transition.verdict, transition.state) != (Verdict.APPLIED, after):
            raise Broken(1, "the journal is no fold of its events", type(event).__name__)
        assert not isinstance(event, AcksReceived), "an ack is an object of its own"
        if isinstance(event, JobSubmitted | JobRestored):
            if event.generation <= before.generation:
                raise Broken(10, "a generation was taken twice", f"{event.generation}")
        elif event.generation != before.generation:
            raise Broken(10, "an overtaken generation wrote", type(event).__name__)
        if isinstance(event, CheckpointTriggered):
            self._triggered(event.plan)
        self._ended(before, after, event)
        _kept_to_resume(before, event, after)
        self.timing.check(seq, before, event, after)
        self.clocks.check(self, entry)
        if isinstance(event, CheckpointCompleted):
            metadata = check_completed(self, event.checkpoint_id, before)
            check_shown(self, metadata)
            self.metadata[event.checkpoint_id] = metadata
            self.consumed[event.checkpoint_id] = absorbed_by_the_last(self, metadata)
            for stage in metadata.stages:
                self.in_flight[event.checkpoint_id, stage.uid] = in_flight_to(self, stage)
        if isinstance(event, CheckpointCommitted):
            self._committed(before, event.checkpoint_id)
        if isinstance(event, JobRestored):
            self._restored(event)
        self.head = after
        self.was_just_restored = isinstance(event, JobRestored | TablesRecovered)
        self.lives.add(after.life)
        if isinstance(event, JobSubmitted | JobRestored) and event.tables is not None:
            self.accepts |= event.tables.accepts
            frame = self.world.frame
            is_late = frame is None or frame.turn.name in LATE
            if (is_late and self.world.has_consented) or (frame and frame.takes_over):
                self.takes_over.add((after.life, event.generation))
        self.needed = None

    def _committed(self, before: CoordinatorState, checkpoint_id: int) -> None:
        if before.base != checkpoint_id or before.origin is not None:
            what = "what a restore left behind is committed"
            raise Broken(10, what, f"{checkpoint_id}, not {before.base}")
        self.committed.add(checkpoint_id)

    def _triggered(self, plan: CheckpointPlan) -> None:
        checkpoint_id = plan.checkpoint_id
        if self.plans and checkpoint_id <= max(self.plans):
            raise Broken(6, "an id does not grow", f"{checkpoint_id}")
        key = self.paths.plan(checkpoint_id)
        raw = self.read(key)
        if raw is None:
            raise Broken(2, "a checkpoint is pending without its plan", f"{checkpoint_id}")
        self.plans[checkpoint_id] = decode_plan(raw, key)
        if journaled(self.plans[checkpoint_id]) != plan:
            raise Broken(1, "the journal has another plan than the bucket", f"{checkpoint_id}")

    def _ended(self, before: CoordinatorState, after: CoordinatorState, event: Event) -> None:
        now = {pending.checkpoint_id for pending in after.pending}
        for pending in before.pending:
            checkpoint_id = pending.checkpoint_id
            if checkpoint_id not in now:
                is_completed = isinstance(event, CheckpointCompleted) and (
                    event.checkpoint_id == checkpoint_id
                )
                outcome = "completed" if is_completed else "aborted"
                if self.ended.setdefault(checkpoint_id, outcome) != outcome:
                    raise Broken(1, "a checkpoint ended twice", f"{checkpoint_id}")
        for pending in after.pending:
            if pending.checkpoint_id in self.ended:
                raise Broken(1, "an ended checkpoint came back", f"{pending.checkpoint_id}")
            self.attempts.setdefault(pending.checkpoint_id, []).append(dict(pending.attempts))
        for completed in after.completed:
            if self.ended.get(completed.checkpoint_id) != "completed":
                raise Broken(1, "retained, but never completed", f"{completed.checkpoint_id}")

    def _restored(self, event: JobRestored) -> None:
        savepoint = event.origin.incarnation if event.origin is not None else None
        check_passed_over(self.world, event.passed_over)
        if event.cause in self.served:
            raise Broken(1, "a request for a restore is served twice", event.cause)
        self.served |= {event.cause} if event.cause else set()
        self.restored.add((event.checkpoint_id, event.origin))
        if savepoint is not None:
            metadata = self.savepoints[savepoint] if is_complete(self, savepoint) else None
        elif event.checkpoint_id is None:
            return
        elif self.head.completed_checkpoint(event.checkpoint_id) is None:
            metadata = None
        else:
            metadata = self.metadata[event.checkpoint_id]
        if metadata is None or metadata.checkpoint_id != event.checkpoint_id:
            raise Broken(3, "restored from what is not completed", f"{event.checkpoint_id}")
        check_cut(self, metadata)

    def _published(self, manifest: dict[str, Any]) -> None:
        made = Manifest(manifest["checkpoint_id"], manifest["parent"], _names(manifest))
        check_published(self, made)
        self.manifests[made.checkpoint_id] = made
        self.needed = None

    def _number_of(self, key: str) -> int:
        """The number of the invariant about objects like *key*."""
        if key.startswith(SAVEPOINTS):
            return 9
        if key.startswith((NAMES.begun(), self.paths.journal())):
            return 1
        if key.startswith(MANIFESTS):
            return 5
        return 6 if key.endswith("/plan") else 7


def _kept_to_resume(before: CoordinatorState, event: Event, after: CoordinatorState) -> None:
    """A checkpoint leaves the store when it is subsumed, or with an end that is final."""
    kept = {completed.checkpoint_id for completed in after.completed}
    gone = [c.checkpoint_id for c in before.completed if c.checkpoint_id not in kept]
    is_final = after.status.is_globally_terminal and not after.stopped_because
    if gone and not (is_final or isinstance(event, CheckpointCompleted)):
        raise Broken(14, "what a job is resumed from went", f"{gone}, {after.status.value}")


def _names(manifest: dict[str, Any]) -> frozenset[str]:
    return frozenset(f"{NAMES.table(SINK)}/{file['file']}" for file in manifest["files"])
