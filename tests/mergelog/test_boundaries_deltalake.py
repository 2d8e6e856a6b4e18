"""What `deltalake` does to a base table, and what the merged view is then."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from mergelog.lake import DELETION_VECTORS, made, table
from mergelog.statements import Effect, Restores, Stage
from tandem.errors import BaseReplaced

ROWS = table((1, "n", "x"), (7, "n", "y"))


def delta(stage: Stage) -> DeltaTable:
    return DeltaTable(str(stage.path))


def overwrite(stage: Stage, **options: str) -> None:
    predicate = options.get("predicate")
    rows = ROWS.slice(0, 1) if predicate else ROWS
    write_deltalake(str(stage.path), rows, mode="overwrite", predicate=predicate)


def overwrite_schema(stage: Stage) -> None:
    write_deltalake(str(stage.path), ROWS, mode="overwrite", schema_mode="overwrite")


def overwrite_after_a_restore(stage: Stage) -> None:
    delta(stage).restore(0)
    overwrite(stage)


def restore_after_an_overwrite(stage: Stage) -> None:
    overwrite(stage)
    delta(stage).restore(1)


def restore_after_a_replacement(stage: Stage) -> None:
    create(stage)
    delta(stage).restore(1)


def restore_of_a_restore(stage: Stage) -> None:
    delta(stage).restore(0)
    overwrite(stage)
    delta(stage).restore(2)


def create(stage: Stage) -> None:
    path, schema = str(stage.path), delta(stage).schema()
    DeltaTable.create(path, schema, mode="overwrite", configuration=DELETION_VECTORS)


def restore_by_time(stage: Stage) -> None:
    delta(stage).restore(datetime.fromtimestamp(stage.time_of(0) / 1000 + 0.005, UTC))


def merge(stage: Stage) -> None:
    merging = delta(stage).merge(ROWS, "t.k = s.k", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()


UNDER: dict[str, Callable[[Stage], object]] = {
    "append": lambda stage: write_deltalake(str(stage.path), ROWS.slice(1), mode="append"),
    "update": lambda stage: delta(stage).update(updates={"v": "'u'"}, predicate="k = 4"),
    "update of every row": lambda stage: delta(stage).update(updates={"v": "'u'"}),
    "delete with a condition": lambda stage: delta(stage).delete("k = 4"),
    "delete of every row by a condition": lambda stage: delta(stage).delete("k > 0"),
    "merge": merge,
    "overwrite with a predicate": lambda stage: overwrite(stage, predicate="k = 1"),
    "optimize": lambda stage: delta(stage).optimize.compact(),
    "z-order": lambda stage: delta(stage).optimize.z_order(["k"]),
    "properties": lambda stage: delta(stage).alter.set_table_properties(
        {"delta.checkpointInterval": "20"}
    ),
}
VOID: dict[str, Callable[[Stage], object]] = {
    "overwrite": overwrite,
    "overwrite of the schema": overwrite_schema,
    "overwrite with a predicate that is true": lambda stage: overwrite(stage, predicate="true"),
    "overwrite after a restore": overwrite_after_a_restore,
    "delete": lambda stage: delta(stage).delete(),
    "delete where true": lambda stage: delta(stage).delete("true"),
    "delete where 1 = 1": lambda stage: delta(stage).delete("1 = 1"),
    "create in the mode overwrite": create,
}
RESTORES: dict[str, tuple[Callable[[Stage], object], int]] = {
    "restore": (lambda stage: delta(stage).restore(0), 0),
    "restore by time": (restore_by_time, 0),
    "restore after an overwrite": (restore_after_an_overwrite, 1),
    "restore after a replacement": (restore_after_a_replacement, 1),
    "restore of a restore": (restore_of_a_restore, 0),
}


@pytest.mark.part(3)
@pytest.mark.parametrize("name", UNDER)
def test_statements_take_effect_under_the_log(tmp_path: Path, name: str) -> None:
    Stage.at(tmp_path / "t").check(UNDER[name], Effect.UNDER)


@pytest.mark.parametrize("name", VOID)
def test_replacing_everything_voids_the_records_before(tmp_path: Path, name: str) -> None:
    Stage.at(tmp_path / "t").check(VOID[name], Effect.VOID)


@pytest.mark.parametrize("name", RESTORES)
def test_a_restore_gives_the_view_of_its_version(tmp_path: Path, name: str) -> None:
    statement, version = RESTORES[name]
    Stage.at(tmp_path / "t").check(statement, Restores(version))


def test_a_vacuum_without_retention_spares_the_log(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path / "t")
    before = stage.merged.rows()
    delta(stage).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert stage.merged.rows() == before
    stage.merged.append(table((6, "F", "y")))
    assert stage.merged.rows() == sorted([*before, (6, "F", "y")], key=repr)


def test_a_restore_to_a_version_before_the_log_gives_that_version(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path / "t")
    # As if merge-on-read had been set at version 2.
    overwrite(stage)
    path = tmp_path / "t" / "_tandem"
    path.rename(tmp_path / "discarded")
    merged = type(stage.merged)(stage.merged.store)
    merged.append(table((6, "F", "y")))
    plain = [(1, "a", "x"), (2, "b", "x"), (3, "c", "y")]
    assert merged.rows(0) == plain
    delta(stage).restore(0)
    assert merged.rows() == plain
    merged.append(table((8, "H", "y")))
    assert merged.rows() == [*plain, (8, "H", "y")]


def restore_as_spark_logs_it(stage: Stage, text: str) -> None:
    delta(stage).restore(0)
    commit = sorted((stage.path / "_delta_log").glob("*.json"))[-1]
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    (info,) = [line["commitInfo"] for line in lines if "commitInfo" in line]
    info["operationParameters"] = {"version": None, "timestamp": text}
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("hours", [-3, 0, 3])
def test_the_files_say_which_version_a_time_of_an_unknown_zone_means(
    tmp_path: Path, hours: int
) -> None:
    stage = Stage.at(tmp_path / "t")
    moment = datetime.fromtimestamp(stage.time_of(0) / 1000 + 0.005, UTC) + timedelta(hours=hours)
    text = f"{moment:%Y-%m-%d %H:%M:%S.%f}"[:23]
    stage.check(lambda stage: restore_as_spark_logs_it(stage, text), Restores(0))


def test_a_time_that_is_none_is_resolved_by_the_files(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path / "t")
    stage.check(lambda stage: restore_as_spark_logs_it(stage, "yesterday"), Restores(0))


def test_a_restore_by_time_to_one_of_several_versions_is_refused(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path / "t")
    delta(stage).restore(0)
    stage.merged.append(table((6, "F", "y")))
    overwrite(stage)
    restore_as_spark_logs_it(stage, "yesterday")
    with pytest.raises(BaseReplaced) as caught:
        stage.merged.rows()
    assert (caught.value.found, caught.value.expected.rsplit(": ")[1]) == ("yesterday", "0, 2")
    with pytest.raises(BaseReplaced):
        stage.merged.append(table((7, "G", "y")))


def test_a_column_that_was_added_is_null_in_older_records(tmp_path: Path) -> None:
    stage = Stage.at(tmp_path / "t")
    delta(stage).alter.add_columns([Field("z", PrimitiveType("integer"))])
    assert stage.merged.rows() == [(*row, None) for row in stage.before[1]]


def test_a_boundary_voids_records_between_two_versions_of_the_log_only(tmp_path: Path) -> None:
    """Later instants stay, also those of a writer that began before."""
    stage = Stage.at(tmp_path / "t")
    early = stage.merged.new_writer("early")
    overwrite(stage)
    early.append(table((8, "H", "y")), batch=1)
    assert stage.merged.rows() == [(1, "n", "x"), (7, "n", "y"), (8, "H", "y")]


@pytest.mark.parametrize("appended", [False, True])
def test_an_overwrite_that_left_a_file_matters_only_if_there_is_a_record(
    tmp_path: Path, appended: bool
) -> None:
    """deltalake lets an overwrite of an older version pass, beside an append: whether it replaced
    everything is not said."""
    merged = made(tmp_path / "t", table((1, "base", "x")))
    if appended:
        merged.append(table((5, "record", "x")))
    stale = DeltaTable(str(tmp_path / "t"))
    write_deltalake(str(tmp_path / "t"), table((2, "beside", "x")), mode="append")
    write_deltalake(stale, table((9, "over", "x")), mode="overwrite")
    if appended:
        with pytest.raises(BaseReplaced):
            merged.view()
        return
    assert sorted(merged.view()["k"].to_pylist()) == [2, 9]
    merged.append(table((3, "record", "x")))
    assert sorted(merged.view()["k"].to_pylist()) == [2, 3, 9]
