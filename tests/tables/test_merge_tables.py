"""Merges on real tables: alone, beside compactions, and beside writers that force a re-execution.

Rows are compared with a model that knows nothing of files; versions are forced as in C1 to C3.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from support.lake import rows as model
from support.lake.held import Held
from support.lake.lake import INSERT_ALL, Lake, Lakes, loads, reason, reconciled, result
from support.lake.rows import Rows, id_in, join, k_is, plus, rows, without
from support.present import present
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase, RowsAffected

TWO = loads(range(2))
SOURCE: Rows = tuple((n, n % 5, -n) for n in (3, 4, 15, 40, 41))
"""Three rows that are there, two that are not."""


def upserted(found: Rows, source: Rows = SOURCE) -> Rows:
    return join(without(found, id_in(row[0] for row in source)), source)


def affected(status: OperationStatus) -> RowsAffected:
    return present(result(status).rows_affected)


@pytest.mark.whole
def test_a_merge_with_every_clause(lakes: Lakes) -> None:
    lake = lakes.loaded(2)
    merge = lake.merge(
        pa.table({"id": [3, 4, 5, 40, 41], "op": ["D", "U", "K", "U", "D"], "v": [0, 7, 0, 8, 0]}),
        whenMatched=[
            {"where": "op = 'D'", "delete": {}},
            {"where": "op = 'U'", "update": {"set": {"v": "s.v + t.v", "k": "NULL"}}},
        ],
        whenNotMatched=[{"where": "op <> 'D'", "insert": {"values": {"id": "s.id", "v": "v"}}}],
        whenNotMatchedBySource=[
            {"where": "k = 0", "delete": {}},
            {"where": "v >= 1800", "update": {"set": {"v": "v + 1"}}},
        ],
    )
    done = lake.do(merge)
    assert affected(done) == RowsAffected(updated=3, deleted=4, inserted=1)
    by_id = {row[0]: row for row in TWO}
    for gone in (3, 0, 10, 15):
        del by_id[gone]
    expected = {
        **by_id,
        4: (4, None, 407),
        40: (40, None, 8),
        18: (18, 3, 1801),
        19: (19, 4, 1901),
    }
    found = pa.table(lake.foreign().scan()).sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in found] == [expected[n] for n in sorted(expected)]
    # One new segment for what rows became and for new ones; nothing of it is twice in the log.
    assert result(done).segments == ("2",)
    assert lake.deleted() == {"0": 3, "1": 4}
    info = present(lake.commit().info)
    assert (info.operation, info.body["isBlindAppend"]) == ("MERGE", False)
    parameters = info.body["operationParameters"]
    assert json.loads(parameters["matchedPredicates"]) == [
        {"predicate": "(`s`.`op` = 'D')", "actionType": "delete"},
        {"predicate": "(`s`.`op` = 'U')", "actionType": "update"},
    ]
    assert info.body["tandem"]["statement"]["on"] == "(`t`.`id` = `s`.`id`)"
    lake.assert_clean()
    # The same resource again does nothing twice.
    version = lake.version
    assert result(lake.do(merge)).version == version == lake.version


@pytest.mark.parametrize("first", ["merge", "compaction"])
def test_a_merge_and_a_compaction_meet(lakes: Lakes, first: str) -> None:
    lake = lakes.loaded(2)
    merge, compaction = lake.merge(SOURCE), lake.compaction("Major")
    if first == "merge":
        held = lake.hold(compaction, Point.PUT_COMMIT)
        lake.do(merge)
        met = reconciled(held.finish())
        assert met.deletes_remapped == 3
    else:
        held = lake.hold(merge, Point.PUT_COMMIT)
        lake.do(compaction)
        done = held.finish()
        met = reconciled(done)
        assert (met.deletes_remapped, met.rounds) == (3, 2)
        assert len(lake.jobs.started) == 2  # it was not executed again
        assert affected(done) == RowsAffected(updated=3, deleted=0, inserted=2)
    assert met.commits_seen == 1
    lake.assert_states(TWO, upserted(TWO))


def _requests(held: Held) -> int:
    return held.points.count(Point.REQUEST_ROUND)


@pytest.fixture(params=[True, False], ids=["small rounds", "rounds of the job"])
def small(request: pytest.FixtureRequest) -> bool:
    """Whether the engine evaluates small rounds by itself."""
    return bool(request.param)


@pytest.mark.part(2)
def test_a_merge_beside_changes_of_others_is_executed_again(lakes: Lakes, small: bool) -> None:
    """A row that it updated is gone, one that it would insert is there, another one is not. Each
    time a round on the rows that are new finds that. What is inserted then is determined without
    the job, or everything by it."""
    lake = lakes.loaded(2)
    lake.small = small
    held = lake.hold(lake.merge(SOURCE), Point.PUT_COMMIT)
    lake.foreign().delete("id IN (3, 11)")
    lake.append(rows([40, 50]))
    held.go_on(Point.PUT_COMMIT)
    lake.foreign().update(updates={"id": "41"}, predicate="id = 50")
    done = held.finish()
    assert _requests(held) == (0 if small else 4)
    before = without(join(TWO, rows([40])), id_in([3, 11]))
    before = join(before, ((41, 0, 5000),))
    assert affected(done) == RowsAffected(updated=4, deleted=0, inserted=1)
    lake.assert_rows(upserted(before))


@pytest.mark.parametrize("inserts_only", [False, True])
def test_a_merge_that_would_insert_the_same_looks_at_new_rows_only(
    lakes: Lakes, inserts_only: bool, small: bool
) -> None:
    """Copies of the files with its rows, new rows of others, a key that is there twice now: as
    long as no source row loses its last match or gets its first one, its inserts are right."""
    lake = lakes.loaded(3)
    lake.small = small
    merge = lake.merge(SOURCE, **(INSERT_ALL if inserts_only else {}))
    held = lake.hold(merge, Point.PUT_COMMIT)
    lake.foreign().update(updates={"v": "v + 1000"}, predicate="id IN (3, 11)")
    lake.append(rows([50, 51]))
    held.go_on(Point.PUT_COMMIT)
    lake.foreign().update(updates={"id": "15"}, predicate="id = 51")
    lake.foreign().delete("id = 12")
    done = held.finish()
    assert _requests(held) == (0 if small else 2)
    assert [met.executed_again for met in reconciled(done).met or ()] == [None, None]
    assert affected(done) == RowsAffected(updated=0 if inserts_only else 4, deleted=0, inserted=2)
    before = plus(loads(range(3)), id_in([3, 11]), 1000)
    before = join(without(before, id_in([12])), rows([50]))
    twice = ((15, 1, 5100),)
    if inserts_only:
        lake.assert_rows(join(before, twice, SOURCE[3:]))
    else:
        lake.assert_rows(join(upserted(before), SOURCE[2:3]))


def test_deleting_a_kept_row_lets_its_key_be_inserted(lakes: Lakes) -> None:
    """Nothing was done to row 4, but it was there."""
    lake = lakes.loaded(2)
    held = lake.hold(lake.merge(SOURCE, **INSERT_ALL), Point.PUT_COMMIT)
    lake.foreign().delete("id = 4")
    done = held.finish()
    assert affected(done) == RowsAffected(updated=0, deleted=0, inserted=3)
    lake.assert_rows_so_far(join(without(TWO, id_in([4])), SOURCE[1:2], SOURCE[3:]))


def test_a_merge_without_inserts_looks_at_new_rows_only(lakes: Lakes, small: bool) -> None:
    """Rows of files that a foreign writer copied, and new rows; those of no source row, too."""
    lake = lakes.loaded(3)
    lake.small = small
    clauses: dict[str, Any] = {
        "whenMatched": [{"where": "s.id = 15", "delete": {}}, {"update": {"set": {"v": "s.v"}}}],
        "whenNotMatchedBySource": [{"where": "t.k = 1", "update": {"set": {"v": "t.v + 1"}}}],
    }
    held = lake.hold(lake.merge(SOURCE, **clauses), Point.PUT_COMMIT)
    lake.foreign().update(updates={"v": "v + 1000"}, predicate="id IN (3, 11)")
    lake.append(rows([40]))
    held.go_on(Point.PUT_COMMIT)
    lake.foreign().delete("id = 4")
    done = held.finish()
    before = loads(range(3))
    before = join(plus(before, id_in([3, 11]), 1000), rows([40]))
    by_id = {row[0]: row for row in without(before, id_in([4, 15]))}
    for id_ in (n for n, row in by_id.items() if row[1] == 1 and n not in (3, 40)):
        by_id[id_] = (id_, 1, by_id[id_][2] + 1)
    by_id[3], by_id[40] = (3, by_id[3][1], -3), (40, by_id[40][1], -40)
    assert _requests(held) == (0 if small else 2)
    assert [met.executed_again for met in reconciled(done).met or ()] == [None, None]
    lake.assert_rows(tuple(by_id.values()))


@pytest.mark.parametrize("isolation", ["WriteSerializable", "Serializable"])
def test_a_merge_and_an_append_of_a_key_that_it_inserts(
    lakes: Lakes, isolation: str, small: bool
) -> None:
    """Write-serializable, the append comes after the merge, and the key is there twice, as it
    would be had they run so; serializable, the merge sees it."""
    lake = lakes.loaded(2)
    lake.small = small
    held = lake.hold(lake.merge(SOURCE, isolation=isolation), Point.PUT_COMMIT)
    lake.append(rows([40]))
    done = held.finish()
    serializable = isolation == "Serializable"
    # A round finds that it would insert another row now, and it is executed again.
    assert _requests(held) == (2 if serializable and not small else 0)
    assert affected(done).inserted == (1 if serializable else 2)
    after = upserted(join(TWO, rows([40]))) if serializable else join(upserted(TWO), rows([40]))
    lake.assert_rows_so_far(after)


def test_a_merge_killed_after_executing_again_resumes(lakes: Lakes) -> None:
    lake = lakes.loaded(2)
    merge = lake.merge(SOURCE)
    held = lake.hold(merge, Point.PUT_COMMIT)
    lake.foreign().delete("id = 4")
    held.go_on(Point.PUT_COMMIT)
    held.kill()
    done = lake.do(merge)
    assert len(lake.jobs.started) == 1  # its results were all there
    assert affected(done) == RowsAffected(updated=2, deleted=0, inserted=3)
    lake.assert_rows_so_far(upserted(without(TWO, id_in([4]))))


@pytest.mark.whole
@pytest.mark.parametrize("deletes", [False, True])
def test_keys_that_come_twice(lakes: Lakes, deletes: bool) -> None:
    lake = lakes.loaded(2)
    twice = join(SOURCE, ((4, 9, 9), (40, 0, 0)))
    if deletes:  # whichever they match
        done = lake.do(lake.merge(twice, whenMatched=[{"delete": {}}]))
        assert affected(done) == RowsAffected(updated=0, deleted=3, inserted=0)
        lake.assert_rows_so_far(without(TWO, id_in([3, 4, 15])))
        return
    failed = lake.run(lake.merge(twice, whenMatched=[{"where": "s.k = 9", "updateAll": {}}]))
    assert reason(failed) == "StatementFailed"
    message = failed.conditions[0].message
    assert "spec.merge.on: several rows of the source match one row of the table" in message
    assert "2 rows for id = 4" in message
    lake.assert_rows_so_far(TWO)


def test_an_empty_source_and_an_empty_table(lakes: Lakes) -> None:
    """Nothing to do is committed as such: it was decided by rows that were not there."""
    lake = lakes.loaded(1)
    one = loads([0])
    held = lake.hold(lake.update("k = 1", v="v + 1"), Point.RECONCILE)
    done = lake.do(lake.merge(()))
    assert affected(done) == RowsAffected(updated=0, deleted=0, inserted=0)
    commit = lake.commit()
    assert commit.info is not None
    assert commit.info.operation == "MERGE"
    assert (list(commit.adds), list(commit.removes)) == ([], [])
    assert reconciled(held.finish()).commits_seen == 1
    lake.assert_rows_so_far(plus(one, k_is(1), 1))
    lake.do(lake.merge((), whenNotMatchedBySource=[{"delete": {}}]))
    lake.assert_rows_so_far(())
    done = lake.do(lake.merge(SOURCE))
    assert affected(done) == RowsAffected(updated=0, deleted=0, inserted=5)
    lake.assert_rows_so_far(SOURCE)


@pytest.mark.whole
def test_rows_move_between_partitions(lakes: Lakes) -> None:
    lake = lakes.empty(partition_by=["k"])
    lake.append(TWO)
    source = tuple((n, (n + 1) % 7, -n) for n in (3, 5, 40))
    lake.do(lake.merge(source))
    lake.assert_rows(upserted(TWO, source))
    for add in lake.commit().adds:
        assert set(add.partition_values) == {"k"}


def test_only_files_that_can_match_are_read(lakes: Lakes) -> None:
    lake = lakes.empty(partition_by=["k"])
    lake.append(TWO)
    where = "t.k = 3 AND s.k = 3 AND t.id = s.id"
    status = lake.do(lake.merge(SOURCE, on=where, whenMatched=[{"delete": {}}]))
    assert status.plan is not None
    assert status.plan.inputs == 1
    lake.assert_rows_so_far(without(TWO, id_in([3])))


def _change(lake: Lake, operation: Operation) -> None:
    [path] = lake.sources.iterdir()
    assert operation.spec is not None
    before = path.stat()
    table = pq.read_table(path)
    pq.write_table(table.set_column(2, "v", pc.subtract(table["v"], pa.scalar(1))), path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10_000_000))


def test_a_source_that_changes_is_an_error_and_its_versions_are_not_mixed(
    lakes: Lakes, small: bool
) -> None:
    """The job has read it once; who has its copy has no need of it any more."""
    lake = lakes.empty()
    lake.small = small
    lake.append(TWO)
    merge = lake.merge(SOURCE)
    held = lake.hold(merge, Point.PUT_COMMIT)
    lake.foreign().delete("id = 4")
    _change(lake, merge)
    failed = held.finish()
    before = without(TWO, id_in([4]))
    if small:
        assert failed.phase is Phase.SUCCEEDED
        lake.assert_rows_so_far(upserted(before))
        return
    assert (failed.phase, reason(failed)) == (Phase.FAILED, "SourceChanged")
    assert "the source has changed since" in failed.conditions[0].message
    lake.assert_rows_so_far(before)


def test_a_delta_source_is_read_at_one_version(lakes: Lakes) -> None:
    lake, other = lakes.loaded(2), lakes.empty()
    other.append(SOURCE)
    source = {"format": "Delta", "location": other.location}
    body = {"on": "t.id = s.id", "whenMatched": [{"updateAll": {}}], **INSERT_ALL}
    merge = lake.resource("TableUpdate", {"merge": {"source": source, **body}})
    held = lake.hold(merge, Point.PUT_COMMIT)
    lake.foreign().delete("id = 4")
    other.append(model.rows([60]))
    other.foreign().delete("id = 40")
    assert affected(held.finish()) == RowsAffected(updated=2, deleted=0, inserted=3)
    lake.assert_rows_so_far(upserted(without(TWO, id_in([4]))))
