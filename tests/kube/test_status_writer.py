"""How often a status is written, and that the last word gets through."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
import structlog

from support.waiting import until
from tandem.kube.client.api import Conflict, Forbidden, Invalid, NotFound, Unavailable
from tandem.kube.client.resources import ResourceCache, path
from tandem.kube.controllers import ended
from tandem.kube.controllers.status_writer import StatusWriter, carried_over, changed_fields
from tandem.operations.ports import SystemClock

Json = dict[str, Any]
PATH = path("TableCompaction", "default", "m")


class Server:
    """Sets fields as the API server does, and counts how often."""

    def __init__(self) -> None:
        self.version = 1
        self.status: Json = {"observedGeneration": -1}
        self.patches: list[Json] = []
        self.refusals: list[Exception] = []
        self.now = "u"

    async def patch_status(
        self, where: object, patch: Json, *, uid: str, resource_version: str
    ) -> Json:
        assert where == PATH
        assert uid == "u"
        if self.refusals:
            raise self.refusals.pop(0)
        if resource_version != str(self.version):
            raise Conflict(409, "Conflict", "")
        self.patches.append(patch)
        self.status = {k: v for k, v in {**self.status, **patch}.items() if v is not None}
        self.version += 1
        return self.body

    async def get(self, where: object) -> Json:
        assert where == PATH
        if self.now == "":
            raise NotFound(404, "NotFound", "")
        return self.body

    @property
    def body(self) -> Json:
        metadata = {"uid": self.now, "resourceVersion": str(self.version)}
        return {"metadata": metadata, "status": self.status}

    def writer(self, **options: Any) -> StatusWriter:
        given = {"pause_s": 0.0, "progress_s": 0.0, "first_s": 0.0, **options}
        known = self.status, str(self.version)
        return StatusWriter(self, PATH, "u", *known, **given)  # type: ignore[arg-type]


def status(phase: str, reason: str, truth: str = "Unknown", when: str = "t1", **more: Any) -> Json:
    condition = {"type": "Succeeded", "status": truth, "reason": reason, "message": ""}
    return {"phase": phase, "conditions": [{**condition, "lastTransitionTime": when}], **more}


def run(test: Callable[[Server], Coroutine[Any, Any, None]]) -> Server:
    server = Server()
    asyncio.run(test(server))
    return server


def test_fields_that_changed_came_or_went_differ() -> None:
    old = {"same": {"x": [1]}, "deep": {"x": [1]}, "gone": 1}
    new = {"same": {"x": [1]}, "deep": {"x": [2]}, "new": 1}
    assert changed_fields(old, new) == ["deep", "gone", "new"]


def test_quick_changes_are_written_once() -> None:
    async def test(server: Server) -> None:
        writer = server.writer(pause_s=0.05, first_s=0.05)
        for number in range(20):
            writer.offer(status("Running", "Running", attempt=number))
        await until(lambda: len(server.patches) == 1)
        assert server.status["attempt"] == 19
        await writer.close()

    run(test)


def test_of_statuses_that_come_together_one_is_made() -> None:
    made: list[int] = []

    def making(number: int) -> Callable[[], Json]:
        def make() -> Json:
            made.append(number)
            return status("Running", "Running", attempt=number)

        return make

    async def test(server: Server) -> None:
        writer = server.writer()
        for number in range(20):  # the first one decides whether there is anything to write
            writer.offer(making(number))
        await until(lambda: server.status.get("attempt") == 19)
        await writer.close()

    run(test)
    assert made == [0, 19]


def test_what_another_client_has_changed_is_written_again() -> None:
    async def test(server: Server) -> None:
        writer = server.writer()
        writer.offer(status("Running", "Running", attempt=1))
        await until(lambda: len(server.patches) == 1)
        server.status = {}
        server.version += 1
        writer.observe(server.status, str(server.version))
        # Nothing is offered meanwhile: the job works for hours.
        await until(lambda: server.status.get("attempt") == 1)
        assert server.status["phase"] == "Running"
        await writer.close()

    run(test)


def test_what_is_offered_last_is_written_although_it_comes_during_a_write() -> None:
    async def test(server: Server) -> None:
        writer = server.writer()
        for number in range(1, 200):
            writer.offer(status("Running", "Running", attempt=number))
            await asyncio.sleep(0)
        await until(lambda: server.status.get("attempt") == 199)
        await writer.close()

    run(test)


def test_an_unchanged_status_is_not_written() -> None:
    async def test(server: Server) -> None:
        writer = server.writer()
        writer.offer(status("Running", "Running", when="t1"))
        await until(lambda: len(server.patches) == 1)
        writer.offer(status("Running", "Running", when="t2"))
        await writer.finish(status("Running", "Running", when="t3"))

    assert len(run(test).patches) == 1


def test_a_condition_keeps_its_time_until_its_truth_changes() -> None:
    known = status("Running", "Running", when="t1")
    kept = carried_over(known, status("Running", "Reconciling", when="t2"))
    assert kept["conditions"][0]["lastTransitionTime"] == "t1"
    assert kept["conditions"][0]["reason"] == "Reconciling"
    new = carried_over(known, status("Succeeded", "Committed", "True", when="t2"))
    assert new["conditions"][0]["lastTransitionTime"] == "t2"


def test_progress_is_written_more_seldom_than_turns() -> None:
    async def test(server: Server) -> None:
        writer = server.writer(progress_s=60.0)
        writer.offer(status("Running", "Running"))
        await until(lambda: len(server.patches) == 1)
        writer.offer(status("Running", "Running", progress={"percent": 10}))
        writer.offer(status("Reconciling", "Reconciling", progress={"percent": 90}))
        await until(lambda: len(server.patches) == 2)
        assert server.status["progress"] == {"percent": 90}
        await writer.close()

    run(test)


def test_a_failure_that_is_tried_again_shows_at_once() -> None:
    async def test(server: Server) -> None:
        await server.writer().finish(status("Failed", "JobFailed", "False"))
        again = server.writer(progress_s=60.0)
        again.offer(status("Planned", "Planned"))
        await until(lambda: server.status["phase"] == "Planned")
        again.offer(status("Locked", "Planned", progress={"percent": 0}))
        again.offer(status("Running", "Running"))
        await until(lambda: server.status["phase"] == "Running")
        await again.close()

    assert [patch["phase"] for patch in run(test).patches] == ["Failed", "Planned", "Running"]


def test_fields_that_no_longer_apply_are_removed() -> None:
    async def test(server: Server) -> None:
        writer = server.writer()
        await writer.finish(status("Failed", "JobFailed", "False", completionTime="t", attempt=1))
        again = server.writer()
        await again.finish(status("Succeeded", "Committed", "True"))

    server = run(test)
    assert "attempt" not in server.status
    assert "completionTime" not in server.status


@pytest.mark.parametrize(
    ("refusal", "now"),
    [(NotFound(404, "NotFound", ""), ""), (Conflict(409, "Conflict", ""), "another")],
)
def test_an_object_that_is_gone_or_another_ends_the_writing(refusal: Exception, now: str) -> None:
    calls: list[bool] = []

    async def test(server: Server) -> None:
        server.refusals, server.now = [refusal], now
        writer = server.writer(on_gone=lambda: calls.append(True))
        await writer.finish(status("Succeeded", "Committed", "True"))
        await writer.finish(status("Failed", "JobFailed", "False"))

    assert run(test).patches == []
    assert calls == [True]


def test_a_conflict_with_other_writers_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.kube.controllers.status_writer._CONFLICT_PAUSES_S", (0.0, 0.0))

    async def test(server: Server) -> None:
        server.refusals = [Conflict(409, "Conflict", "")] * 2
        await server.writer().finish(status("Succeeded", "Committed", "True"))

    assert run(test).status["phase"] == "Succeeded"


class SucceededServer(Server):
    """A request reaches it after another process has led and written."""

    leads = True

    async def patch_status(self, where: object, patch: Json, **which: str) -> Json:
        if self.leads:
            self.leads = False
            self.status, self.version = status("Succeeded", "Committed", "True"), 7
        return await super().patch_status(where, patch, **which)


def test_a_process_that_stood_still_does_not_overwrite_its_successor() -> None:
    """It stops between its check that it leads and its request."""

    async def test(server: SucceededServer) -> None:
        writer = server.writer(allowed=lambda: server.leads)
        await writer.finish(status("Reconciling", "Reconciling"))

    server = SucceededServer()
    asyncio.run(test(server))
    assert server.status["phase"] == "Succeeded"


def test_a_status_that_another_one_overwrites_is_written_again() -> None:
    async def test(server: Server) -> None:
        writer = server.writer()
        writer.offer(status("Running", "Running"))
        await until(lambda: len(server.patches) == 1)
        server.status, server.version = status("Reconciling", "Reconciling"), server.version + 1
        await writer.finish(status("Succeeded", "Committed", "True"))

    assert run(test).status["phase"] == "Succeeded"


def test_the_final_status_is_written_despite_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.kube.controllers.status_writer._RETRY_S", 0.001)

    async def test(server: Server) -> None:
        server.refusals = [Unavailable(0, "", "away"), Unavailable(503, "", "busy")]
        await server.writer().finish(status("Succeeded", "Committed", "True"))

    assert run(test).status["phase"] == "Succeeded"


def test_a_status_that_the_schema_refuses_is_reduced_to_the_essentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem.kube.controllers.status_writer._RETRY_S", 0.001)

    async def test(server: Server) -> None:
        server.refusals = [Invalid(422, "Invalid", "result.x")]
        await server.writer().finish(status("Succeeded", "Committed", "True", result={"x": 1}))

    found = run(test).status
    assert found["phase"] == "Succeeded"
    assert "result" not in found


class OlderServer(Server):
    """Its schema does not know `result` yet, and gives texts back otherwise."""

    async def patch_status(self, where: object, patch: Json, **which: str) -> Json:
        if len(self.patches) > 10:
            raise SystemExit("the same again and again")
        found = await super().patch_status(where, patch, **which)
        status = {key: value for key, value in found["status"].items() if key != "result"}
        return {**found, "status": {**status, "phase": status["phase"].upper()}}


def test_fields_that_the_server_drops_are_not_written_for_ever() -> None:
    async def test(server: Server) -> None:
        writer = server.writer()
        writer.offer(status("Running", "Running", result={"x": 1}))
        await until(lambda: len(server.patches) == 1)
        writer.offer(status("Running", "Running", result={"x": 1}))
        await writer.finish(status("Succeeded", "Committed", "True", result={"x": 2}))

    server = OlderServer()
    asyncio.run(test(server))
    assert len(server.patches) == 2


def test_a_writer_without_permission_does_not_write() -> None:
    async def test(server: Server) -> None:
        writer = server.writer(allowed=lambda: False)
        writer.offer(status("Running", "Running"))
        await writer.finish(status("Succeeded", "Committed", "True"))

    assert run(test).patches == []


def test_a_late_watch_event_is_ignored() -> None:
    async def test(server: Server) -> None:
        writer = server.writer()
        writer.offer(status("Running", "Running"))
        await until(lambda: len(server.patches) == 1)
        writer.observe({"observedGeneration": -1}, "0")
        await writer.finish(status("Running", "Running"))

    assert len(run(test).patches) == 1


class SlowServer(Server):
    """Answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def patch_status(self, where: object, patch: Json, **which: str) -> Json:
        self.asked.set()
        await self.answer.wait()
        return await super().patch_status(where, patch, **which)


