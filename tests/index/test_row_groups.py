"""Large files are narrowed to row groups: the same rows and numbers, fewer of them read. Facts that
are wrong, absent or refused change no row."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from index.spread_index import spread, until
from support.jobs import quick_lake
from support.some import few
from tandem.delta.actions import AddFile
from tandem.delta.log.files import to_adds
from tandem.errors import FactsRefused, StorageError
from tandem.index import Query, TableIndex
from tandem.index.facts import footers as footers_
from tandem.index.facts.cache import FactsCache
from tandem.index.facts.footers import read_facts

GROUP = 100
SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("x", pa.float64())])
CONDITIONS = [
    "id < 250", "id >= 250 AND id < 350", "id = 777", "id IN (5, 905)", "key = 'k777'",
    "key = 'absent'", "x > 450", "x <= 20 OR id > 980", "NOT (id < 900)", "id IS NULL", "FALSE",
    "key = 'k5' AND id < 100", "p = 'b'", "p = 'a' AND id < 150", "p != 'a' OR id = 3",
    "key LIKE 'k77%'",
]  # fmt: skip


def rows(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    keys = [f"k{(n * 7919) % count + first}" for n in range(count)]
    return pa.table([ids, keys, ids / 2], schema=SCHEMA)


def write(root: Path, name: str, table: pa.Table, **options: Any) -> AddFile:
    """A file of ten row groups, as another engine makes it: the log has no bounds of it."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    filters = {"key": {"ndv": GROUP, "fpp": 0.01}}
    pq.write_table(table, path, row_group_size=GROUP, bloom_filter_options=filters, **options)
    partition = name.partition("/")[0].removeprefix("p=")
    stats = f'{{"numRecords":{table.num_rows}}}'
    return AddFile(name, {"p": partition}, path.stat().st_size, 1, True, stats)


class Lake:
    """A table of two such files, one with deleted rows."""

    def __init__(self, folder: Path) -> None:
        schema = SCHEMA.append(pa.field("p", pa.string()))
        self.lake = quick_lake.make(folder, 0, schema=schema, partition_by=("p",))
        root = self.lake.path
        from tandem.delta.log.codec import encode_action

        adds = [write(root, "p=a/one.parquet", rows(0, 1_000)),
                write(root, "p=b/two.parquet", rows(1_000, 1_000))]  # fmt: skip
        self.lake.log_raw(*(encode_action(add) for add in adds))
        self.lake.run(self.lake.delete("id % 10 = 3 AND p = 'b'"))

    def index(self, *, row_groups: bool = True) -> TableIndex:
        found = TableIndex(self.lake.log, row_groups=row_groups)
        if found._facts is not None:
            found._facts._worth = 0
        return found


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("row-groups"))


@pytest.mark.parametrize("where", CONDITIONS)
def test_Xb_row_groups_change_no_row(lake: Lake, where: str) -> None:
    by_files, by_groups = lake.index(row_groups=False), lake.index()
    query = Query(where)
    assert by_groups.count(query) == by_files.count(query)
    expected = by_files.reader(query, ["id", "key"]).read_all().sort_by("id")
    assert by_groups.reader(query, ["id", "key"]).read_all().sort_by("id") == expected
    assert by_groups.bounds(["id", "key"], query) == by_files.bounds(["id", "key"], query)


def needed(index: TableIndex, where: str) -> dict[str, list[int] | None]:
    found = index.splits(Query(where))
    paths = [add.path for add in to_adds(found.files)]
    return dict(zip(paths, found.groups.to_pylist(), strict=True))


def test_only_the_row_groups_that_may_match_are_needed(lake: Lake) -> None:
    index = lake.index()
    assert needed(index, "id >= 250 AND id < 350") == {"p=a/one.parquet": [2, 3]}
    assert needed(index, "id < 5000") == {"p=a/one.parquet": None, "p=b/two.parquet": None}
    assert needed(index, "id < -1") == {}
    (groups,) = needed(index, "id IN (5, 905)").values()
    assert groups == [0, 9]


def test_a_bloom_filter_finds_a_key_among_row_groups(lake: Lake) -> None:
    found = needed(lake.index(), "key = 'k777'")
    assert "p=a/one.parquet" in found
    groups = [group for each in found.values() for group in each or range(10)]
    assert len(groups) <= 3, found  # one has it; of the others hardly any seems to
    assert sum(map(len, filter(None, needed(lake.index(), "key = 'absent'").values()))) <= 2


def test_Xd_row_groups_that_match_as_a_whole_are_counted_by_their_footer(lake: Lake) -> None:
    index = lake.index()
    found = index.certain_count(Query("id < 250"))
    assert found.rows == 200
    assert found.rest.groups.to_pylist() == [[2]]
    # Which rows of it a vector hides, only the vector says.
    found = index.certain_count(Query("id >= 1250"))
    assert found.rows == 0
    assert found.rest.groups.to_pylist() == [[2, 3, 4, 5, 6, 7, 8, 9]]
    assert index.count(Query("id >= 1250")) == 675


