"""Segment rewrites, alone and beside others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from support.jobs import quick_lake
from support.jobs.quick_jobs import QuickJobs
from support.jobs.quick_lake import QuickLake
from support.lake.lake import Lakes, batch, loads, message, reason, reconciled, result
from support.lake.rewritten import (
    PURGE,
    RECOMPRESS,
    TWO,
    WIDE,
    codecs,
    in_order,
    paths,
    rewrite,
    segment,
)
from support.lake.rows import id_in, join, k_is, plus, without
from support.lake.vectors import encode_inline
from tandem.delta.log.codec import encode_action
from tandem.operations.machine.events import Point
from tandem.planning.compaction import plan_compaction
from tandem.planning.plans import CompactionRequest
from tandem.spec.compaction import CompactionType
from tandem.spec.status import Phase
from tandem.timeline.segments import TAG_ROW_MAP, Segment

# Segment rewrites on real tables: D45, D46 and D52, time travel, tables of all sorts. Most run
# without Spark (`support.jobs.quick_lake`): a rewrite's tasks need none.


def test_D45_a_rewritten_segment_hides_no_sibling(two: QuickLake) -> None:
    sibling, before = segment(two, "1"), segment(two, "0")
    status = two.do(rewrite(two, "0"))

    assert two.names == ["0", "1"]
    assert segment(two, "1") == sibling
    assert segment(two, "0").deleted_rows == 0
    assert segment(two, "0").sequence == before.sequence
    assert paths(two, "0").isdisjoint({file.path for file in before.files})
    assert result(status).segments == ("0",)
    assert (result(status).files_added, result(status).files_removed) == (1, 1)
    two.assert_rows(TWO)
    two.assert_clean()


def test_D46_a_rewritten_segment_is_not_shown_twice(two: QuickLake) -> None:
    two.do(rewrite(two, "0"))
    two.do(rewrite(two, "0", **RECOMPRESS))
    two.do(rewrite(two, "0", **RECOMPRESS))
    assert len(segment(two, "0").files) == 1
    two.assert_states(TWO)


def test_D52_one_version_removes_and_adds_a_segment(two: QuickLake) -> None:
    old = paths(two, "0")
    two.do(rewrite(two, "0"))
    commit = two.commit()
    assert commit.version == two.first_version + 1
    assert {remove.logged_path for remove in commit.removes} == old
    assert {add.logged_path for add in commit.adds} == paths(two, "0")
    assert commit.info is not None
    assert commit.info.body["operation"] == "OPTIMIZE"
    assert not any(add.data_change for add in commit.adds)
    assert not any(remove.data_change for remove in commit.removes)


def test_I10_rewriting_one_of_many_changes_nothing_of_the_others(wide: QuickLake) -> None:
    """Nor what compactions will do: levels, order, lineage and major marks are as they were."""
    for number in range(6, 9):
        wide.load(batch(number))
    wide.do(wide.compaction("Custom", custom={"segments": ["4", "5", "6"]}))
    wide.do(wide.delete("k = 3"))
    before = wide.live
    request = CompactionRequest(CompactionType.MINOR, thresholds=(2, 2))
    planned = plan_compaction(before, request)

    def places(found: Sequence[Segment]) -> list[tuple[object, ...]]:
        return [(s.name, s.level, s.sequence, s.parents, s.major, s.interval) for s in found]

    wide.do(rewrite(wide, "0.1"))
    wide.do(rewrite(wide, "4.1", "7", **RECOMPRESS))
    assert places(wide.live) == places(before)
    again = plan_compaction(wide.live, request)
    assert [run.segments for run in again.runs] == [run.segments for run in planned.runs]
    tags = {TAG_ROW_MAP}
    for name in ("0.1", "4.1", "7"):
        old = next(s for s in before if s.name == name).files[0].add.tags
        new = segment(wide, name).files[0].add.tags
        assert {k: v for k, v in new.items() if k not in tags} == {
            k: v for k, v in old.items() if k not in tags
        }
    wide.assert_rows(without(join(WIDE, *map(batch, range(6, 9))), k_is(3)))
    wide.assert_clean()


def test_a_purge_leaves_files_alone_that_have_nothing_to_purge(wide: QuickLake) -> None:
    wide.do(wide.delete("id < 5"))
    before = paths(wide, "0.1")
    status = wide.do(rewrite(wide, "0.1"))
    assert result(status).files_removed == 1
    assert len(paths(wide, "0.1") & before) == 3
    assert wide.deleted() == {}
    wide.assert_rows(without(WIDE, id_in(range(5))))
    wide.assert_clean()


def test_time_travel_reads_the_version_before_the_purge(two: QuickLake) -> None:
    before = two.version
    two.do(rewrite(two, "0", "1"))
    assert two.deleted() == {}
    for version, deleted in ((before, {"0": 2, "1": 2}), (before + 1, {})):
        assert two.by_deltalake(version) == two.by_tandem(version) == TWO
        vectors = [add.deletion_vector for add in two.log.snapshot(version).adds()]
        assert sum(v.cardinality for v in vectors if v) == sum(deleted.values())
    assert two.by_deltalake(before - 1) == loads(range(2))


def test_nothing_to_purge_is_a_success_without_a_commit(two: QuickLake) -> None:
    two.do(rewrite(two, "0", "1"))
    version = two.version
    status = two.do(rewrite(two, "0"))
    assert reason(status) == "NothingToDo"
    assert status.result is None or status.result.version is None
    assert two.version == version


def test_the_same_resource_does_its_work_once(two: QuickLake) -> None:
    operation = rewrite(two, "0", **RECOMPRESS)
    first = two.do(operation)
    version, files = two.version, paths(two, "0")
    assert result(two.do(operation)) == result(first)
    assert (two.version, paths(two, "0")) == (version, files)
    two.do(operation, again=True)
    assert two.version == version + 1
    two.assert_states(TWO)


@pytest.mark.parametrize(
    ("names", "found"), [(("9",), "9 (unknown)"), (("0", "4.1"), "4.1 (unknown)")]
)
def test_C13_a_rewrite_of_an_unknown_segment(
    two: QuickLake, names: tuple[str, ...], found: str
) -> None:
    version = two.version
    status = two.run(rewrite(two, *names))
    assert (status.phase, reason(status)) == (Phase.FAILED, "UnknownSegment")
    said = message(status)
    assert found in said
    assert two.version == version


def test_C13_a_rewrite_of_a_segment_that_was_compacted(wide: QuickLake) -> None:
    status = wide.run(rewrite(wide, "2"))
    said = message(status)
    assert "2 (Compacted)" in said


def test_rows_cannot_be_sorted_by_absent_columns(two: QuickLake) -> None:
    status = two.run(rewrite(two, "0", sortBy=["kk"]))
    assert (status.phase, reason(status)) == (Phase.FAILED, "InvalidSpec")
    said = message(status)
    assert "spec.rewrite.sortBy" in said
    assert two.version == two.first_version


# Tables of all sorts ------------------------------------------------------------------------


def test_a_file_without_a_live_row_is_removed_without_an_output(two: QuickLake) -> None:
    """Some writers leave such a file; we do not."""
    [file] = segment(two, "0").files
    vector = encode_inline(BitMap64(range(10)))
    changed = {**encode_action(file.add)["add"], "deletionVector": _encoded(vector)}
    two.log_raw({"remove": _removed(file.add)}, {"add": changed}, operation="DELETE")
    left = without(TWO, id_in(range(10)))
    two.assert_rows(left)

    status = two.do(rewrite(two, "0", "1"))
    assert (result(status).files_added, result(status).files_removed) == (1, 2)
    assert two.names == ["1"]
    two.assert_rows(left)
    two.assert_clean()


def _encoded(vector: Any) -> dict[str, Any]:
    return {
        "storageType": vector.storage,
        "pathOrInlineDv": vector.path_or_inline,
        "sizeInBytes": vector.size,
        "cardinality": vector.cardinality,
        **({} if vector.offset is None else {"offset": vector.offset}),
    }


def _removed(add: Any) -> dict[str, Any]:
    found = {"path": add.logged_path, "deletionTimestamp": 1, "dataChange": True}
    return {**found, "deletionVector": _encoded(add.deletion_vector)}


def test_foreign_segments_keep_their_names_and_places(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 3)
    names = lake.names
    assert all(name.startswith("f-") for name in names)
    lake.do(lake.delete("k = 0"))
    lake.do(rewrite(lake, names[1]))
    lake.do(rewrite(lake, names[1], **RECOMPRESS))
    assert lake.names == names
    assert codecs(lake, names[1]) == {"GZIP"}
    left = without(loads(range(3)), k_is(0))
    lake.assert_rows(left)
    lake.do(lake.compaction("Custom", custom={"segments": names}))
    assert lake.names == ["0.1"]
    lake.assert_rows(left)
    lake.assert_clean()


def test_files_stay_in_their_partitions(tmp_path: Path) -> None:
    """Each partition's file is a foreign segment of its own."""
    lake = quick_lake.make(tmp_path, 2, partition_by=["k"])
    assert len(lake.live) == 10
    lake.do(lake.delete("id IN (3, 14)"))
    before = {s.name: s.files[0].add.partition_values for s in lake.live}
    lake.do(rewrite(lake, *lake.names[:7], **RECOMPRESS))
    lake.do(rewrite(lake, *lake.names))
    assert {s.name: s.files[0].add.partition_values for s in lake.live} == before
    assert lake.deleted() == {}
    lake.assert_rows(without(loads(range(2)), id_in([3, 14])))
    lake.assert_clean()


