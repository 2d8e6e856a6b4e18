"""How a change set is carried out: by deletion vectors, or by edits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from pyroaring import BitMap64

from tandem.delta.actions import AddFile
from tandem.errors import CountMismatch
from tandem.operations.model import CommitContent, OutputFileChange, Work
from tandem.operations.rounds.edits import Edits
from tandem.operations.session import carry_out
from tandem.reconcile.model import FileState
from tandem.reconcile.published import CommittedRewrite
from tandem.reconcile.rewrite import Heir, HeirRows, RewriteInput, rewrite
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMapBuilder, RowMapIdentity
from tandem.spark.jobs.edits import EditMaker

IDENTITY = RowMapIdentity("t", "0123456789abcdef", 1, 3)
JOBS_MAP = b"what the job wrote"


class View:
    """Of input `a` only its heir `e` is live: without row 0, and with another value in row 2."""

    def get(self, path: str) -> FileState | None:
        rows = {"e": 2, "b": 1}.get(path)
        return None if rows is None else FileState(path, rows, BitMap64())


def work() -> Work:
    plan = SimpleNamespace(
        table_id="t", operation_id=IDENTITY.operation_id, attempt=1, read_version=3
    )
    edits = Edits(cast(EditMaker, None))
    return cast(Work, SimpleNamespace(frozen=(plan, None), edits=edits))


def change_of(*, vectors: bool) -> CommitContent:
    builder = RowMapBuilder(IDENTITY)
    for path, rows in (("a", 3), ("b", 1)):
        builder.add_input(path, rows)
        builder.add_run(path, 0, rows, "o")
    row_map = builder.build()
    inputs = [RewriteInput("a", BitMap64(), 3), RewriteInput("b", BitMap64(), 1)]
    part = HeirRows("a", np.array([0, 1]), np.array([1, 2]))
    heir = Heir("e", (part,), BitMap64([1]))
    decision = rewrite(inputs, View(), row_map, deletion_vectors=vectors, heirs=[heir])
    output = OutputFileChange(AddFile("o", {}, 4, 0, False), 4, decision.masks["o"])
    return CommitContent(
        "OPTIMIZE",
        {},
        (output,),
        row_map=JOBS_MAP,
        rewrite=CommittedRewrite(row_map, decision, View()),
    )


def test_R5_with_vectors_too_the_map_leads_to_the_heir_that_the_commit_removes() -> None:
    """The job's map leads to the input, which is gone: others would not know what became of the
    heir's rows, and take the commit for a change."""
    found = carry_out.by_vectors(work(), change_of(vectors=True))
    row_map = binary_format.from_bytes(found.row_map, expected=IDENTITY)
    assert row_map.backward("o", BitMap64([1, 3])) == {"e": BitMap64([0]), "b": BitMap64([0])}
    # The changed row stays in the heir, and the deleted one is nowhere: both are hidden.
    assert found.outputs[0].dead == BitMap64([0, 2])
    assert row_map.input("e").dead == BitMap64([1])


def test_without_an_heir_the_map_is_what_the_job_wrote() -> None:
    change = CommitContent("OPTIMIZE", {}, row_map=JOBS_MAP)
    assert carry_out.by_vectors(work(), change) is change


def test_R4_an_edit_that_was_not_made_is_not_published() -> None:
    with pytest.raises(CountMismatch, match="asks for an edit that was not made"):
        carry_out.by_edits(work(), change_of(vectors=False))
