"""`kubectl tandem status` and `history`: what is made of objects, and how it is shown."""

from __future__ import annotations

from typing import Any

from cli.kubectl_objects import NOW, Json, body, shown, state, table
from tandem.cli.kubectl import render
from tandem.cli.kubectl.access import summary
from tandem.cli.kubectl.commands import history_of
from tandem.cli.kubectl.overview import overview, without_duration
from tandem.cli.kubectl.render import result_line


def test_problems_come_first_with_what_to_do() -> None:
    failed = body(
        "TableUpdate", "typo",
        state("Failed", "InvalidStatement", "no column x", completionTime="2027-01-15T07:59:20Z"),
    )  # fmt: skip
    waiting = body("TableCompaction", "stuck", state("Locked", "LocksUnavailable", "no etcd"))
    unseen = body("TableIngest", "lost", {"observedGeneration": -1})
    fine = body("TableCompaction", "ok", state("Running", "Running"))
    found = overview([table()], [failed, waiting, unseen, fine], now_ms=NOW)
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


def test_an_operation_without_its_table_shows_the_tables_name() -> None:
    waits = body("TableCompaction", "typo", state("Pending", "WaitingForDependency"))
    found = overview([], [waits], now_ms=NOW)
    text = shown(render.status({"operator": None, **found}, now_ms=NOW))
    assert "TableCompaction/typo waits: there is no LakeTable t in its namespace" in text


def test_a_failure_that_was_repaired_or_is_retried_is_no_problem() -> None:
    line = {"labels": {"tandem.dev/automatic": "minor"}}
    ended = {"completionTime": "2027-01-15T07:00:00Z"}
    before = body("TableCompaction", "a", state("Failed", "JobFailed", **ended), metadata=line)
    ended = {"completionTime": "2027-01-15T07:10:00Z"}
    after = body("TableCompaction", "b", state("Succeeded", "Committed", **ended), metadata=line)
    asked = {"annotations": {"tandem.dev/retry": "7"}}
    again = body("TableUpdate", "c", state("Failed", "JobFailed"), metadata=asked)
    looks = {"labels": {"tandem.dev/plan": "true"}}
    dry_run = body("TableUpdate", "d", state("Failed", "JobFailed"), metadata=looks, dryRun=True)
    assert overview([table()], [before, after, again, dry_run], now_ms=NOW)["problems"] == []
    assert len(overview([table()], [before], now_ms=NOW)["problems"]) == 1
    # A label that any user may set does not hide a running operation.
    hidden = body("TableUpdate", "e", state("Failed", "JobFailed"), metadata=looks)
    assert len(overview([table()], [hidden], now_ms=NOW)["problems"]) == 1


def test_only_how_long_it_waits_is_cut_from_a_message() -> None:
    refused = "no such kind (since 2027-01-15T07:59:20Z, tried again at 2027-01-15T08:00:20Z)"
    assert without_duration(refused) == refused
    assert without_duration("waits for A on B, 2 h 5 min") == "waits for A on B"
    assert without_duration("waits for its turn, 40 s") == "waits for its turn"


def test_status_shows_progress_waits_schedule_and_history() -> None:
    runs = body(
        "TableCompaction", "r",
        state("Running", "Running", startTime="2027-01-15T07:58:00Z", attempt=2,
             progress={"percent": 60, "summary": "12/20 files, 40 s left", "etaSeconds": 40}),
    )  # fmt: skip
    waits = body("TableUpdate", "w", state("Pending", "WaitingForLock", "waits for A on B, 3 s"))
    rests = body("TableUpdate", "s", state("Suspended", "Suspended", "spec.suspend is true"))
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
    assert "at 2027-01-16 01:00:00 UTC; W." in text
    assert "Succeeded, version 6, 2 h ago" in text
    assert "\x1b" not in text


def test_status_shows_the_log_of_a_table() -> None:
    log = {"newestInstant": 41, "mergedInstant": 30, "blocks": 3, "unmergedBlocks": 3,
           "smallBlocks": 2, "bytes": 2048, "oldestUnmerged": "2027-01-15T07:57:00Z",
           "deadPercent": 4, "next": {"what": "LogMerge of 3 blocks", "why": "W."}}  # fmt: skip
    found = overview([table(log=log)], [], now_ms=NOW)
    assert found["tables"][0]["log"]["next"] == {"what": "LogMerge of 3 blocks", "why": "W."}
    text = shown(render.status({"operator": None, **found}, now_ms=NOW))
    assert "3 blocks, 2.0 KiB" in text
    assert "3 unmerged for 3 min, 2 small, instant 41, merged up to 30, 4 % of the" in text
    assert "LogMerge of 3 blocks" in text
    # Of a table whose log is merged, and of one that cannot be read.
    merged = overview([table(log={**log, "oldestUnmerged": None})], [], now_ms=NOW)
    assert "all merged" in shown(render.status({"operator": None, **merged}, now_ms=NOW))
    broken = overview([table(log={"problem": "BaseHistoryGap: gone"})], [], now_ms=NOW)
    text = shown(render.status({"operator": None, **broken}, now_ms=NOW))
    assert "cannot be read" in text
    assert "BaseHistoryGap: gone" in text
    # And of one whose base table refuses merges.
    refusing = overview([table(log={**log, "problem": "CHECK"})], [], now_ms=NOW)
    text = shown(render.status({"operator": None, **refusing}, now_ms=NOW))
    assert "3 blocks, 2.0 KiB" in text
    assert "cannot be merged: CHECK" in text


