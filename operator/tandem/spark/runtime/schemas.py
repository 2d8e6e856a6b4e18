"""Spark's schema of a table. Imports little: Python workers of a user's session need it."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.types import ArrayType, MapType, StructField, StructType


def spark_schema(schema_string: str) -> StructType:
    """From the columns in Delta's metadata; all nullable at any level, and without metadata."""
    schema = StructType.fromJson(json.loads(schema_string))
    return StructType([StructField(f.name, _nullable(f.dataType), True) for f in schema.fields])


def _nullable(type_: Any) -> Any:
    if isinstance(type_, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType), True) for f in type_.fields])
    if isinstance(type_, ArrayType):
        return ArrayType(_nullable(type_.elementType), True)
    if isinstance(type_, MapType):
        return MapType(_nullable(type_.keyType), _nullable(type_.valueType), True)
    return type_
