"""A damaged newest journal entry: every reader names the command, which says what is lost and goes
on from the entry before; wherever the job was, its table and its state are exact afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pytest

from harness.jobs import (
    ManualClock,
    a_job,
    a_pipeline,
    a_running_job,
    published_records,
    trigger_one,
)
from harness.noted_target import NotedTable
from sluice.coordinator.completion import finalize
from sluice.coordinator.failure import abort_checkpoint, watch
from sluice.coordinator.publication import commit
from sluice.coordinator.repair import RepairPlan, plan_repair, repair
from sluice.coordinator.requests import pause
from sluice.coordinator.restore import restore, stop
from sluice.coordinator.submission import configure, submit
from sluice.coordinator.trigger import trigger
from sluice.core.configuration import JobStatus
from sluice.core.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    JobRestored,
    JournalRepaired,
    TablesRecovered,
)
from sluice.core.ids import CheckpointId
from sluice.core.plan import CheckpointPlan
from sluice.core.restoring import Choice, Latest, RestoreOptions
from sluice.core.state import CoordinatorState
from sluice.errors import ProtocolViolation, SluiceError
from sluice.job.job import Job
from sluice.job.places import open_sinks
from sluice.protocol.records import FORMAT_VERSION
from sluice.store.journal import Journal
from sluice.store.object_store import CreateResult, ObjectStore
from tests.begun import at_home
from tests.contract.journals import Through
from tests.planted import Caught, assert_is_caught
from tests.resealed import resealed
from tests.subtasks import (
    a_savepoint,
    acknowledge,
    complete_one,
    state_records,
    take_checkpoint,
    take_checkpoints,
)

BY = "a person"
LATER_MS = 10_000_000
Damage = Callable[[bytes], bytes]


def flipped(raw: bytes) -> bytes:
    return raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 1]) + raw[len(raw) // 2 + 1 :]


DAMAGES: dict[str, Damage] = {
    "one bit": flipped,
    "cut": lambda raw: raw[:100],
    "empty": lambda _: b"",
    "deep": lambda _: b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
    "another record": lambda raw: raw.replace(b"journal entry", b"plan", 1),
}


def newest_entry(job: Job) -> str:
    return max(listed.key for listed in job.store.list(job.paths.journal()))


def damage_newest(job: Job, how: Damage = flipped) -> str:
    key = newest_entry(job)
    job.store.put(key, how(job.store.get(key) or b""))
    return key


def planned(job: Job) -> RepairPlan:
    found = plan_repair(job)
    assert found is not None
    return found


def repaired(job: Job) -> CoordinatorState:
    after = repair(job, planned(job), by=BY)
    assert after is not None
    return after


def restarts(job: Job) -> None:
    """As the watchdog of a host does."""
    assert isinstance(job.clock, ManualClock)
    job.clock.advance(LATER_MS)
    watch(job)
    assert job.state().status is JobStatus.RUNNING


def is_exact(job: Job) -> list[int]:
    """The records of the table, which are those of the state, each of them once."""
    done = take_checkpoint(job)
    published = published_records(job)
    assert published == [*range(len(published))]
    assert state_records(job, job.metadata(done), next(iter(job.pipeline.stages))) == published
    return published


@pytest.mark.parametrize("how", DAMAGES)
def test_every_reader_names_the_command_however_the_entry_is_damaged(how: str) -> None:
    job = a_running_job()
    take_checkpoints(job, 2)
    key = damage_newest(job, DAMAGES[how])

    readers: list[Callable[[], object]] = [
        job.state,
        lambda: trigger(job.anew()),  # Who read it whole goes on: its entry has the state.
        lambda: watch(job),
        lambda: restore(job, Latest()),
        lambda: commit(job.anew(), CheckpointId(2)),
        lambda: pause(job, by=BY),
        lambda: [*job.journal.entries(5)],
    ]
    for read in readers:
        with pytest.raises(ProtocolViolation, match=f"^{key} .*'sluice journal repair auctions'"):
            read()

    assert planned(job).damage.entries[0].seq == job.paths.journal_seq(key)
    repaired(job)
    restarts(job)
    assert is_exact(job)


def completed(plan: CheckpointPlan) -> CheckpointCompleted:
    """As whoever planned it reports it."""
    return CheckpointCompleted(
        generation=plan.generation,
        at_ms=0,
        checkpoint_id=plan.checkpoint_id,
        attempts=dict.fromkeys((task.uid for task in plan.tasks), 1),
        checkpointed_bytes=0,
        full_bytes=0,
    )


def test_an_entry_of_another_version_is_not_damaged() -> None:
    job = a_running_job()
    key = newest_entry(job)
    body = (job.store.get(key) or b"").replace(
        b'"version":%d' % FORMAT_VERSION, b'"version":%d' % (FORMAT_VERSION + 1)
    )
    job.store.put(key, resealed(body))

    with pytest.raises(
        ProtocolViolation, match=rf"has format version {FORMAT_VERSION + 1}; .* run the version"
    ):
        job.state()
    with pytest.raises(ProtocolViolation, match=f"has format version {FORMAT_VERSION + 1}"):
        plan_repair(job)


def test_a_whole_journal_needs_no_repair() -> None:
    job = a_running_job()

    assert plan_repair(job) is None


def test_a_preview_writes_nothing() -> None:
    job = a_running_job()
    trigger_one(job)
    damage_newest(job)
    before = {listed.key: listed.version for listed in job.store.list("")}

    planned(job)

    assert {listed.key: listed.version for listed in job.store.list("")} == before


class Recording(Through):
    """Keeps what is there after each change."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.moments: list[dict[str, bytes]] = []

    def put(self, key: str, body: bytes) -> None:
        super().put(key, body)
        self._keep()

    def create(self, key: str, body: bytes) -> CreateResult:
        result = super().create(key, body)
        self._keep()
        return result

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            super().delete([key])
            self._keep()

    def _keep(self) -> None:
        listed = [one.key for one in self.store.list("")]
        self.moments.append({key: self.store.get(key) or b"" for key in listed})


