"""The proxy that fault tests put before the API server, tested itself: a rule that strikes
nothing would let every test pass."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path

import pytest
import yaml
from aiohttp import web

from support.cluster.api_proxy import (
    ApiProxy,
    CutAfter,
    CutBefore,
    Hold,
    Refuse,
    Slow,
)

PODS = "/api/v1/namespaces/lake/pods"
TABLES = "/apis/tandem.dev/v1alpha1/namespaces/lake/laketables"


class Server:
    """An API server that records its requests, and whose watches deliver what the test sets."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._watches: list[asyncio.Queue[str]] = []
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(100)

    async def _start(self) -> int:
        self._runner = web.ServerRunner(
            web.Server(self._serve, access_log=None), shutdown_timeout=0.0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        self.tokens.add(request.headers.get("Authorization", ""))
        if request.rel_url.query.get("watch") != "true":
            self.asked.append(f"{request.method} {request.raw_path}")
            return web.json_response({"body": (await request.read()).decode()})
        response = web.StreamResponse()
        lines: asyncio.Queue[str] = asyncio.Queue()
        # Before the headers are sent: a client that has them may cause an event at once.
        self._watches.append(lines)
        await response.prepare(request)
        while line := await lines.get():
            await response.write(line.encode() + b"\n")
        return response

    def say(self, line: str) -> None:
        for lines in self._watches:
            self._loop.call_soon_threadsafe(lines.put_nowait, line)

    def close(self) -> None:
        self.say("")
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(100)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def proxy(server: Server, tmp_path: Path) -> Iterator[ApiProxy]:
    path = tmp_path / "kubeconfig"
    path.write_text(
        yaml.safe_dump(
            {
                "clusters": [
                    {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}
                ],
                "users": [{"name": "u", "user": {"token": "of-the-operator"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    with ApiProxy(path) as made:
        yield made


def ask(proxy: ApiProxy, method: str, path: str, body: object = None) -> tuple[int, str, str]:
    """Status, body and Retry-After of an answer."""
    connection = HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers.get("Retry-After", "")
    finally:
        connection.close()


class Watch:
    def __init__(self, proxy: ApiProxy, path: str) -> None:
        self._connection = HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        self._connection.request("GET", f"{path}?watch=true")
        self._answer: HTTPResponse = self._connection.getresponse()

    def line(self) -> str:
        """The next event, "" if it is broken off."""
        return self._answer.readline().decode().strip()

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@pytest.fixture
def watch(proxy: ApiProxy) -> Iterator[Watch]:
    made = Watch(proxy, TABLES)
    yield made
    made.close()


def test_requests_go_through_with_the_operators_token_and_are_counted(
    server: Server, proxy: ApiProxy
) -> None:
    assert ask(proxy, "GET", f"{TABLES}?limit=500")[0] == 200
    assert ask(proxy, "GET", f"{TABLES}/flights")[0] == 200
    assert (
        ask(proxy, "PATCH", f"{TABLES}/flights/status", {"a": 1})[1] == '{"body": "{\\"a\\": 1}"}'
    )
    ask(proxy, "POST", PODS, {"metadata": {"name": "driver"}})
    ask(proxy, "POST", "/api/v1/namespaces/lake/events", {"involvedObject": {"name": "flights"}})
    ask(proxy, "DELETE", f"{PODS}/driver")
    ask(proxy, "GET", "/version")
    assert proxy.count() == {
        ("list", "laketables"): 1,
        ("get", "laketables"): 1,
        ("patch", "laketables/status"): 1,
        ("create", "pods"): 1,
        ("create", "events"): 1,
        ("delete", "pods"): 1,
        ("other", "/version"): 1,
    }
    assert [(c.verb, c.resource) for c in proxy.writes("flights")] == [
        ("patch", "laketables/status"),
        ("create", "events"),
    ]
    assert len(proxy.writes()) == 4
    assert server.asked[0] == f"GET {TABLES}?limit=500"
    assert server.tokens == {"Bearer of-the-operator"}


def test_the_nth_request_is_refused(server: Server, proxy: ApiProxy) -> None:
    rule = proxy.strike(Refuse(429, retry_after=3), verb="get", name="flights", nth=2)
    answers = [
        ask(proxy, "GET", f"{TABLES}/{name}") for name in ("flights", "other") + ("flights",) * 2
    ]
    assert [a[0] for a in answers] == [200, 200, 429, 200]
    assert answers[2][2] == "3"
    assert json.loads(answers[2][1])["code"] == 429
    assert len(server.asked) == 3
    rule.wait()


def test_a_rule_without_a_limit_applies_until_it_is_removed(proxy: ApiProxy) -> None:
    with proxy.while_(Refuse(500), resource="laketables") as rule:
        assert {ask(proxy, "GET", f"{TABLES}/a")[0] for _ in range(3)} == {500}
        assert ask(proxy, "GET", PODS)[0] == 200
    assert rule.struck == 3
    assert ask(proxy, "GET", f"{TABLES}/a")[0] == 200


@pytest.mark.parametrize(("fault", "heard"), [(CutBefore(), 0), (CutAfter(), 1)])
def test_connections_are_cut_before_and_after(
    server: Server, proxy: ApiProxy, fault: CutBefore | CutAfter, heard: int
) -> None:
    proxy.strike(fault, verb="create")
    with pytest.raises((HTTPException, ConnectionError)):
        ask(proxy, "POST", PODS, {"metadata": {"name": "a"}})
    assert len(server.asked) == heard
    assert ask(proxy, "POST", PODS, {"metadata": {"name": "a"}})[0] == 200


def test_slow_answers_come(proxy: ApiProxy) -> None:
    proxy.strike(Slow(0.05))
    assert ask(proxy, "GET", PODS)[0] == 200


def test_an_answer_is_held_until_released(server: Server, proxy: ApiProxy) -> None:
    rule = proxy.strike(Hold(), verb="create")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(ask(proxy, "POST", PODS, {})[0]))
    thread.start()
    rule.wait()
    assert answers == []
    rule.end()
    thread.join(10)
    assert answers == [200]


def test_a_watch_is_passed_on_line_by_line(server: Server, watch: Watch) -> None:
    server.say("one")
    assert watch.line() == "one"
    server.say("two")
    assert watch.line() == "two"


def test_a_stale_watch_delivers_all_events_later(server: Server, proxy: ApiProxy) -> None:
    rule = proxy.strike(Hold(), verb="watch", times=None)
    stale = Watch(proxy, TABLES)
    server.say("one")
    server.say("two")
    rule.end()
    assert [stale.line(), stale.line()] == ["one", "two"]
    stale.close()


def test_a_watch_expires(server: Server, proxy: ApiProxy, watch: Watch) -> None:
    server.say("one")
    assert watch.line() == "one"
    assert proxy.expire_watches("pods") == 0
    assert proxy.expire_watches("laketables") == 1
    event = json.loads(watch.line())
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert watch.line() == ""


def test_a_watch_is_cut(server: Server, proxy: ApiProxy, watch: Watch) -> None:
    server.say("one")
    assert watch.line() == "one"
    assert proxy.cut_watches() == 1
    assert watch.line() == ""


def test_a_frozen_watch_delivers_nothing_and_a_new_one_does(
    server: Server, proxy: ApiProxy, watch: Watch
) -> None:
    server.say("one")
    assert watch.line() == "one"
    assert proxy.freeze_watches() == 1
    fresh = Watch(proxy, TABLES)
    server.say("two")
    assert fresh.line() == "two"
    proxy.cut_watches()
    assert watch.line() == ""
    fresh.close()


def test_a_closed_proxy_refuses_connections_until_it_is_opened(proxy: ApiProxy) -> None:
    port = proxy.port
    proxy.close_door()
    with pytest.raises(ConnectionRefusedError):
        ask(proxy, "GET", PODS)
    proxy.open_door()
    assert proxy.port == port
    assert ask(proxy, "GET", PODS)[0] == 200


def test_its_kubeconfig_leads_to_it_and_holds_no_token(proxy: ApiProxy, tmp_path: Path) -> None:
    found = yaml.safe_load(proxy.kubeconfig(tmp_path).read_text())
    assert found["clusters"][0]["cluster"] == {"server": f"http://127.0.0.1:{proxy.port}"}
    assert "of-the-operator" not in proxy.kubeconfig(tmp_path).read_text()
