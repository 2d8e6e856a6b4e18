"""`tandem history` on the terminal and as JSON: who replayed what onto what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import histories
from cli.invoke import Tandem
from tandem.cli import history as history_
from tandem.cli.history import picture
from tandem.cli.history_model import (
    CommitEffect,
    EntryKind,
    HistoryEntry,
    entries,
)


@pytest.fixture(scope="module")
def history() -> list[HistoryEntry]:
    return entries(histories.story().commits())


def test_every_commit_is_classified(history: list[HistoryEntry]) -> None:
    assert [entry.kind for entry in history] == [
        *[EntryKind.APPEND] * 5,
        EntryKind.CHANGE,
        EntryKind.APPEND,
        EntryKind.REWRITE,
        EntryKind.CHANGE,
        EntryKind.APPEND,
        EntryKind.REWRITE,
        EntryKind.CHANGE,
        EntryKind.REWRITE,
        EntryKind.APPEND,
    ]


def test_meetings_come_from_the_log_and_from_statuses(history: list[HistoryEntry]) -> None:
    found = {
        entry.version: [(m.version, m.effect, m.rows, m.onto) for m in entry.meetings]
        for entry in history
        if entry.meetings
    }
    assert found == {
        7: [(5, CommitEffect.REPLAYED, 2_113, "0.1")],
        8: [(7, CommitEffect.FOLLOWED, 5_000, "0.1")],
        12: [(10, CommitEffect.MASKED, 80_000, "0.2"), (11, CommitEffect.REPLAYED, 900, "0.2")],
    }


def test_a_statement_executed_again_reports_no_earlier_meetings() -> None:
    [*_, merge] = entries(histories.again().commits())
    assert [(m.version, m.effect) for m in merge.meetings] == [(3, CommitEffect.AGAIN)]
    assert [met.phrase for met in merge.meetings] == ["executed again after 3"]


@pytest.mark.parametrize(
    ("version", "in_files", "in_rows", "met"),
    [
        (4, "+1", "+80,000", ""),
        (5, "~2", "−2,113", ""),
        (7, "+1 −4", "477,887 rewritten", "2,113 rows deleted by 5 replayed onto 0.1"),
        (8, "+1 ~1", "+5,000 −5,000", "5,000 rows followed into 0.1 of 7"),
        (10, "+1 −2", "120,000 rewritten", ""),
    ],
)
def test_an_entry_as_text(
    history: list[HistoryEntry], version: int, in_files: str, in_rows: str, met: str
) -> None:
    entry = history[version]
    assert (entry.files_text, entry.rows_text) == (in_files, in_rows)
    assert "; ".join(met.phrase for met in entry.meetings) == met


def test_the_picture_links_an_operation_to_the_versions_it_read(
    history: list[HistoryEntry],
) -> None:
    assert [line.rstrip() for line in reversed(picture(history))] == [
        "○",
        "●─╮",
        "◆─▶",
        "■─▶",
        "●─╯",
        "●─╮",
        "●─▶─╮",
        "○─╯ │",
        "◆───▶",
        "○   │",
        "●───╯",
        "●",
        "●",
        "●",
    ]
    # A part of it: what was read lies before the first line.
    assert [line.rstrip() for line in picture(history[4:8])] == ["○ │", "◆─▶", "○ │", "●─╮"]


def test_the_terminal_shows_the_history(tandem: Tandem, tmp_path: Path) -> None:
    table = histories.story().write(tmp_path / "lake")
    shown = tandem("history", table).stdout
    [nightly] = [line for line in shown.splitlines() if "nightly" in line]
    assert "●─▶─╮" in nightly
    assert nightly.rstrip().endswith("2,113 rows deleted by 5 replayed onto 0.1")
    assert len(tandem("history", table, "--limit", "3").stdout.strip().splitlines()) == 5


def test_a_narrow_terminal_shows_engines_by_their_names(history: list[HistoryEntry]) -> None:
    _, _, _, who, *_ = history_.table_of_commits(history, width=80).columns
    names = {line for cell in who.cells for line in str(cell).splitlines()}
    assert {histories.DELTA_RS, histories.SPARK} & names
    assert not {"4.4.0", "0.1.0"} & names
    assert not any(name.startswith("TableCompaction/") for name in names)


def test_the_history_names_what_a_replace_replaced(tandem: Tandem, tmp_path: Path) -> None:
    log = histories.Log()
    log.append(histories.DELTA_RS, "a.parquet", 90)
    log.append(histories.DELTA_RS, "late.parquet", 12)
    log.ours(
        "WRITE", "TableReplace/march", 0,
        [histories.file("new.parquet", 80, segment="1")], ["a.parquet"],
        replaced={"startVersion": 0, "rows": 90, "late": 12, "emptyChunks": 1},
        summary=["1 commit since version 0", "replaced 2013-03 as of version 0",
                 "12 late rows kept", "1 chunk left empty"],
    )  # fmt: skip
    table = log.write(tmp_path / "lake")
    [line] = [line for line in tandem("history", table).stdout.splitlines() if "march" in line]
    what = "replaced 2013-03 as of version 0; 12 late rows kept; 1 chunk left empty"
    assert line.rstrip().endswith(what)
    page = tmp_path / "page.html"
    tandem("history", table, "--html", str(page))
    assert "<li>replaced 2013-03 as of version 0</li>" in page.read_text()


def test_json_holds_the_history(tandem: Tandem, tmp_path: Path) -> None:
    table = histories.story().write(tmp_path / "lake")
    found = json.loads(tandem("history", table, "-o", "json").stdout)
    assert [row["version"] for row in found] == list(range(13, -1, -1))
    assert found[1] == {
        "version": 12,
        "time": "2026-11-21T12:12:12.000Z",
        "operation": "OPTIMIZE",
        "engine": histories.OURS,
        "by": "default/TableCompaction/hourly",
        "filesAdded": 1,
        "filesRemoved": 3,
        "filesMarked": 0,
        "rowsAdded": 596_987,
        "rowsRemoved": 596_987,
        "rowsDeleted": 0,
        "segments": ["0.2"],
        "readVersion": 9,
        "met": [
            {"version": 10, "effect": "masked", "rows": 80_000, "onto": "0.2"},
            {"version": 11, "effect": "replayed", "rows": 900, "onto": "0.2"},
        ],
        "summary": [
            "2 commits since version 9",
            "900 deletes replayed onto 0.2 (1 file, 3 ms)",
            "1 input gone to version 10 by `delta-rs:py-1.6.6` (OPTIMIZE) → 80,000 rows masked",
        ],
    }


@pytest.mark.parametrize(
    "planted",
    [
        {"readVersion": 10**30},
        {"readVersion": -1},
        {"readVersion": "3"},
        {"readVersion": True},
        {"readVersion": 0, "result": {"reconciled": {"met": "all"}}},
        {
            "readVersion": 0,
            "result": {"reconciled": {"met": [{"version": 1, "rowsMasked": 10**40}]}},
        },
        {"readVersion": 0, "result": ["x"], "resource": {"a": 1}},
        {"resource": "default/\x1b[31m" + "x" * 100_000, "result": {"summary": ["a\nb" * 10_000]}},
    ],
)
def test_commit_info_planted_in_a_log_is_ignored(
    tandem: Tandem, tmp_path: Path, planted: dict[str, object]
) -> None:
    log = histories.story("Spark\x1b[2J\n" + "y" * 10_000)
    for version in (3, 12):
        log.versions[version][0]["commitInfo"]["tandem"] = planted
    table = log.write(tmp_path / "lake")
    shown = tandem("history", table)
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    assert len(shown.stdout) < 20_000
    page = tandem("history", table, "--html", "-")
    assert page.exit_code == 0
    assert "\x1b" not in page.stdout
    assert len(page.stdout) < 60_000
