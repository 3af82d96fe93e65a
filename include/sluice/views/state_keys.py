"""Keys of state as a person names them: ``column=value``, the value as JSON shows it.

``column`` alone means null; of a key with several columns one is enough.
"""

from __future__ import annotations

import base64
import binascii
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sluice.errors import ConfigurationError

if TYPE_CHECKING:
    import polars as pl

    from sluice.subtask.state.schema import StateSchema


def wanted_keys(key: tuple[str, ...], schema: StateSchema) -> pl.Expr:
    """Whether a row has the value of every column that *key* names.

    Raises:
        ConfigurationError: there is no such column, or it cannot have such a value.
    """
    import polars as pl

    wanted = pl.lit(value=True)
    for pair in key:
        name, is_given, text = pair.partition("=")
        kind = schema.columns.get(name)
        keys = (*schema.key_columns, *schema.sub_key_columns)
        if kind is None or name not in keys:
            raise ConfigurationError(f"{name!r} is no column of the key; it has {', '.join(keys)}")
        value = _value(name, text, kind) if is_given else None
        wanted &= pl.col(name).eq_missing(pl.lit(value, kind))
    return wanted


def _value(name: str, text: str, kind: pl.DataType) -> Any:  # noqa: ANN401 - whatever a key holds
    """What *text* means in a column of this type, written as JSON shows it."""
    import polars as pl

    try:
        match kind:
            case pl.String():
                return text
            case pl.Binary():
                return base64.b64decode(text, validate=True)
            case pl.Boolean():
                return {"true": True, "false": False}[text]
            case pl.Datetime():
                return datetime.fromisoformat(text)
            case pl.Date():
                return date.fromisoformat(text)
            case pl.Duration():
                return timedelta(seconds=float(text))
            case _:
                return pl.Series([text]).cast(kind, strict=True).item()
    except (
        KeyError,
        ValueError,
        OverflowError,
        binascii.Error,
        pl.exceptions.PolarsError,
    ) as error:
        raise ConfigurationError(f"{text!r} is no {kind}, which {name!r} of the key is") from error
