"""Projection of rows from one schema to another, by field ids.

It uses pyiceberg's own visitor and mends its result: that turns null lists and maps of structs
into empty ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema


def projected(batch: pa.RecordBatch, there: Schema, wanted: Schema) -> pa.RecordBatch:
    """The rows of *batch*, of schema *there*, in the columns of *wanted*.

    Missing columns are null, or have their initial default.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.io.pyarrow import ArrowAccessor, ArrowProjectionVisitor
    from pyiceberg.schema import visit_with_partner
    from pyiceberg.types import ListType, MapType

    def with_nulls_of(given: pa.Array | None, made: pa.Array | None) -> pa.Array | None:
        if given is None or made is None or made.null_count == given.null_count:
            return made
        return pc.if_else(given.is_valid(), made, pa.scalar(None, made.type))

    class Visitor(ArrowProjectionVisitor):
        def list(
            self, list_type: ListType, list_array: pa.Array | None, value_array: pa.Array | None
        ) -> pa.Array | None:
            return with_nulls_of(list_array, super().list(list_type, list_array, value_array))

        def map(
            self,
            map_type: MapType,
            map_array: pa.Array | None,
            key_result: pa.Array | None,
            value_result: pa.Array | None,
        ) -> pa.Array | None:
            made = super().map(map_type, map_array, key_result, value_result)
            return with_nulls_of(map_array, made)

    visitor = Visitor(there, downcast_ns_timestamp_to_us=True, allow_timestamp_tz_mismatch=True)
    rows = visit_with_partner(wanted, batch, visitor, ArrowAccessor(there))
    return pa.RecordBatch.from_struct_array(rows)
