"""Which tables an IndexServer serves, and what its status says: without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.errors import Reason
from tandem.index.server.messages import CacheAnswer, ExecutorCache, HeldShard, HeldTable
from tandem.kube.controllers.index_status import (
    MOST,
    Candidate,
    Choice,
    KnownVersion,
    State,
    compose,
    select,
)
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.spec import IndexServer, parse

Json = dict[str, Any]
ANYWHERE = LocationPolicy()
ANYWHERE_BELOW_A = LocationPolicy(("s3://lake/a",)).prefixes("n")


def server(**spec: Any) -> IndexServer:
    found = parse(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "IndexServer",
            "metadata": {"name": "lake", "namespace": "n"},
            "spec": spec,
        }
    )
    assert isinstance(found, IndexServer)
    return found


def table(name: str, *, adopted: bool = True, problem: tuple[Reason, str] | None = None,
          labels: dict[str, str] | None = None, status: Json | None = None,
          **spec: Any) -> Candidate:  # fmt: skip
    body = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "LakeTable",
        "metadata": {"name": name, "namespace": "n", "uid": f"u-{name}", "labels": labels or {}},
        "spec": {"location": f"s3://lake/{name}", **spec},
        "status": status or {},
    }
    return Candidate(body, adopted, problem)


def names(found: Choice) -> set[str]:
    return set(found.served)


def test_all_tables_of_the_namespace_unless_names_or_labels_choose() -> None:
    tables = [table("a"), table("b", labels={"index": "yes", "x": "y"}), table("c")]
    assert names(select(server(), tables, ANYWHERE)) == {"a", "b", "c"}
    labelled = server(tables={"selector": {"matchLabels": {"index": "yes"}}})
    assert names(select(labelled, tables, ANYWHERE)) == {"b"}
    both = server(tables={"selector": {"matchLabels": {"index": "yes", "x": "z"}}})
    assert names(select(both, tables, ANYWHERE)) == set()
    named = select(server(tables={"names": ["a", "d"]}), tables, ANYWHERE)
    assert names(named) == {"a"}
    assert named.refused == {"d": "there is no LakeTable of this name in the namespace"}


def test_only_adopted_tables_are_served_and_a_passing_problem_changes_nothing() -> None:
    tables = [
        table("new", adopted=False),
        table("away", problem=(Reason.STORAGE_ERROR, "the store does not answer")),
        table("gone", problem=(Reason.TABLE_NOT_FOUND, "there is no Delta table")),
        table("unread", problem=(Reason.PENDING, "the table has not been read yet")),
    ]
    found = select(server(), tables, ANYWHERE)
    assert names(found) == {"away", "unread"}
    assert found.refused == {
        "new": "it is not adopted yet",
        "gone": "there is no Delta table",
    }


def test_a_table_that_another_identity_or_server_has_is_refused() -> None:
    secret = {"secretRef": {"name": "keys"}}
    tables = [
        table("same", storage={"serviceAccountName": "tandem-index"}),
        table("other", storage={"serviceAccountName": "cloud"}),
        table("both", storage={"serviceAccountName": "cloud", **secret}),
        table("mine", index={"server": "lake"}),
        table("theirs", index={"server": "pond"}),
        table("logged", mergeOnRead={"keys": ["k"]}),
        table("was-logged", status={"log": {"blocks": 2}}),
    ]
    found = select(server(), tables, ANYWHERE)
    assert names(found) == {"same", "both", "mine"}
    assert found.secrets == {"keys"}
    assert "service account cloud" in found.refused["other"]
    assert "pond" in found.refused["theirs"]
    without = found.without_secrets(frozenset({"keys"}))
    assert names(without) == {"same", "mine"}
    assert "no Secret keys" in without.refused["both"]


def test_locations_that_the_namespace_may_not_use_are_refused() -> None:
    found = select(server(), [table("a"), table("b")], LocationPolicy(("s3://lake/a",)))
    assert names(found) == {"a"}
    assert "s3://lake/b" in found.refused["b"]
    assert found.served["a"].allowed == ANYWHERE_BELOW_A


def test_a_table_is_served_by_its_location_only() -> None:
    """A server reads tables by their locations, and asks no catalog."""
    catalog = {"hive": {"uri": "thrift://metastore", "name": "db.t"}}
    nowhere = table("nowhere", catalog=catalog)
    del nowhere.body["spec"]["location"]
    found = select(server(), [nowhere, table("both", catalog=catalog)], ANYWHERE)
    assert names(found) == {"both"}
    assert "Set spec.location too" in found.refused["nowhere"]


def test_a_server_serves_a_thousand_tables_and_its_status_lists_a_hundred() -> None:
    found = select(server(), [table(f"t{n:04}") for n in range(1_002)], ANYWHERE)
    assert len(found.served) == 1_000
    assert set(found.refused) == {"t1000", "t1001"}
    held = tuple(
        HeldTable(table=name, version=7, bytes=10, questions=0) for name in sorted(found.served)
    )
    status = compose(
        State(True, Reason.SERVING),
        3,
        0,
        selection=found,
        facts={"t0000": KnownVersion(8, 4)},
        cache=CacheAnswer(tables=held, limit_bytes=1 << 30, evictions=2),
    ).manifest()
    assert status["tableCount"] == 1_000
    assert len(status["tables"]) == MOST == 100
    assert status["tables"][0] == {
        "name": "t0000", "version": 7, "latest": 8, "files": 4, "bytes": 10, "level": "Files",
    }  # fmt: skip
    assert status["cache"] == {"bytes": 10_000, "limitBytes": 1 << 30, "evictions": 2}
    assert "phase" not in status


def test_an_invalid_table_is_refused_alone() -> None:
    wrong = table("wrong", time={"column": 7})
    found = select(server(), [wrong, table("right")], ANYWHERE)
    assert names(found) == {"right"}
    assert "spec.time.column" in found.refused["wrong"]


def test_what_executors_hold_counts_too() -> None:
    found = select(server(executors=2), [table("a"), table("b")], ANYWHERE)
    shard = HeldShard(table="a", table_id="i", shard="0", bytes=30, loads=1, hits=0)
    executors = tuple(
        ExecutorCache(slot=n, id=f"e{n}", shards=held, limit_bytes=100, evictions=1, refused=0)
        for n, held in enumerate([(shard,), ()])
    )
    held = (
        HeldTable(table="a", version=1, bytes=10, questions=0),
        HeldTable(table="b", version=None, bytes=0, questions=0),
    )
    cache = CacheAnswer(tables=held, limit_bytes=100, evictions=2, executors=executors)
    state = State(True, Reason.SERVING)
    status = compose(state, 1, 0, selection=found, cache=cache).manifest()
    assert status["cache"] == {"bytes": 40, "limitBytes": 300, "evictions": 4}
    first, second = status["tables"]
    assert (first["bytes"], first["shards"], first["level"]) == (40, 1, "RowGroups")
    assert "level" not in second


@pytest.mark.parametrize(
    ("shards", "level"),
    [
        ([], "Files"),
        ([(0, 0)], "Files"),
        ([(30, 0), (0, 0)], "RowGroups"),
        ([(30, 0), (30, 20)], "BloomFilters"),
    ],
)
def test_the_level_is_the_most_that_is_held(shards: list[tuple[int, int]], level: str) -> None:
    held = tuple(
        HeldShard(table="a", table_id="i", shard=str(n), bytes=bytes_, filter_bytes=filters,
                  loads=1, hits=0)
        for n, (bytes_, filters) in enumerate(shards)
    )  # fmt: skip
    cache = CacheAnswer(
        tables=(HeldTable(table="a", version=1, bytes=10, questions=0),),
        limit_bytes=100,
        evictions=0,
        executors=(
            ExecutorCache(slot=0, id="e", shards=held, limit_bytes=1, evictions=0, refused=0),
        ),
    )
    found = select(server(), [table("a")], ANYWHERE)
    status = compose(State(True, Reason.SERVING), 1, 0, selection=found, cache=cache).manifest()
    assert status["tables"][0]["level"] == level
