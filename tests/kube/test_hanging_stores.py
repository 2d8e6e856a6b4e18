"""Tables whose store never answers beside others, under a real API server: they stop no other
table, and what they hold is given back."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kube.scrapes import free_port, scrape
from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
    reason_of,
)
from support.hanging_server import HangingServer, hanging_server
from support.jobs import quick_lake
from support.waiting import await_that

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster
    from tandem.kube.runtime.context import OperatorSettings

TABLE = "LakeTable"
LONGER_THAN_ANY_TEST = "3000s"


@pytest.fixture
def hanging() -> Iterator[HangingServer]:
    with hanging_server() as server:
        yield server


def hang(space: Resources, server: HangingServer, names: list[str]) -> None:
    """Create tables there whose requests last longer than any test."""
    options = {**server.options, "timeout": LONGER_THAN_ANY_TEST}
    for name in names:
        space.table(name, f"s3://bucket/{name}", storage={"options": options})


def facts(port: int, page: str = "readyz") -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def patient(cluster: Cluster, *namespaces: str, health: int = 0) -> OperatorSettings:
    """Tables in child processes, and requests that never end."""
    return quick_settings(
        cluster,
        *namespaces,
        store_timeout_s=3600.0,
        health=f"127.0.0.1:{health}" if health else "",
    )


def assert_none_ready(space: Resources) -> None:
    found = space.cluster.request("GET", space.url(TABLE))["items"]
    ready = [item["metadata"]["name"] for item in found if reason_of(item.get("status") or {})]
    assert ready == []


def test_twenty_tables_that_hang_do_not_stop_a_table_of_another_namespace(
    cluster: Cluster, tmp_path: Path, hanging: HangingServer
) -> None:
    """More than a process has threads: all want to hold one for ever."""
    wrong = Resources(cluster, cluster.namespace("hangs"))
    right = Resources(cluster, cluster.namespace("healthy"))
    lake = quick_lake.make(tmp_path)
    health = free_port()
    settings = patient(cluster, wrong.namespace, right.namespace, health=health)
    with operating(settings, HeldJobs()):
        hang(wrong, hanging, [f"t{number}" for number in range(20)])
        await_that(
            lambda: len(hanging.connections) >= 2, lambda: f"{len(hanging.connections)} asked"
        )
        right.table("t", lake.location)
        right.await_phase(TABLE, "t", "Succeeded")
        right.compaction("c", "t")
        assert right.await_end("TableCompaction", "c")["phase"] == "Succeeded"
        assert_none_ready(wrong)
        status, found = facts(health)
        assert (status, found["children"]) == (200, 2)
        assert scrape(health).value("tandem_child_processes") == 2
    # The operator has ended although the store still hangs.
    lake.assert_clean()


@pytest.mark.matrix
def test_two_hundred_tables_that_hang_do_not_stop_the_others_of_their_namespace(
    cluster: Cluster, tmp_path: Path, hanging: HangingServer
) -> None:
    """All are new, and no request of theirs ends, but the namespace's tables of another store are
    looked at meanwhile."""
    space = Resources(cluster, cluster.namespace("hangs"))
    lakes = {name: quick_lake.make(tmp_path / name) for name in ("first", "second")}
    settings = patient(cluster, space.namespace)
    names = [f"t{number}" for number in range(200)]
    with operating(settings, HeldJobs()):
        hang(space, hanging, names)
        await_that(
            lambda: len(hanging.connections) >= 8, lambda: f"{len(hanging.connections)} asked"
        )
        for name, lake in lakes.items():
            space.table(name, lake.location)
        for name in lakes:
            space.await_phase(TABLE, name, "Succeeded")
            space.compaction(name, name)
        for name in lakes:
            assert space.await_end("TableCompaction", name)["phase"] == "Succeeded"
        found = space.cluster.request("GET", space.url(TABLE))["items"]
        ended = [i["metadata"]["name"] for i in found if reason_of(i.get("status") or {})]
        assert sorted(ended) == sorted(lakes)
        hanging.close()
    for lake in lakes.values():
        lake.assert_clean()


def test_a_table_that_hangs_can_be_deleted_and_one_of_its_name_starts_over(
    cluster: Cluster, tmp_path: Path, hanging: HangingServer
) -> None:
    space = Resources(cluster, cluster.namespace("hangs"))
    lake = quick_lake.make(tmp_path)
    with operating(patient(cluster, space.namespace), HeldJobs()):
        hang(space, hanging, ["t"])
        await_that(lambda: hanging.connections, "it was not asked")
        space.delete(TABLE, "t")
        space.await_gone(TABLE, "t")
        space.table("t", lake.location)
        space.await_phase(TABLE, "t", "Succeeded")
    lake.assert_clean()


def test_a_store_that_does_not_answer_is_reported_within_the_limit_of_the_operator(
    cluster: Cluster, hanging: HangingServer
) -> None:
    space = Resources(cluster, cluster.namespace("hangs"))
    settings = quick_settings(cluster, space.namespace, store_timeout_s=2.0)
    with operating(settings, HeldJobs()):
        space.table("t", "s3://bucket/t", storage={"options": hanging.options})
        status = space.await_reason(TABLE, "t", "StorageError")
        assert "did not answer" in condition(status, "Ready")["message"]
        before = len(hanging.connections)
        await_that(lambda: len(hanging.connections) > before, "it is not asked again")


def test_a_timeout_beyond_the_limit_of_the_operator_is_refused_by_its_name(
    cluster: Cluster, hanging: HangingServer
) -> None:
    space = Resources(cluster, cluster.namespace("hangs"))
    with operating(quick_settings(cluster, space.namespace), HeldJobs()):
        for option in ("timeout", "connect_timeout"):
            name = option.replace("_", "-")
            options = {**hanging.options, option: "100000s"}
            space.table(name, f"s3://bucket/{name}", storage={"options": options})
            ready = condition(space.await_reason(TABLE, name, "InvalidSpec"), "Ready")
            assert f"spec.storage.options.{option}" in ready["message"]
            assert "at most 60s (--store-timeout)" in ready["message"]
        assert hanging.connections == []
