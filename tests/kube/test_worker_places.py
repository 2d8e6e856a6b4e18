"""Which calls run: no namespace holds all places, whatever its stores do, and no store all of its
namespace's."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tandem.kube.runtime.slots import Lane
from tandem.kube.runtime.workers import LONG_FACTOR, PATIENCE_S, Room, WorkerCall, WorkerPlaces

TICK_S = PATIENCE_S / 4
NAMESPACES = "ABC"


def begin_all(places: WorkerPlaces, now_s: float) -> list[WorkerCall]:
    begun = []
    while (call := places.begin(now_s)) is not None:
        begun.append(call)
    return begun


@given(st.integers(1, 4), st.data())
def test_places_are_never_given_twice_and_those_of_ended_calls_are_free(
    limit: int, data: st.DataObject
) -> None:
    places, now_s = WorkerPlaces(limit), 0.0
    running, waiting = list[WorkerCall](), list[WorkerCall]()
    for _ in range(data.draw(st.integers(0, 60))):
        what = data.draw(
            st.sampled_from(("add", "add", "end", "abandon", "forget", "move", "tick"))
        )
        if what == "add":
            lane = Lane(data.draw(st.sampled_from(NAMESPACES)), data.draw(st.sampled_from("xy")))
            call = WorkerCall(lane, look=data.draw(st.booleans()), submitted_s=now_s)
            places.add(call)
            waiting.append(call)
        elif what == "end" and running:
            call = running.pop(data.draw(st.integers(0, len(running) - 1)))
            places.end(call, now_s)
        elif what == "abandon" and (running or waiting):
            call = data.draw(st.sampled_from(running + waiting))
            places.abandon(call)
            if call in waiting:
                waiting.remove(call)
        elif what == "forget":
            places.forget(Lane(data.draw(st.sampled_from(NAMESPACES)), "x"))
        elif what == "move":
            lane = Lane(data.draw(st.sampled_from(NAMESPACES)), data.draw(st.sampled_from("xy")))
            places.lies_in(lane, data.draw(st.sampled_from("12")))
        elif what == "tick":
            now_s += TICK_S
            places.move_overdue(now_s)
        for call in begin_all(places, now_s):
            waiting.remove(call)
            running.append(call)
        rooms = Counter(call.room for call in running)
        assert None not in rooms
        assert {room: rooms[room] for room in Room} == {r: places.running(r) for r in Room}
        assert rooms[Room.QUICK] <= limit
        assert sum(rooms.values()) <= places.most
        assert places.waiting == len(waiting)
        assert places.abandoned == sum(call.abandoned for call in running)
    for call in running:
        places.end(call, now_s)
    places.drop_waiting()
    assert (places.running(), places.waiting, places.abandoned) == (0, 0, 0)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.data())
def test_a_call_that_ends_runs_soon_beside_namespaces_whose_calls_never_end(
    limit: int, others: int, stores: int, data: st.DataObject
) -> None:
    """Adversaries add calls without end, of new tables and of known ones, and delete their tables.
    A namespace whose calls end at once begins after so many patient pauses as there are others."""
    places, now_s = WorkerPlaces(limit), 0.0
    ours: WorkerCall | None = None
    hanging = list[WorkerCall]()
    begun_after_s = list[float]()
    for step in range(data.draw(st.integers(20, 60))):
        for _ in range(data.draw(st.integers(0, 3 * limit))):
            lane = Lane(f"other-{step % others}", f"t{data.draw(st.integers(0, 40))}")
            places.lies_in(lane, f"store-{int(lane.table[1:]) % stores}")
            places.add(WorkerCall(lane, look=data.draw(st.booleans()), submitted_s=now_s))
        if len(hanging) > 0 and data.draw(st.booleans()):
            places.abandon(hanging.pop(data.draw(st.integers(0, len(hanging) - 1))))
        if ours is None and data.draw(st.booleans()):
            ours = WorkerCall(Lane("ours", "t"), look=True, submitted_s=now_s)
            places.add(ours)
        for call in begin_all(places, now_s):
            if call is ours:
                begun_after_s.append(now_s - ours.submitted_s)
                places.end(ours, now_s)
                ours = None
            else:
                hanging.append(call)
        if ours is not None:
            assert now_s - ours.submitted_s <= (others + 1) * (PATIENCE_S + TICK_S)
        now_s += TICK_S
        places.move_overdue(now_s)
        assert not places.starved(now_s, 3600.0)


@given(st.integers(1, 16), st.integers(1, 3), st.data())
def test_a_call_that_ends_runs_soon_beside_stores_of_its_namespace_whose_calls_never_end(
    limit: int, others: int, data: st.DataObject
) -> None:
    """As above, within one namespace: whatever other stores of it do."""
    places, now_s = WorkerPlaces(limit), 0.0
    places.lies_in(Lane("n", "ours"), "answers")
    ours: WorkerCall | None = None
    for _ in range(data.draw(st.integers(20, 40))):
        for number in data.draw(st.lists(st.integers(0, 60), max_size=2 * limit)):
            lane = Lane("n", f"t{number}")
            places.lies_in(lane, f"hangs-{number % others}")
            places.add(WorkerCall(lane, look=bool(number % 5), submitted_s=now_s))
        if ours is None and data.draw(st.booleans()):
            ours = WorkerCall(Lane("n", "ours"), look=data.draw(st.booleans()), submitted_s=now_s)
            places.add(ours)
        if ours in begin_all(places, now_s):
            assert ours is not None
            places.end(ours, now_s)
            ours = None
        if ours is not None:
            assert now_s - ours.submitted_s <= (others + 1) * (PATIENCE_S + TICK_S)
        now_s += TICK_S
        places.move_overdue(now_s)


def hang(places: WorkerPlaces, tables: int, namespace: str = "hangs") -> list[WorkerCall]:
    """Looks without end on so many tables, until no more of them begins."""
    for number in range(tables):
        places.add(WorkerCall(Lane(namespace, f"t{number}"), look=True))
    now_s, found = 0.0, list[WorkerCall]()
    while begun := begin_all(places, now_s):
        found += begun
        now_s += PATIENCE_S
        places.move_overdue(now_s)
    return found


def test_two_hundred_tables_that_hang_leave_half_of_the_places_to_others() -> None:
    places = WorkerPlaces(16)
    found = hang(places, 200)
    assert places.running(Room.LONG) <= LONG_FACTOR * 16 / 2
    assert places.running(Room.QUICK) <= 8
    assert len(found) + places.waiting == 200
    places.add(WorkerCall(Lane("other", "t")))
    begun = places.begin(0.0)
    assert begun is not None
    assert begun.lane.namespace == "other"


def test_two_hundred_tables_that_hang_leave_places_to_another_store_of_their_namespace() -> None:
    places = WorkerPlaces(16)
    for number in range(200):
        places.lies_in(Lane("n", f"t{number}"), "hangs")
    assert len(hang(places, 200, "n")) + places.waiting == 200
    for number in range(3):
        lane = Lane("n", f"healthy-{number}")
        places.lies_in(lane, "answers")
        places.add(call := WorkerCall(lane, look=True))
        assert begin_all(places, 0.0) == [call]
        assert call.room is Room.QUICK
        places.end(call, 0.0)


def test_a_store_of_which_nothing_is_known_leaves_places_at_once() -> None:
    """Before the first of its calls has taken long."""
    places = WorkerPlaces(16)
    for number in range(200):
        places.lies_in(Lane("n", f"t{number}"), "new")
        places.add(WorkerCall(Lane("n", f"t{number}"), look=True))
    assert len(begin_all(places, 0.0)) == 9
    places.lies_in(Lane("n", "other"), "answers")
    places.add(other := WorkerCall(Lane("n", "other"), look=True))
    assert begin_all(places, 0.0) == [other]


def test_a_store_that_answers_has_the_whole_share_of_its_namespace_until_a_look_takes_long() -> (
    None
):
    places = WorkerPlaces(16)
    for name in ("looks", *(f"t{number}" for number in range(20))):
        places.lies_in(Lane("n", name), "store")
    for most, look_s in ((12, 0.0), (9, PATIENCE_S), (12, 0.0)):
        places.add(look := WorkerCall(Lane("n", "looks"), look=True))
        assert places.begin(0.0) is look
        places.end(look, look_s)
        calls = [WorkerCall(Lane("n", f"t{number}")) for number in range(20)]
        for call in calls:
            places.add(call)
        begun = begin_all(places, 0.0)
        assert len(begun) == most
        for call in calls:
            places.abandon(call)
        for call in begun:
            places.end(call, 0.0)


def test_a_namespace_alone_has_three_quarters_of_the_quick_places() -> None:
    places = WorkerPlaces(16)
    for number in range(20):
        lane = Lane("only", f"t{number}")
        places.lies_in(lane, f"store-{number}")
        places.add(WorkerCall(lane))
    assert len(begin_all(places, 0.0)) == 12


def test_a_table_whose_look_took_long_takes_no_quick_place_until_one_is_quick_again() -> None:
    places, lane = WorkerPlaces(4), Lane("n", "t")
    for seconds, next_room in ((PATIENCE_S, Room.LONG), (0.1, Room.QUICK), (0.1, Room.QUICK)):
        look = WorkerCall(lane, look=True)
        places.add(look)
        assert places.begin(0.0) is look
        places.end(look, seconds)
        for kind in (True, False):
            after = WorkerCall(lane, look=kind)
            places.add(after)
            assert places.begin(0.0) is after
            assert after.room is next_room
            places.abandon(after)
            places.end(after, 0.0)


def test_what_waits_follows_when_its_table_becomes_known_to_take_long() -> None:
    places, lane = WorkerPlaces(1), Lane("n", "t")
    look, waits = WorkerCall(lane, look=True), WorkerCall(lane)
    places.add(look)
    places.add(waits)
    assert begin_all(places, 0.0) == [look]
    places.move_overdue(PATIENCE_S)
    assert look.room is Room.LONG
    assert places.begin(PATIENCE_S) is waits
    assert waits.room is Room.LONG
    assert places.oldest_wait_s(100.0) == 0.0


def test_an_abandoned_call_leaves_its_place_while_there_are_others_for_it() -> None:
    places = WorkerPlaces(1)
    rooms = []
    for number in range(4):
        call = WorkerCall(Lane("n", f"t{number}"))
        places.add(call)
        begun = places.begin(0.0)
        if begun is not None:
            places.abandon(begun)
            rooms.append(begun.room)
    assert rooms == [Room.ABANDONED, Room.ABANDONED, Room.QUICK]
    assert places.abandoned == 3


def test_load_is_no_starvation_and_no_begin_for_long_is() -> None:
    places = WorkerPlaces(1)
    held = WorkerCall(Lane("a", "t"))
    places.add(held)
    assert places.begin(0.0) is held
    places.add(WorkerCall(Lane("a", "u")))
    assert not places.starved(100.0, 60.0)  # its own calls run
    places.add(WorkerCall(Lane("b", "t"), submitted_s=10.0))
    assert not places.starved(69.0, 60.0)
    assert places.starved(70.0, 60.0)
    assert places.oldest_wait_s(70.0) == 70.0
    places.end(held, 70.0)
    assert len(begin_all(places, 70.0)) == 1
    assert not places.starved(100.0, 60.0)


def test_a_namespace_of_which_nothing_runs_takes_the_last_place_even_of_a_full_operator() -> None:
    places = WorkerPlaces(1)
    for number in range(LONG_FACTOR - 1):
        hang(places, 1, f"hangs-{number}")
    assert places.running(Room.LONG) == LONG_FACTOR - 1
    hang(places, 1, "hangs-0")
    places.add(WorkerCall(Lane("new", "t")))
    begun = places.begin(0.0)
    assert begun is not None
    assert begun.lane.namespace == "new"
