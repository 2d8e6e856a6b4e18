"""Upserts and full compactions on Apache Hudi: `python hudi_session.py ARGUMENTS ANSWER`.

Runs in the environment that `tools/setup-hudi.sh` makes. Prints nothing; writes what each part of
the work has written to the answer.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "mergelog" / "hudi"))

import session

COLUMNS = 10


def written_bytes(folder: Path) -> int:
    """Of base and log files; the timeline is left out."""
    return sum(
        file.stat().st_size
        for file in folder.rglob("*")
        if file.is_file() and ".hoodie" not in file.parts and not file.name.endswith(".crc")
    )


class Upserted(session.Table):
    """A table of ten columns, as `benchmarks.logtable.rows` has them."""

    def __init__(self, spark: Any, folder: Path, name: str, keys: int) -> None:
        self.spark, self.folder = spark, folder / name
        self.path = self.folder.as_uri()
        self.options = session.options(name, ordered=True)
        self.write(list(range(keys)), 0, "overwrite", "insert")

    def write(self, keys: list[int], at: int, mode: str, operation: str) -> None:
        names = ["id", "at", "c0", *(f"c{number}" for number in range(1, COLUMNS - 2))]
        schema = ", ".join(f"{name} LONG" for name in names)
        rows = [
            (key, at, at, *((key * 7919 + at * 104_729 + n) % 1_000_003 for n in range(1, 8)))
            for key in keys
        ]
        frame = self.spark.createDataFrame(rows, schema).coalesce(1)
        writer = frame.write.format("hudi").options(**self.options)
        writer.option("hoodie.datasource.write.operation", operation).mode(mode).save(self.path)


def run(spark: Any, folder: Path, keys: int, commits: int, every: int) -> dict[str, int]:
    """Commits of 1 % of the keys each, and a full compaction after every so many."""
    table = Upserted(spark, folder, f"every_{every}", keys)
    chance = random.Random(7)
    found = {"ingested": 0, "compacted": 0}
    for number in range(1, commits + 1):
        before = written_bytes(table.folder)
        chosen = chance.sample(range(keys), k=max(keys // 100, 1))
        table.write(chosen, number, "append", "upsert")
        after = written_bytes(table.folder)
        found["ingested"] += after - before
        if number % every == 0:
            table._service("merge")
            found["compacted"] += written_bytes(table.folder) - after
            sys.stderr.write(f"compaction every {every}: {number} of {commits}\n")
    if (
        len(table.spark.read.format("hudi").load(table.path).select("id").distinct().collect())
        != keys
    ):
        raise SystemExit("Hudi has other keys than were written")
    return found


def main() -> None:
    arguments = json.loads(sys.argv[1])
    spark = session.start()
    with tempfile.TemporaryDirectory(prefix="tandem-hudi-") as folder:
        found = {
            every: run(spark, Path(folder), arguments["keys"], arguments["commits"], every)
            for every in arguments["every"]
        }
    Path(sys.argv[2]).write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
