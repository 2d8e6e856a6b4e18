"""An operator looks for garbage less often while it runs, and leaves the process as it was."""

from __future__ import annotations

import gc

from tandem.kube.runtime.garbage import seldom_collections


def test_collections_are_seldom_in_the_block_alone() -> None:
    before = gc.get_threshold()
    with seldom_collections():
        now = gc.get_threshold()
        assert now[0] > before[0]
        assert now[1] < before[1], "few objects at a time"
        assert now[0] * now[1] * now[2] > before[0] * before[1] * before[2]
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
