"""Messages between the operator and a child: each is answered, and what is none ends the link."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine, Mapping
from inspect import signature
from typing import Any

import pytest

from kube.child_links import connected, turns
from tandem import errors
from tandem.errors import JobRefused, Reason, TandemError
from tandem.kube.children import link as link_module
from tandem.kube.children.link import Handler, Link, LinkEnded
from tandem.kube.client import api
from tandem.kube.client.api import ApiError


def linked(
    handlers: Mapping[str, Handler], test: Callable[[Link, Link], Coroutine[Any, Any, object]]
) -> list[str]:
    """A link whose other end has handlers; what was wrong at this end and at that one."""

    async def run() -> list[str]:
        ours, theirs = Link({}), Link(handlers)
        async with connected(ours, theirs) as serving:
            await test(ours, theirs)
        return [task.result() for task in serving]

    return asyncio.run(run())


async def _raise(error: BaseException) -> None:
    raise error


def called(handler: Handler) -> Any:
    """The answer."""
    found: list[Any] = []

    async def call(ours: Link, _: Link) -> None:
        found.append(await ours.call("it", 1, "two"))

    assert linked({"it": handler}, call) == ["", ""]
    return found[0]


async def _echo(*arguments: object) -> object:
    return {"got": arguments}


def test_a_call_is_answered() -> None:
    assert called(_echo) == {"got": [1, "two"]}
    assert called(lambda *_: None) is None


def test_what_follows_a_call_finds_it_begun() -> None:
    """Also if both are read at once."""
    order: list[str] = []

    def begin() -> Any:
        order.append("begun")
        return _echo()

    async def call(ours: Link, _: Link) -> None:
        calling = asyncio.create_task(ours.call("it"))
        await turns(1)  # it has called, and nothing is written yet
        ours.notify("next")
        await calling

    assert linked({"it": begin, "next": lambda: order.append("next")}, call) == ["", ""]
    assert order == ["begun", "next"]


def test_every_kind_of_error_arrives() -> None:
    """Also one whose constructor wants more than a message."""
    wanting: dict[str, Any] = {"first_available": 1}
    for kind in vars(errors).values():
        if not isinstance(kind, type) or not issubclass(kind, TandemError):
            continue
        wants = signature(kind).parameters
        error = kind("why", **{name: value for name, value in wanting.items() if name in wants})
        with pytest.raises(TandemError) as raised:
            called(lambda *_, error=error: _raise(error))
        assert (raised.value.reason, str(raised.value)) == (error.reason, str(error))
        if not wanting.keys() & wants.keys():
            assert type(raised.value) is kind


@pytest.mark.parametrize("certain", [True, False])
def test_whether_a_refused_job_may_exist_arrives(certain: bool) -> None:
    error = JobRefused("no", certain=certain, reason=Reason.SPARK_MISSING)
    with pytest.raises(JobRefused) as raised:
        called(lambda *_: _raise(error))
    assert (raised.value.certain, raised.value.reason) == (certain, Reason.SPARK_MISSING)


@pytest.mark.parametrize("unsure", [True, False])
@pytest.mark.parametrize("kind", [k for k in vars(api).values() if isinstance(k, type)])
def test_errors_of_the_api_server_arrive(kind: type, unsure: bool) -> None:
    if not issubclass(kind, ApiError):
        return
    error = kind(409, "Some", "why", unsure=unsure)
    with pytest.raises(ApiError) as raised:
        called(lambda *_: _raise(error))
    found = raised.value
    assert type(found) is kind
    assert (found.status, found.reason, found.message) == (409, "Some", "why")
    assert found.unsure is unsure


def test_a_bug_is_an_error_without_its_text() -> None:
    with pytest.raises(TandemError, match=r"^KeyError, a bug$"):
        called(lambda *_: _raise(KeyError("a secret")))


def test_a_message_that_is_none_of_ours_is_no_answer() -> None:
    async def call(ours: Link, _: Link) -> None:
        with pytest.raises(TandemError, match="KeyError, a bug"):
            await ours.call("unheard of")

    assert linked({}, call) == ["", ""]


@pytest.mark.parametrize("end", [0, 1])
def test_the_end_raises_for_every_call(end: int) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def test(*links: Link) -> None:
        calling = [asyncio.create_task(links[0].call("it")) for _ in range(3)]
        await begun.wait()
        links[end].close()
        found = await asyncio.gather(*calling, return_exceptions=True)
        assert [type(error) for error in found] == [LinkEnded] * 3
        with pytest.raises(LinkEnded):
            await links[0].call("it")
        links[0].notify("it")  # has no effect

    assert linked({"it": hang}, test) == ["", ""]


FRAMES = [
    b"no JSON\n",
    b"\n",
    b"[]\n",
    b"{}\n",
    b'"text"\n',
    b'{"notify":"unheard of"}\n',
    b'{"notify":["it"]}\n',
    b'{"notify":"it","arguments":["too","many"]}\n',
    b'{"notify":"called"}\n',
    b'{"call":"it"}\n',
    b'{"call":"it","number":"one"}\n',
    b'{"number":1}\n',
    b'{"number":1,"error":{}}\n',
    b'{"number":1,"error":{"kind":"TandemError","reason":"No reason","message":"m"}}\n',
    b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    b'{"an end in the middle":',
    b'"' + b"x" * 2000 + b'"\n',
]


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("frame", FRAMES, ids=range(len(FRAMES)))
def test_what_is_no_message_ends_the_link(frame: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "LONGEST", 1000)

    async def run() -> None:
        ours, (own, other) = Link({"it": lambda: None, "called": _echo}), socket.socketpair()
        await ours.connect(own)
        serving = asyncio.create_task(ours.serve())
        calling = asyncio.create_task(ours.call("something"))  # its number is 1
        reader, writer = await asyncio.open_connection(sock=other)
        assert json.loads(await reader.readline())["number"] == 1
        writer.write(frame)
        writer.write_eof()
        assert "no message" in await serving
        with pytest.raises((LinkEnded, KeyError, ValueError)):
            await calling
        writer.close()

    asyncio.run(run())


def test_an_answer_to_nothing_is_ignored() -> None:
    async def run() -> None:
        ours, (own, other) = Link({"it": _echo}), socket.socketpair()
        await ours.connect(own)
        serving = asyncio.create_task(ours.serve())
        reader, writer = await asyncio.open_connection(sock=other)
        writer.write(b'{"number":77,"answer":1}\n{"call":"it","number":5,"arguments":[2]}\n')
        assert json.loads(await reader.readline()) == {"number": 5, "answer": {"got": [2]}}
        writer.close()
        assert await serving == ""

    asyncio.run(run())


def test_an_end_that_reads_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_UNSENT", 1_000_000)

    async def run() -> None:
        ours, (own, other) = Link({}), socket.socketpair()
        await ours.connect(own)
        serving = asyncio.create_task(ours.serve())
        ours.notify("it", "x" * 4_000_000)
        await serving
        other.close()

    asyncio.run(run())