def test_the_operators_health_in_a_line() -> None:
    def pod(name: str, **facts: Any) -> Json:
        return {"namespace": "s", "name": name, "ready": True, "restarts": 0, "version": "1",
                "leads": None, **facts}  # fmt: skip

    assert summary([], "in any namespace") == {
        "ok": False,
        "summary": "none of its pods is visible in any namespace",
    }
    two = summary([pod("a", leads=True), pod("b", leads=False, ready=False, restarts=1)], "")
    assert two == {
        "ok": False,
        "summary": "1 of 2 pods ready in s, version 1, leader a, 1 restart",
    }
    assert summary([pod("a", leads=False)], "")["summary"].endswith("no leader")
    assert "leader" not in summary([pod("a")], "")["summary"]


def test_history_shows_each_end_once_newest_first() -> None:
    done = body(
        "TableUpdate", "u",
        state("Succeeded", "Committed", completionTime="2027-01-15T07:30:00Z",
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
    assert (
        result_line(body("TableUpdate", "x", state("Failed", "Conflict", "version 7")))
        == "version 7"
    )
    assert "1,234 rows" in shown(render.history(rows))


def test_the_result_of_a_replace_says_what_it_kept_and_left_empty() -> None:
    did = {
        "filesRemoved": 2,
        "bytesRemoved": 2048,
        "rowsAffected": {"deleted": 90210},
        "replaced": {"startVersion": 41, "rows": 90210, "late": 312, "emptyChunks": 1},
        "summary": [
            "no other commit since version 41",
            "replaced 2013-03 as of version 41",
            "312 late rows kept",
            "1 chunk left empty",
        ],
    }
    done = body("TableReplace", "r", state("Succeeded", "Committed", result=did))
    assert result_line(done) == (
        "2 files (2.0 KiB) → 0 (0 B), 90,210 rows deleted, replaced 2013-03 as of version 41, "
        "312 late rows kept, 1 chunk left empty"
    )


def server(ready: str, reason: str, **status: Any) -> Json:
    conditions = [
        {"type": "Reconciling", "status": "False", "reason": reason},
        {"type": "Stalled", "status": "True" if ready == "False" else "False", "reason": reason},
    ]
    if ready:
        first = {"type": "Ready", "status": ready, "reason": reason, "message": "what is wrong"}
        conditions = [first, *conditions]
    found = body("IndexServer", "lake", {"observedGeneration": 1, "conditions": conditions})
    found["spec"], found["status"] = {}, {**found["status"], **status}
    return found


def test_index_servers_are_listed_and_their_problems_come_first() -> None:
    cache = {"bytes": 2 << 20, "limitBytes": 4 << 30, "evictions": 7}
    refused = [{"name": "logged", "reason": "merge-on-read"}]
    good = server("True", "Serving", tableCount=3, cache=cache, notServed=refused)
    found = overview([table()], [], [good], now_ms=NOW)
    assert found["problems"] == []
    [line] = found["indexServers"]
    assert (line["health"], line["tables"], line["evictions"]) == ("Ready", 3, 7)
    assert line["notServed"] == refused
    text = shown(render.status({"operator": None, **found}, now_ms=NOW))
    [row] = [each for each in text.splitlines() if "lake" in each]
    assert "2.0 MiB" in row
    assert "4.0 GiB" in row
    bad = overview([table()], [], [server("False", "ReferenceNotFound")], now_ms=NOW)
    assert [p["resource"] for p in bad["problems"]] == ["IndexServer/lake"]
    text = shown(render.status({"operator": None, **bad}, now_ms=NOW))
    assert "IndexServer/lake: ReferenceNotFound" in text
    assert "what is wrong" in text
    resting = overview([table()], [], [server("", "Suspended")], now_ms=NOW)
    assert resting["problems"] == []
    assert resting["indexServers"][0]["health"] == "Suspended"
    assert "indexServers" in overview([table()], [], now_ms=NOW)