def test_every_codec_is_read_by_all(lakes: Lakes) -> None:
    """Spark reads them as it is installed. It writes, and sorts, one of them: the others are
    written by the same function without it."""
    lake = lakes.foreign(5)
    lake.do(lake.delete("k = 2"), ports=lake.ports(jobs=QuickJobs()))
    wishes = [
        ("zstd", 19, "ZSTD"),
        ("gzip", 9, "GZIP"),
        ("uncompressed", None, "UNCOMPRESSED"),
        ("snappy", None, "SNAPPY"),
        ("lz4", 12, "LZ4"),
    ]
    names = lake.names
    for name, (codec, level, written) in zip(names, wishes, strict=True):
        wish: dict[str, Any] = {
            "recompress": {"codec": codec, **({"level": level} if level else {})}
        }
        if codec == "lz4":
            lake.do(rewrite(lake, name, sortBy=["k", "id"], **wish))
            assert in_order(lake, name)
        else:
            lake.do(rewrite(lake, name, **wish), ports=lake.ports(jobs=QuickJobs()))
        assert codecs(lake, name) == {written}
    assert lake.names == names
    assert lake.deleted() == {}
    lake.assert_rows(without(loads(range(5)), k_is(2)))
    lake.assert_clean()


# Segment rewrites on real tables beside deletes, updates, compactions, restores and each other.
# Without Spark (`support.jobs.quick_lake`): a rewrite's tasks need none.


