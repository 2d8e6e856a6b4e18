"""Segments that go away between two attempts of a segment rewrite."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.jobs.quick_lake import QuickLake, just_before, make
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.lake.lake import loads
from support.lake.rows import k_is, without
from tandem.errors import Reason
from tandem.operations.machine.events import Point
from tandem.operations.ports import LocalClaims
from tandem.spec.resources import Operation
from tandem.spec.status import Phase


def _made(folder: Path) -> QuickLake:
    lake = make(folder, 3)
    lake.foreign().delete("k = 1")
    lake.backoff_limit = 1
    return lake


def _purge(lake: QuickLake, *names: str) -> Operation:
    return lake.resource(
        "SegmentRewrite", {"segments": list(names), "rewrite": {"recompress": {"codec": "zstd"}}}
    )


def _rewritten_by_others(lake: QuickLake) -> None:
    """And the previous files are gone, so that an operation that reads them must start again."""
    lake.foreign().update(updates={"v": "v"})
    lake.foreign().vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_a_rewrite_of_segments_rewritten_meanwhile_is_superseded(tmp_path: Path) -> None:
    lake = _made(tmp_path)
    rewrite = _purge(lake, *lake.names)
    status = lake.run(
        rewrite, interceptor=just_before(Point.START_JOB, lambda: _rewritten_by_others(lake))
    )
    assert status.phase is Phase.SUPERSEDED, status
    assert "other operations rewrote" in status.conditions[0].message
    lake.assert_rows(without(loads(range(3)), k_is(1)))
    assert lake.run(rewrite).phase is Phase.SUPERSEDED


def test_a_later_process_knows_of_the_rewrite_too(tmp_path: Path) -> None:
    lake = _made(tmp_path)
    rewrite = _purge(lake, *lake.names)
    with pytest.raises(ProcessDied):
        lake.run(
            rewrite,
            interceptor=StrikeOnce(Point.START_JOB, Fault.DIE_BEFORE),
            ports=lake.ports(local_claims=LocalClaims()),
        )
    _rewritten_by_others(lake)
    assert lake.run(rewrite).phase is Phase.SUPERSEDED


def test_a_segment_that_was_never_there_is_an_error_still(tmp_path: Path) -> None:
    lake = _made(tmp_path)
    status = lake.run(_purge(lake, lake.names[0], "77"))
    assert status.conditions[0].reason == Reason.UNKNOWN_SEGMENT
