"""On which tables a child works, as the operator sees it, also when it has ended."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from multiprocessing import get_context

from kube.child_links import works
from tandem.kube.runtime.threads import AtWork


def test_what_a_process_worked_on_is_known_when_it_was_killed() -> None:
    ours, theirs = socket.socketpair()
    # Not of a fork server: it would be that of later tests, too, whose children need the template.
    process = get_context("spawn").Process(target=works, args=(theirs,))
    process.start()
    theirs.close()
    at_work = AtWork.shared(ours)
    with ours:
        assert ours.recv(1) == b"!"
    assert at_work.tables() == {"one", "two"}
    process.kill()
    process.join()
    assert at_work.tables() == {"one", "two"}
    at_work.close()


def test_places_are_given_back() -> None:
    """With more threads than places, some work unseen."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        at_work = AtWork.shared(ours)
        seen = AtWork.received(theirs)
    for _ in range(3):
        with ExitStack() as stack:
            for number in range(70):
                stack.enter_context(at_work.on(f"{number:036}"))
            assert len(seen.tables()) == 64
        assert seen.tables() == set()
    with at_work.on("x" * 100):
        assert seen.tables() == {"x" * 64}
    at_work.close()
    seen.close()
