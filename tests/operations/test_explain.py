"""What an operation says of what it met: sentences, and who is named in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.lake import delta_log
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.explain import MOST_SENTENCES, of_replace, sentences
from tandem.operations.model import Identity
from tandem.spec.replace import Replaced
from tandem.spec.status import Reconciled, ReconciledCommit, RowsReplaced
from tandem.text import clean, files_in_words, listed, quoted

DELTA_RS = "delta-rs:py-1.6.6"
SOURCE = {"format": "Parquet", "location": "s3://lake/in/x.parquet"}
INSERT: dict[str, Any] = {"whenNotMatched": [{"insertAll": {}}]}


def met(
    version: int = 44, operation: str = "OPTIMIZE", by: str | None = None, **what: object
) -> ReconciledCommit:
    return ReconciledCommit.model_validate(
        {"version": version, "operation": operation, "engine": DELTA_RS, "by": by, **what}
    )


@pytest.mark.parametrize(
    ("found", "onto", "statement", "expected"),
    [
        (Reconciled(rounds=1), {}, False, ["no other commit since version 41"]),
        (Reconciled(commits_seen=1, rounds=1), {}, True, ["1 commit since version 41"]),
        (
            Reconciled(commits_seen=3, rounds=4, milliseconds=2),
            {},
            False,
            ["3 commits since version 41, met in 4 rounds"],
        ),
        (  # the issue's own example
            Reconciled(
                commits_seen=3,
                deletes_remapped=2113,
                rows_masked=80_000,
                rounds=1,
                files_masked=1,
                milliseconds=4,
                met=(met(inputs_gone=1, rows_masked=80_000),),
            ),
            {"0.1": 2113},
            False,
            [
                "3 commits since version 41",
                "2,113 deletes replayed onto 0.1 (1 file, 4 ms)",
                "1 input gone to version 44 by `delta-rs:py-1.6.6` (OPTIMIZE) → 80,000 rows masked",
            ],
        ),
        (
            Reconciled(
                commits_seen=2, deletes_remapped=3, rounds=1, files_masked=2, milliseconds=0
            ),
            {"0.1": 2, "4.1": 1},
            False,
            [
                "2 commits since version 41",
                "3 deletes replayed onto 0.1 (2) and 4.1 (1) (2 files, less than 1 ms)",
            ],
        ),
        (
            Reconciled(commits_seen=1, deletes_remapped=8, rounds=1, files_masked=4),
            {"0.1": 2, "4.1": 2, "8.1": 2, "12.1": 2},
            False,
            ["1 commit since version 41", "8 deletes replayed onto 4 segments (4 files)"],
        ),
        (
            Reconciled(
                commits_seen=1,
                rounds=1,
                rows_masked=7,
                met=(met(45, "RESTORE", inputs_restored=1, rows_masked=7),),
            ),
            {},
            False,
            [
                "1 commit since version 41",
                "deleted rows of 1 input restored by version 45 by `delta-rs:py-1.6.6` "
                "(RESTORE) → 7 rows masked",
            ],
        ),
        (  # those who did it were too long ago to be looked up
            Reconciled(
                commits_seen=99, rounds=1, rows_masked=30, met=(met(inputs_gone=1, rows_masked=10),)
            ),
            {},
            False,
            [
                "99 commits since version 41",
                "1 input gone to version 44 by `delta-rs:py-1.6.6` (OPTIMIZE) → 10 rows masked",
                "20 rows masked because their inputs are gone",
            ],
        ),
        (
            Reconciled(commits_seen=1, rounds=1, deletes_remapped=8, files_masked=1),
            {"0.1": 8},
            True,
            ["1 commit since version 41", "8 rows followed into 0.1 (1 file)"],
        ),
        (
            Reconciled(
                commits_seen=2,
                rounds=2,
                rows_lost=2,
                met=(
                    met(44, "UPDATE", rows_evaluated=12_000, rows_lost=2),
                    met(46, "MERGE", by="TableUpdate/late", executed_again=True),
                ),
            ),
            {},
            True,
            [
                "2 commits since version 41, met in 2 rounds",
                "12,000 rows evaluated as of version 44 by `delta-rs:py-1.6.6` (UPDATE)",
                "2 matched rows deleted or rewritten first, as of version 44 by "
                "`delta-rs:py-1.6.6` (UPDATE)",
                "the whole statement executed again after version 46 by TableUpdate/late",
            ],
        ),
    ],
)
def test_sentences_of_an_explanation(
    found: Reconciled, onto: dict[str, int], statement: bool, expected: list[str]
) -> None:
    assert list(sentences(41, found, onto, statement=statement)) == expected


def test_the_number_of_sentences_is_bounded() -> None:
    many = tuple(met(version, inputs_gone=1, inputs_restored=1) for version in range(8))
    expected = sentences(0, Reconciled(commits_seen=8, met=many), {}, statement=False)
    assert len(expected) == MOST_SENTENCES
    assert expected[-1] == "and 6 more"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Apache-Spark/4.2.0 Delta-Lake/4.4.0", "Apache-Spark/4.2.0 Delta-Lake/4.4.0"),
        ("a\nb\x1b[31mc\u202ed", "a b [31mc d"),
        ("x" * 100, "x" * 30 + "…" + "x" * 29),
        ("y" * 10_000_000, "y" * 30 + "…" + "y" * 29),
    ],
)
def test_names_of_foreign_writers_are_short_and_on_one_line(text: str, shown: str) -> None:
    assert clean(text) == shown
    assert quoted(f"`{text}`").count("`") == 2


def test_lists_are_bounded() -> None:
    paths = {f"part-{number:02}.parquet" for number in range(15)}
    assert files_in_words(paths) == (
        "files part-00.parquet, part-01.parquet, part-02.parquet and 12 more"
    )
    assert files_in_words({"a"}) == "file a"
    assert files_in_words(()) == ""
    assert [listed(["a"]), listed(["a", "b", "c"])] == ["a", "a, b and c"]


def test_a_replace_says_what_stays_and_what_it_left_out() -> None:
    did = RowsReplaced(start_version=41, rows=90, late=3, outside=7, empty_chunks=1)
    assert of_replace(Replaced(intervals=("2013-03",)), did, drop=False) == (
        "replaced 2013-03 as of version 41",
        "3 late rows kept",
        "7 rows of the source left out",
        "1 chunk left empty",
    )


INTERVALS = {"intervals": ["2020-01-01/2020-02-01"]}


@pytest.mark.parametrize(
    ("asked", "kind", "spec"),
    [
        ("compaction", "TableCompaction", {"type": "SemiMajor"}),
        ("log merge", "TableCompaction", {"type": "LogMerge"}),
        ("segment rewrite", "SegmentRewrite", {"segments": ["0.1"], "rewrite": {"sortBy": ["id"]}}),
        ("update", "TableUpdate", {"update": {"where": "true", "set": {"v": "1"}}}),
        ("delete", "TableUpdate", {"delete": {"where": "true"}}),
        ("merge", "TableUpdate", {"merge": {"source": SOURCE, "on": "t.id = s.id", **INSERT}}),
        ("ingest", "TableIngest", {"source": SOURCE}),
        ("replace", "TableReplace", {"source": SOURCE, "scope": "AtStart", "replace": INTERVALS}),
        ("drop", "TableReplace", {"scope": "AtStart", "replace": INTERVALS}),
    ],
)
def test_what_is_refused_is_called_by_what_was_asked_for(
    tmp_path: Path, asked: str, kind: str, spec: dict[str, Any]
) -> None:
    lake = quick_lake.make(tmp_path, 1)
    lake.log_raw(delta_log.protocol(3, 7, readerFeatures=[], writerFeatures=["fromTheFuture"]))
    resource = lake.resource(kind, spec)
    session = open_session(resource, lake.table(), lake.ports(), ExecutionOptions(plan_only=True))
    status = finish(session, resource, lake.ports())
    assert f"{asked} is refused because of fromTheFuture" in status.conditions[0].message


@pytest.mark.parametrize(("field", "asked"), [("upsert", "upsert"), ("deleteKeys", "delete")])
def test_appends_to_a_log_are_called_by_their_fields(field: str, asked: str) -> None:
    assert Identity("0f", "TableUpdate", "lake", "x", "h", {field: {}}).asked == asked
