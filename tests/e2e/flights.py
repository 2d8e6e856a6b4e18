"""The flights of 2013 as a table to upload, and the way from `helm install` to a success."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import data
import duckdb

from e2e import install
from e2e.lake import Lake, compaction
from e2e.steps import Steps, durations
from e2e.target import Target


@dataclass(frozen=True)
class Flights:
    """365 daily loads in a folder, and the rows after the demo's statements."""

    folder: Path
    answer: duckdb.DuckDBPyConnection


def load(folder: Path) -> Flights:
    """Write them below that folder."""
    raw = data.unpack(folder)
    data.load_daily(raw, folder / "table", lambda _done, _total: None)
    return Flights(folder / "table", data.expected(raw))


def until_first_success(cluster: Target, lake: Lake, table: str, name: str) -> dict[str, float]:
    """`helm install`, a table, a compaction: how long each step takes."""
    with Steps(lake) as steps:
        steps.mark("install")
        install.tandem(cluster)
        steps.mark("installed")
        cluster.kube.rolled_out(install.SYSTEM, "deployment/tandem-operator")
        steps.until("operator: ready")
        steps.mark("table applied")
        lake.adopt(table)
        steps.mark("applied")
        [tidy] = lake.apply(compaction(name, table))
        tidy.succeeded()
        steps.until(f"{name}: Succeeded")
    return durations(steps, table, name)
