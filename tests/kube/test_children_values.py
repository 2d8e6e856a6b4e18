"""What crosses the link of a child arrives as it was, and what no operator can work with is refused
before it does harm."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube.child_stage import TABLE, Stage, settings_of
from support.cluster.child_hooks import Halts, kill, quickly, recorded
from support.cluster.operator_thread import Resources, condition, operating
from support.jobs import quick_lake
from support.some import few
from support.waiting import await_that
from tandem.errors import InvalidSpec, Reason
from tandem.intervals import ALWAYS, EVERYWHERE, IntervalSet, TimeInterval
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.kube.children import child as child_module
from tandem.kube.children import link as link_module
from tandem.kube.children.ports import REQUEST, STATUS, lock_entry, lock_request, requested
from tandem.kube.children.services import ChildServices
from tandem.kube.client.resources import CachedResource, ResourceCache
from tandem.kube.metrics.collectors import Metrics
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.runtime.tenants import Tenant
from tandem.kube.tables.status import TableFigures
from tandem.locks import codec
from tandem.locks.rules import EntryState, LockEntry, LockRequest, LockResources, Mode
from tandem.storage.allowed_locations import check_secret

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

# Values that cross

ANY = st.text(st.characters(exclude_categories=()), max_size=20)
"""Also halves of surrogate pairs, control characters and separators of lines."""
TEXT = st.text(max_size=20)
WHOLE = st.integers()
PAIRS = st.lists(st.tuples(ANY, ANY), max_size=3).map(tuple)
COUNTS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1)


def over(value: object) -> Any:
    """What the other side gets, if the link keeps to its lines."""
    line = json.dumps(value, separators=(",", ":")).encode()
    assert b"\n" not in line
    return json.loads(line)


def resources() -> st.SearchStrategy[LockResources]:
    moments = st.integers(ALWAYS.start_ms, ALWAYS.end_ms - 1)
    pairs = st.tuples(moments, moments).map(sorted)
    intervals = pairs.map(lambda pair: TimeInterval(pair[0], pair[1] + 1))
    names = st.lists(TEXT.filter(bool), max_size=4, unique=True).map(tuple)
    where = st.lists(intervals, max_size=5).map(IntervalSet) | st.just(EVERYWHERE)
    return st.builds(LockResources, names, where)


REQUESTS = st.builds(
    LockRequest,
    table=TEXT,
    operation=TEXT,
    mode=st.sampled_from(Mode),
    resources=resources(),
    owner=TEXT,
    priority=WHOLE,
    display=TEXT,
    row_concurrency=st.booleans(),
)


@settings(max_examples=few(50, 500), deadline=None)
@given(request=REQUESTS, state=st.sampled_from(EntryState), order=WHOLE, token=WHOLE, by=TEXT)
def test_locks_cross_as_they_are(
    request: LockRequest, state: EntryState, order: int, token: int, by: str
) -> None:
    assert requested(over(lock_request(request))) == request
    entry = LockEntry(request, state, order, token, by)
    text, place, granted = over(lock_entry(entry))
    decoded, _ = codec.decode(text.encode(), created=0, modified=0)
    assert replace(decoded, order=place, token=granted) == entry


def of_any(kind: type) -> st.SearchStrategy[Any]:
    """Any value of a dataclass of texts, numbers, switches and pairs, by its annotations."""
    by_type: dict[str, st.SearchStrategy[Any]] = {
        "str": ANY,
        "int": WHOLE,
        "bool": st.booleans(),
        "int | None": st.none() | WHOLE,
        "str | None": st.none() | ANY,
        "Number | None": COUNTS,
        "tuple[str, ...]": st.lists(ANY, max_size=3).map(tuple),
        "tuple[tuple[str, str], ...]": PAIRS,
        "JobPhase": st.sampled_from(JobPhase),
        "Reason | None": st.none() | st.sampled_from(Reason),
    }
    fields = cast(dict[str, str], kind.__annotations__)
    return st.builds(kind, **{name: by_type[text] for name, text in fields.items()})


@settings(max_examples=few(50, 500), deadline=None)
@given(of_any(CachedResource), of_any(JobRequest), of_any(JobStatus), of_any(TableFigures))
def test_summaries_jobs_and_figures_cross_as_they_are(
    summary: CachedResource, request: JobRequest, status: JobStatus, figures: TableFigures
) -> None:
    said = over(asdict(summary))
    labels = tuple((name, value) for name, value in said.pop("labels"))
    assert CachedResource(**said, labels=labels) == summary
    assert REQUEST.validate_python(over(REQUEST.dump_python(request, mode="json"))) == request
    assert STATUS.validate_python(over(STATUS.dump_python(status, mode="json"))) == status
    assert TableFigures.from_json(over(figures.as_json())) == figures


# Values that do harm


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_would_spoil_a_counter_is_not_counted(value: float) -> None:
    """NaN plus anything is NaN, for as long as the operator lives."""
    metrics = Metrics()
    with pytest.raises(ValueError, match="no number"):
        metrics.record("tandem_internal_errors_total", "add", over(value), ["table"])


@pytest.mark.parametrize("number", [1 << 63, -(10**400)])
def test_a_number_that_no_metric_can_be_is_no_figure(number: int) -> None:
    with pytest.raises(ValueError, match="files"):
        TableFigures.from_json({"uid": "u", "ready": True, "reason": "Adopted", "files": number})


def test_figures_are_those_of_tables_that_are_there() -> None:
    """One that was deleted would stay in the metrics for ever."""
    cache = ResourceCache()
    context = SimpleNamespace(resource_cache=cache, figures={})
    services = cast(Any, SimpleNamespace(_context=context, _tenant=Tenant("a")))

    def say(uid: str, namespace: str = "a") -> None:
        found = TableFigures(uid, ready=True, reason="Adopted").as_json()
        ChildServices._figures(services, (namespace, "t"), found)

    def apply(uid: str, version: int) -> None:
        metadata = {"namespace": "a", "name": "t", "uid": uid, "resourceVersion": str(version)}
        cache.update({"kind": TABLE, "metadata": metadata, "spec": {"location": "file:///t"}})

    say("one")
    assert context.figures == {}
    apply("one", 1)
    say("one", namespace="b")
    assert context.figures == {}
    say("one")
    assert context.figures["a", "t"].uid == "one"
    OperatorContext.removed(cast(Any, context), "one")
    assert context.figures == {}
    say("one")  # said before its controller has noticed
    assert context.figures == {}
    apply("other", 2)
    say("other")
    OperatorContext.removed(cast(Any, context), "one")  # its deletion is reported late
    assert context.figures["a", "t"].uid == "other"


@pytest.mark.parametrize("value", ["hid\0den", "hid" * 50_000])
def test_a_value_that_no_environment_takes_is_a_wrong_secret(value: str) -> None:
    with pytest.raises(InvalidSpec, match="AWS_SECRET_ACCESS_KEY in Secret keys") as raised:
        check_secret({"AWS_SECRET_ACCESS_KEY": value}, resource="LakeTable/t", name="keys")
    assert "hid" not in str(raised.value)
    # The longest with which Linux starts a process.
    longest = "x" * ((128 << 10) - len("AWS_ACCESS_KEY_ID=") - 1)
    subprocess.run(["true"], env={"AWS_ACCESS_KEY_ID": longest}, check=True)
    check_secret({"keystore.jks": "\0", "AWS_ACCESS_KEY_ID": longest}, resource="", name="keys")


class Watched(dict[str, str]):
    """An environment that must not lack what does not change, at any time."""

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        assert "PATH" in self

    def clear(self) -> None:
        raise AssertionError("it is empty for a moment")


def test_credentials_are_renewed_without_a_moment_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"PATH": "/bin", "AWS_ACCESS_KEY_ID": "ours", "AWS_SESSION_TOKEN": "ours"}
    of_pyspark = {"PYSPARK_GATEWAY_PORT": "1"}
    environ = Watched({**own, **of_pyspark})
    monkeypatch.setattr(os, "environ", environ)
    given = {"_environ": own, "_given": own.keys()}
    child = cast(Any, SimpleNamespace(_tenant=Tenant("a"), _small=None, **given))
    keys = {"AWS_ACCESS_KEY_ID": "one", "AWS_SECRET_ACCESS_KEY": "two"}
    child_module._Child._renewed(child, "v1", keys)
    assert environ == {"PATH": "/bin", **keys, **of_pyspark}
    child_module._Child._renewed(child, "v2", {**keys, "AWS_SECRET_ACCESS_KEY": "three"})
    assert environ == {"PATH": "/bin", **keys, "AWS_SECRET_ACCESS_KEY": "three", **of_pyspark}


# In a cluster


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    quickly(monkeypatch)
    space = Resources(cluster, cluster.namespace("child-values"))
    return Stage(space, tmp_path, Halts(tmp_path), recorded(monkeypatch))


def write_secret(space: Resources, method: str, **data: bytes) -> None:
    url = f"/api/v1/namespaces/{space.namespace}/secrets"
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "keys"},
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
    space.cluster.request(method, url if method == "POST" else f"{url}/keys", body)


def test_a_secret_that_is_no_text_is_a_wrong_spec_until_it_is_corrected(stage: Stage) -> None:
    space = stage.space
    write_secret(space, "POST", AWS_SECRET_ACCESS_KEY=b"a\0b")
    lake = quick_lake.make(stage.folder / "t")
    with operating(settings_of(space.cluster, space.namespace), stage.jobs):
        space.table("t", lake.location, storage={"secretRef": {"name": "keys"}})
        found = space.await_reason(TABLE, "t", "InvalidSpec")
        assert "NUL" in condition(found, "Ready")["message"]
        write_secret(space, "PUT", AWS_SECRET_ACCESS_KEY=b"ab")
        space.await_phase(TABLE, "t", "Succeeded")


def test_a_child_begins_with_more_than_it_may_leave_unread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large objects are said to it as it reads them."""
    space = stage.space
    template = {"metadata": {"annotations": {"large": "x" * 500_000}}}
    for number in range(12):
        name = f"waits-{number}"
        space.compaction(name, "t1", suspend=True, sparkTemplate=template)
    with operating(settings_of(space.cluster, space.namespace), stage.jobs):
        table, lake = stage.lake()
        with monkeypatch.context() as patched:
            patched.setattr(link_module, "_UNSENT", 2_000_000)
            killed = stage.children.only()
            kill(killed)
            await_that(
                lambda: any(each.runs for each in stage.children.living() if each is not killed),
                "no child begins",
            )
        # Later, it may get the new statuses of all of them at once.
        operation = stage.apply(table, lake.compaction("Major"))
        assert space.await_end(*operation)["attempt"] == 1
        assert len(stage.children.living()) == 1
