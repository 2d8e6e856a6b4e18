"""What an operator reports of its work: /metrics over HTTP, and its log, of a life: a start, a
success, a failure, a death with a job under way, and the operator that takes over."""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from kube.scrapes import Scrape, await_scrape, free_port
from support.cluster.child_hooks import log_to
from support.cluster.operator_thread import HeldJobs, Resources, operating, quick_settings
from support.cluster.promtool import promtool
from support.jobs import quick_lake
from tandem import __version__
from tandem.cli.commands.operator import LogFormat, configure_logging
from tandem.kube.metrics.families import FAMILIES, bound
from tandem.operations.attempt_files import job_name

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
KIND = "TableCompaction"
_KNOWN = frozenset({"job started", "adopted", "committed", "ended"})
"""Lines that are written when the operation's id is known."""
CANARY = "canary-that-must-not-be-seen"


@dataclass
class Served:
    """Metrics and logs of two operators; `statuses` are those of the compactions at the end."""

    first: Scrape
    second: Scrape
    lines: list[Json]
    raw: str
    statuses: dict[str, Json]
    namespace: str

    def one(self, event: str, **fields: object) -> Json:
        found = [
            line for line in self.lines if line["event"] == event and fields.items() <= line.items()
        ]
        assert len(found) == 1, (event, fields, found)
        return found[0]


@contextmanager
def logging_to(stream: io.StringIO) -> Iterator[None]:
    """As the command logs, to a stream."""
    root = logging.getLogger()
    handlers, level, stderr = root.handlers[:], root.level, sys.stderr
    others = {name: logging.getLogger(name).level for name in ("kopf", "aiohttp", "asyncio")}
    sys.stderr = stream
    try:
        configure_logging(LogFormat.JSON, verbose=True)
    finally:
        sys.stderr = stderr
    try:
        yield
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, before in others.items():
            logging.getLogger(name).setLevel(before)


def _phases(seen: Scrape) -> dict[str, float]:
    names = ("Running", "Succeeded", "Failed")
    return {name: seen.value("tandem_operations", kind=KIND, phase=name) for name in names}


def _has_seen_the_first(seen: Scrape, version: int) -> bool:
    """Whether the gauges show the resources as they are: counters are counted before that."""
    return (
        _phases(seen) == {"Running": 1, "Succeeded": 1, "Failed": 1}
        and seen.value("tandem_table_version", table="lake") == version
        and seen.value("tandem_table_automatic_compaction", table="other", hold="NotDue") == 1
    )


def _has_seen_the_second(seen: Scrape) -> bool:
    return _phases(seen) == {"Running": 0, "Succeeded": 2, "Failed": 1}


