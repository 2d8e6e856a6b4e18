"""`kubectl tandem` without a cluster: configuration, names, refusals, plans and locks."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.kubectl_objects import Json, body, shown, state
from tandem.cli.kubectl import access
from tandem.cli.kubectl.access import Access, files_of, headers_of, in_words, login_of, operator
from tandem.cli.kubectl.arguments import Flags, parse_resource, parse_table
from tandem.cli.kubectl.complete import candidates
from tandem.cli.kubectl.main import app
from tandem.cli.kubectl.plan import PlanRequest, blocks, expected, plan_copy
from tandem.errors import AccessDenied, InvalidSpec, Reason
from tandem.kube.client.api import ApiError, Forbidden, NotFound, ResourcePath, Unavailable
from tandem.kube.client.credentials import Login
from tandem.kube.client.resources import path
from tandem.kube.tables.status import remembered_since, table_locks
from tandem.locks.rules import EntryState, LockEntry, LockRequest, Mode, named
from tandem.remedies import MEANING, REMEDY, remedy, remedy_here
from tandem.spec.status import PLANNED_ONLY


def config(name: str, server: str, **context: str) -> Json:
    return {
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority": "ca"}}],
        "users": [{"name": name, "user": {"token": f"token-of-{name}"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **context}}],
    }


def test_kubeconfig_files_are_merged_and_the_first_value_wins(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    first, second = tmp_path / "sub" / "a", tmp_path / "b"
    first.write_text(yaml.safe_dump(config("one", "https://one", namespace="lake")))
    other = config("two", "https://two")
    other["users"] += [{"name": "one", "user": {"token": "never"}}]
    second.write_text(yaml.safe_dump(other))
    environ = {"KUBECONFIG": f"{tmp_path / 'none'}:{first}::{second}"}
    (tmp_path / "sub" / "ca").write_text("of the first")
    (tmp_path / "ca").write_text("of the second")
    assert files_of(Flags(), environ) == [tmp_path / "none", first, second]

    def login(**flags: Any) -> Login:
        return asyncio.run(login_of(Flags(**flags), environ)(None))

    found = login()
    assert (found.configuration.host, found.authorization) == ("https://one", "Bearer token-of-one")
    # Files that a file names are relative to that file.
    assert found.configuration.ssl_ca_cert == str(tmp_path / "sub" / "ca")
    assert found.namespace == "lake"
    found = login(context="two", user="one")
    assert (found.configuration.host, found.authorization) == ("https://two", "Bearer token-of-one")
    assert found.namespace is None
    found = login(cluster="two", server="https://three/", token="typed")
    assert (found.configuration.host, found.authorization) == ("https://three", "Bearer typed")
    assert login(kubeconfig=second).configuration.host == "https://two"
    with pytest.raises(InvalidSpec, match="no such file"):
        login(kubeconfig=tmp_path / "none")
    (tmp_path / "bad").write_text("{clusters: [{}]}")
    with pytest.raises(InvalidSpec, match="not a kubeconfig"):
        login(kubeconfig=tmp_path / "bad")
    with pytest.raises(InvalidSpec, match="three"):
        login(context="three")
    environ["KUBECONFIG"] = str(tmp_path / "none")
    assert login(server="http://bare").configuration.host == "http://bare"


def test_one_user_and_one_group_can_be_impersonated() -> None:
    assert headers_of(Flags()) == {}
    headers = {"Impersonate-User": "jane", "Impersonate-Group": "lake"}
    assert headers_of(Flags(as_user="jane", as_groups=("lake",))) == headers
    with pytest.raises(InvalidSpec, match="one group"):
        headers_of(Flags(as_groups=("a", "b")))


def test_options_may_stand_before_the_command_and_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Flags] = []

    def run(flags: Flags, _work: object, resource: tuple[str, str], *, wanted: bool) -> int:
        assert resource == ("TableCompaction", "x")
        seen.append(flags)
        return int(not wanted)

    monkeypatch.setattr(access, "run", run)
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
    assert parse_resource(text) == ("TableCompaction", "x")


def test_what_is_not_a_resource_is_reported() -> None:
    assert parse_table("ltbl/flights") == parse_table("flights") == "flights"
    for wrong in ("tcomp", "pod/x", "tcomp/", "tcomp/a/b"):
        with pytest.raises(InvalidSpec):
            parse_resource(wrong)
    with pytest.raises(InvalidSpec, match="not an operation"):
        parse_resource("ltbl/x", tables=False)
    with pytest.raises(InvalidSpec, match="no table"):
        parse_table("tcomp/x")


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
    assert "has no such kind" in unknown.message
    assert in_words(NotFound(404, "", '"late" not found'), "get", where).message == (
        "there is none in namespace n"
    )
    for error in (Unavailable(0, "", "away"), ApiError(418, "Teapot", "no")):
        assert in_words(error, "get", where).reason is Reason.CLUSTER_UNAVAILABLE


def test_what_to_do_about_a_feature_is_left_to_the_message() -> None:
    """It may be to upgrade Tandem, or to enable deletion vectors, and not to give the table up."""
    texts = (
        remedy("UnsupportedFeature"),
        remedy_here("UnsupportedFeature", "tandem run", "tandem run --again"),
    )
    assert texts == (
        "Do what the message says, then `kubectl tandem retry`.",
        "Once that is fixed, `tandem run --again`.",
    )


def test_every_reason_has_a_meaning_and_every_bad_one_a_remedy() -> None:
    assert set(MEANING) == set(Reason)
    good = {Reason.PLANNED, Reason.RUNNING, Reason.RECONCILING, Reason.COMMITTED, Reason.ADOPTED,
            Reason.CREATED, Reason.DRY_RUN, Reason.NOTHING_TO_DO, Reason.SUPERSEDED,
            Reason.INTERRUPTED, Reason.SERVING}  # fmt: skip
    assert set(Reason) - set(REMEDY) == good
    assert remedy("SomethingNew") == ""


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


def test_the_leader_is_asked_through_the_api_server_where_that_is_allowed() -> None:
    def seen(pods: Pods) -> str:
        access = Access(pods, "n")  # type: ignore[arg-type]
        return str(asyncio.run(operator(access))["summary"])

    all_, some = Pods(), Pods(everywhere=False, proxy=False)
    assert seen(all_) == "2 of 2 pods ready in tandem-system, version 2.0, leader b"
    assert "/api/v1/namespaces/tandem-system/pods/a:8081/proxy/healthz" in all_.asked
    assert seen(some) == "2 of 2 pods ready in tandem-system"
    assert some.asked[:2] == ["/api/v1/pods", "/api/v1/namespaces/tandem-system/pods"]


def test_a_dry_run_copy_differs_only_in_planning() -> None:
    spec = {"tableRef": {"name": "t"}, "type": "Minor", "suspend": True, "priority": 5}
    made = plan_copy("TableCompaction", "a-very-long-name-" * 4, spec)
    assert made["spec"] == {"tableRef": {"name": "t"}, "type": "Minor", "dryRun": True,
                            "ttlSecondsAfterFinished": 300}  # fmt: skip
    assert len(made["metadata"]["name"]) <= 52
    assert "-plan-" in made["metadata"]["name"]
    assert plan_copy("TableCompaction", "x", spec)["metadata"] != made["metadata"]


def test_long_lists_of_a_plan_are_shortened_with_their_number() -> None:
    names_ = [str(n) for n in range(40)]
    status = state("Succeeded", "DryRun", "planned", plan={
        "readVersion": 3, "inputs": 364, "inputBytes": 2048,
        "segments": [*names_, "… and 324 more"], "outputs": ["(new number).2"] * 30 + ["7.1"],
    })  # fmt: skip
    wish = PlanRequest("TableCompaction", "n", "m", outcome=body("TableCompaction", "m", status))
    text = shown(blocks([wish]))
    assert "0, 1, 2, 3, 4, 5, … (364 in all) → (new number).2 (×30), 7.1" in text
    assert "version 3: 364 files, 2.0 KiB" in text
    assert "meets     nothing" in text
    late = PlanRequest("TableCompaction", "n", "m", outcome=body("TableCompaction", "m"))
    assert "no operator has seen it within the timeout" in shown(blocks([late]))


def test_a_plan_says_what_the_spec_asks_for() -> None:
    def plan_as_text(kind: str, spec: Json, statement: str = "") -> str:
        plan = {"readVersion": 3, "inputs": 1, "inputBytes": 1, "statement": statement}
        status = state("Succeeded", "DryRun", PLANNED_ONLY, plan=plan)
        return shown(blocks([PlanRequest(kind, "n", "m", spec, outcome=body(kind, "m", status))]))

    layout = {"strategy": "Sort", "columns": ["a", "b"]}
    text = plan_as_text("TableCompaction", {"type": "Major", "layout": layout})
    assert text.startswith("TableCompaction/m: Planned\n")
    assert "layout    Sort by a, b" in text
    source = {"format": "Delta", "location": "s3://b/in"}
    text = plan_as_text(
        "TableUpdate", {"merge": {"source": source}}, "MERGE ON x WHEN MATCHED THEN DELETE"
    )
    assert "source     Delta s3://b/in, its latest version" in text
    assert ["WHEN", "MATCHED", "THEN", "DELETE"] in [line.split() for line in text.splitlines()]


def test_operations_that_a_plan_meets_follow_the_lock_matrix() -> None:
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
    # Whether a segment lies in an interval is not in a status.
    by_interval = [lock("r", "Replace", "2013-03-02T00:00:00Z/…"), lock("e", "Rewrite", "9")]
    met = {c["operation"]: c["means"] for c in expected("TableCompaction", plan, by_interval)}
    assert met == {"r": "perhaps"}
    chunks = {**plan, "locks": ["Rewrite interval 2013-03-01T00:00:00Z/2013-04-01T00:00:00Z"]}
    met = {c["operation"]: c["means"] for c in expected("TableCompaction", chunks, by_interval)}
    assert met == {"r": "perhaps", "e": "perhaps"}
    day = {"locks": ["Replace in interval 2013-03-02T00:00:00Z/2013-03-03T00:00:00Z"]}
    met = {c["operation"]: c["means"] for c in expected("TableReplace", day, by_interval)}
    assert met == {"r": "perhaps"}
    # An exclusive one waits for writers, too.
    found = expected("TableCompaction", plan, locks, exclusive=True)
    met = {c["operation"]: c["means"] for c in found}
    assert met == {"a": "waits", "b": "waits", "c": "perhaps", "d": "waits", "e": "perhaps"}
    table = {"locks": ["Replace in the table"]}
    met = {c["operation"]: c["means"] for c in expected("TableReplace", table, locks)}
    assert met == {"b": "waits", "d": "waits"}


def test_a_plan_meets_the_locks_of_the_log_by_instants() -> None:
    def lock(name: str, mode: str, *segments: str, **more: Any) -> Json:
        return {"operation": name, "mode": mode, "segments": list(segments), **more}

    locks = [
        lock("a", "Rewrite", "instant 3", "instant 12"),
        lock("b", "Rewrite", "instant 9"),
        lock("c", "Update", "the whole log"),
        lock("d", "Rewrite", "instant 40", more=3),
        lock("e", "Rewrite", "5", "the whole table"),
        lock("f", "Rewrite", "_tandem/log"),
    ]
    plan = {"instants": ["3-7", "10-13"], "locks": ["Rewrite instants 3-7"]}
    met = {
        c["operation"]: (c["means"], c["segments"]) for c in expected("LogCompaction", plan, locks)
    }
    assert met == {"a": ("waits", ["instant 3", "instant 12"]), "d": ("perhaps", [])}
    assert expected("LogCompaction", {"instants": []}, locks) == []
    # Those of the table and of its log are apart.
    met_by = [c["operation"] for c in expected("TableCompaction", {"segments": ["3"]}, locks)]
    assert met_by == ["e"]
    merge = {"locks": ["Rewrite the log"]}
    met_by = [c["operation"] for c in expected("TableCompaction", merge, locks)]
    assert met_by == ["e", "f"]


def test_segments_that_are_not_listed_are_not_reported_as_free() -> None:
    def met(plan: Json, **lock: Any) -> list[str]:
        locks = [{"operation": "a", "mode": "Rewrite", "state": "Held", **lock}]
        return [c["means"] for c in expected("TableCompaction", plan, locks)]

    cut = {"segments": ["2", "… and 3 more"]}
    assert met(cut, segments=["9"]) == ["perhaps"]
    assert met(cut, segments=["2"]) == ["waits"]
    assert met({"segments": ["2"]}, segments=["9"], more=4) == ["perhaps"]
    assert met({"segments": ["2"]}, segments=["2013-01-01T00:00:00Z/…"]) == ["perhaps"]
    assert met({"segments": ["2"]}, segments=["9"]) == []
    assert met({}, segments=["9"], more=4) == []
    plan = {"readVersion": 1, "inputs": 1, "inputBytes": 9, "segments": ["2"]}
    status = state("Succeeded", "DryRun", plan=plan)
    copy = body("TableCompaction", "m", status)
    wish = PlanRequest("TableCompaction", "n", "m", outcome=copy)
    wish.conflicts = [{"operation": "a", "means": "perhaps", "segments": []}]
    assert "a, perhaps: not all segments and intervals are known here" in shown(blocks([wish]))


def test_locks_in_a_status_are_bounded_and_remember_since_when() -> None:
    def entry(name: str, state: EntryState, order: int, *segments: str) -> LockEntry:
        request = LockRequest(
            "s3://t", name, Mode.REWRITE, named(segments), display=f"TableCompaction/{name}"
        )
        return LockEntry(request, state, order)

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
