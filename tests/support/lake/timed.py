"""A table with a time column, for replaces and drops of intervals.

A row is an id and an hour, counted from March 1st, 2013; `None` is a row without a time. Each load
makes one file.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from support.lake.lake import DELETION_VECTORS, Lake, Lakes
from tandem.delta.scan import scan
from tandem.spec.resources import Operation

Hours = Mapping[int, int | None]
"""Id → hour."""
START = dt.datetime(2013, 3, 1, tzinfo=dt.UTC)
DAYS = {"column": "ts", "granularity": "Day"}
SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("day", pa.date32())])


def hours(*found: Iterable[int] | int, first: int) -> Hours:
    """Rows at these hours, with ids from `first` on."""
    flat = [h for each in found for h in ([each] if isinstance(each, int) else each)]
    return {first + number: hour for number, hour in enumerate(flat)}


def day(number: int) -> range:
    """The hours of a day of March, from 1 on."""
    return range(24 * (number - 1), 24 * number)


def without(rows: Hours, *gone: Iterable[int]) -> Hours:
    """The rows but those at these hours."""
    flat = {hour for each in gone for hour in each}
    return {id_: hour for id_, hour in rows.items() if hour not in flat}


def join(*parts: Hours) -> Hours:
    return {id_: hour for part in parts for id_, hour in part.items()}


def moment(hour: int) -> dt.datetime:
    return START + dt.timedelta(hours=hour)


def interval(first: int, end: int) -> str:
    """From an hour to another one."""
    return f"{moment(first):%Y-%m-%dT%H:%M:%SZ}/{moment(end):%Y-%m-%dT%H:%M:%SZ}"


def table(rows: Hours) -> pa.Table:
    times = [None if hour is None else moment(hour) for hour in rows.values()]
    days = [None if time is None else time.date() for time in times]
    arrays = [pa.array(rows), pa.array(times, SCHEMA.field("ts").type), pa.array(days, pa.date32())]
    return pa.table(arrays, schema=SCHEMA)


@dataclass
class TimedLake:
    """A `Lake` whose rows are `Hours`."""

    lake: Lake

    @classmethod
    def of(
        cls, lakes: Lakes, *loads: Hours, vectors: bool = True, partitioned: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> TimedLake:  # fmt: skip
        found = {**(DELETION_VECTORS if vectors else {}), **(properties or {})}
        by = ["day"] if partitioned else []
        made = cls(lakes.empty(schema=SCHEMA, properties=found, partition_by=by, time=DAYS))
        for rows in loads:
            made.append(rows)
        made.lake.first_version = made.lake.version
        return made

    def append(self, rows: Hours) -> None:
        """By deltalake."""
        self.lake.append(table(rows))

    def replace(self, *intervals: str, rows: Hours | None = None, **more: Any) -> Operation:
        """With a source of these rows; a drop without them."""
        spec: dict[str, Any] = {"replace": {"intervals": list(intervals)}, **more}
        if not intervals:
            spec["replace"] = more.pop("replaced")
            del spec["replaced"]
        if rows is not None:
            path = self.lake.source(table(rows))
            spec["source"] = {"format": "Parquet", "location": path.as_uri()}
        return self.lake.resource("TableReplace", spec)

    def ingest(self, rows: Hours, **more: Any) -> Operation:
        path = self.lake.source(table(rows))
        source = {"format": "Parquet", "location": path.as_uri()}
        return self.lake.resource("TableIngest", {"source": source, **more})

    # Looking

    def rows(self, version: int | None = None) -> list[tuple[int, int | None]]:
        """By our reader."""
        return _rows(pa.table(scan(self.lake.log.snapshot(version), self.lake.store)))

    def assert_shows(self, *parts: Hours, version: int | None = None) -> None:
        """Our reader and deltalake show these rows, each once; Spark + Delta in `whole` tests."""
        expected = sorted(join(*parts).items())
        assert len(expected) == sum(len(part) for part in parts)
        assert self.rows(version) == expected, "tandem"
        assert _rows(pa.table(self.lake.foreign(version).scan())) == expected, "deltalake"
        if self.lake.spark_reads and version is None:
            found = self.lake.delta_spark.read.format("delta").load(str(self.lake.path))
            assert _rows(found.select("id", "ts").toArrow()) == expected, "Spark + Delta"

    def assert_history(self, *states: Hours) -> None:
        """Every version shows one of these states, in this order: none comes back (I-12)."""
        found: list[list[tuple[int, int | None]]] = []
        for version in range(self.lake.first_version, self.lake.version + 1):
            shown = self.rows(version)
            if not found or found[-1] != shown:
                found.append(shown)
        assert found == [sorted(state.items()) for state in states]
        self.lake.assert_clean()


def _rows(found: pa.Table) -> list[tuple[int, int | None]]:
    ids, times = found.column("id").to_pylist(), found.column("ts").to_pylist()
    seconds = [None if time is None else (time - START).total_seconds() for time in times]
    return sorted(
        (id_, None if gap is None else int(gap) // 3600)
        for id_, gap in zip(ids, seconds, strict=True)
    )
