"""What operations say of what they met, on real tables with real foreign writers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch, message, reason, reconciled, result
from tandem.cli.app import app
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.status import OperationStatus, Phase

MS = re.compile(r"(less than 1|\d+) ms")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> QuickLake:
    lake = quick_lake.make(tmp_path_factory.mktemp("four"), 0)
    lake.load(*(batch(number) for number in range(4)))
    return lake


@pytest.fixture
def lake(four: QuickLake, tmp_path: Path) -> QuickLake:
    return quick_lake.copy(four, tmp_path)


def explanation(status: OperationStatus) -> list[str]:
    """Its sentences, without what differs from run to run."""
    return [MS.sub("N ms", text) for text in result(status).summary or ()]


def timeless(status: OperationStatus) -> str:
    """Its message without times."""
    found = message(status)
    return MS.sub("N ms", re.sub(r"\d{4}-\d\d-\d\dT[\d:]+Z", "TIME", found))


def test_a_compaction_without_concurrent_commits(lake: QuickLake) -> None:
    done = lake.do(lake.compaction())
    assert explanation(done) == ["no other commit since version 4"]
    assert timeless(done) == "committed as version 5"


def test_a_compaction_names_the_deletes_that_it_replayed(lake: QuickLake) -> None:
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.do(lake.delete("k = 2"))
    lake.append(batch(9))
    done = compaction.finish()
    assert explanation(done) == [
        "2 commits since version 4, met in 2 rounds",
        "8 deletes replayed onto 0.1 (1 file, N ms)",
    ]
    assert timeless(done) == "committed as version 7: " + "; ".join(explanation(done))
    assert reconciled(done).by_segment == {"0.1": 8}


def test_a_compaction_names_the_commit_that_removed_its_inputs(lake: QuickLake) -> None:
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    lake.foreign().delete("id >= 10 AND id < 20")
    engine = lake.commit().info
    assert engine is not None
    done = compaction.finish()
    assert explanation(done) == [
        "1 commit since version 4, met in 2 rounds",
        f"1 input gone to version 5 by `{engine.engine}` (DELETE) → 10 rows masked",
    ]
    [met] = reconciled(done).met or ()
    assert (met.version, met.operation, met.inputs_gone, met.rows_masked) == (5, "DELETE", 1, 10)


def test_a_superseded_compaction_names_the_commit_that_superseded_it(lake: QuickLake) -> None:
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    other = lake.delete("true")
    lake.do(other)
    done = compaction.finish()
    assert done.phase is Phase.SUPERSEDED
    assert timeless(done) == (
        f"other commits have replaced all of its inputs: 4 inputs gone to version 5 by {other.id}"
    )


def test_an_update_says_where_it_followed_its_rows(lake: QuickLake) -> None:
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.RECONCILE)
    lake.do(lake.compaction())
    assert explanation(update.finish()) == [
        "1 commit since version 4, met in 2 rounds",
        "8 rows followed into 0.1 (1 file, N ms)",
    ]


def test_an_update_says_what_it_evaluated_and_what_it_lost(lake: QuickLake) -> None:
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.RECONCILE)
    lake.foreign().update({"k": "1"}, predicate="id = 10")
    lake.foreign().delete("id = 1")
    done = update.finish()
    first, second, third = explanation(done)
    assert first == "2 commits since version 4, met in 2 rounds"
    assert re.fullmatch(r"\d+ rows evaluated as of version 6 by `delta-rs:.*` \(DELETE\)", second)
    assert re.fullmatch(r"\d matched rows deleted or rewritten first, as of version 6 .*", third)
    assert reconciled(done).rows_lost


def test_a_conflict_names_the_commit_and_the_files(lake: QuickLake) -> None:
    body = {"update": {"where": "k = 1", "set": {"v": "v + 15"}}, "conflict": {"maxAttempts": 2}}
    lake.small = False

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        """A foreign writer rewrites the same four files before every read of the table."""
        if effect.point is Point.READ_TABLE and effect.attempt:
            lake.foreign().update({"v": "v + 1"}, predicate="k = 3")
        return call()

    done = lake.run(lake.resource("TableUpdate", body), interceptor=interceptor)
    assert (done.phase, reason(done)) == (Phase.FAILED, "Conflict")
    assert re.search(
        r"2 rounds made no progress; the last was lost to UPDATE by delta-rs:\S+ "
        r"\(version \d+, TIME\): files? part-\S+(, \S+)*( and \d+ more)?$",
        timeless(done),
    ), timeless(done)


def test_a_change_of_the_table_is_named_too(lake: QuickLake) -> None:
    lake.vectors = "Only"
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.RECONCILE)
    lake.foreign().alter.set_table_properties({"delta.enableDeletionVectors": "false"})
    done = update.finish()
    assert done.phase is Phase.FAILED
    assert re.search(r"switched off, by SET TBLPROPERTIES by delta-rs:\S+ \(version 5, TIME\)",
                     timeless(done)), timeless(done)  # fmt: skip


def test_the_history_shows_the_same(lake: QuickLake) -> None:
    compaction = lake.hold(lake.compaction(), Point.RECONCILE)
    update = lake.hold(lake.update("k = 1", v="v + 15"), Point.RECONCILE)
    lake.foreign().delete("id >= 10 AND id < 20")
    lake.do(lake.delete("k = 2 AND id < 10"))
    first = compaction.finish()
    second = update.finish()
    shown = CliRunner().invoke(app, ["history", str(lake.path), "-o", "json"])
    rows = {row["version"]: row for row in json.loads(shown.stdout)}
    assert rows[7]["summary"] == list(result(first).summary or ())
    assert rows[8]["summary"] == list(result(second).summary or ())
    met = [(m["version"], m["effect"], m["rows"]) for m in rows[7]["met"]]
    assert met == [(5, "masked", 10), (6, "replayed", 2)]
    assert (7, "followed", 6) in [(m["version"], m["effect"], m["rows"]) for m in rows[8]["met"]]
