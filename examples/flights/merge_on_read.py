"""Merge-on-read on the flights: two upserts and a delete by key, a log compaction, a log merge.

Part of `make demo`. After each step readers must see the rows that DuckDB computes, and
`deltalake`, which knows no log, those of the last merge.
"""

from __future__ import annotations

from pathlib import Path

import data
import duckdb
import pyarrow as pa
from showing import console, relocated, show_outcomes, verdict

from tandem import mergelog
from tandem.cli.report import ProgressDisplay
from tandem.operations import runner as engine
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.spark.local_spark import LocalRunner
from tandem.spec import AnyResource, load
from tandem.spec.status import Phase

FILE = Path(__file__).resolve().with_suffix(".yaml")
KEYS = "time_hour, carrier, flight"
MARCH = "carrier = 'UA' AND month = 3"
APRIL = "carrier = 'AA' AND month = 4"
CANCELLED = "dep_time IS NULL"


class Checked:
    """The table in `folder`, beside what DuckDB makes of the raw file: `now` for the merged view,
    `merged` for the table alone."""

    def __init__(self, folder: Path, raw: Path) -> None:
        self.folder = folder
        self.log = mergelog.open_log(str(folder))
        self.now, self.merged = data.loaded(raw), data.loaded(raw)
        self.right = True

    def change(self, statement: str) -> None:
        """The same in DuckDB."""
        self.now.execute(statement)

    def rows(self, step: str, blocks: int) -> None:
        """Compare the merged view, and the number of live blocks."""
        view = mergelog.MergedView.open(self.log)
        found = data.differences(self.now, view.scan().read_all()) == 0
        there = len(view.state.live)
        self.right &= verdict(
            f"{step}: {there} live blocks, and the merged view has DuckDB's rows",
            found and there == blocks,
        )

    def base(self, when: str) -> None:
        """Compare what deltalake reads."""
        rows = data.read_by_deltalake(self.folder)
        right = data.differences(self.merged, rows) == 0
        self.right &= verdict(f"deltalake reads the table as of {when}", right)

    def run(self, *resources: AnyResource) -> None:
        with ProgressDisplay() as display:
            options = engine.RunOptions(Ports(jobs=FileJobs(LocalRunner())))
            outcomes = engine.run(resources, options, observer=display)
        show_outcomes(outcomes[1:])
        self.right &= all(outcome.status.phase is Phase.SUCCEEDED for outcome in outcomes)


def rows_of(connection: duckdb.DuckDBPyConnection, columns: str, where: str) -> pa.Table:
    return connection.sql(f"SELECT {columns} FROM flights WHERE {where}").to_arrow_table()


def run(folder: Path, raw: Path) -> bool:
    """The whole story, on the table in `folder`; whether everything was right."""
    table, compaction, merge = relocated(load([FILE]), folder)
    checked = Checked(folder, raw)
    engine.run([table], engine.RunOptions(Ports(jobs=FileJobs(LocalRunner()))))
    with mergelog.LogWriter(checked.log, "demo") as writer:
        for batch, (where, change) in enumerate(
            (
                (MARCH, "dep_delay = dep_delay + 15"),
                (APRIL, "arr_delay = arr_delay - 5, tailnum = 'unknown'"),
            )
        ):
            checked.change(f"UPDATE flights SET {change} WHERE {where}")
            writer.append(rows_of(checked.now, "*", where), batch=batch)
            checked.rows(f"Upsert {batch + 1}", batch + 1)
        cancelled = rows_of(checked.now, KEYS, CANCELLED)
        checked.change(f"DELETE FROM flights WHERE {CANCELLED}")
        writer.append(deletes=cancelled, batch=2)
        checked.rows(f"Delete by key of {cancelled.num_rows:,} flights", 3)
    checked.run(table, compaction)
    checked.rows("Log compaction", 1)
    checked.base("before the first merge")
    checked.run(table, merge)
    checked.rows("Log merge", 0)
    checked.merged = checked.now
    checked.base("the merge")
    console.print(f"  .venv/bin/tandem log show {folder}", highlight=False)
    return checked.right
