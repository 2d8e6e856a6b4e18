"""Turns of namespaces, stores and tables, against a model that sorts."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tandem.kube.runtime.slots import FairQueue, Lane

LANES = st.builds(Lane, st.sampled_from("ABC"), st.sampled_from("xyz"), st.sampled_from("12"))
PLACES = st.tuples(st.sampled_from("ABC"), st.sampled_from("12"))


def _whose(lane: Lane) -> tuple[object, ...]:
    return lane.namespace, lane.place, lane


@dataclass
class Model:
    """All items in one list; who joined or was served last has the highest stamp."""

    items: list[tuple[Lane, int]] = field(default_factory=list)
    stamps: dict[object, int] = field(default_factory=dict)
    clock: int = 0

    def _stamp(self, who: object) -> None:
        self.clock += 1
        self.stamps[who] = self.clock

    def push(self, lane: Lane, item: int) -> None:
        if all(other.namespace != lane.namespace for other, _ in self.items):
            self._stamp(lane.namespace)
        if all(other.place != lane.place for other, _ in self.items):
            self._stamp(lane.place)
        if all(other != lane for other, _ in self.items):
            self._stamp(lane)
        self.items.append((lane, item))

    def pop(
        self,
        namespaces: AbstractSet[str],
        places: AbstractSet[tuple[str, str]],
        lanes: AbstractSet[Lane],
    ) -> int | None:
        eligible = [
            ([self.stamps[who] for who in _whose(lane)], item, lane)
            for lane, item in self.items
            if lane.namespace in namespaces and lane.place in places and lane in lanes
        ]
        if not eligible:
            return None
        _, item, lane = min(eligible)
        self.items.remove((lane, item))
        for who in _whose(lane):
            self._stamp(who)
        return item

    def remove(self, lane: Lane, item: int) -> bool:
        there = (lane, item) in self.items
        if there:
            self.items.remove((lane, item))
        return there


@given(st.data())
def test_turns_are_those_of_a_sort(data: st.DataObject) -> None:
    queue, model, pushed = FairQueue[int](), Model(), list[tuple[Lane, int]]()
    for item in range(data.draw(st.integers(0, 40))):
        what = data.draw(st.sampled_from(("push", "push", "pop", "remove", "take")))
        if what == "push":
            lane = data.draw(LANES)
            queue.push(lane, item)
            model.push(lane, item)
            pushed.append((lane, item))
        elif what == "pop":
            namespaces = data.draw(st.frozensets(st.sampled_from("ABC"), min_size=1))
            places = data.draw(st.frozensets(PLACES, min_size=3))
            lanes = data.draw(st.frozensets(LANES, min_size=9))
            found = queue.pop(
                namespaces.__contains__,
                lanes.__contains__,
                lambda *place, among=places: place in among,
            )
            assert found == model.pop(namespaces, places, lanes)
        elif what == "remove" and pushed:
            lane, old = data.draw(st.sampled_from(pushed))
            assert queue.remove(lane, old) == model.remove(lane, old)
        elif what == "take":
            lane = data.draw(LANES)
            mine = [i for other, i in model.items if other == lane]
            assert queue.take(lane) == mine
            assert all(model.remove(lane, i) for i in mine)
        assert sorted(queue) == sorted(model.items)
        assert len(queue) == len(model.items)


@given(st.integers(0, 60), st.integers(1, 5))
def test_a_namespace_with_one_item_waits_for_one_item_of_each_other_namespace(
    many: int, others: int
) -> None:
    queue = FairQueue[str]()
    for number in range(many):
        for other in range(others):
            queue.push(Lane(f"other-{other}", f"t{number}"), "theirs")
    queue.push(Lane("late", "t"), "ours")
    served = [queue.pop() for _ in range(len(queue))]
    assert served.index("ours") == (others if many else 0)


@given(st.integers(1, 60), st.integers(1, 5))
def test_a_store_with_one_item_waits_for_one_item_of_each_other_store_of_its_namespace(
    many: int, others: int
) -> None:
    queue = FairQueue[str]()
    for number in range(many):
        for other in range(others):
            queue.push(Lane("n", f"t{number}", f"other-{other}"), "theirs")
    queue.push(Lane("n", "late", "mine"), "ours")
    served = [queue.pop() for _ in range(len(queue))]
    assert served.index("ours") == others