@pytest.mark.parametrize("wish", [PURGE, RECOMPRESS], ids=["purge", "recompress"])
@pytest.mark.parametrize("at", [Point.START_JOB, Point.RECONCILE, Point.PUT_COMMIT])
def test_a_delete_of_ours_commits_beside_a_rewrite(
    two: QuickLake, at: Point, wish: dict[str, Any]
) -> None:
    held = two.hold(rewrite(two, "0", **wish), at)
    two.do(two.delete("k = 3"))
    done = held.succeed()
    assert reconciled(done).deletes_remapped == 2
    assert two.deleted()["0"] == 2
    two.assert_states(TWO, without(TWO, k_is(3)))


def test_an_update_of_ours_commits_beside_a_rewrite(two: QuickLake) -> None:
    held = two.hold(rewrite(two, "0"), Point.RECONCILE)
    two.do(two.update("k IN (1, 4)", v="v + 15"))
    held.succeed()
    assert two.names == ["0", "1", "2"]
    two.assert_states(TWO, plus(TWO, k_is(1, 4), 15))


@pytest.mark.parametrize("kind", ["update", "delete"])
def test_a_rewrite_commits_beside_a_statement(two: QuickLake, kind: str) -> None:
    statement = two.update("k = 1", v="v + 15") if kind == "update" else two.delete("k = 1")
    after = plus(TWO, k_is(1), 15) if kind == "update" else without(TWO, k_is(1))
    held = two.hold(statement, Point.RECONCILE)
    two.do(rewrite(two, "0", **RECOMPRESS))
    two.do(rewrite(two, "1"))
    done = held.succeed()
    assert reconciled(done).deletes_remapped == 4
    two.assert_states(TWO, after)


