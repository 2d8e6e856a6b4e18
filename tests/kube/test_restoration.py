"""Versions of lists that go back are noticed, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tandem.json_types import Json
from tandem.kube.client.api import Unavailable
from tandem.kube.runtime.leader import ApiServerRestored, Restoration


class Answers:
    """An API server whose lists have these versions; "" refuses the request."""

    def __init__(self, *versions: str) -> None:
        self.left = list(versions)
        self.urls: list[str] = []

    async def request(self, method: str, url: str, *, query: Mapping[str, str]) -> Json:
        assert (method, query) == ("GET", {"limit": "1"})
        self.urls.append(url)
        version = self.left.pop(0)
        if not version:
            raise Unavailable(503, "Down", "no answer")
        return {"metadata": {"resourceVersion": version}}


def detect(answers: Answers, namespace: str | None = "team") -> None:
    asyncio.run(Restoration(answers, namespace, look_s=0).detect())  # type: ignore[arg-type]


def test_a_version_that_goes_back_is_a_restoration() -> None:
    answers = Answers("9", "9", "", "100", "99", "101")
    with pytest.raises(ApiServerRestored, match="at version 99, and was at 100"):
        detect(answers)
    assert answers.left == ["101"]
    assert set(answers.urls) == {"/apis/tandem.dev/v1alpha1/namespaces/team/laketables"}


def test_all_namespaces_are_one_list() -> None:
    answers = Answers("2", "1")
    with pytest.raises(ApiServerRestored):
        detect(answers, None)
    assert answers.urls[0] == "/apis/tandem.dev/v1alpha1/laketables"