@pytest.fixture(scope="module")
def served(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Served:
    space, jobs = Resources(cluster, cluster.namespace("served")), HeldJobs()
    lake = quick_lake.make(tmp_path_factory.mktemp("served"), 4)
    other = quick_lake.make(tmp_path_factory.mktemp("other"), 4)
    secret = base64.b64encode(CANARY.encode()).decode()
    cluster.request(
        "POST",
        f"/api/v1/namespaces/{space.namespace}/secrets",
        {"metadata": {"name": "keys"}, "data": {"AWS_SECRET_ACCESS_KEY": secret}},
    )
    port = free_port()
    settings = quick_settings(cluster, space.namespace, health=f"127.0.0.1:{port}")
    stream = io.StringIO()
    children = tmp_path_factory.mktemp("logs") / "children.log"
    configure = partial(log_to, children)
    with logging_to(stream):
        with ExitStack() as until_it_is_gone, operating(settings, jobs, configure_child=configure):
            space.table("lake", lake.location, storage={"secretRef": {"name": "keys"}})
            space.table("other", other.location, compaction={"minor": {"enabled": False}})
            for table in ("lake", "other"):
                space.await_reason("LakeTable", table, "Adopted")
            jobs.fail = 1
            space.compaction("bad", "lake", backoffLimit=0)
            space.await_end(KIND, "bad")
            space.compaction("good", "lake")
            space.await_end(KIND, "good")
            until_it_is_gone.enter_context(jobs.held())
            space.compaction("left", "other")
            space.await_phase(KIND, "left", "Running")
            version = space.status(KIND, "good")["result"]["version"]
            first = await_scrape(port, lambda seen: _has_seen_the_first(seen, version))
        with operating(settings, jobs, configure_child=configure):
            space.await_end(KIND, "left")
            second = await_scrape(port, _has_seen_the_second)
    raw = stream.getvalue() + children.read_text()
    return Served(
        first=first,
        second=second,
        lines=[json.loads(line) for line in raw.splitlines()],
        raw=raw,
        statuses={name: space.status(KIND, name) for name in ("bad", "good", "left")},
        namespace=space.namespace,
    )


def test_metrics_are_served_in_the_format_of_prometheus(served: Served) -> None:
    assert served.first.content_type == "text/plain; version=0.0.4; charset=utf-8"
    names = {name for name, kind in served.first.types.items() if name.startswith("tandem_")}
    assert names == {family.name for family in FAMILIES}
    assert all(served.first.types[family.name] == family.type for family in FAMILIES)
    for scraped in (served.first, served.second):
        series = [line for line in scraped.text.splitlines() if line.startswith("tandem_")]
        promtool("check", "metrics", text=scraped.text)
        assert len(series) == len({line.rpartition(" ")[0] for line in series}) < bound(2)


def test_the_first_operator_counts_its_work(served: Served) -> None:
    first = served.first
    assert first.value("tandem_leader") == 1
    assert first.value("tandem_lock_store_up") == 1
    assert first.value("tandem_operations", kind=KIND, phase="Succeeded") == 1
    assert first.value("tandem_operations", kind=KIND, phase="Running") == 1
    assert first.value("tandem_operations_ended_total", outcome="Failed", reason="JobFailed") == 1
    assert first.value("tandem_operations_ended_total", reason="Committed") == 1
    assert first.value("tandem_jobs_started_total") == 3
    assert first.value("tandem_jobs_ended_total", reason="JobFailed") == 1
    assert first.value("tandem_jobs_running") == 1
    assert first.value("tandem_commits_total") == 1
    assert first.value("tandem_files_removed_total") == 4
    assert first.value("tandem_lock_wait_seconds_count") >= 2
    assert first.value("tandem_tables", ready="True", reason="Adopted") == 2
    where = {"table_namespace": served.namespace, "table": "lake"}
    assert (
        first.value("tandem_table_version", **where) == served.statuses["good"]["result"]["version"]
    )
    assert first.value("tandem_table_last_compaction_timestamp_seconds", **where) > 1e9
    assert first.value("tandem_table_automatic_compaction", table="other", hold="NotDue") == 1
    assert first.value("tandem_api_requests_total", verb="PATCH", resource="tablecompactions") >= 3
    assert first.value("tandem_api_requests_total", resource="secrets", code="200") >= 1
    assert first.value("tandem_internal_errors_total") == 0
    assert first.value("process_cpu_seconds_total") > 0


def test_the_next_operator_begins_at_zero_and_counts_the_adoption(served: Served) -> None:
    second = served.second
    assert second.value("tandem_operations_adopted_total", kind=KIND) == 1
    assert second.value("tandem_jobs_started_total") == 0
    assert second.value("tandem_operations_ended_total", reason="Committed") == 1
    assert second.value("tandem_operations", phase="Succeeded") == 2
    assert second.value("tandem_operations", phase="Failed") == 1


def test_every_log_line_about_an_operation_names_it(served: Served) -> None:
    for name, status in served.statuses.items():
        lines = [line for line in served.lines if line.get("name") == name]
        assert lines
        for line in lines:
            assert (line["kind"], line["namespace"]) == (KIND, served.namespace), line
            if line["logger"].startswith("tandem."):
                assert line["table"] == ("other" if name == "left" else "lake"), line
                if line["event"] in _KNOWN or line.get("reason") == "JobStarted":
                    assert line["operation"] == status["operationId"], line
                    assert line["attempt"] == 1, line
        operation = status["operationId"]
        about = [line for line in served.lines if line.get("operation") == operation]
        assert {line["name"] for line in about} == {name}
    assert any(
        line["logger"].startswith("kopf") and line.get("name") == "good" for line in served.lines
    )


def test_the_log_records_the_life_of_an_operation(served: Served) -> None:
    good, bad, left = (served.statuses[name] for name in ("good", "bad", "left"))
    starts = [line for line in served.lines if line["event"] == "starts"]
    assert len(starts) == 2
    assert starts[0]["version"] == __version__
    assert starts[0]["namespaces"] == [served.namespace]
    assert len([line for line in served.lines if line["event"] == "leads"]) == 2
    assert len([line for line in served.lines if line["event"] == "resigned"]) == 2
    assert len([line for line in served.lines if line["event"] == "stops"]) == 2
    assert served.one("job started", name="good")["job"] == job_name(good["operationId"], 1)
    assert served.one("committed", name="good")["version"] == good["result"]["version"]
    assert served.one("ended", name="good")["version"] == good["result"]["version"]
    failed = served.one("ended", name="bad")
    assert (failed["reason"], failed["level"]) == ("JobFailed", "warning")
    assert failed["message"] == bad["conditions"][0]["message"]
    assert served.one("adopted", name="left")["operation"] == left["operationId"]
    assert served.one("committed", name="left")["version"] == left["result"]["version"]


def test_no_secret_is_in_logs_or_metrics(served: Served) -> None:
    for text in (served.raw, served.first.text, served.second.text):
        assert CANARY not in text
        assert base64.b64encode(CANARY.encode()).decode() not in text