def test_a_foreign_delete_takes_one_file_of_a_rewritten_segment(wide: QuickLake) -> None:
    """Copy on write: the file is gone, its rows live on in a foreign segment or not at all."""
    held = wide.hold(rewrite(wide, "0.1", **RECOMPRESS), Point.RECONCILE)
    wide.foreign().delete("id = 12")
    done = held.finish()
    assert reconciled(done).rows_masked == 10
    assert result(done).files_removed == 3
    assert len(segment(wide, "0.1").files) == 3
    assert wide.deleted() == {}
    wide.assert_states(WIDE, without(WIDE, id_in([12])))


def test_a_restored_file_stays_in_its_segment(wide: QuickLake) -> None:
    """It lives on by itself beside the others' new files: still one segment, each row once."""
    wide.do(wide.delete("id < 5"))
    held = wide.hold(rewrite(wide, "0.1", **RECOMPRESS), Point.RECONCILE)
    wide.foreign().restore(wide.version - 1)
    held.succeed()
    assert wide.names == ["0.1", "4"]
    assert len(segment(wide, "0.1").files) == 4
    wide.assert_states(WIDE, without(WIDE, id_in(range(5))), WIDE)
    wide.assert_clean()


def test_a_segment_that_a_compaction_has_replaced_is_skipped(wide: QuickLake) -> None:
    held = wide.hold(rewrite(wide, "0.1", **RECOMPRESS), Point.RECONCILE)
    wide.do(wide.compaction("Custom", custom={"segments": ["0.1", "4"]}))
    done = held.finish()
    assert done.phase is Phase.SUPERSEDED
    assert wide.names == ["0.2"]
    wide.assert_states(WIDE)


def test_a_compaction_meets_a_segment_that_was_rewritten(wide: QuickLake) -> None:
    held = wide.hold(wide.compaction("Custom", custom={"segments": ["0.1", "4"]}), Point.RECONCILE)
    wide.do(rewrite(wide, "0.1", **RECOMPRESS))
    done = held.succeed()
    assert reconciled(done).rows_masked == 40
    assert wide.names == ["0.1", "0.2"]
    wide.assert_states(WIDE)


def test_two_rewrites_of_the_same_segment_one_of_which_wins(two: QuickLake) -> None:
    held = two.hold(rewrite(two, "0", **RECOMPRESS), Point.RECONCILE)
    two.do(rewrite(two, "0", "1"))
    assert held.finish().phase is Phase.SUPERSEDED
    assert two.deleted() == {}
    two.assert_states(TWO)


def test_all_rows_go_while_they_are_rewritten(two: QuickLake) -> None:
    held = two.hold(rewrite(two, "0"), Point.RECONCILE)
    two.do(two.delete("true"))
    assert held.finish().phase is Phase.SUPERSEDED
    two.assert_states(TWO, ())


def test_rows_are_sorted_within_each_file(wide: QuickLake) -> None:
    """Beside a delete that the rewrite carries along, and an update that meets it: both find
    their rows where they are now."""
    assert not in_order(wide, "0.1")
    held = wide.hold(rewrite(wide, "0.1", sortBy=["K", "id"], **RECOMPRESS), Point.RECONCILE)
    late = wide.hold(wide.update("id IN (1, 13, 31)", v="v + 15"), Point.RECONCILE)
    wide.do(wide.delete("k = 3"))
    done = held.succeed()
    assert reconciled(done).deletes_remapped == 8
    assert wide.names == ["0.1", "4"]
    assert len(segment(wide, "0.1").files) == 4
    assert in_order(wide, "0.1")
    assert codecs(wide, "0.1") == {"GZIP"}
    late.succeed()
    left = without(WIDE, k_is(3))
    wide.assert_states(WIDE, left, plus(left, id_in([1, 31]), 15))


def test_without_deletion_vectors_what_is_left_of_a_changed_file_is_rewritten(
    tmp_path: Path,
) -> None:
    lake = quick_lake.make(tmp_path, 3, properties={})
    held = lake.hold(rewrite(lake, *lake.names, **RECOMPRESS), Point.RECONCILE)
    lake.foreign().delete("id = 15")
    names = lake.names  # that of the new file among them
    done = held.finish()
    assert (reconciled(done).bins_dropped, reconciled(done).edit_rounds) == (0, 1)
    assert (result(done).files_added, result(done).files_removed) == (3, 3)
    assert set(result(done).segments or ()) == set(names)
    assert lake.names == names
    assert all(codecs(lake, name) == {"GZIP"} for name in names)
    assert lake.deleted() == {}
    lake.assert_rows(without(loads(range(3)), id_in([15])))
    lake.assert_clean()
