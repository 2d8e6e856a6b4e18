"""The tables that other projects test their readers with (`tools/fetch-golden-tables.sh`): each is
compacted, sorted, updated and deleted from as its features allow.

Spark + Delta judges the rows: what it reads after a step is what it computes from the rows before,
and what Tandem and `deltalake` read. A table that one of them cannot read, and a step that is
refused, have their reasons in golden_tables.tsv, beside this file: another answer is a failure.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from support.matrix.outcomes import RECORDING
from tandem.cli.app import app
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.errors import TandemError
from tandem.storage import open_store

RECORD = Path(__file__).with_name("golden_tables.tsv")
FOUND = RECORDING.parent / "golden" / "answers.jsonl"
"""What runs found, a line a table."""
NEW = {"string": "'new'", "bigint": "7", "int": "7"}
"""New values of columns, by Spark's type."""
KEYS = ("string", "bigint", "int", "smallint", "tinyint", "date")
MANY = 50_000
"""Rows."""


def folder() -> Path:
    """Where the tables are."""
    cache = Path(os.environ.get("TANDEM_CACHE") or Path.home() / ".cache" / "tandem")
    return Path(os.environ.get("TANDEM_GOLDEN_TABLES") or cache / "golden")


def names() -> list[str]:
    """Of all tables, by their paths; that of the folder itself where there are none."""
    root = folder()
    return sorted(str(log.parent.relative_to(root)) for log in root.rglob("_delta_log")) or ["."]


@dataclass(frozen=True)
class Answers:
    """What became of each step: "ok", or a reason. Empty where a step was not possible: without
    rows, or without a column of the types above."""

    table: str
    spark: str = ""
    tandem: str = ""
    deltalake: str = ""
    compact: str = ""
    sort: str = ""
    update: str = ""
    delete: str = ""

    @property
    def well(self) -> bool:
        """Whether all read it, and every step that was possible was carried out."""
        return set(asdict(self).values()) <= {self.table, "ok", ""}


def recorded() -> dict[str, Answers]:
    with RECORD.open(newline="") as file:
        return {line["table"]: Answers(**line) for line in csv.DictReader(file, delimiter="\t")}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass
class Play:
    """One table, in a folder of its own."""

    spark: SparkSession
    path: Path
    wrong: list[str]

    def rows(self) -> DataFrame:
        return self.spark.read.format("delta").load(str(self.path))

    def ours(self) -> DataFrame:
        """What Tandem reads, as Spark reads it of a Parquet file. Raises: TandemError."""
        store = open_store(self.path.as_uri())
        snapshot = DeltaLog(store).snapshot()
        there = self.path.with_name("ours.parquet")
        pq.write_table(pa.table(scan(snapshot, store)), there)
        return self.spark.read.parquet(str(there))

    def theirs(self) -> DataFrame:
        """What `deltalake` reads, likewise."""
        there = self.path.with_name("theirs.parquet")
        pq.write_table(pa.table(DeltaTable(str(self.path)).scan()), there)
        return self.spark.read.parquet(str(there))

    def command(self, name: str, *words: str) -> str:
        """Its answer: "ok", or the reason for a refusal."""
        done = CliRunner().invoke(app, [name, str(self.path), *words, "-q"])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code == 0:
            return "ok"
        reason = re.search(r": ([A-Z][A-Za-z]+): ", done.output)
        if reason is None:
            self.wrong.append(f"{name}: no reason in {done.output}")
            return "?"
        return reason[1]

    def same(self, where: str, found: DataFrame, expected: Counter[str]) -> None:
        rows = counted(found)
        if rows != expected:
            lost, more = expected - rows, rows - expected
            self.wrong.append(f"{where}: lost {lost.most_common(2)}, more {more.most_common(2)}")


def counted(rows: DataFrame) -> Counter[str]:
    """By their texts, since NaN is not itself and a binary value no key; many by one hash."""
    found = rows.take(MANY + 1)
    if len(found) > MANY:
        whole = rows.selectExpr(f"sum(xxhash64({', '.join(map(quoted, rows.columns))}) % 1000003)")
        return Counter({f"{rows.count()} rows: {whole.first()}": 1})
    return Counter(map(repr, found))


