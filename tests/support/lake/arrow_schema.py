"""The Arrow schema of a whole table, which deltalake has, too."""

from __future__ import annotations

import pyarrow as pa

from tandem.delta.schema import StructType, to_arrow_field


def to_arrow(schema: StructType, *, physical: bool = False) -> pa.Schema:
    """By logical names, or as its data files spell them."""
    return pa.schema([to_arrow_field(field, physical=physical) for field in schema.fields])
