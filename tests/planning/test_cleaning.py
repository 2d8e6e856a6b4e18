"""Which files go: random histories against a slow and obvious model of who needs what."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.some import few
from tandem.planning.cleaning import (
    CleaningFacts,
    CleaningPlan,
    CleaningRules,
    FileCategory,
    ListedFile,
    OperationEnd,
    RemovalReason,
    Tombstone,
    UnfinishedAttempt,
    attempts_to_abandon,
    decide,
)

KEEP = 10
RULES = CleaningRules(KEEP, row_maps_ms=KEEP, staging_ms=KEEP, dead_ms=KEEP, results_ms=4 * KEEP)


# A history: what each commit adds and removes, and what attempts are about -----------------------


@dataclass(frozen=True)
class Step:
    """A version, committed at `at_ms`. `attempt` is that of ours which it commits, if any."""

    at_ms: int
    adds: frozenset[str]
    removes: frozenset[str]
    attempt: int = 0


@dataclass
class History:
    """One operation `o` with attempts 1 to 3, and foreign files."""

    steps: list[Step] = field(default_factory=list)
    written: dict[str, int] = field(default_factory=dict)  # path → when
    abandoned: int = 0
    reads: tuple[int, ...] = ()
    now_ms: int = 0

    def live(self, version: int) -> set[str]:
        found: set[str] = set()
        for step in self.steps[: version + 1]:
            found = (found - step.removes) | step.adds
        return found

    @property
    def latest(self) -> int:
        return len(self.steps) - 1

    @property
    def succeeded(self) -> int:
        return next((step.attempt for step in self.steps if step.attempt), 0)


def attempt_of(path: str) -> int:
    return int(path[2]) if path.startswith("o-") else 0


def obviously_needed(history: History, path: str) -> bool:
    """Whether a retained version shows it, an unfinished plan may look at it, or an attempt may
    yet commit it: by looking at every version there was."""
    for version in range(history.latest + 1):
        ended_ms = None if version == history.latest else history.steps[version + 1].at_ms
        retained = ended_ms is None or history.now_ms - ended_ms < KEEP
        read = any(version >= read for read in history.reads)
        if (retained or read) and path in history.live(version):
            return True
    attempt = attempt_of(path)
    if attempt:
        succeeded = history.succeeded
        return not (succeeded or attempt <= history.abandoned)
    return False


def obviously_garbage(history: History, path: str) -> bool:
    if obviously_needed(history, path):
        return False
    attempt = attempt_of(path)
    ever = any(path in step.adds for step in history.steps)
    if attempt and attempt != history.succeeded:
        return True  # never to be seen, however young
    if not attempt and not ever:
        return False  # a foreign file that its writer may be about to commit
    return history.now_ms - history.written[path] >= KEEP


def facts_of(history: History) -> CleaningFacts:
    stones = [
        Tombstone(path, "", step.at_ms, version)
        for version, step in enumerate(history.steps)
        for path in sorted(step.removes)
    ]
    committed = next((v for v, step in enumerate(history.steps) if step.attempt), 0)
    ended = OperationEnd(history.succeeded, history.abandoned, version=committed)
    live = frozenset(history.live(history.latest))
    return CleaningFacts(history.now_ms, live, stones, {"o": ended}, history.reads)


def found_of(history: History) -> list[ListedFile]:
    return [
        ListedFile(path, 1, at, FileCategory.DATA if attempt_of(path) else FileCategory.OTHER,
              "o" if attempt_of(path) else "", attempt_of(path))
        for path, at in history.written.items()
    ]  # fmt: skip


def some_of(draw: st.DrawFn, paths: list[str]) -> set[str]:
    return set(draw(st.lists(st.sampled_from(paths), max_size=2))) if paths else set()


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    now = 0
    for number in range(draw(st.integers(1, 5))):
        history.written[f"f{number}"] = draw(st.integers(0, 20))
    for attempt in (1, 2, 3):
        for number in range(draw(st.integers(0, 2))):
            history.written[f"o-{attempt}/{number}"] = draw(st.integers(0, 20))
    history.steps.append(Step(0, frozenset(), frozenset()))
    history.abandoned = draw(st.integers(0, 2))
    for _ in range(draw(st.integers(0, 7))):
        now += draw(st.integers(0, 6))
        live = history.live(history.latest)
        # Restores bring back what was there before, so any foreign file may come at any time.
        foreign = [p for p in history.written if not attempt_of(p) and p not in live]
        seen = [p for s in history.steps for p in s.adds if attempt_of(p) and p not in live]
        adds = (
            set(draw(st.lists(st.sampled_from(foreign + seen), max_size=2))) if foreign else set()
        )
        removes = set(draw(st.lists(st.sampled_from(sorted(live)), max_size=2))) if live else set()
        attempt = 0
        if not history.succeeded and draw(st.integers(0, 3)) == 0:
            attempt = draw(st.integers(history.abandoned + 1, 3))
            own = [p for p in history.written if attempt_of(p) == attempt]
            adds |= set(own[: draw(st.integers(0, len(own)))])
        history.steps.append(Step(now, frozenset(adds), frozenset(removes), attempt))
    history.now_ms = now + draw(st.integers(0, 15))
    history.reads = tuple(draw(st.lists(st.integers(0, history.latest), max_size=2)))
    return history


def gone(decision: CleaningPlan) -> set[str]:
    return {each.file.path for each in decision.garbage}


@settings(max_examples=few(38, 300), deadline=None)
@given(histories())
def test_exactly_the_unneeded_files_are_removed(history: History) -> None:
    decision = decide(found_of(history), facts_of(history), RULES)
    wanted = {path for path in history.written if obviously_garbage(history, path)}
    assert gone(decision) == wanted


@settings(max_examples=few(19, 150), deadline=None)
@given(histories(), st.integers(0, 20))
def test_unknown_files_are_kept(history: History, known_from: int) -> None:
    """Of a log that begins late, and whose first checkpoint has forgotten old removals, less
    goes, and never more."""
    facts = facts_of(history)
    versions = [v for v, step in enumerate(history.steps) if step.at_ms >= known_from]
    first = versions[0] if versions else history.latest
    late = CleaningFacts(
        facts.now_ms,
        facts.live,
        [stone for stone in facts.tombstones if stone.version > first],
        facts.operations,
        facts.reads,
        known_from_ms=history.steps[first].at_ms,
        known_from_version=first,
    )
    needed = {path for path in history.written if obviously_needed(history, path)}
    found = gone(decide(found_of(history), late, RULES))
    assert not found & needed


@settings(max_examples=few(19, 150), deadline=None)
@given(histories())
def test_the_next_cleaning_time_is_reported(history: History) -> None:
    """Nothing becomes garbage by its age before `next_ms`."""
    facts = facts_of(history)
    found = found_of(history)
    before = decide(found, facts, RULES)
    limit = before.next_ms if before.next_ms is not None else facts.now_ms + 100
    later = CleaningFacts(limit - 1, facts.live, facts.tombstones, facts.operations, facts.reads)
    if limit - 1 >= facts.now_ms:
        assert gone(decide(found, later, RULES)) == gone(before)


@settings(max_examples=few(13, 100), deadline=None)
@given(histories())
def test_without_a_retention_files_that_a_commit_named_stay(history: History) -> None:
    rules = CleaningRules(None, staging_ms=KEEP, dead_ms=KEEP)
    named = {path for step in history.steps for path in step.adds}
    found = gone(decide(found_of(history), facts_of(history), rules))
    assert not found & named
    assert all(attempt_of(path) for path in found)


# The rest of an operation --------------------------------------------------------------------


def operation_files(at_ms: int) -> list[ListedFile]:
    folder = "_tandem/operations/o"
    return [
        ListedFile(f"{folder}/operation.json", 1, at_ms, FileCategory.RECORD, "o"),
        ListedFile(f"{folder}/result.json", 1, at_ms, FileCategory.RECORD, "o"),
        ListedFile(f"{folder}/ending.json", 1, at_ms, FileCategory.ENDING, "o"),
        ListedFile(f"{folder}/attempts/1/plan.json", 1, at_ms, FileCategory.ATTEMPT, "o", 1),
        ListedFile(
            f"{folder}/attempts/1/rounds/0/result.json", 1, at_ms, FileCategory.ROUND, "o", 1
        ),
        ListedFile("_tandem/rowmaps/o-1.rowmap", 1, at_ms, FileCategory.ROW_MAP, "o", 1),
        ListedFile("_tandem/dv/o-1/x.bin", 1, at_ms, FileCategory.VECTORS, "o", 1),
    ]


@pytest.mark.parametrize(
    ("ended", "age", "names"),
    [
        (OperationEnd(), 1000, set()),
        (OperationEnd(succeeded=1, logged=True), 9, set()),
        (
            OperationEnd(succeeded=1, logged=True),
            10,
            {"ending.json", "plan.json", "result.json", "o-1.rowmap", "x.bin"},
        ),
        (
            OperationEnd(closed=True, recorded=True, abandoned=1),
            9,
            {"result.json", "o-1.rowmap", "x.bin"},
        ),
        (
            OperationEnd(closed=True, recorded=True, abandoned=1),
            1000,
            {"ending.json", "plan.json", "result.json", "o-1.rowmap", "x.bin"},
        ),
        # It may be run again, and then its first attempt says what to read.
        (OperationEnd(abandoned=1), 39, {"result.json", "o-1.rowmap", "x.bin"}),
    ],
)
def test_files_of_an_operation_that_are_removed(
    ended: OperationEnd, age: int, names: set[str]
) -> None:
    facts = CleaningFacts(1000, operations={"o": ended})
    found = decide(operation_files(1000 - age), facts, RULES).garbage
    assert {each.file.path.rsplit("/", 1)[1] for each in found} == names
    records = [each for each in found if each.file.part is FileCategory.RECORD]
    assert records == []


def test_records_of_failures_stay_and_of_successes_are_removed_when_only_the_log_is_read() -> None:
    files = operation_files(0)
    failed = CleaningFacts(
        1000, operations={"o": OperationEnd(closed=True, recorded=True, abandoned=1)}
    )
    assert RemovalReason.RECORD not in {each.why for each in decide(files, failed, RULES).garbage}
    done = CleaningFacts(
        1000, operations={"o": OperationEnd(succeeded=1, logged=True, recorded=True)}
    )
    assert len(decide(files, done, RULES).garbage) == len(files)
    # The log has forgotten: then the record alone keeps it from being done twice.
    forgotten = CleaningFacts(1000, operations={"o": OperationEnd(succeeded=1, recorded=True)})
    assert RemovalReason.RECORD not in {
        each.why for each in decide(files, forgotten, RULES).garbage
    }


def test_a_row_map_stays_for_a_plan_that_began_before_its_compaction() -> None:
    files = [f for f in operation_files(0) if f.part is FileCategory.ROW_MAP]
    ended = {"o": OperationEnd(succeeded=1, logged=True, version=7)}
    for reads, goes in (((), True), ((7,), True), ((8, 6), False)):
        facts = CleaningFacts(1000, operations=ended, reads=reads)
        assert bool(decide(files, facts, RULES).garbage) is goes


def test_vectors_stay_as_long_as_any_version_names_them() -> None:
    file = ListedFile("_tandem/dv/o-1/x.bin", 1, 0, FileCategory.VECTORS, "o", 1)
    ended = {"o": OperationEnd(succeeded=1, logged=True)}
    live = CleaningFacts(100, frozenset({file.path}), operations=ended)
    assert decide([file], live, RULES).garbage == ()
    replaced = [Tombstone("a", file.path, 95, 3)]
    young = decide([file], CleaningFacts(100, tombstones=replaced, operations=ended), RULES)
    assert young.garbage == ()
    assert young.next_ms == 105
    old = decide([file], CleaningFacts(105, tombstones=replaced, operations=ended), RULES)
    assert [each.why for each in old.garbage] == [RemovalReason.REMOVED]


def test_unnamed_files_are_removed_only_if_all_removals_are_known() -> None:
    """A checkpoint has forgotten removals that the retention still counts, or a plan does."""
    file = ListedFile("o-1/x.parquet", 1, 0, FileCategory.DATA, "o", 1)
    ended = {"o": OperationEnd(succeeded=1, logged=True)}
    for from_ms, from_version, reads, goes in (
        (990, 5, (), True),
        (991, 5, (), False),
        (990, 5, (5,), True),
        (990, 5, (4,), False),
    ):
        facts = CleaningFacts(
            1000,
            operations=ended,
            reads=reads,
            known_from_ms=from_ms,
            known_from_version=from_version,
        )
        found = decide([file], facts, RULES).garbage
        assert [each.why for each in found] == ([RemovalReason.UNNAMED] if goes else [])


def test_files_of_an_unknown_operation_are_left_alone() -> None:
    file = ListedFile(
        "0123456789abcdef-1/part.parquet", 1, 0, FileCategory.DATA, "0123456789abcdef", 1
    )
    assert decide([file], CleaningFacts(1000), RULES).garbage == ()


@pytest.mark.parametrize(
    ("path", "goes"),
    [
        ("part.parquet", True),
        ("k=1/part.parquet", True),
        ("_k=1/part.parquet", True),
        ("below/_delta_log/0.json", False),
        (".hidden/part.parquet", False),
        ("_tandem/operations/x", False),
    ],
)
def test_a_log_cannot_have_others_hidden_files_removed(path: str, goes: bool) -> None:
    facts = CleaningFacts(1000, tombstones=[Tombstone(path, "", 0, 1)])
    assert bool(decide([ListedFile(path, 1, 0)], facts, RULES).garbage) is goes


def test_only_all_dead_attempts_up_to_one_are_declared_dead() -> None:
    attempts = [
        UnfinishedAttempt("a", 1, 0),
        UnfinishedAttempt("a", 2, 5),
        UnfinishedAttempt("b", 1, 0),
        UnfinishedAttempt("b", 2, 995),
        UnfinishedAttempt("b", 3, 0),
        UnfinishedAttempt("c", 1, 0, alive=True),
        UnfinishedAttempt("c", 2, 0),
    ]
    assert attempts_to_abandon(attempts, 1000, RULES) == {"a": 2, "b": 1}


# Facts for the index --------------------------------------------------------------------------


def facts_file(at_ms: int, operation_id: str = "o", attempt: int = 1) -> ListedFile:
    path = f"_tandem/index/facts/{operation_id}-{attempt}/x.facts"
    return ListedFile(path, 1, at_ms, FileCategory.FACTS, operation_id, attempt)


@pytest.mark.parametrize("ended", [OperationEnd(succeeded=1, logged=True), OperationEnd()])
def test_facts_stay_as_long_as_a_data_file_of_their_attempt(ended: OperationEnd) -> None:
    data = ListedFile("o-1/x.parquet", 1, 0, FileCategory.DATA, "o", 1)
    live = CleaningFacts(1000, frozenset({data.path}), operations={"o": ended})
    assert decide([data, facts_file(0)], live, RULES).garbage == ()


def test_facts_go_with_the_last_data_file_that_they_describe() -> None:
    ended = {"o": OperationEnd(succeeded=1, logged=True)}
    one = ListedFile("o-1/x.parquet", 1, 0, FileCategory.DATA, "o", 1)
    two = ListedFile("o-1/y.parquet", 1, 0, FileCategory.DATA, "o", 1)
    stones = [Tombstone(one.path, "", 0, 3)]
    kept = CleaningFacts(1000, frozenset({two.path}), stones, operations=ended)
    assert [g.file for g in decide([one, two, facts_file(999)], kept, RULES).garbage] == [one]
    stones.append(Tombstone(two.path, "", 0, 3))
    gone = CleaningFacts(1000, tombstones=stones, operations=ended)
    found = decide([one, two, facts_file(999)], gone, RULES).garbage
    assert [g.file for g in found] == [one, two, facts_file(999)]
    assert found[-1].why is RemovalReason.FACTS


def test_facts_of_a_file_that_is_held_stay() -> None:
    """A version within the retention, or a plan, needs the data file."""
    data = ListedFile("o-1/x.parquet", 1, 0, FileCategory.DATA, "o", 1)
    ended = {"o": OperationEnd(succeeded=1, logged=True)}
    stones = [Tombstone(data.path, "", 1000, 3)]
    young = CleaningFacts(1000, tombstones=stones, operations=ended)
    assert decide([data, facts_file(0)], young, RULES).garbage == ()
    stones = [Tombstone(data.path, "", 0, 3)]
    read = CleaningFacts(1000, tombstones=stones, operations=ended, reads=(2,))
    assert decide([data, facts_file(0)], read, RULES).garbage == ()


@pytest.mark.parametrize(
    ("ended", "age", "goes"),
    [
        (OperationEnd(), RULES.dead_ms - 1, False),  # its data files may come
        (OperationEnd(), RULES.dead_ms, True),
        (OperationEnd(abandoned=1), 0, True),
        (OperationEnd(succeeded=2, logged=True), 0, True),
        (None, RULES.dead_ms - 1, False),  # of another table at this place
        (None, RULES.dead_ms, True),
    ],
)
def test_facts_without_data_files(ended: OperationEnd | None, age: int, goes: bool) -> None:
    known = {} if ended is None else {"o": ended}
    facts = CleaningFacts(RULES.dead_ms + 1000, operations=known)
    listed = [facts_file(facts.now_ms - age)]
    assert bool(decide(listed, facts, RULES).garbage) is goes


def test_facts_of_foreign_files_go_by_age() -> None:
    facts = CleaningFacts(RULES.facts_ms)
    for modified_ms, goes in ((1, False), (0, True)):
        path = "_tandem/index/facts/x.facts"
        listed = [ListedFile(path, 1, modified_ms, FileCategory.FACTS)]
        found = decide(listed, facts, RULES)
        assert bool(found.garbage) is goes
        assert found.next_ms == (None if goes else RULES.facts_ms + 1)
