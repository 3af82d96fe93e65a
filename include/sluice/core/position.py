"""The position of a source, kept so that a checkpoint writes the changed entries only.

A position is an LSM tree, as keyed state is: layers, which are files that many checkpoints share,
and above them the entries that changed since.  A source of many partitions changes few of them in
an epoch.  When many entries lie above, they become a layer, merged with the layers that are not
much larger.  So an entry is rewritten a few times only, whatever the number of partitions, and
there are few layers.

The entries that an epoch changed always lie above, so its reads are known without any layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sluice.core.handles import SegmentHandle
from sluice.core.plan import PartitionOffset, SourceCut
from sluice.errors import require

MAX_ABOVE = 256  # Entries of earlier epochs above the layers: some 40 kB.
# A layer has at least so many times the entries of the one above it; so all layers together hold at
# most a third more entries than there are partitions.
LAYER_GROWTH = 4

PartitionEntries = Mapping[str, PartitionOffset]


@dataclass(frozen=True)
class Position:
    """The ``layers`` that ``handles`` name, oldest first, and the entries ``above`` them.

    A newer entry hides an older one of the same partition.
    """

    handles: tuple[SegmentHandle, ...] = ()
    layers: tuple[PartitionEntries, ...] = ()
    above: PartitionEntries = field(default_factory=dict[str, PartitionOffset])

    def __post_init__(self) -> None:
        require(len(self.handles) == len(self.layers), "every layer has a handle")

    @classmethod
    def of(cls, cut: SourceCut, layers: Sequence[PartitionEntries]) -> Position:
        """The position of *cut*, with the content of its *layers*."""
        above = {entry.partition: entry for entry in cut.position}
        return cls(handles=cut.layers, layers=tuple(layers), above=above)

    @cached_property
    def entries(self) -> PartitionEntries:
        """All partitions, in no order."""
        if not self.layers:
            return self.above
        merged = dict(self.layers[0])
        for newer in (*self.layers[1:], self.above):
            merged |= newer
        return merged

    @property
    def whole(self) -> tuple[PartitionOffset, ...]:
        """All entries, sorted by partition, as a source takes them."""
        return tuple(self.entries[name] for name in sorted(self.entries))


def with_layers(
    cut: SourceCut,
    before: Position,
    *,
    shares_files: bool,
    layer_of: Callable[[Sequence[PartitionOffset]], SegmentHandle],
) -> SourceCut:
    """*cut*, whose position has all entries, with a position that refers to layers of *before*.

    Layers of *before* are dropped without *shares_files*, as the snapshot must not depend on
    another one, and where partitions are gone, as a layer cannot leave an entry out.
    """
    now = {entry.partition: entry for entry in cut.position}
    old = before.entries
    # Most entries are still the same object, and to compare fields takes long.
    changed = {
        name for name, entry in now.items() if (was := old.get(name)) is not entry and was != entry
    }
    gone = tuple(sorted(old.keys() - now.keys()))
    kept = () if gone or not shares_files else before.handles
    covered = (set(before.above) if kept or not before.handles else set(old)) - changed - {*gone}
    layers, above = kept, changed | covered
    if len(covered) > MAX_ABOVE:
        kept, covered = _merged_with(before, covered, changed) if kept else (kept, covered)
        layers, above = (*kept, layer_of([old[name] for name in sorted(covered)])), changed
    if not layers:
        return cut
    return replace(
        cut,
        layers=layers,
        gone=gone,
        position=tuple(now[name] for name in sorted(above)),
        has_waiting_below=not above.issuperset(cut.waiting),
    )


def with_whole(cut: SourceCut, position: Position) -> SourceCut:
    """*cut* with all partitions in it, as if it had no layers; *position* is its own."""
    if not cut.layers:
        return cut
    return replace(cut, layers=(), gone=(), position=position.whole, has_waiting_below=False)


def _merged_with(
    before: Position, covered: set[str], changed: set[str]
) -> tuple[tuple[SegmentHandle, ...], set[str]]:
    """The layers that stay, and the names in the one that takes the place of the others."""
    sizes = [len(layer) for layer in before.layers]
    stay, names = len(sizes), set(covered)
    while stay and sizes[stay - 1] < LAYER_GROWTH * len(names):
        stay -= 1
        names |= before.layers[stay].keys()
    return before.handles[:stay], names - changed
