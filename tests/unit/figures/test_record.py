"""The history in objects that are written once: complete, bounded, and read in two requests."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.answers import StoreRequests
from sluice.figures import record
from sluice.figures.record import (
    FIGURES,
    TAIL,
    CheckpointDuration,
    CheckpointStats,
    Figure,
    History,
    Scope,
    SubtaskStats,
    extended,
    figures_of,
    is_due_for_pruning,
    kept_objects,
    needs_older,
    whole_history,
)
from tests.examples import examples
from tests.unit.figures.lines import COMPLETED, FAILED, a_line, a_stage


class Objects:
    """What the coordinator does with a store, on a dict."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self.kept: dict[int, History] = {}

    def end(self, line: CheckpointStats, remembered: Sequence[CheckpointStats] = ()) -> None:
        newest = max(self.kept, default=None)
        before = History() if newest is None else self.kept[newest]
        older = self.kept[before.older] if before.older and needs_older(before) else History()
        self.kept[line.id] = extended(
            before,
            [*remembered, line],
            previous_id=newest,
            older=older.checkpoints,
            bound=self.bound,
        )
        if is_due_for_pruning(before, self.kept[line.id]):
            for gone in sorted(self.kept)[: -kept_objects(self.bound)]:
                del self.kept[gone]

    def read(self, remembered: Sequence[CheckpointStats] = ()) -> tuple[History, int]:
        """The whole, and how many objects were read for it."""
        newest = self.kept[max(self.kept)]
        older = () if newest.older is None else self.kept[newest.older].checkpoints
        whole = whole_history(newest, older, remembered, bound=self.bound)
        return whole, 1 + (newest.older is not None)


@pytest.mark.parametrize("bound", [1, 5, TAIL - 1, TAIL, TAIL + 1, 1_000])
@pytest.mark.parametrize("number", [1, 2, TAIL, TAIL + 1, 2 * TAIL + 3, 1_250])
def test_the_newest_lines_are_in_two_objects_and_everything_is_counted(
    bound: int, number: int
) -> None:
    objects = Objects(bound)
    lines = [a_line(n, FAILED if n % 10 == 0 else COMPLETED) for n in range(1, number + 1)]
    for line in lines:
        objects.end(line)

    whole, read = objects.read()

    assert whole.checkpoints == tuple(lines[-bound:])
    assert (whole.completed, whole.failed) == (number - number // 10, number // 10)
    assert read <= 2
    assert max(len(one.checkpoints) for one in objects.kept.values()) <= max(bound, TAIL)
    assert len(objects.kept) <= kept_objects(bound) + TAIL


@examples(60)
@given(
    st.lists(st.booleans(), min_size=1, max_size=3 * TAIL),
    st.sampled_from([3, TAIL, 1_000]),
)
def test_an_object_that_was_never_written_loses_no_line_that_the_journal_remembers(
    written: list[bool], bound: int
) -> None:
    """A coordinator that dies between the journal and the object; the next one fills in."""
    objects, ended = Objects(bound), [a_line(0)][:0]
    for number, is_written in enumerate(written, start=1):
        line = a_line(number)
        if is_written or not objects.kept:
            objects.end(line, remembered=ended[-16:])
        ended.append(line)
        if sum(not one for one in written[max(0, number - 16) : number]) == 16:
            return  # The journal has forgotten some, too.

    whole, _ = objects.read(remembered=ended[-16:])

    assert whole.checkpoints == tuple(ended[-bound:])
    assert whole.completed == len(ended)


def test_a_line_that_was_published_since_says_so_also_across_two_objects() -> None:
    objects = Objects(1_000)
    for number in range(1, TAIL + 1):
        objects.end(a_line(number, committed=False))

    objects.end(a_line(TAIL + 1), remembered=[a_line(TAIL, committed=True)])

    whole, read = objects.read()
    assert read == 2
    assert whole.checkpoints[TAIL - 1].committed
    assert not whole.checkpoints[TAIL - 2].committed
    assert whole.completed == TAIL + 1


def test_a_measured_line_replaces_what_the_journal_knew() -> None:
    objects = Objects(10)
    measured = a_line(1, FAILED, num_subtasks=4)

    objects.end(a_line(2, FAILED), remembered=[a_line(1, FAILED)])
    objects.end(a_line(3), remembered=[measured])

    whole, _ = objects.read(remembered=[a_line(1, FAILED)])
    assert whole.checkpoints[0] == measured
    assert (whole.completed, whole.failed) == (1, 2)


SUBTASKS = tuple(
    SubtaskStats(
        index=index,
        start_delay=delay,
        checkpoint=CheckpointDuration(sync=7, async_=8),
        requests=StoreRequests(gets=1, puts=2),
    )
    for index, delay in enumerate((3, None, 5))
)
RECORDS = {
    Scope.CHECKPOINT: a_line(1),
    Scope.STAGE: a_stage(subtasks=SUBTASKS, requests=StoreRequests(lists=4)),
    Scope.SUBTASK: SUBTASKS[0],
}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda one: f"{one.scope}-{one.path}")
def test_a_figure_is_in_its_record_and_has_one_place_and_one_clause(figure: Figure) -> None:
    figure.of(RECORDS[figure.scope])

    same = [one for one in figures_of(figure.scope) if one.path == figure.path]
    assert same == [figure]
    assert figure.title[0].isupper()
    assert figure.says[0].islower()
    assert figure.says[-1] != "."


def test_a_figure_of_subtasks_is_the_greatest_that_was_measured() -> None:
    found = {one.path: one.of(RECORDS[Scope.STAGE]) for one in figures_of(Scope.STAGE)}

    assert found["subtasks.start_delay"] == 5
    assert found["subtasks.checkpoint.async_"] == 8
    assert found["requests.total"] == 4
    assert found["rows_in"] is None


def test_a_figure_of_zero_is_written_as_what_is_missing_was_not_measured() -> None:
    structs = [
        one
        for one in vars(record).values()
        if isinstance(one, type) and issubclass(one, msgspec.Struct)
    ]
    numbers = {
        f"{struct.__name__}.{field.name}"
        for struct in structs
        if struct.__struct_config__.omit_defaults
        for field in msgspec.structs.fields(struct)
        if type(field.default) is int
    }

    assert numbers == set()
    assert len(structs) > 5
