"""The foreign actions of the W matrix (W1 to W8): what is done, and what it does to rows.

One line per column of the matrix: to add one, add it here. A step is what one engine does
(`support.foreign.calls`); `model` is the obvious meaning of all steps together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from support.matrix.rows import (
    SQL_MOMENT,
    Model,
    Row,
    Rows,
    after,
    appended,
    deleted,
    id_in,
    new,
    renamed,
    rows,
    same,
    updated,
    with_column,
)

CONFLICT = "Conflict"
EngineName = Literal["deltalake", "spark", "harness"]


@dataclass(frozen=True)
class Step:
    """`what` with `arguments`, by deltalake; or `what` is SQL for Spark, where `{table}` is
    the table, `{gate}` a condition that holds once it may go on, and `{first}` the version that
    the cell begins with. The harness itself ages files, writes raw commits, and has deltalake
    look at the latest version."""

    engine: EngineName
    what: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gated(self) -> bool:
        return "{gate}" in self.what


@dataclass(frozen=True)
class Foreign:
    """`blind`: an append, which write serializability may put after ours. `refuses`: which of
    our operations are refused by name, when it came between our read and our commit, and why;
    `CONFLICT` must happen then, and in no other cell. `next_refused`: which of the operations that
    follow are. `stale_defect`: deltalake, if it had begun before a rewrite that committed, does
    not see it: against all rules the rewritten rows stay, besides what it means to leave.
    `removes_files`: a vacuum without retention, which takes the files of versions that it has not
    seen. `boundary`: it replaces the table, so that unmerged records of a log are void.
    `loses_history`: it removes commits, which a log of blocks may not have seen. `on`: on which
    tables it is played, those with deletion vectors, those without, or both; `tracking`: the same
    of row tracking. deltalake commits to no table that has it, so Spark + Delta stands in there."""

    steps: tuple[Step, ...]
    model: Model
    shape: str = "plain"
    blind: bool = False
    prepare: tuple[Step, ...] = ()
    prepared: Model = same
    refuses: Mapping[str, str] = field(default_factory=dict)
    next_refused: frozenset[str] = frozenset()
    stale_defect: bool = False
    removes_files: bool = False
    deltalake_reads: bool = True
    boundary: bool = False
    loses_history: bool = False
    on: tuple[bool, ...] = (True, False)
    tracking: tuple[bool, ...] = (True, False)

    @property
    def engine(self) -> EngineName:
        return self.steps[0].engine

    @property
    def gated(self) -> bool:
        return self.steps[0].gated


def _lake(what: str, **arguments: Any) -> tuple[Step, ...]:
    return (Step("deltalake", what, arguments),)


def _spark(text: str) -> tuple[Step, ...]:
    return (Step("spark", text),)


NEW = rows(range(100, 110))
MERGED = [3, 4, 5, 6, 7, 200, 201]
"""Keys that a foreign merge brings: five are there, two are new."""

SOURCE: Rows = [new(n, n % 5, -n) for n in MERGED]
ONE = rows([77])
FOURS = [new(n, 4, 1) for n in (150, 151, 152)]


def _moved(row: Row) -> int:
    """Updates change what other statements choose by, too."""
    return int((row["k"] + 1) % 5)


def _more(row: Row) -> int:
    return int(row["v"] + 1000)


_MIDDLE = id_in(range(5, 25))
_LOW = deleted(id_in(range(15)))
_UPDATED = updated(_MIDDLE, k=_moved, v=_more)
_MERGED = after(deleted(id_in(MERGED)), appended(SOURCE))
_VALUES = ", ".join(f"({r['id']}L, {r['k']}L, {r['v']}L)" for r in SOURCE)
_OF_START = ("replace AtStart", "drop")
_REPLACES = (*_OF_START, "replace AtCommit", "replace partitions")
_REPLACES_FROM_SOURCE = ("replace AtStart", "replace AtCommit", "replace partitions")
_ROW_LEVEL = ("update", "delete", "merge", "log merge")
_HIDES_ROWS = dict.fromkeys((*_ROW_LEVEL, *_REPLACES), "UnsupportedFeature")
_ALL_OURS = ("bin-pack", "sort", "z-order", "segment rewrite", *_ROW_LEVEL, *_REPLACES)
_UNKNOWN_AGES = dict.fromkeys(_OF_START, CONFLICT)
_INSERTED = f"id, id % 5, id * 100, {SQL_MOMENT}"


def _spark_merge(condition: str = "") -> str:
    return (
        f"MERGE INTO {{table}} t USING (SELECT *, {SQL_MOMENT} AS ts FROM VALUES {_VALUES} "
        f"AS s(id, k, v){condition}) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


_ELSEWHERE: dict[str, Foreign] = {
    "W1-deltalake-append": Foreign(_lake("append", rows=NEW), appended(NEW), blind=True),
    "W1-deltalake-append-new-partition": Foreign(
        _lake("append", rows=[{**row, "k": 7} for row in NEW]),
        appended([{**row, "k": 7} for row in NEW]),
        shape="partitioned",
        blind=True,
    ),
    "W1-deltalake-append-schema-merge": Foreign(
        _lake("append", rows=[{**row, "w": "new"} for row in NEW], merge_schema=True),
        after(appended([{**row, "w": "new"} for row in NEW]), with_column("w")),
        blind=True,
    ),
    "W1-spark-insert": Foreign(
        _spark(f"INSERT INTO {{table}} SELECT {_INSERTED} FROM range(100, 110)"),
        appended(NEW),
        blind=True,
    ),
    "W2-deltalake-delete": Foreign(_lake("delete", where="id < 15"), _LOW),
    "W2-deltalake-delete-all": Foreign(
        _lake("delete"), deleted(lambda _: True), stale_defect=True, boundary=True
    ),
    "W2-deltalake-update": Foreign(
        _lake("update", where="id >= 5 AND id < 25", set_={"k": "(k + 1) % 5", "v": "v + 1000"}),
        _UPDATED,
    ),
    "W2-deltalake-update-moves-partitions": Foreign(
        _lake("update", where="id >= 5 AND id < 25", set_={"k": "(k + 1) % 5", "v": "v + 1000"}),
        _UPDATED,
        shape="partitioned",
    ),
    "W2-deltalake-merge": Foreign(_lake("merge", rows=SOURCE), _MERGED, refuses=_UNKNOWN_AGES),
    "W3-deltalake-compact": Foreign(_lake("compact"), same, stale_defect=True),
    "W3-deltalake-z-order": Foreign(_lake("z_order", columns=["v", "id"]), same, stale_defect=True),
    "W4-deltalake-overwrite": Foreign(
        _lake("overwrite", rows=ONE),
        lambda _: ONE,
        stale_defect=True,
        boundary=True,
        refuses=_UNKNOWN_AGES,
    ),
    "W4-deltalake-replace-where": Foreign(
        _lake("overwrite", rows=FOURS, where="k = 4"),
        after(deleted(lambda row: row["k"] == 4), appended(FOURS)),
        refuses=_UNKNOWN_AGES,
    ),
    "W4-deltalake-restore": Foreign(
        (Step("deltalake", "restore", {"version": "FIRST"}),),
        lambda of: _first(of),
        prepare=_lake("delete", where="id >= 35"),
        prepared=deleted(id_in(range(35, 40))),
        boundary=True,
        refuses=_UNKNOWN_AGES,
    ),
    "W5-deltalake-vacuum-with-retention": Foreign(_lake("vacuum", hours=168, full=True), same),
    "W5-deltalake-vacuum-without-retention": Foreign(
        _lake("vacuum", hours=0, full=True), same, removes_files=True
    ),
    "W5-deltalake-vacuum-lite-without-retention": Foreign(_lake("vacuum", hours=0), same),
    "W5-spark-vacuum-without-retention": Foreign(
        (
            *_spark("SET spark.databricks.delta.retentionDurationCheck.enabled = false"),
            # By default it lists a folder by ten thousand tasks, which takes minutes here.
            *_spark("SET spark.sql.sources.parallelPartitionDiscovery.parallelism = 2"),
            *_spark("VACUUM {table} RETAIN 0 HOURS"),
        ),
        same,
    ),
    "W5-deltalake-checkpoint": Foreign(_lake("checkpoint"), same),
    "W5-deltalake-log-cleanup": Foreign(
        (
            *_lake("append", rows=NEW),
            *_lake("checkpoint"),
            Step("harness", "age the log"),
            *_lake("clean_log"),
        ),
        appended(NEW),
        blind=True,
        loses_history=True,
        refuses=_UNKNOWN_AGES,  # the append is no longer in the log
    ),
    "W6-spark-delete": Foreign(_spark("DELETE FROM {table} WHERE id < 15 AND {gate}"), _LOW),
    "W6-spark-update": Foreign(
        _spark(
            "UPDATE {table} SET k = (k + 1) % 5, v = v + 1000 WHERE id >= 5 AND id < 25 AND {gate}"
        ),
        _UPDATED,
    ),
    "W6-spark-merge": Foreign(
        _spark(_spark_merge(" WHERE {gate}")), _MERGED, refuses=_UNKNOWN_AGES
    ),
    "W7-spark-optimize": Foreign(_spark("OPTIMIZE {table}"), same),
    "W7-spark-optimize-z-order": Foreign(_spark("OPTIMIZE {table} ZORDER BY (v, id)"), same),
    "W7-spark-reorg-purge": Foreign(_spark("REORG TABLE {table} APPLY (PURGE)"), same),
    "W8-deltalake-property": Foreign(
        _lake("set_properties", properties={"delta.logRetentionDuration": "interval 60 days"}),
        same,
    ),
    "W8-deltalake-protocol": Foreign(_lake("add_feature", name="TimestampWithoutTimezone"), same),
    "W8-deltalake-add-column": Foreign(
        _lake("add_column", name="w", type_="string"), with_column("w")
    ),
    "W8-deltalake-constraint": Foreign(
        _lake("add_constraint", name="small", expression="v < 1000000"),
        same,
    ),
    "W8-spark-constraint": Foreign(
        _spark("ALTER TABLE {table} ADD CONSTRAINT small CHECK (v < 1000000)"),
        same,
    ),
    "W8-spark-property": Foreign(
        _spark("ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '5')"), same
    ),
    "W8-spark-vectors-off": Foreign(
        _spark("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"),
        same,
        on=(True,),
    ),
    "W8-spark-vectors-on": Foreign(
        _spark("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"),
        same,
        on=(False,),
    ),
    "W8-spark-add-column": Foreign(
        _spark("ALTER TABLE {table} ADD COLUMN w STRING"), with_column("w")
    ),
    "W8-spark-rename-other-column": Foreign(
        _spark("ALTER TABLE {table} RENAME COLUMN x TO y"),
        renamed("x", "y"),
        shape="mapped",
        deltalake_reads=False,
    ),
    "W8-spark-rename-our-column": Foreign(
        _spark("ALTER TABLE {table} RENAME COLUMN v TO u"),
        renamed("v", "u"),
        shape="mapped",
        refuses={
            **dict.fromkeys(("update", "merge"), "InvalidStatement"),
            # Their source has the old name: a load never drops a column silently.
            **dict.fromkeys(_REPLACES_FROM_SOURCE, "InvalidSpec"),
        },
        next_refused=frozenset({"update"}),
        deltalake_reads=False,
    ),
    "W8-spark-drop-other-column": Foreign(
        _spark("ALTER TABLE {table} DROP COLUMN x"),
        lambda of: [{n: v for n, v in row.items() if n != "x"} for row in of],
        shape="mapped",
        deltalake_reads=False,
    ),
    "W10-unknown-writer-feature-appears": Foreign(
        (Step("harness", "add an unknown feature"),),
        same,
        refuses=dict.fromkeys(_ALL_OURS, "UnsupportedFeature"),
        next_refused=frozenset({"bin-pack", "update"}),
    ),
    "W10-unknown-writer-feature": Foreign(
        (Step("harness", "nothing"),),
        same,
        shape="unknown feature",
        refuses=dict.fromkeys(_ALL_OURS, "UnsupportedFeature"),
        next_refused=frozenset({"bin-pack", "update"}),
    ),
    "W10-append-only": Foreign(
        _lake("append", rows=NEW),
        appended(NEW),
        shape="append-only",
        blind=True,
        refuses=_HIDES_ROWS,
        next_refused=frozenset({"update"}),
    ),
    "W10-change-data-feed-append": Foreign(
        _lake("append", rows=NEW),
        appended(NEW),
        shape="change data feed",
        blind=True,
    ),
    "W10-change-data-feed-delete": Foreign(
        _spark("DELETE FROM {table} WHERE id < 15"),
        _LOW,
        shape="change data feed",
    ),
    "W10-generated-column": Foreign(
        _spark(f"INSERT INTO {{table}} (id, k, v, ts) SELECT {_INSERTED} FROM range(100, 110)"),
        appended([{**row, "g": row["k"] * 2} for row in NEW]),
        shape="generated",
        blind=True,
    ),
    "W10-identity-column": Foreign(
        _spark(f"INSERT INTO {{table}} (id, k, v, ts) SELECT {_INSERTED} FROM range(100, 110)"),
        appended(NEW),
        shape="identity",
        blind=True,
        refuses={"log merge": "UnsupportedFeature"},
    ),
}

_MERGES_SCHEMA = "SET spark.databricks.delta.schema.autoMerge.enabled"

_STANDS_IN: dict[str, Foreign] = {
    "W1-spark-insert-new-partition": Foreign(
        _spark(f"INSERT INTO {{table}} SELECT id, 7, id * 100, {SQL_MOMENT} FROM range(100, 110)"),
        appended([{**row, "k": 7} for row in NEW]),
        shape="partitioned",
        blind=True,
    ),
    "W1-spark-insert-schema-merge": Foreign(
        (
            *_spark(f"{_MERGES_SCHEMA} = true"),
            *_spark(
                "INSERT INTO {table} BY NAME SELECT id, id % 5 AS k, id * 100 AS v, "
                f"{SQL_MOMENT} AS ts, 'new' AS w FROM range(100, 110)"
            ),
            *_spark(f"{_MERGES_SCHEMA} = false"),
        ),
        after(appended([{**row, "w": "new"} for row in NEW]), with_column("w")),
        blind=True,
    ),
    "W2-spark-delete-all": Foreign(
        _spark("DELETE FROM {table}"), deleted(lambda _: True), boundary=True
    ),
    "W2-spark-update-moves-partitions": Foreign(
        _spark("UPDATE {table} SET k = (k + 1) % 5, v = v + 1000 WHERE id >= 5 AND id < 25"),
        _UPDATED,
        shape="partitioned",
    ),
    "W4-spark-overwrite": Foreign(
        _spark(f"INSERT OVERWRITE {{table}} SELECT {_INSERTED} FROM range(77, 78)"),
        lambda _: ONE,
        boundary=True,
        refuses=_UNKNOWN_AGES,
    ),
    "W4-spark-replace-where": Foreign(
        _spark(
            f"INSERT INTO {{table}} REPLACE WHERE k = 4 SELECT id, k, v, {SQL_MOMENT} AS ts FROM "
            "VALUES (150L, 4L, 1L), (151L, 4L, 1L), (152L, 4L, 1L) AS s(id, k, v)"
        ),
        after(deleted(lambda row: row["k"] == 4), appended([{**row, "k": 4} for row in FOURS])),
        refuses=_UNKNOWN_AGES,
    ),
    "W4-spark-restore": Foreign(
        _spark("RESTORE TABLE {table} TO VERSION AS OF {first}"),
        lambda of: _first(of),
        prepare=_spark("DELETE FROM {table} WHERE id >= 35"),
        prepared=deleted(id_in(range(35, 40))),
        boundary=True,
        refuses=_UNKNOWN_AGES,
    ),
    "W5-spark-log-cleanup": Foreign(
        (
            *_spark(f"INSERT INTO {{table}} SELECT {_INSERTED} FROM range(100, 110)"),
            Step("harness", "open again"),
            *_lake("checkpoint"),
            Step("harness", "age the log"),
            *_lake("clean_log"),
        ),
        appended(NEW),
        blind=True,
        loses_history=True,
        refuses=_UNKNOWN_AGES,
    ),
    "W10-spark-append-only": Foreign(
        _spark(f"INSERT INTO {{table}} SELECT {_INSERTED} FROM range(100, 110)"),
        appended(NEW),
        shape="append-only",
        blind=True,
        refuses=_HIDES_ROWS,
        next_refused=frozenset({"update"}),
    ),
    "W10-spark-change-data-feed-append": Foreign(
        _spark(f"INSERT INTO {{table}} SELECT {_INSERTED} FROM range(100, 110)"),
        appended(NEW),
        shape="change data feed",
        blind=True,
    ),
}


def _on_tracked(name: str, foreign: Foreign) -> tuple[bool, ...]:
    """Whether an action of any table is played on tables with row tracking, too. An unknown feature
    refuses all of ours there, as everywhere."""
    commits = foreign.engine == "deltalake" and foreign.steps[0].what not in _KEEPS_LOG
    return (False,) if commits or "unknown-writer-feature" in name else (False, True)


_KEEPS_LOG = ("vacuum", "checkpoint")
"""What deltalake does to a table with row tracking."""

FOREIGN: dict[str, Foreign] = {
    **{name: replace(each, tracking=_on_tracked(name, each)) for name, each in _ELSEWHERE.items()},
    **{name: replace(each, tracking=(True,)) for name, each in _STANDS_IN.items()},
}


def _first(_: Rows) -> Rows:
    """What a restore brings back: the rows that every plain table begins with."""
    from support.matrix.tables import START

    return START