@pytest.mark.parametrize("refusal", [Forbidden(403, "Forbidden", "the role is gone"), OSError()])
def test_a_write_that_fails_after_the_end_is_reported(refusal: Exception) -> None:
    """For a task whose exception is never retrieved, asyncio prints a traceback."""
    calls: list[Json] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: calls.append(what))
        server = SlowServer()
        writer = server.writer()
        writer.offer(status("Running", "Running"))
        await server.asked.wait()
        await writer.close()
        server.refusals = [refusal]
        server.answer.set()
        await until(lambda: len(asyncio.all_tasks()) == 1)
        gc.collect()

    with structlog.testing.capture_logs() as lines:
        asyncio.run(test())
    assert not calls
    assert [line["log_level"] for line in lines] == [
        "warning" if isinstance(refusal, Forbidden) else "error"
    ]


def test_a_later_generation_of_what_has_ended_is_observed_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ended, "_RETRY_S", 0.0)

    async def test(server: Server) -> None:
        server.refusals = [Unavailable(503, "ServiceUnavailable", "")]
        named = {"name": "m", "namespace": "default", "generation": 2}
        metadata = {**server.body["metadata"], **named}
        body = {"kind": "TableCompaction", "metadata": metadata, "status": {"phase": "Succeeded"}}
        cache, api = ResourceCache(), cast(Any, server)
        controller = ended.EndedController(api, cache, SystemClock(), lambda: True)
        controller.note(cache.update(body))
        running = asyncio.create_task(controller.run())
        await until(lambda: len(server.patches) == 1)
        running.cancel()

    assert run(test).status["observedGeneration"] == 1  # of the object as it is by now
