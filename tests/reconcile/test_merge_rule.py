"""The rules for merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tandem.errors import CountMismatch
from tandem.reconcile.matches import (
    KEPT,
    FileMatches,
    InsertFile,
    RoundResult,
    matched_sources,
    round_result,
    unmatched_sources,
)
from tandem.reconcile.model import ChangeKind, CommitSummary, FileState, FileView
from tandem.reconcile.outcomes import SMALL_ROUNDS, Attempts
from tandem.reconcile.statement import (
    Evaluate,
    Outcome,
    Policy,
    ReadyToCommit,
    Reexecute,
    Reinsert,
    StatementConflict,
    StatementProgress,
    Views,
    absorb,
    decide,
    inserted,
    start,
)
from tandem.rowmap.rowmap import RowMapBuilder, RowMapIdentity
from tandem.spec.update import Isolation

# A merge in the rule for statements: deletes and updates mixed, rows that it found nowhere, and
# what of it is executed again.


MERGE = Policy(inserts=True)


class View:
    """Files by name: how many rows, and which are dead."""

    def __init__(self, **files: tuple[int, Sequence[int]]) -> None:
        self._files = files

    def get(self, path: str) -> FileState | None:
        found = self._files.get(path)
        return None if found is None else FileState(path, found[0], BitMap64(found[1]))


def views(**by_version: FileView) -> Views:
    return lambda version: by_version.get(f"v{version}")


def change(version: int, *files: str, kind: ChangeKind = ChangeKind.CHANGE) -> CommitSummary:
    return CommitSummary(version, kind, frozenset(files), f"the commit of version {version}")


def result(
    rows: Mapping[str, Mapping[int, int | None]],
    *,
    sizes: Sequence[int] = (),
    fresh: Sequence[InsertFile] = (),
    names: str = "i",
) -> RoundResult:
    """`rows` has by file what became of each matched position: None deleted, else the number of
    its row, counted through insert files of these sizes."""
    places = [(file, row) for file, size in enumerate(sizes) for row in range(size)]
    matches = {}
    for path, found in rows.items():
        where = [(-1, -1) if n is None else places[n] for n in found.values()]
        columns = [list(found), [w[0] for w in where], [w[1] for w in where]]
        matches[path] = FileMatches(*(np.array(c, np.int64) for c in columns))
    inserts = tuple(InsertFile(f"{names}{n}", size) for n, size in enumerate(sizes))
    return RoundResult(matches, inserts, tuple(fresh), merged=True)


MIXED = result({"a": {0: None, 1: 0, 3: 1}}, sizes=[2], fresh=[InsertFile("f", 5)])


def test_deletes_updates_and_inserts_are_committed_together() -> None:
    outcome = decide(
        start(3, MIXED), [], view=views(v3=View(a=(4, [2]))), row_maps={}, policy=MERGE
    )
    assert isinstance(outcome, ReadyToCommit)
    assert outcome.deletes["a"].is_whole
    assert (outcome.rows_matched, outcome.rows_updated) == (3, 2)
    assert (outcome.inserts, outcome.fresh, dict(outcome.masks)) == (("i0",), ("f",), {})


def test_a_merge_follows_rows_through_a_compaction_and_leaves_later_appends_alone() -> None:
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    builder.add_input("b", 2)
    builder.add_input("a", 4, BitMap64([2]))
    builder.add_run("b", 0, 2, "o")
    builder.add_run("a", 0, 4, "o")
    history = views(v3=View(a=(4, [2]), b=(2, [])), v5=View(o=(5, []), c=(4, [])))
    commits = [
        change(4, "a", "b", "o", kind=ChangeKind.MAPPED_REWRITE),
        change(5, "c", kind=ChangeKind.BLIND_APPEND),
    ]
    maps = {"o": builder.build()}
    outcome = decide(start(3, MIXED), commits, view=history, row_maps=maps, policy=MERGE)
    assert isinstance(outcome, ReadyToCommit)
    assert outcome.deletes["o"].dead == BitMap64([2, 3, 4])
    assert (outcome.moved, outcome.rows_matched, outcome.rows_updated) == (3, 3, 2)
    serializable = Policy(Isolation.SERIALIZABLE, inserts=True)
    again = decide(start(3, MIXED), commits, view=history, row_maps=maps, policy=serializable)
    assert isinstance(again, Reexecute)
    assert again.at == 5


@pytest.mark.parametrize(
    "commit",
    [
        change(4, "a"),
        change(4),  # a merge that did nothing: it decided by rows that it did not find
        change(4, "z"),  # nothing of ours
        change(4, "a", kind=ChangeKind.GAP),
    ],
)
def test_a_table_change_means_executing_again_at_the_latest_version(commit: CommitSummary) -> None:
    later = change(5, "c", kind=ChangeKind.BLIND_APPEND)
    history = views(v3=View(a=(4, [2])), v4=View(a=(4, [2])), v5=View(a=(4, [2]), c=(1, [])))
    outcome = decide(start(3, MIXED), [commit, later], view=history, row_maps={}, policy=MERGE)
    assert isinstance(outcome, Reexecute)
    assert (outcome.at, outcome.attempts) == (5, Attempts(1, 1))
    assert "and recorded no matches is never evaluated in part" in outcome.why
    # A caller that omits it from the policy does not get half a merge either.
    forgotten = decide(start(3, MIXED), [commit], view=history, row_maps={}, policy=Policy())
    assert isinstance(forgotten, Reexecute)


def test_executions_are_counted() -> None:
    progress = start(3, MIXED, attempts=Attempts(4, 4))
    outcome = decide(progress, [change(4, "a")], view=views(), row_maps={}, policy=MERGE)
    assert isinstance(outcome, StatementConflict)
    assert "the commit of version 4" in outcome.why


def test_without_inserts_rows_are_answered_as_those_of_an_update() -> None:
    """Row 0 keeps its result, row 3 is gone, and with it its insert; row 1 of b is evaluated."""
    found = result({"a": {0: None, 1: 0, 3: 1}}, sizes=[2])
    history = views(v3=View(a=(4, [2])), v4=View(a=(4, [2, 3]), b=(2, [0])))
    policy = Policy(inserts=False)
    asked = decide(start(3, found), [change(4, "a", "b")], view=history, row_maps={}, policy=policy)
    assert isinstance(asked, Evaluate)
    assert (asked.at, dict(asked.rows)) == (4, {"b": BitMap64([1])})
    more = result({"b": {1: 0}}, sizes=[1], names="j")
    outcome = decide(absorb(asked, more), [], view=history, row_maps={}, policy=policy)
    assert isinstance(outcome, ReadyToCommit)
    assert {path: file.dead for path, file in outcome.deletes.items()} == {
        "a": BitMap64([0, 1, 2, 3]),
        "b": BitMap64([0, 1]),
    }
    assert (outcome.rows_matched, outcome.rows_updated, outcome.progress.lost) == (3, 2, 1)
    assert (outcome.inserts, dict(outcome.masks)) == (("i0", "j0"), {"i0": BitMap64([1])})


def test_an_incomplete_merge_result_is_refused() -> None:
    asked = Evaluate(4, {"a": BitMap64([1])}, start(3, MIXED))
    for progress, found in ((start(3, MIXED), RoundResult()), (start(3, RoundResult()), MIXED)):
        with pytest.raises(ValueError, match="rounds of a merge"):
            absorb(Evaluate(asked.at, asked.rows, progress), found)
    with pytest.raises(CountMismatch, match="inserted what it did not find"):
        absorb(asked, result({}, fresh=[InsertFile("g", 1)]))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (result({"a": {1: 0}}, sizes=[2]), "insert as many"),
        (result({"a": {1: None}}, sizes=[1]), "insert as many"),
        (result({"a": {1: 0}}, sizes=[1], fresh=[InsertFile("i0", 1)]), "names a file twice"),
        (RoundResult(fresh=(InsertFile("f", 1),)), "Only a merge"),
        (result({"a": {1: 0, 2: 0}}, sizes=[2]), "share"),
    ],
)
def test_the_counts_of_a_merge_must_add_up(found: RoundResult, message: str) -> None:
    with pytest.raises(CountMismatch, match=message):
        start(3, found)


@pytest.mark.parametrize(
    ("output", "place", "message"),
    [
        ([0, None], [0, 0], "not there"),  # deleted, and yet somewhere
        ([0, 1], [0, 0], "not there"),
        ([0, None], [1, None], "beyond"),
        ([None, None], [None, None], "insert as many"),
    ],
)
def test_contradictory_matches_of_a_merge_are_refused(
    output: list[int | None], place: list[int | None], message: str
) -> None:
    table = pa.table(
        {
            "input": pa.array([0, 0], pa.int32()),
            "position": pa.array([1, 2], pa.int64()),
            "output": pa.array(output, pa.int32()),
            "output_position": pa.array(place, pa.int64()),
        }
    )
    with pytest.raises(CountMismatch, match=message):
        round_result(table, ["a"], [InsertFile("i", 1)], merged=True)


def test_a_merge_that_lost_a_row_is_not_published() -> None:
    """The rule never drops a merged row; if a view lies, the counts notice."""
    history = views(v3=View(a=(4, [2])), v4=View(a=(4, [0, 2])))
    lies = change(4, "a", kind=ChangeKind.MAPPED_REWRITE)
    with pytest.raises(CountMismatch, match="Matched rows are gone"):
        decide(start(3, MIXED), [lies], view=history, row_maps={}, policy=MERGE)


@given(
    fates=st.lists(st.sampled_from(["keep", "delete", "update"]), min_size=1, max_size=12),
    cut=st.integers(1, 5),
    moved=st.booleans(),
)
def test_every_row_is_accounted_for(fates: list[str], cut: int, moved: bool) -> None:
    """What is kept stays live, what is deleted or updated is dead, wherever the rows went."""
    updates = [p for p, fate in enumerate(fates) if fate == "update"]
    rows: dict[int, int | None] = {p: None for p, fate in enumerate(fates) if fate == "delete"}
    rows |= {p: n for n, p in enumerate(updates)}
    sizes = [len(updates[i : i + cut]) for i in range(0, len(updates), cut)]
    found = result({"a": dict(sorted(rows.items()))} if rows else {}, sizes=sizes)
    files = {"a": (len(fates), ())}
    history = {"v3": View(**files)}
    commits, maps, home = [], {}, "a"
    if moved:
        builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
        builder.add_input("a", len(fates))
        builder.add_run("a", 0, len(fates), "o")
        maps, home = {"o": builder.build()}, "o"
        commits = [change(4, "a", "o", kind=ChangeKind.MAPPED_REWRITE)]
        history["v4"] = View(o=(len(fates), ()))
    outcome = decide(start(3, found), commits, view=views(**history), row_maps=maps, policy=MERGE)
    assert isinstance(outcome, ReadyToCommit)
    dead = outcome.deletes[home].dead if rows else BitMap64()
    assert dead == BitMap64(p for p, fate in enumerate(fates) if fate != "keep")
    assert (outcome.rows_matched, outcome.rows_updated) == (len(rows), len(updates))
    assert len(outcome.inserts) == len(sizes)


# A merge that inserts, evaluated in part: what it inserted is right as long as the same rows of
# its source match some row.


Files = Mapping[str, tuple[int, Sequence[int]]]
FRESH = (InsertFile("f", 3),)


def keys(
    rows: Mapping[str, Mapping[int, tuple[int, int]]], *, fresh: bool = False, recorded: bool = True
) -> RoundResult:
    """(output, key) of each position by file: -1 deleted, KEPT stays."""
    matches = {}
    for path, found in rows.items():
        pairs = [(key, 1) if key else (0, 0) for _, key in found.values()]
        sources = np.array(pairs, np.int64).reshape(-1, 2)
        matches[path] = FileMatches(
            np.array(list(found), np.int64),
            np.array([output for output, _ in found.values()], np.int64),
            np.full(len(found), -1, np.int64),
            sources if recorded else None,
        )
    return RoundResult(matches, (), FRESH if fresh else (), merged=True, recorded=recorded)


def ask(
    progress: StatementProgress, versions: Mapping[int, Files], *files: str, small: bool = False
) -> Outcome:
    """What is next after one change to these files, at each of the later versions."""

    def view(version: int) -> FileView | None:
        return View(**versions[version]) if version in versions else None

    since = [change(v, *files) for v in sorted(versions) if v > progress.evaluated_at]
    return decide(progress, since, view=view, row_maps={}, policy=Policy(), small=small)


# Row 0 was deleted (key 7), row 1 stays (key 8), row 2 too (key 8), row 3 has no key.
WHOLE = keys({"a": {0: (-1, 7), 1: (KEPT, 8), 2: (KEPT, 8)}}, fresh=True)
BEFORE: Files = {"a": (4, [])}


def test_kept_rows_are_not_deleted_and_inserted_rows_are_added() -> None:
    outcome = ask(start(3, WHOLE), {3: BEFORE})
    assert isinstance(outcome, ReadyToCommit)
    assert outcome.deletes["a"].dead == BitMap64([0])
    assert (outcome.rows_matched, outcome.fresh) == (1, ("f",))


def test_one_of_two_matches_may_go() -> None:
    outcome = ask(start(3, WHOLE), {3: BEFORE, 4: {"a": (4, [1])}}, "a")
    assert isinstance(outcome, ReadyToCommit)
    assert (outcome.deletes["a"].dead, outcome.progress.lost) == (BitMap64([0, 1]), 0)


@pytest.mark.parametrize("gone", [[0], [1, 2]])
def test_a_source_row_whose_last_match_has_gone_must_be_inserted(gone: list[int]) -> None:
    """Nothing is left to evaluate, and yet it is not what it was."""
    outcome = ask(start(3, WHOLE), {3: BEFORE, 4: {"a": (4, gone)}}, "a")
    assert isinstance(outcome, Reexecute)
    assert (outcome.at, outcome.attempts) == (4, Attempts(1, 1))
    assert "the commit of version 4: other rows of the source than before match" in outcome.why
    assert outcome.round_history[-1].whole


@pytest.mark.parametrize(
    ("found", "commits"),
    [
        ({0: (-1, 7), 1: (KEPT, 8)}, True),  # the same, in another file
        ({0: (-1, 7), 1: (-1, 8)}, True),
        ({0: (-1, 7)}, False),
        ({0: (-1, 7), 1: (KEPT, 9)}, False),  # as many, but others
        ({0: (-1, 7), 1: (KEPT, 8), 2: (KEPT, 9)}, False),
    ],
)
def test_a_round_finds_whether_the_same_source_rows_match(
    found: dict[int, tuple[int, int]], commits: bool
) -> None:
    after: Files = {"a": (4, [0, 1, 2]), "b": (3, [])}
    asked = ask(start(3, WHOLE), {3: BEFORE, 4: after}, "a", "b")
    assert isinstance(asked, Evaluate)
    assert dict(asked.rows) == {"b": BitMap64([0, 1, 2])}
    done = absorb(asked, keys({"b": found}))
    # Asked twice, and later, it is the same.
    for versions in ({4: after}, {4: after, 5: after}):
        outcome = ask(done, versions)
        assert isinstance(outcome, ReadyToCommit if commits else Reexecute)
        assert outcome.at == max(versions)
        if isinstance(outcome, Reexecute):
            assert (outcome.attempts.lasting, outcome.round_history[-1].whole) == (1, True)


def test_a_round_without_a_record_may_have_matched_anything() -> None:
    after: Files = {"a": (4, []), "b": (3, [])}
    asked = ask(start(3, WHOLE), {3: BEFORE, 4: after}, "b")
    assert isinstance(asked, Evaluate)
    assert isinstance(ask(absorb(asked, keys({}, recorded=False)), {4: after}), Reexecute)
    assert isinstance(ask(absorb(asked, keys({})), {4: after}), ReadyToCommit)


def test_a_table_without_a_match_is_a_record_too() -> None:
    progress = start(3, keys({}, fresh=True))
    outcome = ask(progress, {3: BEFORE, 4: {"a": (4, [1])}}, "a")
    assert isinstance(outcome, ReadyToCommit)
    assert outcome.fresh == ("f",)
    unknown = start(3, keys({}, fresh=True, recorded=False))
    assert isinstance(ask(unknown, {3: BEFORE, 4: {"a": (4, [1])}}, "a"), Reexecute)


@given(
    before=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    gone=st.sets(st.integers(0, 7)),
    new=st.lists(st.integers(0, 4), max_size=4),
)
def test_it_commits_if_the_same_keys_are_there(
    before: list[int], gone: set[int], new: list[int]
) -> None:
    """Key 0 is of no source row, the others are of one; every odd one is deleted."""

    def recorded_keys(rows: list[int]) -> dict[int, tuple[int, int]]:
        return {p: (-1 if key % 2 else KEPT, key) for p, key in enumerate(rows) if key}

    files: Files = {"a": (len(before), ())}
    left = sorted(p for p in gone if p < len(before))
    after: Files = {"a": (len(before), left), **({"b": (len(new), ())} if new else {})}
    outcome = ask(
        start(3, keys({"a": recorded_keys(before)}, fresh=True)), {3: files, 4: after}, "a", "b"
    )
    if isinstance(outcome, Evaluate):
        assert dict(outcome.rows) == {"b": BitMap64(range(len(new)))}
        outcome = ask(absorb(outcome, keys({"b": recorded_keys(new)})), {4: after})
    live = [key for p, key in enumerate(before) if p not in gone] + new
    same = {key for key in before if key} == {key for key in live if key}
    assert isinstance(outcome, ReadyToCommit if same else Reexecute)
    if isinstance(outcome, ReadyToCommit):
        assert outcome.rows_matched == sum(1 for key in live if key % 2)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (keys({"a": {0: (KEPT, 7)}}, recorded=False), "that records matches"),
        (RoundResult(keys({"a": {0: (KEPT, 7)}}).matches, recorded=True), "that records matches"),
        (
            RoundResult(
                keys({"a": {0: (-1, 7)}}, recorded=False).matches, merged=True, recorded=True
            ),
            "no record",
        ),
    ],
)
def test_recorded_matches_must_be_complete(found: RoundResult, message: str) -> None:
    with pytest.raises(CountMismatch, match=message):
        start(3, found)


def test_the_record_of_a_job_is_read() -> None:
    table = pa.table(
        {
            "input": pa.array([0, 0, 1], pa.int32()),
            "position": pa.array([1, 2, 0], pa.int64()),
            "output": pa.array([None, -2, None], pa.int32()),
            "output_position": pa.array([None, None, None], pa.int64()),
            "source_1": pa.array([5, -6, None], pa.int64()),
            "source_2": pa.array([1, 2, None], pa.int64()),
        }
    )
    result = round_result(table, ["a", "b"], [], merged=True)
    assert result.recorded
    progress = start(3, result)
    assert progress.sources is not None
    assert progress.sources.tolist() == [[-6, 2], [5, 1]]
    plain = round_result(table.slice(0, 1).select([0, 1, 2, 3]), ["a", "b"], [], merged=True)
    assert start(3, plain).sources is None
    wrong = table.set_column(3, "output_position", pa.array([None, 0, None], pa.int64()))
    with pytest.raises(CountMismatch, match="not there"):
        round_result(wrong, ["a", "b"], [], merged=True)


@pytest.mark.parametrize("gone", [[0], [1, 2]])
def test_small_rounds_determine_the_inserts_again(gone: list[int]) -> None:
    after: Files = {"a": (4, gone)}
    outcome = ask(start(3, WHOLE), {3: BEFORE, 4: after}, "a", small=True)
    assert isinstance(outcome, Reinsert)
    assert outcome.progress.evaluated_at == 4
    left = {7, 8} - ({7} if gone == [0] else {8})
    assert {int(key) for key, _ in matched_sources(outcome.progress.matches)} == left
    done = inserted(outcome.progress, [InsertFile("g", 4)])
    commit = ask(done, {4: after})
    assert isinstance(commit, ReadyToCommit)
    assert commit.fresh == ("g",)
    # Nothing is out of place any more: a later change is compared with what matches now.
    assert isinstance(ask(done, {4: after, 5: after}, small=True), ReadyToCommit)


def test_inserts_are_not_determined_again_where_matches_are_not_known() -> None:
    after: Files = {"a": (4, []), "b": (3, [])}
    asked = ask(start(3, WHOLE), {3: BEFORE, 4: after}, "b", small=True)
    assert isinstance(asked, Evaluate)
    lost = absorb(asked, keys({}, recorded=False))
    assert isinstance(ask(lost, {4: after}, small=True), Reexecute)
    with pytest.raises(ValueError, match="recorded its matches"):
        inserted(lost, ())


def test_inserts_are_not_determined_again_for_ever() -> None:
    progress = start(3, WHOLE, attempts=Attempts(4, 4, small=SMALL_ROUNDS - 1))
    outcome = ask(progress, {3: BEFORE, 4: {"a": (4, [0])}}, "a", small=True)
    assert isinstance(outcome, StatementConflict)
    assert "5 rounds made no progress" in outcome.why


identities = st.lists(st.tuples(st.integers(-2, 2), st.integers(-2, 2)), max_size=12)


@given(identities, identities)
def test_unmatched_source_rows_are_those_without_a_match(
    source: list[tuple[int, int]], matches: list[tuple[int, int]]
) -> None:
    rows, found = (np.array(each, np.int64).reshape(-1, 2) for each in (source, matches))
    expected = [n for n, row in enumerate(source) if row not in matches]
    assert unmatched_sources(rows, found).tolist() == expected
