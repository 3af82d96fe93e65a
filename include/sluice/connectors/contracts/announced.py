"""The check that rows have the columns for which their stage was built.

A stage asks a source for its columns once, and its workers read later, perhaps in another attempt:
in between, a file, a column or the table may have been replaced.  Rows of other columns are then
refused by name, so that no value is ever read as that of another column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa


def check_announced(found: pa.Schema, announced: pa.Schema, partition: str) -> None:
    """Raises ConfigurationError unless rows of *partition* have the columns *announced*."""
    if found.equals(announced):
        return
    for name in dict.fromkeys([*announced.names, *found.names]):
        is_now, was = (
            one.field(name).type if one.names.count(name) == 1 else "no such column"
            for one in (found, announced)
        )
        if is_now != was:
            raise ConfigurationError(
                f"column {name!r} of {partition} is {is_now}, and was {was} when the stage that "
                "reads it was started; run the stage again, and give all that a source reads the "
                "same columns"
            )
    if found.names != announced.names:
        raise ConfigurationError(
            f"the columns of {partition} are {', '.join(found.names)}, and were "
            f"{', '.join(announced.names)}, in that order, when the stage that reads them was "
            "started; run the stage again, and give all that a source reads the same columns"
        )


def narrowed(schema: pa.Schema, paths: Sequence[str]) -> pa.Schema:
    """*schema* with only the columns and fields *paths*: ``a.b`` is the field b of the column a.

    Fields keep the order that they have in *schema*.
    """
    import pyarrow as pa

    fields = []
    for field in schema:
        inner = [path.partition(".")[2] for path in paths if path.partition(".")[0] == field.name]
        if not inner:
            continue
        kind = field.type
        if "" not in inner:
            kind = pa.struct([one for one in kind if one.name in inner])
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)
