"""Readers hold versions: cleaning leaves their files until the end of the hold."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.test_clean import RULES, rewritten, shown, swept, whys
from simulator.single import Single
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import ObjectNotFound, VersionNotFound
from tandem.index.window import Head, Holds
from tandem.planning.cleaning import DAY_MS, CleaningRules, RemovalReason
from tandem.timeline.names import LONGEST_S, Hold, hold_at, path_of

NEVER_KEPT = CleaningRules(0)


def holds(single: Single, kept_ms: int | None = None) -> Holds:
    return Holds(single.world.log, kept_ms=kept_ms, now_ms=single.world.clock.now_ms)


def head(single: Single, version: int | None = None) -> Head:
    return Head.of(DeltaLog(single.world.store, parallel_reads=1).snapshot(version))


def test_a_held_version_outlives_the_retention_until_the_hold_ends() -> None:
    single = Single("compaction")
    before, rows = head(single), shown(single.world.store)
    hold = holds(single).place(before, LONGEST_S)
    rewritten(single)
    assert whys(swept(single, days=6, rules=NEVER_KEPT)) == Counter()
    assert shown(single.world.store, before.version) == rows
    gone = whys(swept(single, days=2, rules=NEVER_KEPT))
    assert gone[RemovalReason.HOLD] == 1
    assert gone[RemovalReason.REMOVED] == 6
    assert hold.version == before.version
    assert hold.path not in single.world.store.paths()
    with pytest.raises(ObjectNotFound):
        shown(single.world.store, before.version)


def test_a_hold_keeps_what_became_live_after_its_version_too() -> None:
    single = Single("compaction")
    holds(single).place(head(single), LONGEST_S)
    rewritten(single)
    after, rows = head(single), shown(single.world.store)
    rewritten(single, 1)
    assert whys(swept(single, days=5, rules=NEVER_KEPT)) == Counter()
    assert shown(single.world.store, after.version) == rows


def test_callers_share_a_hold_that_lasts_long_enough() -> None:
    single = Single("compaction")
    pins = holds(single)
    first = pins.place(head(single), 3600)
    single.world.clock.now += 1_000_000
    assert pins.place(head(single), 3600) == first
    single.world.clock.now += 1_000_000
    second = pins.place(head(single), 3600)
    assert second.end_ms >= single.world.clock.now + 3_600_000 - 60_000
    assert second.path != first.path
    rewritten(single)
    assert pins.place(head(single), 3600).version == first.version + 1


def test_a_version_past_its_retention_is_not_held() -> None:
    single = Single("compaction")
    before = head(single)
    rewritten(single)
    single.world.clock.now += 8 * DAY_MS
    with pytest.raises(VersionNotFound, match="cannot be held any more"):
        holds(single).place(before, 3600)
    assert [path for path in single.world.store.paths() if path.startswith("_tandem/holds")] == []
    # A LakeTable may keep files for longer.
    assert holds(single, kept_ms=30 * DAY_MS).place(before, 3600).version == before.version


def test_the_newest_version_can_be_held_whatever_the_retention() -> None:
    single = Single("compaction")
    assert holds(single, kept_ms=0).place(head(single), 60).version == head(single).version
    before = head(single)
    rewritten(single)
    with pytest.raises(VersionNotFound):
        holds(single, kept_ms=0).place(before, 60)


def test_readable_until_is_the_retention_after_the_first_removal() -> None:
    single = Single("compaction")
    before = head(single)
    now = single.world.clock.now_ms()
    assert holds(single).readable_until_ms(before) >= now + 7 * DAY_MS
    rewritten(single)
    removed = head(single).timestamp_ms
    single.world.clock.now += DAY_MS
    assert holds(single).readable_until_ms(before) == removed + 7 * DAY_MS
    assert holds(single, kept_ms=DAY_MS).readable_until_ms(before) == removed + DAY_MS
    rows = shown(single.world.store, before.version)
    single.world.clock.now = removed + 7 * DAY_MS - 60_000  # it goes on with each look
    swept(single, days=0, rules=RULES)
    assert shown(single.world.store, before.version) == rows


def test_a_hold_placed_during_a_cleaning_is_seen_by_it() -> None:
    """The last moment that counts: after the first listing, before the log is read again."""
    single = Single("compaction")
    before, rows = head(single), shown(single.world.store)
    store = single.world.store
    placed: list[Hold] = []

    def hold_then(path: str) -> None:
        if not placed and path == "_tandem/operations":
            placed.append(holds(single, kept_ms=0).place(before, 86_400))
            rewritten(single)

    original = store.list

    def listing(prefix: str = "", *, start_after: str = "") -> object:
        hold_then(prefix)
        return original(prefix, start_after=start_after)

    store.list = listing  # type: ignore[method-assign, assignment]
    swept(single, days=0, rules=NEVER_KEPT)
    assert placed
    assert shown(store, before.version) == rows
    # ... and by the next one, which finds the removal.
    swept(single, days=0, rules=NEVER_KEPT)
    assert shown(store, before.version) == rows


@given(version=st.integers(0, 2**63 - 1), seconds=st.integers(0, 10**9 - 1), written=st.integers(0))
def test_a_name_says_when_a_hold_ends(version: int, seconds: int, written: int) -> None:
    path = path_of(version, seconds, "0af3")
    found = hold_at(path, written)
    assert found is not None
    assert (found.version, found.path) == (version, path)
    assert found.end_ms == written + min(seconds, LONGEST_S) * 1000


@pytest.mark.parametrize(
    "path",
    [
        "_tandem/holds/1-2-.hold",
        "_tandem/holds/-1-2-0a.hold",
        "_tandem/holds/1-2-0a.hold/x",
        "_tandem/holds/1-2-0a.hold\n",
        "_tandem/holds/1-99999999999-0a.hold",
        "_tandem/holds/٣-2-0a.hold",
        "x/_tandem/holds/1-2-0a.hold",
        "_tandem/index/1-2-0a.hold",
    ],
)
def test_other_files_are_no_holds(path: str) -> None:
    assert hold_at(path, 0) is None