def a_life_of_a_job(num_retained: int) -> list[dict[str, bytes]]:
    """The bucket after each change of a life in which all there is happens."""
    job = a_job(a_pipeline(num_retained=num_retained), clock=ManualClock())
    recording = Recording(job.store)
    job = replace(job, store=recording, journal=Journal(recording, job.names))
    submit(job, configure(job.pipeline, {}))
    take_checkpoints(job, 2)
    a_savepoint(job)
    plan = trigger_one(job)
    acknowledge(job, plan)
    abort_checkpoint(job, plan.checkpoint_id, by=BY)
    take_checkpoint(job)
    base = job.state().base
    assert base is not None
    restore(job, Choice(base), RestoreOptions(roll_back_tables=True))
    take_checkpoint(job)
    complete_one(job)
    return recording.moments


def some_of(moments: list[dict[str, bytes]]) -> Iterator[dict[str, bytes]]:
    """The first and the last moment of each entry, and every fifth."""
    entries = [sum("/journal/" in key for key in moment) for moment in moments]
    for number, moment in enumerate(moments):
        around = entries[max(number - 1, 0) : number + 2]
        if number % 5 == 0 or len({*around}) > 1:
            yield moment


@pytest.mark.parametrize("num_retained", [1, 3])
def test_at_whichever_moment_the_newest_entry_is_damaged_the_job_goes_on_exactly(
    num_retained: int,
) -> None:
    """Whoever wrote it, and did a part of what follows from it, is dead."""
    seen: set[type] = set()
    for moment in some_of(a_life_of_a_job(num_retained)):
        job = a_job(a_pipeline(num_retained=num_retained), clock=ManualClock())
        for key, body in moment.items():
            job.store.put(key, body)
        at_home(job)
        entries = [*job.journal.entries(100)]
        if len(entries) < 2:
            continue
        lost = entries[-1]
        damage_newest(job)

        after = repaired(job)

        assert after.generation > lost.state.generation
        assert after.next_checkpoint_id >= lost.state.next_checkpoint_id
        restarts(job)
        take_checkpoint(job)
        assert is_exact(job), type(lost.event)
        seen.add(type(lost.event))
    assert seen == {
        *(CheckpointTriggered, CheckpointCompleted, CheckpointCommitted, CheckpointFailed),
        *(JobRestored, TablesRecovered),
    }


