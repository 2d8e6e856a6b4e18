"""Tests whether a store really creates objects only if absent.

All commits rely on it: of two commits of one version at most one may succeed.
"""

from __future__ import annotations

import secrets
from functools import partial

from tandem.errors import AccessDenied, AlreadyExists, StorageError, StorageFull, StoreUnsuitable
from tandem.storage.store import Store, side_by_side

PROBE_PREFIX = "_tandem/probe"
_RACERS = 2
_ROUNDS = 3


def probe_put_if_absent(store: Store) -> None:
    """Create new objects twice, in sequence and in races, and remove them again.

    Raises:
        StoreUnsuitable: a second create succeeded, or the store does not support it at all.
        AccessDenied, StorageFull: the test objects cannot be written.
        OutcomeUnknown: the store did not answer.
    """
    folder = f"{PROBE_PREFIX}/{secrets.token_hex(8)}"
    try:
        races = [partial(_race, store, f"{folder}/race-{number}") for number in range(_ROUNDS)]
        tests = [partial(_one_after_the_other, store, f"{folder}/once"), *races]
        # On a disk a test takes less time than to begin a thread for it.
        side_by_side(tests, 1 if getattr(store, "near", False) else len(tests))
    finally:
        store.delete_prefix(folder)


def _one_after_the_other(store: Store, path: str) -> None:
    try:
        store.put_if_absent(path, b"first")
    except (AccessDenied, StorageFull, AlreadyExists):
        raise
    except StorageError as error:
        if "not supported" in error.found.lower() or "notimplemented" in error.found.lower():
            raise _unsuitable(store, "the store does not support create-if-absent") from error
        raise
    try:
        store.put_if_absent(path, b"second")
    except AlreadyExists:
        if store.get(path) != b"first":
            raise _unsuitable(store, "a refused create changed the object") from None
        return
    raise _unsuitable(store, "a second create of the same object succeeded")


def _race(store: Store, path: str) -> None:
    def create(word: bytes) -> bytes | None:
        try:
            store.put_if_absent(path, word)
        except AlreadyExists:
            return None
        return word

    racers = [partial(create, f"racer {number}".encode()) for number in range(_RACERS)]
    winners = [word for word in side_by_side(racers, _RACERS) if word is not None]
    if len(winners) > 1:
        raise _unsuitable(store, "two concurrent creates of the same object both succeeded")
    if winners != [store.get(path)]:
        raise _unsuitable(store, "the winner of two concurrent creates is not what is stored")


def _unsuitable(store: Store, found: str) -> StoreUnsuitable:
    return StoreUnsuitable(
        "this store cannot create an object only if it is absent, so two writers could "
        "overwrite each other's commits",
        resource=store.location,
        found=found,
        expected="an atomic put-if-absent (S3 If-None-Match, GCS, Azure, a POSIX disk)",
        remedy="Move the table to a store that supports it, or enable it there",
    )
