"""`kubectl tandem` without a cluster: configuration, names, what is made of objects, redaction."""

from __future__ import annotations

import asyncio
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from tandem.cli.kubectl import change, names, render
from tandem.cli.kubectl.access import Access, files_of, in_words, log_in, merged
from tandem.cli.kubectl.complete import candidates
from tandem.cli.kubectl.flags import Flags
from tandem.cli.kubectl.gather import operator, summary
from tandem.cli.kubectl.look import history_of
from tandem.cli.kubectl.main import app
from tandem.cli.kubectl.overview import overview
from tandem.cli.kubectl.plan import Wish, blocks
from tandem.cli.kubectl.redact import REMOVED, Redactor, harmless
from tandem.cli.kubectl.report import Bundle, _logs
from tandem.cli.kubectl.results import did
from tandem.cli.kubectl.twins import expected, twin
from tandem.errors import AccessDenied, InvalidSpec, Reason
from tandem.kube.api import ApiError, Forbidden, NotFound, ResourcePath, Unavailable
from tandem.kube.kinds import path
from tandem.kube.table_status import remembered_since, table_locks
from tandem.locks.model import Entry, EntryState, LockRequest, Mode, segment
from tandem.spec.remedies import MEANING, REMEDY, remedy

Json = dict[str, Any]
NOW = 1_800_000_000_000  # 2027-01-15T08:00:00Z


