"""Spark's shuffle as the exchange of blocks (`blocks`): it moves bytes, and looks at none."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tandem.spark.jobs.rewrite.blocks import RowBlock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = {"part": "int", "range_": "int", "data": "binary"}
_NAMES = [field.name for field in fields(RowBlock)]
_SCHEMA = ", ".join(f"{name} {_TYPES.get(name, 'bigint')}" for name in _NAMES)
_ARROW = {"int": pa.int32(), "binary": pa.binary()}


class SparkExchange:
    """An `Exchange`.

    Args:
        session: one of its own; its settings are changed.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        # A batch of blocks is in memory as a whole.
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")

    def __call__(
        self,
        senders: int,
        send: Callable[[int], Iterator[RowBlock]],
        parts: int,
        receive: Callable[[Iterator[RowBlock]], Iterator[Any]],
    ) -> list[Any]:
        def sent(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from map(_as_batch, send(number))

        def received(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for answer in receive(_blocks(batches)):
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)])], ["answer"])

        blocks = _map_in_arrow(self._session.range(0, senders, 1, senders), sent, _SCHEMA)
        answers = _map_in_arrow(
            blocks.repartitionById(parts, _NAMES[0]), received, "answer binary"
        ).collect()
        return [pickle.loads(answer[0]) for answer in answers]


def _map_in_arrow(frame: DataFrame, function: Callable[..., Any], schema: str) -> DataFrame:
    """`DataFrame.mapInArrow`, which asks for pandas and uses none (PySpark 4.2)."""
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    udf = UserDefinedFunction(function, schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column: Any = udf(*(frame[name] for name in frame.columns))
    mapped: Any = frame
    return DataFrame(mapped._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def _as_batch(block: RowBlock) -> pa.RecordBatch:
    types = [_ARROW.get(_TYPES.get(name, ""), pa.int64()) for name in _NAMES]
    arrays = [pa.array([v], t) for v, t in zip(astuple(block), types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=_NAMES)


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[RowBlock]:
    for batch in batches:
        for row in range(batch.num_rows):
            yield RowBlock(*(column[row].as_py() for column in batch.columns))
