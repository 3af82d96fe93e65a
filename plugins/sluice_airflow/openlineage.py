"""A checkpoint's lineage, for Airflow's OpenLineage provider: what it read, and what it published.

The provider asks the commit task for it (``get_openlineage_facets_on_complete``) where it is
installed and has a transport; else nothing of this is imported.  Of each source the records and
bytes that the epoch read; of each sink its rows, bytes and files, and the checkpoint as the version
of its table; and of which columns of a source a sink's columns are computed, where the declaration
tells: behind one source, and without functions between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import column_lineage_dataset as column_lineage
from openlineage.client.facet_v2 import dataset_version_dataset as dataset_version
from openlineage.client.facet_v2 import input_statistics_input_dataset as input_statistics
from openlineage.client.facet_v2 import output_statistics_output_dataset as output_statistics

from sluice.core.ids import CheckpointId
from sluice.declaration.expressions import Projection
from sluice.declaration.nodes import Input, SinkNode
from sluice.declaration.operations import (
    KeyedAggregate,
    Process,
    ProcessKeyed,
    SparkCode,
    Transform,
    WindowAggregate,
)
from sluice.declaration.origins import Declared, origin
from sluice.declaration.places import Dataset, NamedPlaceSpec, dataset_at
from sluice.declaration.sql import parsed
from sluice.declaration.sql_tree import Column, Expression, replaced
from sluice.surface.checkpoints import details

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage

    from sluice.core.completed import CheckpointMetadata
    from sluice.declaration.pipeline import Pipeline
    from sluice.figures.record import SourceStats
    from sluice.job.job import Job

_FUNCTIONS = (Process, ProcessKeyed, SparkCode, Transform)  # They say nothing of their columns.


def checkpoint_lineage(
    job: Job, checkpoint_id: CheckpointId
) -> OperatorLineage[InputDataset | OutputDataset, Any]:
    """Two loads of the journal, and two GETs: the checkpoint's statistics and its ``_metadata``.

    Raises:
        ConfigurationError, RestoreError: nothing is kept of the checkpoint any more.
    """
    from airflow.providers.openlineage.extractors import OperatorLineage

    params = job.state().configuration.params
    read = {source.id: source for source in details(job, checkpoint_id).sources}
    places = {
        uid: source.spec.datasets(params) if isinstance(source.spec, NamedPlaceSpec) else ()
        for uid, source in job.pipeline.sources.items()
    }
    metadata = job.metadata(checkpoint_id)
    return OperatorLineage(
        inputs=[
            _input(place, read.get(uid) if len(of_source) == 1 else None)
            for uid, of_source in places.items()
            for place in of_source
        ],
        outputs=[
            _output(job, metadata, sink, place, _columns_of(job.pipeline, sink, places))
            for sink in job.pipeline.sinks.values()
            for place in _places_of(job, sink, params)
        ],
    )


def _places_of(job: Job, sink: SinkNode, params: Mapping[str, str]) -> Sequence[Dataset]:
    named = sink.spec.datasets(params) if isinstance(sink.spec, NamedPlaceSpec) else ()
    return named or (dataset_at(job.location.below(job.names.table(sink.uid)).root),)


def _input(place: Dataset, read: SourceStats | None) -> InputDataset:
    facets: dict[str, Any] = {}
    if read is not None:
        facets["inputStatistics"] = input_statistics.InputStatisticsInputDatasetFacet(
            rowCount=read.records, size=read.size
        )
    return InputDataset(namespace=place.namespace, name=place.name, inputFacets=facets)


def _output(
    job: Job,
    metadata: CheckpointMetadata,
    sink: SinkNode,
    place: Dataset,
    columns: Mapping[str, column_lineage.Fields],
) -> OutputDataset:
    staged = [one for one in metadata.committables if one.sink == sink.uid]
    facets: dict[str, Any] = {}
    if sink.uid in metadata.tables:
        version = f"{job.pipeline.uid} checkpoint {metadata.tables[sink.uid]}"
        facets["version"] = dataset_version.DatasetVersionDatasetFacet(datasetVersion=version)
    if columns:
        facets["columnLineage"] = column_lineage.ColumnLineageDatasetFacet(fields={**columns})
    statistics = output_statistics.OutputStatisticsOutputDatasetFacet(
        rowCount=sum(one.rows for one in staged),
        size=sum(one.size_bytes for one in staged),
        fileCount=len(staged),
    )
    return OutputDataset(
        namespace=place.namespace,
        name=place.name,
        facets=facets,
        outputFacets={"outputStatistics": statistics},
    )


def _columns_of(
    pipeline: Pipeline, sink: SinkNode, places: Mapping[str, Sequence[Dataset]]
) -> dict[str, column_lineage.Fields]:
    """By column of *sink* the columns of the source that it is computed of; empty if unknown."""
    before = [*_before(pipeline, sink.input)]
    sources = [pipeline.sources[uid] for uid in before if uid in pipeline.sources]
    stages = [pipeline.stages[uid] for uid in before if uid in pipeline.stages]
    if len(sources) != 1 or len(places[sources[0].uid]) != 1:
        return {}
    if any(isinstance(stage.operation, _FUNCTIONS) for stage in stages):
        return {}
    (place,) = places[sources[0].uid]
    given = Declared(pipeline.stages, {})
    kind = pipeline.kind_of(sink.input, sink.steps)
    stream = Input(producer=sink.input, kind=kind, steps=sink.steps)
    return {
        name: column_lineage.Fields(
            inputFields=[
                column_lineage.InputField(namespace=place.namespace, name=place.name, field=column)
                for column in _read_by(origin(given, stream, name))
            ]
        )
        for name in _names_of(pipeline, sink)
    }


def _before(pipeline: Pipeline, uid: str) -> Iterator[str]:
    """*uid* and every node that it reads, once each."""
    found, open_ = dict[str, None](), [uid]
    while open_:
        one = open_.pop()
        if one not in found:
            found[one] = None
            open_ += pipeline.stages[one].producers if one in pipeline.stages else ()
    yield from found


def _names_of(pipeline: Pipeline, sink: SinkNode) -> Sequence[str]:
    """The columns of *sink*, as far as expressions and aggregates name them."""
    stage = pipeline.stages.get(sink.input)
    steps = (*stage.steps, *sink.steps) if stage is not None else sink.steps
    selected = [[*map(parsed, one.columns)] for one in steps if isinstance(one, Projection)]
    if selected:
        return [item.name for item in selected[-1] if item.name is not None]
    if stage is not None and isinstance(stage.operation, KeyedAggregate | WindowAggregate):
        return [*stage.keys, *stage.operation.aggregates]
    return ()


def _read_by(tree: Expression) -> Sequence[str]:
    found: list[Column] = []

    def note(column: Column) -> Expression:
        found.append(column)
        return column

    replaced(tree, note)
    return [*dict.fromkeys(column.parts[0] for column in found)]
