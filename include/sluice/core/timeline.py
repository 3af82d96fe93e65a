"""The time line of a table: the checkpoints that it shows, kept in the table's own place.

    publishing    rows of a checkpoint become visible, and the time line grows by its id
    recovered     a restore, or a new life of the job, says what the table continues
    showing       somebody outside has put the table back, emptied or replaced it

A table has one, whichever job writes it: it is found by the table's own identity, never by the name
of a sink, so who writes is compared with who wrote.  The place changes rows and time line in one
transaction, so a writer that is late, that repeats itself, or that is another job's is recognised
there, whatever the journal's state is by then.

Four tokens decide.  The *life* names the job from its submission on: a job that begins anew over
an emptied root has another one.  The *sink* is the place of the sink in the job's root, so that a
copied root, another sink of the job, or one that is declared for another table is another writer.
The *generation* grows with each restore of a life.  Checkpoint *ids* only grow in one place: a new
life begins behind the ids that the place knows.

Flink has no counterpart: its sinks keep transactions open (TwoPhaseCommitSinkFunction) and cannot
go back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from sluice.errors import FencedError, TableMismatch, require

CheckpointRange: TypeAlias = tuple[int, int]  # The first and the last id, both included.

# A writer that sleeps while a table changes hands that often is not recognised when it wakes up.
LIVES_KEPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The life of the job and the generation in whose name a coordinator acts.

    ``recovered_by`` is the generation whose recovery reached every table, 0 if there was none.
    ``sink`` is where the sink is in the job's root, which the sink itself says; empty for a table
    that lies there, too, and moves with it.
    """

    life: str
    generation: int
    recovered_by: int = 0
    sink: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The decision about a table when its job is restored, or begins a new life.

    ``version`` is the checkpoint whose commit made the rows that the job continues; None: it begins
    with none.  Ids up to ``through`` were handed out before; of these only ``continues`` may still
    be published, the completed checkpoint that the job continues and whose commit is owed.  With
    ``roll_back`` what is shown after ``version`` goes away.  ``accepts``: a person takes the table
    as it is, with rows of another life or without the version.  ``replaces`` are lives that give
    way to the writer's.
    """

    version: int | None
    through: int
    continues: int | None = None
    roll_back: bool = False
    accepts: bool = False
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineComparison:
    """A table compared with a version that a job would continue.

    ``ahead`` are the checkpoints shown after it, oldest first; ``lacks``: the version itself is not
    shown.  ``other_life`` wrote the table last, if it is not the job's, or as another sink, which
    is ``other_sink`` then; empty if the job's own sink did.  No id up to ``newest`` may be handed
    out again.  ``past_lives`` wrote it before, as the same sink: their ids mean something here.
    """

    ahead: tuple[int, ...] = ()
    lacks: bool = False
    other_life: str = ""
    newest: int = 0
    other_sink: str = ""
    past_lives: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The time line of one table; the default is that of a table without any writes.

    ``published`` are the ids that readers see, with a gap between any two spans.  With ``is_cut``
    the ids before the first span are forgotten: none is published again, and a job goes back to one
    only if a person accepts it.  ``fenced_by`` is the generation of the latest ``Recovery``, whose
    are ``through`` and ``continues``, too.  ``life`` and ``sink`` wrote the table last.  ``past``
    are the writers that gave way (``past_writer``), each with the generation in which it did; to
    come back it needs a later one.  ``lost`` is the newest id that somebody outside took away.
    """

    life: str = ""
    generation: int = 0
    fenced_by: int = 0
    through: int = 0
    continues: int | None = None
    published: tuple[CheckpointRange, ...] = ()
    is_cut: bool = False
    past: tuple[tuple[str, int], ...] = ()
    sink: str = ""
    lost: int = 0

    def __post_init__(self) -> None:
        require(
            all(first <= last for first, last in self.published), "a span ends behind its first id"
        )
        require(
            all(last + 1 < first for (_, last), (first, _) in pairwise(self.published)),
            "spans are in order, with ids between them",
        )

    @property
    def newest(self) -> int:
        return self.published[-1][1] if self.published else 0

    @property
    def oldest(self) -> int:
        return self.published[0][0] if self.published else 0

    def shows(self, version: int) -> bool:
        return self._notes(version) or self._has_forgotten(version)

    def after(self, version: int | None) -> Iterator[int]:
        """The ids that are shown after *version*, oldest first; those cut off are left out."""
        for first, last in self.published:
            yield from range(max(first, (version or 0) + 1), last + 1)

    def compare(self, life: str, version: int | None, sink: str = "") -> TimelineComparison:
        is_own = self.life == "" or (self.life, self.sink) == (life, sink)
        return TimelineComparison(
            ahead=tuple(self.after(version)),
            lacks=version is not None and not self._notes(version),
            other_life="" if is_own else self.life,
            newest=max(self.newest, self.through, self.lost),
            other_sink="" if self.sink == sink or is_own else self.sink,
            past_lives=tuple(self._past_lives(sink)),
        )

    def showing(self, ids: Iterable[int]) -> Timeline:
        """The time line of a table that shows *ids* alone, as it was changed by somebody else.

        What it lacks may be published again by whoever owes it; no other id comes again.
        """
        lost = max(self.newest, self.lost)
        return replace(self, published=spans_of(ids), is_cut=False, lost=lost)

    def publishing(self, writer: Writer, checkpoint_id: int, parent: int | None) -> Timeline | None:
        """The time line with the checkpoint, which continues *parent*; None if it is shown already.

        Raises:
            FencedError: a restore of the same life has left it behind.
            TableMismatch: the parent is not shown, or checkpoints are that a restore took away; or
                another life of a job, or another sink, owns the table.
        """
        may_continue = checkpoint_id == self.continues
        is_forgotten = self._has_forgotten(checkpoint_id)
        is_owed = may_continue and is_forgotten
        if self._is_of(writer) and self.shows(checkpoint_id) and not is_owed:
            return None
        self._require_owner(writer, ())
        self._require_generation(writer)
        if not may_continue and checkpoint_id <= max(self.through, self.newest):
            raise FencedError(
                f"checkpoint {checkpoint_id} was left behind: the table shows checkpoint "
                f"{self.newest or 'nothing'}, and a restore has passed checkpoint {self.through}"
            )
        if parent is not None and not self.shows(parent):
            raise TableMismatch(
                f"checkpoint {checkpoint_id} continues checkpoint {parent}, which the table does "
                f"not show (its newest is {self.newest or 'none'}): the table was put back or "
                "replaced; restore a checkpoint that it shows, or restore and accept tables as "
                "they are, which leaves the rows in between out"
            )
        if self.fenced_by < writer.recovered_by and (ahead := [*self.after(parent)]):
            raise TableMismatch(
                f"the table shows checkpoint {ahead[-1]}, which a restore of generation "
                f"{writer.recovered_by} had taken away: it was put back to before that; restore "
                "the job again and roll tables back, or accept tables as they are"
            )
        return replace(
            self,
            life=writer.life,
            sink=writer.sink,
            generation=writer.generation,
            fenced_by=max(self.fenced_by, writer.recovered_by),
            continues=None if may_continue else self.continues,
            published=self.published if is_forgotten else self._published_with(checkpoint_id),
        )

    def recovered(self, writer: Writer, recovery: Recovery) -> Timeline | None:
        """The time line as the writer's job continues it; None if this recovery was done before.

        With ``roll_back`` the ids ``after(recovery.version)`` are no longer shown: their rows go in
        the same transaction.

        Raises:
            FencedError: a later restore of the same life has changed the table, or another job has.
            TableMismatch: the version is not shown, and was not accepted; another life of a job
                owns the table; or it may have used the id of the checkpoint to be published.
        """
        self._require_generation(writer)
        if self._is_of(writer) and self.fenced_by == writer.generation:
            return None
        self._require_owner(writer, recovery.replaces)
        if self.newest > recovery.through:
            raise FencedError(
                f"the table shows checkpoint {self.newest}, which was published after the job "
                f"looked at it (through checkpoint {recovery.through}); another job writes it"
            )
        self._require_own_id(writer, recovery.continues)
        owed = recovery.continues
        if recovery.roll_back and owed not in (None, recovery.version) and self.shows(owed or 0):
            raise FencedError(
                f"checkpoint {owed}, whose commit was owed, was published after the job looked at "
                "the table; its rows are not taken away"
            )
        version = recovery.version
        published = self.published
        if version is not None and not self._notes(version):
            if not recovery.accepts:
                raise TableMismatch(
                    f"the table does not show checkpoint {version}, which the job continues (its "
                    f"newest is {self.newest or 'none'}); restore another checkpoint, or accept "
                    "tables as they are"
                )
            if not self._has_forgotten(version):
                published = self._published_with(version)
        if recovery.roll_back:
            last_kept = version or 0
            published = tuple(
                (first, min(last, last_kept)) for first, last in published if first <= last_kept
            )
        return Timeline(
            life=writer.life,
            sink=writer.sink,
            generation=writer.generation,
            fenced_by=writer.generation,
            through=max(self.through, recovery.through),
            continues=recovery.continues,
            published=published,
            is_cut=self.is_cut and bool(published),
            past=self._past(writer),
        )

    def shortened(self, spans: int) -> Timeline:
        """The time line with the newest *spans* alone, for a place that has little room."""
        require(spans > 0, "a time line keeps a span")
        if len(self.published) <= spans:
            return self
        return replace(self, published=self.published[-spans:], is_cut=True)

    def _published_with(self, checkpoint_id: int) -> tuple[CheckpointRange, ...]:
        return _joined((*self.published, (checkpoint_id, checkpoint_id)))

    def _notes(self, version: int) -> bool:
        return any(first <= version <= last for first, last in self.published)

    def _has_forgotten(self, version: int) -> bool:
        return self.is_cut and version < self.oldest

    def _past_lives(self, sink: str) -> Iterator[str]:
        for name, _ in self.past:
            life = name.partition(".")[0]
            if past_writer(life, sink) == name:
                yield life

    def _is_of(self, writer: Writer) -> bool:
        return (self.life, self.sink) == (writer.life, writer.sink)

    def _require_owner(self, writer: Writer, replaced: tuple[str, ...]) -> None:
        if self._is_of(writer) or self.life in ("", *replaced):
            return
        raise TableMismatch(
            f"the table belongs to {writer_named(self.life, self.sink)}, not to "
            f"{writer_named(writer.life, writer.sink)}: give each sink a table of its own, or have "
            "this job take it over: see 'sluice tables take-over'"
        )

    def _require_generation(self, writer: Writer) -> None:
        if self._is_of(writer):
            if writer.generation < self.generation:
                raise FencedError(
                    f"generation {self.generation} of the job has written the table; a coordinator "
                    f"of generation {writer.generation} was left behind"
                )
            return
        left_in = dict(self.past).get(past_writer(writer.life, writer.sink), 0)
        if writer.generation <= left_in:
            raise TableMismatch(
                f"{writer_named(writer.life, writer.sink)} has left the table to "
                f"{writer_named(self.life, self.sink)}; to have that job take it back, see 'sluice "
                "tables take-over'"
            )

    def _require_own_id(self, writer: Writer, continues: int | None) -> None:
        if continues is None or self.life == "" or self._is_of(writer):
            return
        if continues <= max(self.newest, self.through):
            raise TableMismatch(
                f"checkpoint {continues}, which the job continues, was not published before "
                f"{writer_named(self.life, self.sink)} took the table over, which may have used "
                "its id; restore an earlier checkpoint"
            )

    def _past(self, writer: Writer) -> tuple[tuple[str, int], ...]:
        """The writers that gave way when *writer* writes next."""
        if self.life == "" or self._is_of(writer):
            return self.past
        known = (past_writer(writer.life, writer.sink), past_writer(self.life, self.sink))
        others = (past for past in self.past if past[0] not in known)
        return (*others, (known[1], self.generation))[-LIVES_KEPT:]


def past_writer(life: str, sink: str) -> str:
    """A short name of a writer, which a time line keeps of those that gave way."""
    return life if not sink else f"{life}.{hashlib.sha256(sink.encode()).hexdigest()[:8]}"


def writer_named(life: str, sink: str) -> str:
    """The writer as a message names it."""
    return f"life {life!r} of a job" + (f" at {sink}" if sink else "")


def spans_of(ids: Iterable[int]) -> tuple[CheckpointRange, ...]:
    return _joined((checkpoint_id, checkpoint_id) for checkpoint_id in ids)


def _joined(spans: Iterable[CheckpointRange]) -> tuple[CheckpointRange, ...]:
    """*spans* in order, with a gap between any two."""
    joined: list[CheckpointRange] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)