def config(name: str, server: str, **context: str) -> Json:
    return {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority": "ca"}}],
        "users": [{"name": name, "user": {"token": f"token-of-{name}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **context}}],
    }


def body(kind: str, name: str, status: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": name, "namespace": "n", "creationTimestamp": "2027-01-15T07:00:00Z"}
    metadata |= spec.pop("metadata", {})
    if kind != "LakeTable":
        spec["tableRef"] = {"name": "t"}
    return {"kind": kind, "metadata": metadata, "spec": spec, "status": status or {}}


def said(phase: str, reason: str, message: str = "", **status: Any) -> Json:
    truth = {"Succeeded": "True", "Failed": "False"}.get(phase, "Unknown")
    condition = {"type": "Succeeded", "status": truth, "reason": reason, "message": message}
    return {"observedGeneration": 1, "phase": phase, "conditions": [condition], **status}


def table(ready: str = "True", reason: str = "Adopted", message: str = "", **status: Any) -> Json:
    conditions = [
        {"type": "Ready", "status": ready, "reason": reason, "message": message},
        {"type": "Stalled", "status": "False" if ready == "True" else "True"},
    ]
    return body("LakeTable", "t", {"observedGeneration": 1, "conditions": conditions, **status})


def shown(rendered: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(rendered)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_files_of_kubeconfig_are_merged_and_the_first_word_counts(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    first, second = tmp_path / "sub" / "a", tmp_path / "b"
    first.write_text(yaml.safe_dump(config("one", "https://one", namespace="lake")))
    other = config("two", "https://two")
    other["users"] += [{"name": "one", "user": {"token": "never"}}]
    second.write_text(yaml.safe_dump(other))
    environ = {"KUBECONFIG": f"{tmp_path / 'none'}:{first}::{second}"}
    found = merged(files_of(Flags(), environ))
    assert found["current-context"] == "one"
    assert [c["name"] for c in found["contexts"]] == ["one", "two"]
    # Files that a file names are relative to that file.
    assert found["clusters"][0]["cluster"]["certificate-authority"] == str(tmp_path / "sub" / "ca")

    login = log_in(Flags(), environ)
    assert (login.info.server, login.info.token) == ("https://one", "token-of-one")
    assert login.namespace == "lake"
    login = log_in(Flags(context="two", user="one", namespace="x", as_user="jane"), environ)
    assert (login.info.server, login.info.token) == ("https://two", "token-of-one")
    assert (login.namespace, login.headers) == ("x", {"Impersonate-User": "jane"})
    assert log_in(Flags(kubeconfig=second), environ).info.server == "https://two"
    with pytest.raises(InvalidSpec, match="no such file"):
        log_in(Flags(kubeconfig=tmp_path / "none"), environ)
    with pytest.raises(InvalidSpec, match="three"):
        log_in(Flags(context="three"), environ)


def test_options_may_stand_before_the_command_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Flags] = []

    def suspend(flags: Flags, _text: str, *, wanted: bool) -> int:
        seen.append(flags)
        return int(not wanted)

    monkeypatch.setattr(change, "suspend", suspend)
    words = ["-n", "before", "--context", "c", "suspend", "tcomp/x", "-n", "after"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert seen == [Flags(namespace="after", context="c")]
    assert Flags(request_timeout="5").timeout_s == Flags(request_timeout="5s").timeout_s == 5.0
    with pytest.raises(InvalidSpec):
        _ = Flags(request_timeout="soon").timeout_s


def test_help_names_every_command_and_completion_knows_them() -> None:
    text = CliRunner().invoke(app, ["--help"]).output
    commands = ["status", "plan", "locks", "history", "report", "retry", "suspend", "resume",
                "wait", "version"]  # fmt: skip
    assert all(f"\n  {command}" in text for command in commands)
    assert candidates([""]) == commands
    assert candidates(["sta"]) == ["status"]
    assert candidates(["status", "-o", ""]) == ["table", "json", "yaml"]


@pytest.mark.parametrize(
    "text", ["TableCompaction/x", "tcomp/x", "tablecompactions/x", "TABLECOMPACTION.tandem.dev/x"]
)
def test_kinds_go_by_all_their_names(text: str) -> None:
    assert names.resource(text) == ("TableCompaction", "x")


def test_what_is_no_resource_is_said() -> None:
    assert names.table("ltbl/flights") == names.table("flights") == "flights"
    for wrong in ("tcomp", "pod/x", "tcomp/", "tcomp/a/b"):
        with pytest.raises(InvalidSpec):
            names.resource(wrong)
    with pytest.raises(InvalidSpec, match="no operation"):
        names.resource("ltbl/x", tables=False)
    with pytest.raises(InvalidSpec, match="no table"):
        names.table("tcomp/x")


def test_refusals_name_verb_and_resource() -> None:
    where = path("TableUpdate", "n", "late")
    denied = in_words(Forbidden(403, "Forbidden", "cannot"), "delete", where)
    assert isinstance(denied, AccessDenied)
    assert denied.message == "you may not delete tableupdates.tandem.dev in namespace n"
    log = in_words(
        Forbidden(403, "Forbidden", ""), "get", ResourcePath("", "v1", "pods", "n"), "log"
    )
    assert log.message == "you may not get pods/log in namespace n"
    assert "--subresource=log" in log.remedy
    assert "credentials" in str(in_words(Forbidden(401, "Unauthorized", ""), "get", where))
    unknown = in_words(NotFound(404, "NotFound", "could not find the resource"), "list", where)
    assert "does not know the kind" in unknown.message
    assert in_words(NotFound(404, "", '"late" not found'), "get", where).message == (
        "there is none in namespace n"
    )
    for error in (Unavailable(0, "", "away"), ApiError(418, "Teapot", "no")):
        assert in_words(error, "get", where).reason is Reason.CLUSTER_UNAVAILABLE


def test_every_reason_has_a_meaning_and_every_bad_one_a_remedy() -> None:
    assert set(MEANING) == set(Reason)
    good = {Reason.PLANNED, Reason.RUNNING, Reason.RECONCILING, Reason.COMMITTED, Reason.ADOPTED,
            Reason.CREATED, Reason.DRY_RUN, Reason.NOTHING_TO_DO, Reason.SUPERSEDED,
            Reason.INTERRUPTED}  # fmt: skip
    assert set(Reason) - set(REMEDY) == good
    assert remedy("SomethingNew") == ""


def test_problems_come_first_with_what_to_do() -> None:
    failed = body(
        "TableUpdate", "typo",
        said("Failed", "InvalidStatement", "no column x", completionTime="2027-01-15T07:59:20Z"),
    )  # fmt: skip
    hindered = body("TableCompaction", "stuck", said("Locked", "LocksUnavailable", "no etcd"))
    unseen = body("TableIngest", "lost", {"observedGeneration": -1})
    fine = body("TableCompaction", "ok", said("Running", "Running"))
    found = overview([table()], [failed, hindered, unseen, fine], now_ms=NOW)
    problems = {p["resource"]: p for p in found["problems"]}
    assert {name: p["reason"] for name, p in problems.items()} == {
        "TableUpdate/typo": "InvalidStatement",
        "TableCompaction/stuck": "LocksUnavailable",
        "TableIngest/lost": "Unseen",
    }
    text = shown(render.status({"operator": None, **found}, now_ms=NOW))
    assert text.startswith("3 problems")
    assert "TableUpdate/typo on t: InvalidStatement, 40 s" in text
    assert "→ Correct the expression" in text
    assert "`" not in text
    assert text.index("no etcd") < text.index("health")
    stalled = table("False", "TableNotFound", "nothing there")
    (problem,) = overview([stalled], [], now_ms=NOW)["problems"]
    assert (problem["resource"], problem["table"]) == ("LakeTable/t", "t")
    assert overview([stalled], [], now_ms=NOW)["tables"][0]["health"] == "Stalled"


def test_a_failure_that_was_made_good_or_is_tried_again_is_no_problem() -> None:
    line = {"labels": {"tandem.dev/automatic": "minor"}}
    ended = {"completionTime": "2027-01-15T07:00:00Z"}
    before = body("TableCompaction", "a", said("Failed", "JobFailed", **ended), metadata=line)
    ended = {"completionTime": "2027-01-15T07:10:00Z"}
    after = body("TableCompaction", "b", said("Succeeded", "Committed", **ended), metadata=line)
    asked = {"annotations": {"tandem.dev/retry": "7"}}
    again = body("TableUpdate", "c", said("Failed", "JobFailed"), metadata=asked)
    twin_ = body("TableUpdate", "d", said("Failed", "JobFailed"),
                 metadata={"labels": {"tandem.dev/plan": "true"}})  # fmt: skip
    assert overview([table()], [before, after, again, twin_], now_ms=NOW)["problems"] == []
    assert len(overview([table()], [before], now_ms=NOW)["problems"]) == 1


def test_bars_waits_what_comes_and_what_was() -> None:
    runs = body(
        "TableCompaction", "r",
        said("Running", "Running", startTime="2027-01-15T07:58:00Z", attempt=2,
             progress={"percent": 60, "summary": "12/20 files, 40 s left", "etaSeconds": 40}),
    )  # fmt: skip
    waits = body("TableUpdate", "w", said("Pending", "WaitingForLock", "waits for A on B, 3 s"))
    rests = body("TableUpdate", "s", said("Suspended", "Suspended", "spec.suspend is true"))
    lock = {"operation": "TableUpdate/w", "state": "Waiting", "since": "2027-01-15T07:57:00Z",
            "behind": ["A on B"]}  # fmt: skip
    facts: Json = {
        "locks": [lock],
        "version": 7,
        "nextCompaction": {"what": "Minor of 0-3", "nextTime": "2027-01-16T01:00:00Z", "why": "W."},
        "lastOperations": [{"name": "TableIngest/l", "phase": "Succeeded", "reason": "Committed",
                            "completionTime": "2027-01-15T06:00:00Z", "version": 6}],
    }  # fmt: skip
    found = overview([table(**facts)], [runs, waits, rests], now_ms=NOW)
    assert found["problems"] == []
    (shown_,) = found["tables"]
    assert [o["operation"] for o in shown_["waiting"]] == ["TableUpdate/s", "TableUpdate/w"]
    text = shown(render.status({"operator": None, **found}, now_ms=NOW))
    assert "████████████░░░░░░░░  60% 12/20 files, 40 s left, attempt 2, for 2 min" in text
    assert "waits for A on B, for 3 min" in text
    assert "Minor of 0-3" in text
    assert "at 2027-01-16 01:00:00; W." in text
    assert "Succeeded, version 6, 2 h ago" in text
    assert "\x1b" not in text


def test_the_operators_health_in_a_line() -> None:
    def pod(name: str, **facts: Any) -> Json:
        return {"namespace": "s", "name": name, "ready": True, "restarts": 0, "version": "1",
                "leads": None, **facts}  # fmt: skip

    assert summary([], "in any namespace") == {
        "ok": False,
        "summary": "no pod of it is seen in any namespace",
    }
    two = summary([pod("a", leads=True), pod("b", leads=False, ready=False, restarts=1)], "")
    assert two == {
        "ok": False,
        "summary": "1 of 2 pods ready in s, version 1, leader a, 1 restart",
    }
    assert summary([pod("a", leads=False)], "")["summary"].endswith("no leader")
    assert "leader" not in summary([pod("a")], "")["summary"]


class Pods:
    """An API server that has two pods of the operator, and may refuse to say all."""

    def __init__(self, *, everywhere: bool = True, proxy: bool = True) -> None:
        self.asked: list[str] = []
        self._everywhere = everywhere
        self._proxy = proxy

    async def list(self, where: ResourcePath, **_query: str) -> Json:
        self.asked.append(where.url())
        if where.namespace is None and not self._everywhere:
            raise Forbidden(403, "Forbidden", "cannot list pods")
        ports = [{"name": "http", "containerPort": 8081}]
        pods = [
            {
                "metadata": {"namespace": "tandem-system", "name": name},
                "spec": {"containers": [{"image": "tandem:2", "ports": ports}]},
                "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            }
            for name in ("a", "b")
        ]
        return {"kind": "PodList", "apiVersion": "v1", "items": pods}

    async def request(self, _method: str, url: str, **_options: Any) -> Json:
        self.asked.append(url)
        if not self._proxy:
            raise Forbidden(403, "Forbidden", "cannot get pods/proxy")
        leads = "/pods/b:8081/" in url
        return {"text": json.dumps({"leads": leads, "version": "2.0"})}


def test_who_leads_is_asked_through_the_api_server_where_that_is_allowed() -> None:
    def seen(pods: Pods) -> str:
        access = Access(pods, "n")  # type: ignore[arg-type]
        return str(asyncio.run(operator(access))["summary"])

    all_, some = Pods(), Pods(everywhere=False, proxy=False)
    assert seen(all_) == "2 of 2 pods ready in tandem-system, version 2.0, leader b"
    assert "/api/v1/namespaces/tandem-system/pods/a:8081/proxy/healthz" in all_.asked
    assert seen(some) == "2 of 2 pods ready in tandem-system"
    assert some.asked[:2] == ["/api/v1/pods", "/api/v1/namespaces/tandem-system/pods"]


def test_a_twin_is_the_same_operation_that_only_plans() -> None:
    spec = {"tableRef": {"name": "t"}, "type": "Minor", "suspend": True, "priority": 5}
    made = twin("TableCompaction", "a-very-long-name-" * 4, spec)
    assert made["spec"] == {"tableRef": {"name": "t"}, "type": "Minor", "dryRun": True,
                            "ttlSecondsAfterFinished": 300}  # fmt: skip
    assert len(made["metadata"]["name"]) <= 52
    assert "-plan-" in made["metadata"]["name"]
    assert twin("TableCompaction", "x", spec)["metadata"] != made["metadata"]


def test_long_lists_of_a_plan_are_shortened_with_their_number() -> None:
    names_ = [str(n) for n in range(40)]
    status = said("Succeeded", "DryRun", "planned", plan={
        "readVersion": 3, "inputs": 364, "inputBytes": 2048, "costBytes": 4096,
        "segments": [*names_, "… and 324 more"], "outputs": ["(new number).2"] * 30 + ["7.1"],
    })  # fmt: skip
    wish = Wish("TableCompaction", "n", "m", outcome=body("TableCompaction", "m", status))
    text = shown(blocks([wish]))
    assert "0, 1, 2, 3, 4, 5, … (364 in all) → (new number).2 (×30), 7.1" in text
    assert "version 3: 364 files, 2.0 KiB" in text
    assert "meets     nobody" in text
    late = Wish("TableCompaction", "n", "m", outcome=body("TableCompaction", "m"))
    assert "no operator has looked at it in time" in shown(blocks([late]))


def test_whom_a_plan_meets_is_what_the_locks_matrix_says() -> None:
    def lock(name: str, mode: str, *segments: str) -> Json:
        return {"operation": name, "mode": mode, "state": "Held", "segments": list(segments)}

    locks = [lock("a", "Rewrite", "1", "2"), lock("b", "Update", "2"), lock("c", "Append"),
             lock("d", "Exclusive", "the whole table"), lock("e", "Rewrite", "9")]  # fmt: skip
    plan = {"segments": ["2", "3"]}
    met = {c["operation"]: c["means"] for c in expected("TableCompaction", plan, locks)}
    assert met == {"a": "waits", "d": "waits"}
    met = {c["operation"]: c["means"] for c in expected("TableUpdate", plan, locks)}
    assert met == {"b": "rows", "d": "waits"}
    assert [c["operation"] for c in expected("TableUpdate", plan, locks, "b")] == ["d"]


def test_locks_in_a_status_are_bounded_and_remember_since_when() -> None:
    def entry(name: str, state: EntryState, order: int, *segments: str) -> Entry:
        resources = tuple(segment(s) for s in segments)
        request = LockRequest(
            "s3://t", name, Mode.REWRITE, resources, display=f"TableCompaction/{name}"
        )
        return Entry(request, state, order)

    since: dict[tuple[str, bool], str] = {}
    holds = entry("a", EntryState.HELD, 1, *(str(n) for n in range(10)))
    waits = entry("b", EntryState.WAITING, 2, "3")
    first, second = table_locks([holds, waits], since, 0)
    assert (first.state, first.more, len(first.segments)) == ("Held", 2, 8)
    assert (second.state, second.behind) == ("Waiting", ("TableCompaction/a on segment 3",))
    # A minute later it holds what it has waited for; the other one commits.
    committing = entry("a", EntryState.COMMITTING, 1, "0")
    first, second = table_locks([committing, entry("b", EntryState.HELD, 2, "3")], since, 60_000)
    assert first.since == "1970-01-01T00:00:00Z"
    assert second.since == "1970-01-01T00:01:00Z"
    status = {"locks": [lock.manifest() for lock in (first, second)]}
    assert remembered_since(status) == since
    many = [entry(str(n), EntryState.HELD, n, str(n)) for n in range(50)]
    assert len(table_locks(many, since, 0)) == 20
    assert table_locks([], since, 0) == ()
    assert since == {}


def test_history_tells_ends_once_and_newest_first() -> None:
    done = body(
        "TableUpdate", "u",
        said("Succeeded", "Committed", completionTime="2027-01-15T07:30:00Z",
             result={"version": 5, "filesRemoved": 2, "filesAdded": 1, "bytesRemoved": 2048,
                     "bytesAdded": 1024, "rowsAffected": {"updated": 1234}}),
    )  # fmt: skip

    def event(reason: str, time: str, name: str = "u") -> Json:
        about = {"kind": "TableUpdate", "name": name, "namespace": "n"}
        return {"metadata": {}, "involvedObject": about, "reason": reason, "lastTimestamp": time,
                "message": "m"}  # fmt: skip

    last = [{"name": "TableIngest/gone", "phase": "Superseded", "reason": "Superseded",
             "completionTime": "2027-01-15T07:00:00Z"}]  # fmt: skip
    rows = history_of(
        table(lastOperations=last),
        [done],
        [event("JobStarted", "2027-01-15T07:29:00Z"), event("Committed", "2027-01-15T07:30:00Z"),
         event("JobStarted", "2027-01-15T07:29:00Z", "of-another-table")],
    )  # fmt: skip
    assert [(row["resource"], row["what"]) for row in rows] == [
        ("TableUpdate/u", "Succeeded"),
        ("TableUpdate/u", "JobStarted"),
        ("TableIngest/gone", "Superseded"),
    ]
    assert rows[0]["did"] == "2 files (2.0 KiB) → 1 (1.0 KiB), 1,234 rows updated"
    assert did(body("TableUpdate", "x", said("Failed", "Conflict", "version 7"))) == "version 7"
    assert "1,234 rows" in shown(render.history(rows))


@pytest.mark.parametrize("text", ["12", "1Gi", "2g", "true", "0.5", "90s", "1h30m", "2027-01-15"])
def test_numbers_sizes_and_times_are_no_secrets(text: str) -> None:
    assert harmless(text)


@pytest.mark.parametrize("text", ["hunter2", "1Gix", "", "AKIA", "12 34", "true!"])
def test_anything_else_may_be_one(text: str) -> None:
    assert not harmless(text)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("s3://user:hunter2@host/x failed", "host/x failed"),
        ("password=hunter2; next", "; next"),
        ('{"aws_secret_access_key": "hunter2", "a": 1}', '"a": 1'),
        ("Authorization: Bearer hunter2hunter2", "Authorization"),
        ("key AKIAABCDEFGHIJKLMNOP is wrong", "is wrong"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.abc-def at line 3", "at line 3"),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nend", "end"),
        ("https://x.blob/y?sv=1&sig=hunter2%3D&se=2", "https://x.blob/y?sv=1"),
    ],
)
def test_what_looks_like_a_secret_is_taken_out_of_texts(text: str, kept: str) -> None:
    clean = Redactor().text(text)
    assert REMOVED in clean
    assert kept in clean
    for secret in ("hunter2", "AKIAABC", "eyJhbGci"):
        assert secret not in clean


def test_what_is_taken_out_of_an_object_is_taken_out_of_logs() -> None:
    redactor = Redactor(statements=True)
    found = body(
        "TableUpdate", "u", said("Failed", "JobFailed", "near k = 'x-17'"),
        update={"where": "k = 'x-17'", "set": {"v": "'xyz-18'"}},
        sparkTemplate={"spec": {"driver": {"env": [{"name": "A", "value": "open sesame"}]},
                                "sparkConf": {"spark.memory": "2g", "spark.x": "abracadabra"}}},
        metadata={"labels": {"tandem.dev/kind": "keep", "team": "red-team"}},
    )  # fmt: skip
    clean = redactor.clean(found)
    assert clean["spec"]["sparkTemplate"]["spec"]["sparkConf"] == {
        "spark.memory": "2g",
        "spark.x": REMOVED,
    }
    assert clean["metadata"]["labels"] == {"tandem.dev/kind": "keep", "team": REMOVED}
    assert clean["spec"]["update"] == {"where": REMOVED, "set": {"v": REMOVED}}
    assert clean["spec"]["tableRef"] == {"name": "t"}
    finished = redactor.finish(clean)
    assert finished["status"]["conditions"][0]["message"] == f"near {REMOVED}"
    line = redactor.finish("A is open sesame, x abracadabra, set 'xyz-18'")
    assert line == f"A is {REMOVED}, x {REMOVED}, set {REMOVED}"
    schedule = {"cron": "0 3 * * *", "template": {"type": "Major", "layout": {"columns": ["a"]}}}
    policy = body("LakeTable", "t", compaction={"schedules": [schedule]})
    assert Redactor().clean(policy)["spec"]["compaction"]["schedules"] == [schedule]


class Logs:
    """An API server of which only a log and metrics can be had."""

    async def list(self, _where: ResourcePath, **_query: str) -> Json:
        raise Forbidden(403, "Forbidden", "cannot list")

    async def request(self, _method: str, url: str, *, query: Any = None, **_options: Any) -> Json:
        asked = f"{url} {query}" if query else url
        return {"text": f"{asked}\nAWS_SECRET_ACCESS_KEY=hunter2 and open sesame\n"}


def test_logs_are_in_a_report_without_what_was_taken_out_elsewhere() -> None:
    bundle = Bundle(Redactor())
    variable = {"env": [{"name": "A", "value": "open sesame"}]}
    bundle.redactor.clean(body("TableUpdate", "u", sparkTemplate={"spec": {"driver": variable}}))
    container = {"name": "driver", "restartCount": 1}
    pod: Json = {"metadata": {"namespace": "n", "name": "p"},
                 "status": {"containerStatuses": [container]}}  # fmt: skip
    access = Access(Logs(), "n")  # type: ignore[arg-type]
    asyncio.run(_logs(access, bundle, [pod], "logs", 7))
    asyncio.run(bundle.reading("pods", access.list(ResourcePath("", "v1", "pods", "n"))))
    with tarfile.open(fileobj=io.BytesIO(bundle.pack({"by": "test"})), mode="r:gz") as archive:
        files = {
            entry.name: found.read().decode()
            for entry in archive.getmembers()
            if (found := archive.extractfile(entry))
        }
    log = files["tandem-report/logs/n/p/driver.log"]
    assert "'tailLines': '7'" in log
    assert f"KEY={REMOVED} and {REMOVED}" in log
    assert "'previous': 'true'" in files["tandem-report/logs/n/p/driver.previous.log"]
    manifest = json.loads(files["tandem-report/manifest.json"])
    assert manifest["missing"] == [
        {"what": "pods", "why": "you may not list pods in namespace n", "reason": "AccessDenied"}
    ]
    assert "hunter2" not in "".join(files.values())


def test_commands_that_pages_and_remedies_name_are_understood() -> None:
    root = Path(__file__).resolve().parents[2]
    pages = [
        root / "README.md",
        *(root / "docs").rglob("*.md"),
        *(root / "charts").rglob("NOTES.txt"),
    ]
    text = "\n".join([*(page.read_text() for page in pages), *REMEDY.values()])
    typed = set(re.findall(r"kubectl tandem ([a-z]+)((?: [^`\n>;|]*)?)", text))
    assert {command for command, _ in typed} >= {"status", "plan", "locks", "history", "report"}
    for command, rest in sorted(typed):
        if command == "st":
            continue  # how completion is shown
        found = CliRunner().invoke(app, [command, "--help"])
        assert found.exit_code == 0, command
        for option in re.findall(r"(?<!\S)--?[a-zA-Z-]+", rest):
            known = option in found.output or option in ("--as", "--user", "--cluster")
            assert known, f"{command} {option}"
