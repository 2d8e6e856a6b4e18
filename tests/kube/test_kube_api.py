"""Our client of the Kubernetes API: against a server with injected faults, and a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from tandem.kube.client.api import (
    SYNCED,
    Api,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ResourcePath,
    Unavailable,
    follow,
)
from tandem.kube.client.credentials import AUTHORIZATION, Login
from tandem.kube.client.resources import path

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
THINGS = ResourcePath("tandem.dev", "v1alpha1", "laketables", "default")
THING = THINGS.at("default", "t")
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refused(status: int, reason: str = "", **headers: str) -> Answer:
    async def answer(_request: web.Request) -> web.Response:
        body = {"kind": "Status", "code": status, "reason": reason, "message": f"status {status}"}
        return web.json_response(body, status=status, headers=headers)

    return answer


def says(body: Json) -> Answer:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(body)

    return answer


def streams(*events: Json) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        for event in events:
            await stream.write(json.dumps(event).encode() + b"\n")
        return stream

    return answer


async def cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


class Server:
    """Gives the prepared answers, one after the other, and records the requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, str, Json]] = []
        self.tokens: list[str] = []
        self.logins = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.requests.append((request.method, request.path_qs, json.loads(text) if text else {}))
        self.tokens.append(request.headers.get("Authorization", ""))
        return await self.answers.pop(0)(request)

    def run(self, test: Callable[[Api], Awaitable[None]], **options: Any) -> None:
        async def body() -> None:
            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", self.handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]

            async def log_in(_refused: Login | None) -> Login:
                self.logins += 1
                token = {AUTHORIZATION: f"Bearer token{self.logins}"}
                return Login(Configuration(host=f"http://127.0.0.1:{port}", api_key=token))

            try:
                async with Api(log_in, **{"patience_s": 20.0, **options}) as api:
                    await test(api)
            finally:
                await runner.cleanup()

        asyncio.run(body())


def test_a_resource_is_at_the_path_of_its_kind() -> None:
    assert THINGS.url() == "/apis/tandem.dev/v1alpha1/namespaces/default/laketables"
    assert THING.url("status").endswith("/laketables/t/status")
    assert ResourcePath("", "v1", "secrets", "n", "s").url() == "/api/v1/namespaces/n/secrets/s"
    assert ResourcePath("", "v1", "pods").url() == "/api/v1/pods"


def test_transient_errors_are_retried() -> None:
    server = Server(refused(503), cut, refused(429, "TooManyRequests"), says({"kind": "x"}))

    async def test(api: Api) -> None:
        assert await api.get(THING) == {"kind": "x"}

    server.run(test)
    assert len(server.requests) == 4


def test_the_retry_after_header_is_respected() -> None:
    server = Server(refused(429, "TooManyRequests", **{"Retry-After": "1"}), says({}))

    async def test(api: Api) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await api.get(THING)
        assert loop.time() - began >= 1

    server.run(test)


def test_retries_end_with_the_last_error() -> None:
    server = Server(*[refused(500, "InternalError")] * 50)

    async def test(api: Api) -> None:
        with pytest.raises(Unavailable) as caught:
            await api.get(THING)
        assert (caught.value.status, caught.value.reason) == (500, "InternalError")

    server.run(test, patience_s=0.5)


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    async def never(_request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    server = Server(never, says({"kind": "x"}))

    async def test(api: Api) -> None:
        assert await api.get(THING) == {"kind": "x"}

    server.run(test, timeout_s=0.2)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Invalid),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (418, ApiError),
    ],
)
def test_lasting_errors_have_a_type(status: int, error: type[ApiError]) -> None:
    server = Server(refused(status, "Why"))

    async def test(api: Api) -> None:
        with pytest.raises(error) as caught:
            await api.patch(THING, {"spec": {}})
        assert caught.value.status == status
        assert caught.value.message == f"status {status}"

    server.run(test)
    assert len(server.requests) == 1


def test_refused_credentials_are_read_again_once() -> None:
    server = Server(refused(401), says({}), refused(401), refused(401))

    async def test(api: Api) -> None:
        await api.get(THING)
        with pytest.raises(Forbidden):
            await api.get(THING)

    server.run(test)
    assert server.tokens == ["Bearer token1", "Bearer token2", "Bearer token2", "Bearer token3"]


