"""The rule for statements where the search does not look: limits, refusals and size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from support.calls import count_calls
from tandem.delta.actions import Commit as DeltaCommit
from tandem.delta.actions import CommitInfo
from tandem.errors import CountMismatch
from tandem.reconcile.classify import classify
from tandem.reconcile.matches import (
    FileMatches,
    InsertFile,
    RoundResult,
    round_result,
    trace_matches,
)
from tandem.reconcile.model import Author, ChangeKind, CommitSummary, FileState, FileView
from tandem.reconcile.outcomes import Attempts, ConflictRound, RoundHistory, with_round
from tandem.reconcile.statement import (
    Evaluate,
    Outcome,
    Policy,
    ReadyToCommit,
    Reexecute,
    StatementConflict,
    StatementProgress,
    Views,
    absorb,
    decide,
    start,
)
from tandem.rowmap.rowmap import RowMapBuilder, RowMapIdentity
from tandem.spec.update import Isolation


class View:
    def __init__(self, rows: int = 4, **dead: set[int]) -> None:
        self._rows = rows
        self._dead = dead
        self.asked: set[str] = set()

    def get(self, path: str) -> FileState | None:
        self.asked.add(path)
        if path not in self._dead:
            return None
        return FileState(path, self._rows, BitMap64(sorted(self._dead[path])))


def views(**by_version: FileView) -> Views:
    return lambda version: by_version.get(f"v{version}")


def deletes(**positions: list[int]) -> Mapping[str, FileMatches]:
    return {p: deleted(np.array(a, np.int64)) for p, a in positions.items()}


def deleted(positions: npt.NDArray[np.int64]) -> FileMatches:
    none = np.full(len(positions), -1, dtype=np.int64)
    return FileMatches(positions, none, none)


def change(version: int, *files: str, kind: ChangeKind = ChangeKind.CHANGE) -> CommitSummary:
    return CommitSummary(version, kind, frozenset(files), f"the commit of version {version}")


def test_a_statement_without_concurrent_commits() -> None:
    progress = start(3, RoundResult(deletes(a=[1, 3])))
    outcome = decide(progress, [], view=views(v3=View(a={0})), row_maps={}, policy=Policy())
    assert isinstance(outcome, ReadyToCommit)
    assert outcome.deletes["a"].dead == BitMap64([0, 1, 3])
    assert (outcome.at, outcome.rows_matched, outcome.deletes["a"].deleted) == (3, 2, 2)


def test_a_row_that_is_dead_when_read_is_no_match() -> None:
    progress = start(3, RoundResult(deletes(a=[0])))
    with pytest.raises(CountMismatch, match="not live"):
        decide(progress, [], view=views(v3=View(a={0})), row_maps={}, policy=Policy())


def test_serializable_follows_appends_and_write_serializable_does_not() -> None:
    progress = start(3, RoundResult(deletes(a=[1])))
    both = views(v3=View(a=set()), v4=View(a=set(), b=set()))
    appended = [change(4, "b", kind=ChangeKind.BLIND_APPEND)]
    relaxed = decide(progress, appended, view=both, row_maps={}, policy=Policy())
    assert isinstance(relaxed, ReadyToCommit)
    assert relaxed.at == 4
    strict = decide(
        progress, appended, view=both, row_maps={}, policy=Policy(Isolation.SERIALIZABLE)
    )
    assert isinstance(strict, Evaluate)
    assert strict.rows == {"b": BitMap64(range(4))}


def test_only_rows_that_came_back_are_evaluated() -> None:
    progress = start(3, RoundResult(deletes(a=[3])))
    both = views(v3=View(a={0, 1}), v4=View(a={0}))
    outcome = decide(progress, [change(4, "a")], view=both, row_maps={}, policy=Policy())
    assert isinstance(outcome, Evaluate)
    assert (outcome.at, outcome.rows) == (4, {"a": BitMap64([1])})
    with pytest.raises(CountMismatch, match="not requested"):
        absorb(outcome, RoundResult(deletes(a=[2])))
    done = absorb(outcome, RoundResult(deletes(a=[1])))
    final = decide(done, [], view=both, row_maps={}, policy=Policy())
    assert isinstance(final, ReadyToCommit)
    assert final.deletes["a"].is_whole is False
    assert final.deletes["a"].dead == BitMap64([0, 1, 3])
    assert (final.progress.rounds, final.progress.rows_evaluated) == (2, 1)


def test_inserts_of_rows_that_others_deleted_are_masked_or_dropped() -> None:
    found = {
        "a": FileMatches(np.array([0, 1, 2]), np.array([0, 0, 1]), np.array([0, 1, 0])),
    }
    progress = start(3, RoundResult(found, (InsertFile("i", 2), InsertFile("j", 1))))
    both = views(v3=View(a=set()), v4=View(a={0, 2}))
    outcome = decide(progress, [change(4, "a")], view=both, row_maps={}, policy=Policy())
    assert isinstance(outcome, ReadyToCommit)
    assert (outcome.inserts, outcome.dropped_inserts) == (("i",), ("j",))
    assert outcome.masks == {"i": BitMap64([0])}
    assert (outcome.rows_matched, outcome.progress.lost) == (1, 2)


def test_a_conflict_after_rounds_without_progress_names_the_last_commit() -> None:
    progress = start(0, RoundResult())
    policy = Policy(max_attempts=2)
    seen: list[int] = []
    outcome: object = None
    # The third counts, the fourth is progress, two like it are too many.
    for version, rows in enumerate((8, 4, 4, 2, 2, 3), start=1):
        both = views(**{f"v{version - 1}": View(), f"v{version}": View(rows, a=set())})
        outcome = decide(progress, [change(version, "a")], view=both, row_maps={}, policy=policy)
        if not isinstance(outcome, Evaluate):
            break
        seen.append(outcome.progress.attempts.counted)
        progress = absorb(outcome, RoundResult())
    assert seen == [0, 0, 1, 0, 1]
    assert isinstance(outcome, StatementConflict)
    assert "the commit of version 6" in outcome.why
    assert outcome.cause is not None
    assert (outcome.cause.version, outcome.files) == (6, ("a",))


def test_rows_that_need_no_evaluation_cause_no_round() -> None:
    """Those of files whose statistics say that nothing in them matches."""
    progress = start(3, RoundResult(), attempts=Attempts(4, rows=1, fewest=1))
    both = views(v3=View(), v4=View(a=set(), b=set()))

    for wanted, end in (({"b"}, StatementConflict), (set[str](), ReadyToCommit)):

        def prune(
            at: int, rows: Mapping[str, BitMap64], wanted: set[str] = wanted
        ) -> Mapping[str, BitMap64]:
            assert (at, set(rows)) == (4, {"a", "b"})
            return {path: rows[path] for path in wanted}

        outcome = decide(
            progress,
            [change(4, "a", "b")],
            view=both,
            row_maps={},
            policy=Policy(),
            prune=prune,
        )
        assert isinstance(outcome, end)
    assert isinstance(outcome, ReadyToCommit)
    assert (outcome.progress.rounds, outcome.progress.rows_evaluated) == (1, 0)
    assert outcome.progress.evaluated_at == 4


def test_a_conflict_names_the_commit_and_a_few_of_the_files() -> None:
    files = [f"part-{number:02}.parquet" for number in range(15)]
    other = classify(
        DeltaCommit(
            44,
            1_700_000_000_000,
            (CommitInfo({"operation": "UPDATE", "engineInfo": "Apache-Spark/4.2.0"}),),
        ),
        {},
    )
    other = replace(other, kind=ChangeKind.CHANGE, files=frozenset(files))
    both = views(v43=View(), v44=View(2, **{path: set() for path in files}))
    outcome = decide(
        start(43, RoundResult(), attempts=Attempts(4, rows=1, fewest=1)),
        [other],
        view=both,
        row_maps={},
        policy=Policy(),
    )
    assert isinstance(outcome, StatementConflict)
    assert outcome.why == (
        "5 rounds made no progress; the last was lost to UPDATE by Apache-Spark/4.2.0 "
        "(version 44, 2023-11-14T22:13:20Z): "
        "files part-00.parquet, part-01.parquet, part-02.parquet and 12 more"
    )
    assert outcome.files == tuple(files)


def test_the_report_names_the_commits_that_the_statement_follows() -> None:
    progress = start(3, RoundResult(deletes(a=[3])))
    both = views(v3=View(a={0, 1}), v4=View(a={0, 3}))
    outcome = decide(progress, [change(4, "a")], view=both, row_maps={}, policy=Policy())
    assert isinstance(outcome, Evaluate)
    assert outcome.progress.round_history == (ConflictRound(4, Author(4), rows=1, lost=1),)
    # A round without effect is not reported, and of many rounds only the last few are kept.
    assert with_round((), 5, change(5)) == ()
    round_history: RoundHistory = ()
    for version in range(20):
        round_history = with_round(round_history, version, change(version), rows=1)
    assert [turn.at for turn in round_history] == list(range(12, 20))


def test_non_deterministic_statements_are_executed_again_as_a_whole() -> None:
    progress = start(3, RoundResult(deletes(a=[1])))
    policy = Policy(deterministic=False, max_attempts=3)
    both = views(v3=View(a=set()), v5=View(a={0}))
    commits = [change(4, "a"), change(5, "b", kind=ChangeKind.BLIND_APPEND)]
    outcome = decide(progress, commits, view=both, row_maps={}, policy=policy)
    assert isinstance(outcome, Reexecute)
    assert (outcome.at, outcome.attempts.counted) == (5, 1)
    again = start(5, RoundResult(), attempts=Attempts(2, 2))
    assert isinstance(
        decide(again, [change(6, "a")], view=both, row_maps={}, policy=policy), StatementConflict
    )


def test_an_unreadable_version_means_executing_again() -> None:
    progress = start(3, RoundResult(deletes(a=[1])))
    gone = [CommitSummary(6, ChangeKind.GAP, frozenset("a"), "lost commits")]
    outcome = decide(progress, gone, view=views(v6=View(a=set())), row_maps={}, policy=Policy())
    assert isinstance(outcome, Reexecute)
    assert (outcome.at, outcome.attempts) == (6, Attempts(1, 1))


def test_a_history_with_a_gap_is_an_error_of_the_caller() -> None:
    progress = start(3, RoundResult())
    for commits in ([change(5, "a")], [change(3, "a")], [change(4), change(4)]):
        with pytest.raises(ValueError, match="does not follow"):
            decide(progress, commits, view=views(v3=View()), row_maps={}, policy=Policy())


def test_a_row_that_would_be_in_two_files_is_refused() -> None:
    """A foreign commit added an input again beside the output that holds its rows."""
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    builder.add_input("a", 4)
    builder.add_run("a", 0, 4, "o")
    progress = start(3, RoundResult(deletes(a=[1])))
    both = views(v3=View(a=set()), v4=View(a=set(), o=set()))
    for files in (("a", "o"), ("o",)):
        with pytest.raises(CountMismatch, match="two files at once"):
            decide(
                progress,
                [change(4, *files)],
                view=both,
                row_maps={"o": builder.build()},
                policy=Policy(),
            )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"input": [0, 0], "position": [1, 1], "output": [0, 0], "place": [0, 1]}, "two results"),
        ({"input": [0, 0], "position": [1, 2], "output": [0, 0], "place": [1, 1]}, "share"),
        ({"input": [0], "position": [1], "output": [1], "place": [0]}, "not there"),
        ({"input": [0], "position": [1], "output": [0], "place": [2]}, "beyond"),
        ({"input": [1], "position": [1], "output": [0], "place": [0]}, "not part of the round"),
        ({"input": [0, 0], "position": [1, 2], "output": [0, None], "place": [0, 0]}, "not there"),
    ],
)
def test_contradictory_matches_are_refused(
    columns: dict[str, list[int | None]], message: str
) -> None:
    table = pa.table(
        {
            "input": pa.array(columns["input"], pa.int32()),
            "position": pa.array(columns["position"], pa.int64()),
            "output": pa.array(columns["output"], pa.int32()),
            "output_position": pa.array(columns["place"], pa.int64()),
        }
    )
    with pytest.raises(CountMismatch, match=message):
        round_result(table, ["a"], [InsertFile("i", 2)])


def test_matches_of_deletes_have_no_output() -> None:
    table = pa.table(
        {
            "input": pa.array([1, 0, 1], pa.int32()),
            "position": pa.array([5, 2, 1], pa.int64()),
            "output": pa.array([None, None, None], pa.int32()),
            "output_position": pa.array([None, None, None], pa.int64()),
        }
    )
    found = round_result(table, ["a", "b"], []).matches
    assert {p: m.positions.tolist() for p, m in found.items()} == {"a": [2], "b": [1, 5]}


def test_work_grows_with_the_changes_not_with_the_table() -> None:
    """Ten million rows in 40 files are compacted while 100,000 of them are updated."""
    rows, files = 250_000, 40
    rng = np.random.default_rng(0)
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    matches: dict[str, FileMatches] = {}
    old: dict[str, set[int]] = {}
    for n in range(files):
        builder.add_input(f"a{n}", rows)
        builder.add_run(f"a{n}", 0, rows, "o")
        positions = np.sort(rng.choice(rows, 2_500, replace=False)).astype(np.int64)
        matches[f"a{n}"] = FileMatches(
            positions, np.full(2_500, n, np.int64), np.arange(2_500, dtype=np.int64)
        )
        old[f"a{n}"] = set()
    inserts = tuple(InsertFile(f"i{n}", 2_500) for n in range(files))
    row_map = builder.build()

    class Compacted:
        def get(self, path: str) -> FileState | None:
            return FileState(path, rows * files, BitMap64()) if path == "o" else None

    before = View(rows, **old)
    progress: StatementProgress = start(3, RoundResult(matches, inserts))
    commit = CommitSummary(4, ChangeKind.MAPPED_REWRITE, frozenset(["o", *old]), "")

    def decided() -> Outcome:
        return decide(
            progress,
            [commit],
            view=views(v3=before, v4=Compacted()),
            row_maps={"o": row_map},
            policy=Policy(),
        )

    outcome = decided()
    assert isinstance(outcome, ReadyToCommit)
    assert (outcome.rows_matched, outcome.moved) == (100_000, 100_000)
    expected = np.concatenate([m.positions + n * rows for n, m in enumerate(matches.values())])
    assert outcome.deletes["o"].dead == BitMap64(expected.astype(np.uint64))
    # Less than a call for each row that moved: no loop over rows in Python.
    assert count_calls(decided) < 20_000
    # A table of which nothing changed is not even looked at.
    untouched = View(rows, **old)
    decide(progress, [], view=views(v3=untouched), row_maps={}, policy=Policy())
    assert untouched.asked == set(matches)


def test_work_grows_with_the_insert_files_not_with_their_square() -> None:
    """Small rounds write a file each, and each round decides about all of them."""

    def calls(files: int) -> int:
        one = np.zeros(1, np.int64)
        matches = {f"a{n}": FileMatches(one, one + n, one) for n in range(files)}
        inserts = tuple(InsertFile(f"i{n}", 1) for n in range(files))
        progress = start(3, RoundResult(matches, inserts))
        view = views(v3=View(4, **{path: set() for path in matches}))
        return count_calls(lambda: decide(progress, [], view=view, row_maps={}, policy=Policy()))

    assert calls(400) < 2.5 * calls(200)


def test_the_result_of_a_file_that_nothing_changed_is_not_copied() -> None:
    matches = deletes(a=[0], b=[1, 2])
    traced = trace_matches(matches, {"b"}, View(a=set(), b=set()), View(a=set(), b={1}), {})
    assert traced.matches["a"] is matches["a"]
    assert traced.matches["b"].positions.tolist() == [2]
    assert traced.lost == 1