def test_a_completed_checkpoint_is_completed_again_if_something_says_so() -> None:
    """Its statistics, or a table that shows it."""
    for lacks in ("nothing", "statistics", "both"):
        job = a_running_job(clock=ManualClock())
        take_checkpoint(job)
        plan = complete_one(job)
        entry = (newest_entry(job), job.store.get(newest_entry(job)) or b"")
        if lacks != "both":
            open_sinks(job, {})  # Published by who died before it journaled that.
            commit(job, plan.checkpoint_id)
            job.store.delete([newest_entry(job)])
            job.store.put(*entry)
        if lacks != "nothing":
            job.store.delete([job.paths.statistics(plan.checkpoint_id)])
        damage_newest(job)

        found = planned(job)

        if lacks == "both":
            assert found.completed is None
            assert found.aborted == found.unproven == (plan.checkpoint_id,)
            assert found.base == 1
        else:
            assert isinstance(found.completed, CheckpointCompleted)
            assert found.aborted == ()
            assert found.base == plan.checkpoint_id
        repaired(job)
        restarts(job)
        assert is_exact(job)


def test_a_checkpoint_that_the_lost_entry_triggered_is_named_and_its_id_is_not_given_again() -> (
    None
):
    job = a_running_job(clock=ManualClock())
    take_checkpoint(job)
    lost = trigger_one(job)
    acknowledge(job, lost)
    damage_newest(job)

    found = planned(job)

    assert found.untold == (lost.checkpoint_id,)
    assert isinstance(found.damage.event, CheckpointCommitted)
    repaired(job)
    restarts(job)
    with pytest.raises(SluiceError):
        finalize(job, lost.checkpoint_id)
    assert trigger_one(job).checkpoint_id > lost.checkpoint_id


def test_several_damaged_entries_are_passed_together() -> None:
    job = a_running_job(clock=ManualClock())
    take_checkpoints(job, 3)
    keys = [listed.key for listed in job.store.list(job.paths.journal())][-4:]
    for key in keys:
        job.store.put(key, flipped(job.store.get(key) or b""))

    found = planned(job)

    assert [entry.seq for entry in found.damage.entries] == [*map(job.paths.journal_seq, keys)]
    repaired(job)
    restarts(job)
    assert is_exact(job)


def test_where_no_entry_is_left_another_root_is_the_way_on() -> None:
    job = a_running_job()
    damage_newest(job)

    with pytest.raises(ProtocolViolation, match="sluice restore auctions --root NEW --from-root"):
        plan_repair(job)


def test_a_job_that_was_stopped_stays_so() -> None:
    job = a_running_job(clock=ManualClock())
    take_checkpoints(job, 2)
    stop(job, JobStatus.SUSPENDED)
    pause(job, by=BY)
    damage_newest(job)

    after = repaired(job)

    assert (after.status, after.base) == (JobStatus.SUSPENDED, 2)
    assert restore(job, Latest()).checkpoint_id == 2
    assert is_exact(job)


def test_what_a_table_outside_shows_of_a_lost_checkpoint_is_rolled_back() -> None:
    job = a_running_job(a_pipeline(sink=NotedTable()), clock=ManualClock())
    take_checkpoints(job, 2)
    before = [listed.key for listed in job.store.list(job.paths.journal())]
    take_checkpoint(job)
    for key in (listed.key for listed in job.store.list(job.paths.journal())):
        if key not in before:
            job.store.put(key, b"")
    (sink,) = (s for uid, s in open_sinks(job, {}).items() if uid in job.pipeline.sinks)
    assert sink.is_published(3)
    job.store.delete([job.paths.metadata(3)])  # Nothing of it can be taken up again.

    repaired(job)
    restarts(job)

    assert not sink.is_published(3)
    assert sink.is_published(2)
    assert (
        trigger_one(job).sources[0].slices[0].start
        == job.metadata(CheckpointId(2)).sources[0].position[0].offset
    )


