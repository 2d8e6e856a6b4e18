"""Resources that mean harm, or are made by who knows no better: the operator goes on for all
others, and says what is wrong.

Everything but the jobs is real. One operator for all tests of the module.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
)
from support.documents import document
from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.waiting import await_that
from tandem.cli.commands.operator import LogFormat
from tandem.errors import InvalidSpec, LocksUnavailable
from tandem.jobs.runner import JobRequest
from tandem.kube.client.api import CUT, MOST_LEVELS, ResourcePath, loads
from tandem.locks import codec
from tandem.locks.rules import EntryState, LockEntry, LockRequest, Mode, segment
from tandem.operations import attempt_files
from tandem.operations.attempt_files import AttemptRecord
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.session.recovery import identify
from tandem.spark.application import template as templates
from tandem.spark.application.manifest import build
from tandem.spark.application.port import ApplicationSettings, JobOwner, JobPlacement
from tandem.spec.common import RETRY_ANNOTATION
from tandem.spec.status import Phase

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

KIND = "TableCompaction"


class Stage:
    """A namespace with an operator, and tables to attack."""

    def __init__(self, space: Resources, jobs: HeldJobs, folder: Path) -> None:
        self.space = space
        self.jobs = jobs
        self._folder = folder
        self._made = 0
        self.bugs = 0
        self.secret = "hunter" + "2"

    def interceptor(self, effect: Effect, call: Callable[[], Event]) -> Event:
        if self.bugs and effect.point is Point.PERSIST_PLAN:
            self.bugs -= 1
            raise ZeroDivisionError(self.secret)
        return call()

    def lake(self) -> tuple[str, QuickLake]:
        self._made += 1
        name = f"t{self._made}"
        lake = quick_lake.make(self._folder / name, 4)
        self.space.table(name, lake.location)
        self.space.await_reason("LakeTable", name, "Adopted")
        return name, lake

    def apply(self, text: str) -> None:
        """By a client that knows no limits."""
        self.space.cluster.kubectl("create", "-n", self.space.namespace, "-f", "-", input=text)

    # Answers of the API server that name what is deep are too deep for the client of these tests.

    def phase(self, name: str) -> str:
        path = "jsonpath={.status.phase}"
        output: str = self.space.cluster.kubectl(
            "get", "tcomp", name, "-n", self.space.namespace, "-o", path
        )
        return output

    def delete_deep(self, name: str) -> None:
        space = self.space
        space.cluster.kubectl("delete", "tcomp", name, "-n", space.namespace, "--timeout=120s")


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    space = Resources(cluster, cluster.namespace("attack"))
    jobs = HeldJobs()
    stage = Stage(space, jobs, tmp_path_factory.mktemp("attack"))
    with operating(quick_settings(cluster, space.namespace), jobs, stage.interceptor):
        yield stage


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def deep_compaction(name: str, table: str, levels: int) -> str:
    spec = {"tableRef": {"name": table}, "type": "Minor", "sparkTemplate": {"spec": "NESTED"}}
    body = document(KIND, name, spec)
    return json.dumps(body).replace('"NESTED"', nested(levels))


def test_a_template_of_two_thousand_levels_blocks_no_other_operation(stage: Stage) -> None:
    table, _lake = stage.lake()
    name = "deep"
    stage.apply(deep_compaction(name, table, 2_000))
    try:
        stage.space.update("beside-deep", table, "k = 1", {"v": "v + 1"})
        assert stage.space.await_end("TableUpdate", "beside-deep")["phase"] == "Succeeded"
        # The jobs of this operator have no template: nothing is wrong with the resource, either.
        await_that(lambda: stage.phase(name) == "Succeeded", lambda: stage.phase(name))
    finally:
        stage.delete_deep(name)


@pytest.mark.parametrize("levels", [1, 149, 150, 151, 990, 10_500])
def test_json_of_any_depth_is_read(levels: int) -> None:
    found: Any = loads('{"b":[1],"a":' + nested(levels - 1) + "}")
    assert found["b"] == [1]
    seen = 0
    while isinstance(found, dict):
        found, seen = found["a"], seen + 1
    most = MOST_LEVELS
    assert (seen, found) == ((levels, 1) if levels <= most else (most, CUT))


def test_a_template_that_is_too_deep_is_refused_before_it_is_walked() -> None:
    with pytest.raises(InvalidSpec, match="nested too deeply"):
        templates.check(json.loads(nested(65)), field="spec.sparkTemplate")
    with pytest.raises(InvalidSpec, match="nested too deeply"):
        templates.check({"spec": {"volumes": loads("[" * 2000 + "]" * 2000)}})
    templates.check({"spec": {"driver": {"template": json.loads(nested(60))}}})


@pytest.mark.parametrize("containers", [0, "", {}, False, "x", [1], {"name": "x"}])
def test_containers_that_are_not_a_list_are_refused(containers: object) -> None:
    template = {"spec": {"driver": {"template": {"spec": {"containers": containers}}}}}
    with pytest.raises(InvalidSpec, match="not a list of named containers"):
        built(template)


def test_an_unreadable_number_of_cores_is_left_to_the_crd() -> None:
    digits = "9" * 5_000
    assert built({"spec": {"driver": {"cores": digits}}})["spec"]["driver"]["cores"] == digits
    found = built({"spec": {"sparkConf": {"spark.driver.cores": digits}}})
    assert found["spec"]["sparkConf"]["spark.driver.cores"] == digits


def built(template: dict[str, Any]) -> dict[str, Any]:
    return build(
        JobRequest("tandem-1", "rewrite", "file:///t", "job.json"),
        JobPlacement(JobOwner("v1", KIND, "o", "u"), "default", template=template),
        ApplicationSettings(),
    )


@pytest.mark.parametrize("number", ["1000", "999999999", str(10**22), "٣", "007"])
def test_a_forged_attempt_neither_blocks_nor_damages_the_log(lake: QuickLake, number: str) -> None:
    operation = lake.compaction()
    identity = identify(operation, lake.table(), lake.log.snapshot(), again=False)
    claim = lake.path / attempt_files.attempts(identity.operation_id) / number / "attempt.json"
    claim.parent.mkdir(parents=True)
    claim.write_bytes(
        attempt_files.encode(
            AttemptRecord(
                operation_id=identity.operation_id,
                attempt=int(number),
                host="h",
                pid=1,
                started="s",
                token="t",
                claimed_ms=1,
            )
        )
    )
    status = lake.run(operation)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1)
    assert len(lake.by_deltalake()) == 40


@pytest.mark.parametrize("attempts", [999, 1_000, 2**63 - 1])
def test_forged_abandonments_end_the_operation(lake: QuickLake, attempts: int) -> None:
    operation = lake.compaction()
    identity = identify(operation, lake.table(), lake.log.snapshot(), again=False)
    app = attempt_files.abandoned_app(identity.operation_id)
    lake.log_raw({"txn": {"appId": app, "version": attempts}})
    before = lake.version
    status = lake.run(operation)
    assert status.phase is Phase.FAILED
    assert status.conditions[0].reason == "BackoffLimitExceeded"
    assert lake.version == before
    assert len(lake.by_deltalake()) == 40


def test_a_retry_that_was_asked_for_elsewhere_repeats_no_success(stage: Stage) -> None:
    """A backup, or Git, brings a resource back with its annotation and without its status. So
    does an operator that dies between the commit of a retried run and the next status."""
    table, lake = stage.lake()
    rows = lake.by_deltalake()
    change = (table, "k = 1", {"v": "v + 1"})
    stage.space.update("once", *change)
    stage.space.await_end("TableUpdate", "once")
    changed, version = lake.by_deltalake(), lake.version
    assert changed != rows
    stage.space.delete("TableUpdate", "once")
    stage.space.await_gone("TableUpdate", "once")
    stage.space.create(
        "TableUpdate",
        "once",
        {"tableRef": {"name": table}, "update": {"where": "k = 1", "set": {"v": "v + 1"}}},
        annotations={RETRY_ANNOTATION: "1"},
    )
    status = stage.space.await_end("TableUpdate", "once")
    assert lake.by_deltalake() == changed
    assert (status["phase"], status["result"]["version"]) == ("Succeeded", version)


def test_two_laketables_of_one_location_are_one_table(stage: Stage) -> None:
    table, lake = stage.lake()
    stage.space.table("alias", lake.location + "/")
    stage.space.await_reason("LakeTable", "alias", "Adopted")
    rows = lake.by_deltalake()
    with stage.jobs.held():
        stage.space.compaction("by-name", table)
        stage.space.await_phase(KIND, "by-name", "Running")
        stage.space.compaction("by-alias", "alias")
        stage.space.update("by-name", table, "k = 1", {"v": "v + 1"})
        stage.space.update("by-alias", "alias", "k = 1", {"v": "v + 10"})
        stage.space.await_reason(KIND, "by-alias", "WaitingForLock")
    for kind in (KIND, "TableUpdate"):
        for name in ("by-name", "by-alias"):
            assert stage.space.await_end(kind, name)["phase"] == "Succeeded"
    once = [(row[0], row[1], row[2] + 11 if row[1] == 1 else row[2]) for row in rows]
    assert sorted(lake.by_deltalake()) == sorted(once)


def test_a_forged_name_in_a_status_reaches_no_other_object() -> None:
    pod = ResourcePath("", "v1", "pods", "mine", "../../yours/secrets/key?x#y")
    assert pod.url() == "/api/v1/namespaces/mine/pods/..%2F..%2Fyours%2Fsecrets%2Fkey%3Fx%23y"


@pytest.mark.parametrize("field", ["table", "operation", "display", "owner", "priority"])
@pytest.mark.parametrize("value", [None, [], {}, [1], 1.5, True])
def test_a_foreign_lock_is_reported(field: str, value: object) -> None:
    request = LockRequest("t", "o", Mode.EXCLUSIVE, segment("a"), "w")
    entry = LockEntry(request, EntryState.HELD, 1, 1, "")
    assert codec.decode(codec.encode(entry), created=1, modified=1)[0].request == request
    text = json.dumps({**json.loads(codec.encode(entry)), field: value})
    for wrong in (text, '{"version":' + "[" * 5_000, "[]", "1e999", ""):
        with pytest.raises(LocksUnavailable, match="cannot be read"):
            codec.decode(wrong.encode(), created=1, modified=1)


def test_an_internal_error_is_reported_and_stops_no_other_operation(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tandem.kube.controllers.operation._AFTER_BUG_S", 0.7)
    table, lake = stage.lake()
    stage.bugs = 1
    stage.space.compaction("buggy", table)
    status = stage.space.await_reason(KIND, "buggy", "InternalError")
    assert "ZeroDivisionError" in condition(status)["message"]
    assert stage.secret not in json.dumps(status)
    status = stage.space.await_end(KIND, "buggy")
    assert status["phase"] == "Succeeded"
    assert lake.version == status["result"]["version"]
    table, _lake = stage.lake()
    stage.bugs = 1_000
    stage.space.compaction("buggier", table)
    stage.space.await_reason(KIND, "buggier", "InternalError")
    stage.space.delete(KIND, "buggier")
    stage.space.await_gone(KIND, "buggier")
    stage.bugs = 0
    output = capfd.readouterr()
    assert "please report it" in output.out + output.err
    assert stage.secret not in output.out + output.err


@pytest.mark.parametrize("form", list(LogFormat))
def test_logs_show_no_local_variables(form: LogFormat) -> None:
    code = f"""
import logging, structlog
from tandem.cli.commands.operator import LogFormat, configure_logging
configure_logging(LogFormat({form.value!r}), verbose=True)
def connect(token):
    raise ZeroDivisionError
for log in (logging.getLogger("kopf"), structlog.get_logger("tandem")):
    try:
        connect("hunter" + "2")
    except ZeroDivisionError:
        log.exception("no")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("ZeroDivisionError") >= 2
    assert "hunter2" not in done.stderr