def test_a_list_is_read_in_chunks_and_restarted_when_it_expires() -> None:
    def page(*names: str, more: str = "") -> Answer:
        items = [{"metadata": {"name": name}} for name in names]
        return says({"items": items, "metadata": {"resourceVersion": "7", "continue": more}})

    server = Server(page("a", more="x"), refused(410, "Expired"), page("a", more="y"), page("b"))

    async def test(api: Api) -> None:
        found = await api.list(THINGS, labels="a=b", chunk=1)
        assert [item["metadata"]["name"] for item in found["items"]] == ["a", "b"]

    server.run(test)
    assert "continue=y" in server.requests[-1][1]
    assert "labelSelector=a%3Db" in server.requests[-1][1]


def thing(uid: str, version: str, kind: str = "MODIFIED") -> Json:
    return {"type": kind, "object": {"metadata": {"uid": uid, "resourceVersion": version}}}


def listing(version: str, *uids: str) -> Answer:
    items = [{"metadata": {"uid": uid, "resourceVersion": version}} for uid in uids]
    body = {"apiVersion": "tandem.dev/v1alpha1", "kind": "LakeTableList", "items": items}
    return says({**body, "metadata": {"resourceVersion": version}})


def test_following_lists_again_after_a_gap_and_misses_no_deletion() -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
    server = Server(
        listing("5", "a", "b"),
        streams(thing("c", "6", "ADDED"), thing("", "7", "BOOKMARK"), thing("a", "8")),
        streams(gone),
        listing("9", "a", "c"),
        *[cut] * 2,  # aiohttp tries by itself once again
        listing("10", "c"),
        *[streams()] * 50,
    )
    seen: list[tuple[str, str]] = []

    async def test(api: Api) -> None:
        syncs = 0
        async for kind, item in follow(api, THINGS):
            seen.append((kind, item.get("metadata", {}).get("uid", "")))
            syncs += kind == SYNCED
            if syncs == 3:
                return

    server.run(test)
    assert [event for event in seen if event[0] == "DELETED"] == [
        ("DELETED", "b"),
        ("DELETED", "a"),
    ]
    assert seen[:5] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        (SYNCED, ""),
        ("ADDED", "c"),
        ("MODIFIED", "a"),
    ]
    # It went on where it had been, by the bookmark and what followed it.
    assert "resourceVersion=8" in server.requests[2][1]


def test_only_the_object_that_was_meant_is_touched(cluster: Cluster) -> None:
    """The API server itself sees to it, by the uid."""
    namespace = cluster.namespace("api")
    body = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "LakeTable",
        "metadata": {"name": "t"},
        "spec": {"location": "file:///t"},
    }

    async def test() -> None:
        async with Api.from_kubeconfig(cluster.kubeconfig) as api:
            there = path("LakeTable", namespace)
            made = await api.create(there, body)
            with pytest.raises(Conflict):
                await api.create(there, body)
            uid, here = made["metadata"]["uid"], path("LakeTable", namespace, "t")
            changed = await api.patch_status(here, {"version": 3}, uid=uid)
            assert changed["status"]["version"] == 3
            changed = await api.patch_status(here, {"version": None}, uid=uid)
            assert "version" not in changed["status"]
            with pytest.raises(Conflict):
                await api.patch_status(here, {"version": 4}, uid=uid, resource_version="1")
            version = changed["metadata"]["resourceVersion"]
            changed = await api.patch_status(
                here, {"version": 5}, uid=uid, resource_version=version
            )
            assert changed["status"]["version"] == 5
            other = "00000000-0000-0000-0000-000000000000"
            with pytest.raises(Conflict):
                await api.patch_status(here, {"version": 4}, uid=other)
            with pytest.raises(Conflict):
                await api.delete(here, uid=other)
            with pytest.raises(Conflict):
                await api.delete(here, uid=uid, resource_version="1")
            version = changed["metadata"]["resourceVersion"]
            await api.delete(here, uid=uid, resource_version=version)
            with pytest.raises(NotFound):
                await api.delete(here)
            with pytest.raises(Gone):
                async for _ in api.watch(there, resource_version="1"):
                    pass

    asyncio.run(test())
