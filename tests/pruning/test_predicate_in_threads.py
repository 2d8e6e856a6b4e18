"""Conditions that threads decide at the same time: none waits for another one."""

from __future__ import annotations

import threading

import numpy as np

from tandem.distinct import BoolArray
from tandem.pruning.predicate import _Possible

PATIENCE_S = 60.0


def test_masks_that_need_one_another_the_other_way_round_do_not_wait_for_each_other() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)
    yes = np.ones(3, bool)
    inner = _Possible(lambda: yes, lambda: yes, lambda: yes)

    def through(needs_false: bool) -> BoolArray:
        """As NOT has it, once the other thread is at the same place."""
        both.wait()
        return inner.false if needs_false else inner.true

    outer = _Possible(lambda: through(True), lambda: through(False), lambda: yes)
    found: list[BoolArray] = []
    threads = [
        threading.Thread(target=lambda: found.append(outer.true), daemon=True),
        threading.Thread(target=lambda: found.append(outer.false), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [each.tolist() for each in found] == [[True] * 3] * 2