def attempt(read: Callable[[], DataFrame]) -> tuple[str, Counter[str]]:
    """The rows, or why they cannot be read."""
    try:
        return "ok", counted(read())
    except TandemError as error:
        return type(error).__name__, Counter()
    except pa.ArrowInvalid as error:  # of a reader of batches: the error's text is all that is left
        return f"ArrowInvalid {str(error).partition(': ')[0]}", Counter()
    except PySparkException as error:
        return str(error.getCondition() or type(error).__name__), Counter()
    except Py4JJavaError as error:  # of a task
        return str(error.java_exception.getClass().getSimpleName()), Counter()
    except DeltaError as error:
        return type(error).__name__, Counter()


def play(table: Play, name: str) -> Answers:
    by_spark, rows = attempt(table.rows)
    by_tandem, ours = attempt(table.ours)
    by_deltalake, theirs = attempt(table.theirs)
    read = (by_spark, by_tandem, by_deltalake)
    if by_spark == by_tandem == "ok" and ours != rows:
        table.wrong.append(f"Tandem reads {ours - rows}, Spark {rows - ours}")
    if by_spark == by_deltalake == "ok" and theirs != rows:
        table.wrong.append(f"deltalake reads {theirs - rows}, Spark {rows - theirs}")

    def check(step: str, answer: str, expected: Counter[str]) -> str:
        if by_spark == "ok":
            table.same(f"{step}, by Spark", table.rows(), expected)
        if by_tandem == "ok" and (step == "delete" or by_spark != "ok"):
            table.same(f"{step}, by Tandem", table.ours(), expected)
        if by_deltalake == "ok" and (step == "delete" or by_spark != "ok"):
            table.same(f"{step}, by deltalake", table.theirs(), expected)
        return answer

    compacted = check("compact", table.command("compact"), rows or ours)
    if by_spark != "ok" or not rows:
        return Answers(name, *read, compacted)
    now = table.rows()
    key = next((each for each, type_ in now.dtypes if type_ in KEYS), None)
    target = next((each for each, type_ in now.dtypes[::-1] if type_ in NEW), None)
    if key is None or target is None:
        return Answers(name, *read, compacted)
    types = dict(now.dtypes)
    type_ = types[target]
    row = now.select(quoted(key)).first()
    assert row is not None
    # A constant of the dialect that both Spark and Tandem parse.
    text = str(row[0]).replace("\\", "\\\\").replace("'", "\\'")
    value = {"string": f"'{text}'", "date": f"DATE '{text}'"}.get(types[key], text)
    condition = f"{quoted(key)} IS NULL" if row[0] is None else f"{quoted(key)} = {value}"
    sorted_ = check("sort", table.command("sort", quoted(target)), rows)
    changed = counted(
        now.selectExpr(
            *(
                f"CASE WHEN {condition} THEN CAST({NEW[type_]} AS {type_}) ELSE {quoted(each)} "
                f"END AS {quoted(each)}"
                if each == target
                else quoted(each)
                for each in now.columns
            )
        )
    )
    updated = table.command(
        "update", "--where", condition, "--set", f"{quoted(target)}={NEW[type_]}"
    )
    rows = changed if updated == "ok" else rows
    check("update", updated, rows)
    kept = counted(table.rows().where(f"NOT coalesce({condition}, false)"))
    deleted = table.command("delete", "--where", condition)
    check("delete", deleted, kept if deleted == "ok" else rows)
    return Answers(name, *read, compacted, sorted_, updated, deleted)


@pytest.fixture(scope="session")
def answers() -> dict[str, Answers]:
    return recorded()


@pytest.mark.parametrize("name", names())
def test_golden_table(
    delta_spark: SparkSession, tmp_path: Path, answers: dict[str, Answers], name: str
) -> None:
    found_at = folder() / name
    assert (found_at / "_delta_log").is_dir(), f"{found_at}: run tools/fetch-golden-tables.sh"
    copied = shutil.copytree(found_at, tmp_path / "t", symlinks=True)
    table = Play(delta_spark, copied, [])
    found = play(table, name)
    FOUND.parent.mkdir(parents=True, exist_ok=True)
    with FOUND.open("a") as file:
        file.write(json.dumps(asdict(found)) + "\n")
    assert not table.wrong
    if name in answers or not found.well:
        assert found == answers.get(name)


def main() -> None:
    """Take what the last run found for the record: read the difference before it is committed."""
    found = [Answers(**json.loads(line)) for line in FOUND.read_text().splitlines()]
    answers = {**recorded(), **{each.table: each for each in found}}
    with RECORD.open("w", newline="") as file:
        columns = [field.name for field in fields(Answers)]
        writer = csv.DictWriter(file, columns, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(answers[n]) for n in sorted(answers) if not answers[n].well)


if __name__ == "__main__":
    main()