def test_footers_are_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = read_facts

    def counting(store: Any, path: str, *arguments: Any, **named: Any) -> Any:
        read.append(path)
        return original(store, path, *arguments, **named)

    monkeypatch.setattr(footers_, "read_facts", counting)
    index = lake.index()
    for where in CONDITIONS:
        index.count(Query(where))
    assert sorted(read) == ["p=a/one.parquet", "p=b/two.parquet"]
    assert index.nbytes > lake.index(row_groups=False).nbytes


@pytest.mark.parametrize("error", [FactsRefused, StorageError])
def test_a_footer_that_is_refused_changes_no_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error("planted")

    monkeypatch.setattr(footers_, "read_facts", refuse)
    index = lake.index()
    for _ in range(2):
        assert index.count(Query("id < 250")) == 250
        assert needed(index, "id < 250")["p=a/one.parquet"] is None


def test_Xc_facts_are_of_a_file_of_that_size_and_number_of_rows(tmp_path: Path) -> None:
    """A file that was replaced under its name, which no engine does, is not believed."""
    lake = Lake(tmp_path)
    index = lake.index()
    assert index.count(Query("id < 250")) == 250
    facts = index._facts
    assert facts is not None
    facts._worth = 1 << 40  # no further footer is read
    files = lake.lake.log.snapshot().files
    wrong = files.set_column(
        files.schema.get_field_index("size"), "size", pa.array([1, 2], pa.int64())
    )
    known, at = facts.of(wrong, np.array([1_000, 1_000]))
    assert known is not None
    assert at.tolist() == [-1, -1]
    _, at = facts.of(files, np.array([999, -1]))
    assert sorted(at.tolist()) == [-1, 0] or sorted(at.tolist()) == [-1, 1]


def test_small_files_are_not_looked_at(lake: Lake) -> None:
    cache = FactsCache(lake.lake.store)
    known, at = cache.of(lake.lake.log.snapshot().files, np.array([-1, -1]))
    assert known is None
    assert at.tolist() == [-1, -1]


VALUES = st.one_of(st.none(), st.integers(-3, 3))


@settings(
    deadline=None,
    max_examples=few(12, 200),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40), st.data())
def test_Xb_random_files_and_conditions_give_the_rows_of_a_scan(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    pairs: list[tuple[int | None, int | None]],
    data: st.DataObject,
) -> None:
    from tandem.delta.log.codec import encode_action

    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("n", pa.int64())])
    lake = quick_lake.make(tmp_path_factory.mktemp("random"), 0, schema=schema)
    table = pa.table(
        [[a for a, _ in pairs], [b for _, b in pairs], range(len(pairs))], schema=schema
    )
    path = lake.path / "file.parquet"
    pq.write_table(table, path, row_group_size=data.draw(st.integers(1, 12)))
    stats = f'{{"numRecords":{len(pairs)}}}' if data.draw(st.booleans()) else None
    lake.log_raw(encode_action(AddFile("file.parquet", {}, path.stat().st_size, 1, True, stats)))
    if data.draw(st.booleans()):
        lake.run(lake.delete(f"n % 3 = {data.draw(st.integers(0, 2))}"))
    index, whole = TableIndex(lake.log), TableIndex(lake.log, row_groups=False)
    assert index._facts is not None
    index._facts._worth = 0
    for _ in range(6):
        column, other = data.draw(st.permutations(["a", "b"]))
        op = data.draw(st.sampled_from(["<", "<=", "=", "!=", ">=", "<=>"]))
        text = f"{column} {op} {data.draw(st.integers(-4, 4))}"
        more = data.draw(st.sampled_from(["", f" AND {other} > 0", f" OR {other} IS NULL"]))
        query = Query(text + more)
        assert index.count(query) == whole.count(query), query
        found = index.reader(query).read_all().sort_by("n")
        assert found == whole.reader(query).read_all().sort_by("n"), query
    assert DeltaTable(lake.location).version() == lake.version


@pytest.mark.parametrize("filters", [True, False])
def test_a_server_says_what_it_holds_of_row_groups_and_of_filters(
    lake: Lake, filters: bool
) -> None:
    facts = partial(FactsCache, worth_bytes=0, bloom_filters=filters)
    with spread({"lake": lake.lake.location}, local=True, facts=facts) as served:

        def held() -> tuple[int, int]:
            shown = served.shown().values()
            return sum(each.bytes for each in shown), sum(each.filter_bytes for each in shown)

        assert served.index().count(Query("id < 250")) == 250
        until(lambda: held()[0] > 0, "facts are not read")
        assert held()[1] == 0
        before = held()[0]
        assert served.index().count(Query("key = 'k777'")) == 1
        after, of_filters = held()
        assert (of_filters > 0) == filters
        assert after - of_filters >= before
