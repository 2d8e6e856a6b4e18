"""Operations that wait for each other by `dependsOn`, across kinds: each of them says so at once,
in the words of `tandem run`, whichever of them comes last."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog
import yaml

from badinput.bad_input import tandem
from crds.wrong_resources import manifest
from support.cluster.api_server import ApiRefused
from support.cluster.operator_thread import (
    HeldJobs,
    Resources,
    condition,
    operating,
    quick_settings,
)
from support.jobs import quick_lake
from tandem.spec.common import OPERATIONS

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]

CYCLES: dict[str, tuple[str, ...]] = {
    "itself": ("TableUpdate",),
    "two of one kind": ("TableIngest", "TableIngest"),
    "two kinds": ("TableCompaction", "TableUpdate"),
    "three kinds": ("TableUpdate", "SegmentRewrite", "TableReplace"),
    "all kinds": tuple(OPERATIONS),
}


@dataclass
class Stage:
    space: Resources
    folder: Path

    def create(self, document: Json) -> None:
        self.space.create(*key_of(document), document["spec"])

    def await_words(self, document: Json, reason: str, words: str) -> str:
        """The message of its condition, once it has these words."""

        def says(status: Json) -> bool:
            found = condition(status)
            return found.get("reason") == reason and words in found["message"]

        status = self.space.await_status(*key_of(document), says)
        assert status["phase"] == "Pending"
        message: str = condition(status)["message"]
        return message

    def assert_says_what_run_says(self, *documents: Json) -> None:
        """Each operation says what `tandem run` says of the files that begin with it."""
        for number, document in enumerate(documents):
            said = words_of_run(self.folder, *documents[number:], *documents[:number])
            assert self.await_words(document, "InvalidSpec", "cycle") == said


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    space, folder = Resources(cluster, cluster.namespace("cycles")), tmp_path_factory.mktemp("c")
    before = structlog.get_config()
    with (folder / "operator.log").open("w") as log:
        # It runs in this process, and must not talk into what `tandem run` prints.
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(log))
        try:
            with operating(quick_settings(cluster, space.namespace), HeldJobs()):
                yield Stage(space, folder)
        finally:
            structlog.configure(**before)


def key_of(document: Json) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def named(document: Json) -> Json:
    """How others depend on it."""
    return {"kind": document["kind"], "name": document["metadata"]["name"]}


def waits(kind: str, name: str, *others: Json, **spec: Any) -> Json:
    return manifest(kind, {"dependsOn": [dict(other) for other in others], **spec}, name)


def cycle(prefix: str, kinds: tuple[str, ...]) -> list[Json]:
    """One operation of each kind, each of which waits for the next, and the last one for the
    first."""
    names = [{"kind": kind, "name": f"{prefix}-{number}"} for number, kind in enumerate(kinds)]
    after = [*names[1:], names[0]]
    return [waits(n["kind"], n["name"], other) for n, other in zip(names, after, strict=True)]


def words_of_run(folder: Path, *documents: Json) -> str:
    """What `tandem run` refuses these operations with, in one line as in a condition."""
    file = folder / "resources.yaml"
    file.write_text(yaml.safe_dump_all([manifest("LakeTable", {}, "flights"), *documents]))
    ended = tandem("run", "-f", file)
    assert (ended.code, ended.documents) == (2, [])
    # The operator of this process may warn of something in between.
    [message] = re.findall(r"^Error \(InvalidSpec\): (.*)$", ended.stderr, re.MULTILINE)
    said = dict(re.findall(r"^ {4}(\w+): +(.*)$", ended.stderr, re.MULTILINE))
    return f"{message} (found: {said['found']}; expected: {said['expected']}). {said['remedy']}"


@pytest.mark.parametrize("which", CYCLES)
def test_a_cycle_across_kinds_is_reported_by_each_of_them_in_the_words_of_run(
    stage: Stage, which: str
) -> None:
    documents = cycle(which.replace(" ", "-"), CYCLES[which])
    *before, last = documents
    for document in before:
        stage.create(document)
    for document in before:
        # Nothing is wrong with it until the last one is there.
        stage.await_words(document, "WaitingForDependency", "waits for")
    stage.create(last)
    stage.assert_says_what_run_says(*documents)


def test_a_cycle_is_open_once_one_of_them_is_gone_and_closed_when_it_comes_back(
    stage: Stage,
) -> None:
    """Deleting is the only way to change it: the API server takes no other `dependsOn`."""
    documents = first, second, third = cycle("again", CYCLES["three kinds"])
    for document in documents:
        stage.create(document)
    stage.assert_says_what_run_says(*documents)
    for change in ([], [{"kind": "TableIngest", "name": "another"}]):
        with pytest.raises(ApiRefused, match="cannot be changed: create a new SegmentRewrite"):
            stage.space.patch(*key_of(second), {"spec": {"dependsOn": change}})
    stage.space.delete(*key_of(second))
    stage.await_words(first, "WaitingForDependency", "which does not exist")
    stage.await_words(third, "WaitingForDependency", "which is Pending")
    stage.create(second)
    stage.assert_says_what_run_says(*documents)


def test_an_edit_that_would_close_a_cycle_is_refused(stage: Stage) -> None:
    free = manifest("TableUpdate", {}, "free")
    behind = waits("TableCompaction", "behind-free", named(free))
    for document in (free, behind):
        stage.create(document)
    with pytest.raises(ApiRefused, match="cannot be changed: create a new TableUpdate"):
        stage.space.patch(*key_of(free), {"spec": {"dependsOn": [named(behind)]}})
    stage.await_words(free, "WaitingForDependency", "waits for LakeTable/flights")


def test_a_cycle_is_closed_by_one_that_had_succeeded_and_is_created_again(stage: Stage) -> None:
    lake = quick_lake.make(stage.folder)
    stage.space.table("lake", lake.location)
    table = {"tableRef": {"name": "lake"}}
    done = manifest("TableUpdate", {**table, "delete": {"where": "id = 1"}}, "done")
    missing = {"kind": "TableIngest", "name": "missing"}
    behind = waits("TableCompaction", "behind-done", named(done), missing, **table)
    for document in (done, behind):
        stage.create(document)
    assert stage.space.await_end(*key_of(done))["phase"] == "Succeeded"
    stage.await_words(behind, "WaitingForDependency", "waits for TableIngest/missing")
    stage.space.delete(*key_of(done))
    stage.space.await_gone(*key_of(done))
    stage.create(waits("TableUpdate", "done", named(behind), **table, delete={"where": "id = 2"}))
    said = "TableCompaction/behind-done → TableUpdate/done → TableCompaction/behind-done"
    assert f"found: {said};" in stage.await_words(behind, "InvalidSpec", "cycle")
    back = "TableUpdate/done → TableCompaction/behind-done → TableUpdate/done"
    again = stage.space.get(*key_of(done))
    assert again is not None
    assert f"found: {back};" in stage.await_words(again, "InvalidSpec", "cycle")
    # Nothing has begun, and it can be mended.
    stage.space.delete(*key_of(done))
    stage.await_words(behind, "WaitingForDependency", "TableUpdate/done, which does not exist")
    lake.assert_clean()
