"""Callers that ask for as long as something happens to those who answer: every call has the right
answer, within the deadline of its connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from index.spread_index import until
from tandem.index import Query
from tandem.index.library import IndexReader


class Asker(threading.Thread):
    """Asks until it is to stop. A call that fails, or ends late, ends it."""

    def __init__(
        self, index: IndexReader, expected: Mapping[str, int], stop: threading.Event
    ) -> None:
        super().__init__()
        self._index, self._expected, self._over = index, expected, stop
        self.answers = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        while not self._over.is_set():
            for where, expected in self._expected.items():
                try:
                    found = self._index.count(Query(where))
                except Exception as error:  # noqa: BLE001 - of a thread; the test shows it
                    self.wrong.append(repr(error)[:500])
                    return
                if found != expected:
                    self.wrong.append(f"{where}: {found}, expected {expected}")
                self.answers += 1
                self._over.wait(0.02)  # leaves some of the machine to the others


@contextmanager
def asked_by(indexes: Sequence[IndexReader], expected: Mapping[str, int]) -> Iterator[list[Asker]]:
    """An asker for each index: answered before the block, and once more after it.

    Args:
        expected: conditions and their rows.
    """
    stop = threading.Event()
    found = [Asker(index, expected, stop) for index in indexes]
    for asker in found:
        asker.start()
    try:
        until(lambda: all(each.answers or each.wrong for each in found), "no one is answered")
        yield found
        before = [each.answers for each in found]
        until(
            lambda: all(
                each.answers > number or each.wrong
                for each, number in zip(found, before, strict=True)
            ),
            "no one is answered any more",
        )
    finally:
        stop.set()
        for asker in found:
            asker.join()
    assert [each.wrong for each in found] == [[] for _ in found]
