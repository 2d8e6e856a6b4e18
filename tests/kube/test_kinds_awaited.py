"""Kinds that are not installed are waited for, also when an operator starts again: kopf would not
notice them later."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from tandem.kube import operator
from tandem.kube.client.api import Api, ApiError, NotFound
from tandem.kube.runtime.leader import Leadership, LockMembers
from tandem.locks.store import InProcessLocks
from tandem.spark.application.manifest import KubeflowApplications
from tandem.spark.application.port import ApplicationSettings
from tandem.spec.common import plural
from tandem.spec.resources import KINDS


class Server:
    """Serves one kind more each time it is asked, after it has known none."""

    def __init__(self) -> None:
        self.asked = 0

    async def request(self, method: str, path: str) -> dict[str, Any]:
        assert method == "GET"
        assert path == "/apis/tandem.dev/v1alpha1"
        self.asked += 1
        if self.asked == 1:
            raise NotFound(404, "", "404 page not found")
        return {"resources": [{"name": plural(kind)} for kind in list(KINDS)[: self.asked - 1]]}


def test_all_kinds_are_waited_for_while_it_keeps_leading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_CRDS_S", 0.01)
    server = Server()

    async def scene() -> bool:
        with ThreadPoolExecutor(2) as pool:
            locks = InProcessLocks()
            leadership = Leadership(locks, LockMembers(locks, "one", "n"), "tandem", pool)
            await leadership.win()
            await operator._await_kinds(cast(Api, server), leadership)
            return leadership.leads

    assert asyncio.run(scene())
    assert server.asked == len(KINDS) + 1


class Cluster:
    """Has no Spark operator when it is asked for the first time, nor the second time: then the API
    server does not answer."""

    def __init__(self) -> None:
        self.answers: list[dict[str, Any] | ApiError] = [
            NotFound(404, "", "404 page not found"),
            ApiError(503, "", "try again"),
            {"resources": []},
            {"resources": [{"name": "sparkapplications"}]},
        ]

    async def request(self, method: str, path: str) -> dict[str, Any]:
        assert (method, path) == ("GET", "/apis/sparkoperator.k8s.io/v1beta2")
        answer = self.answers.pop(0)
        if isinstance(answer, ApiError):
            raise answer
        return answer


def test_a_spark_operator_may_be_installed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_SPARK_S", 0.01)
    cluster = Cluster()
    spark = KubeflowApplications(ApplicationSettings())
    asyncio.run(operator._becomes_installed(cast(Api, cluster), spark))
    assert not cluster.answers