def test_who_knew_the_damaged_entry_is_fenced_by_the_repair() -> None:
    """It holds the state that the entry led to, and acts on it."""
    job = a_running_job(clock=ManualClock())
    take_checkpoint(job)
    zombie = restore(job, Latest()).state.generation
    plan = trigger_one(job)
    head = job.journal.load()
    damage_newest(job)
    repaired(job)
    restarts(job)

    acknowledged = job.journal.append(lambda _: completed(plan), head=head)

    assert acknowledged.verdict.name == "FENCED"
    assert job.state().generation > zombie + 1
    assert is_exact(job)


def test_who_appends_behind_the_damaged_entry_first_needs_no_repair() -> None:
    """A host that loaded it while it was whole."""
    job = a_running_job(clock=ManualClock())
    plan = trigger_one(job)
    acknowledge(job, plan)
    head = job.journal.load()
    damage_newest(job)
    found = planned(job)

    job.journal.append(lambda _: completed(plan), head=head)

    assert repair(job, found, by=BY) is None
    assert plan_repair(job) is None
    assert job.state().base == plan.checkpoint_id
    assert [entry.seq for entry in job.journal.inspect().damaged] == [head.seq]


def test_bytes_that_changed_since_the_preview_are_not_dropped() -> None:
    job = a_running_job(clock=ManualClock())
    take_checkpoint(job)
    whole = job.store.get(newest_entry(job)) or b""
    key = damage_newest(job)
    found = planned(job)

    for other in (whole, whole[:50]):
        job.store.put(key, other)
        assert repair(job, found, by=BY) is None


def test_of_two_repairs_one_does_it() -> None:
    job = a_running_job(clock=ManualClock())
    take_checkpoint(job)
    damage_newest(job)
    first, second = planned(job), planned(job)

    assert repair(job, first, by=BY) is not None
    assert repair(job, second, by="another") is None
    events = [entry.event for entry in job.journal.entries(100)]
    assert sum(isinstance(event, JournalRepaired) for event in events) == 1


def test_the_history_passes_over_damaged_entries() -> None:
    job = a_running_job(clock=ManualClock())
    take_checkpoints(job, 2)
    whole = [seq for seq, _ in job.journal.numbered(100)]
    damage_newest(job)
    repaired(job)
    assert [seq for seq, _ in job.journal.numbered(100)] == [*whole[:-1], whole[-1] + 1]

    older = job.paths.journal_entry(3)
    job.store.put(older, b"")

    assert 3 not in [seq for seq, _ in job.journal.numbered(100)]
    assert 1 in [seq for seq, _ in job.journal.numbered(100)]
    assert [entry.seq for entry in job.journal.inspect().damaged] == [3, whole[-1]]
    for before in range(2, whole[-1] + 2):
        assert 3 not in [seq for seq, _ in job.journal.numbered(100, before=before)]


def test_a_truncation_takes_the_damaged_entry_along() -> None:
    job = a_running_job(clock=ManualClock())
    take_checkpoints(job, 2)
    damage_newest(job)
    repaired(job)

    job.journal.truncate(keep=1)

    assert job.journal.inspect().damaged == ()
    restarts(job)
    assert is_exact(job)


JOURNAL = "store.journal:Journal"
FAULTS = [
    Caught(
        "who reads the state goes on from the entry before a damaged one", f"{JOURNAL}._find",
        "raise ProtocolViolation(self._how_to_repair(entry))",
        "entry = self._examined(keys[-2])",
        test_every_reader_names_the_command_however_the_entry_is_damaged, {"how": "one bit"},
    ),
    Caught(
        "the history leaves a damaged newest entry out", f"{JOURNAL}.numbered",
        "raise ProtocolViolation(self._how_to_repair(entry))", "continue",
        test_every_reader_names_the_command_however_the_entry_is_damaged, {"how": "cut"},
    ),
    Caught(
        "only bytes that are no record are damage", f"{JOURNAL}._examined",
        "except DamagedRecord as error:", "except UnicodeDecodeError as error:",
        test_every_reader_names_the_command_however_the_entry_is_damaged, {"how": "one bit"},
    ),
    Caught(
        "a repair drops whatever is damaged by then", f"{JOURNAL}.repair",
        "if self.damage() != damage:", "if False:",
        test_bytes_that_changed_since_the_preview_are_not_dropped,
    ),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_planted_fault_is_caught(fault: Caught, request: pytest.FixtureRequest) -> None:
    assert_is_caught(fault, request)
