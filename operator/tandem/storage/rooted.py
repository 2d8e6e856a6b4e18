"""`open_store`: a table's store, including the absolute paths that its log may name.

The only place that decides which implementation serves a location.

`probe_put_if_absent` tests whether a store really creates objects only if absent. All commits rely
on it: of two commits of one version at most one may succeed.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import BinaryIO

from tandem.errors import AccessDenied, AlreadyExists, StorageError, StorageFull, StoreUnsuitable
from tandem.storage.local import LocalStore
from tandem.storage.options import settings
from tandem.storage.paths import (
    canonical_location,
    canonical_prefix,
    check_folder,
    check_relative,
    resolve,
    split_location,
)
from tandem.storage.renewable import CREDENTIALS_VARIABLE, VendedStore, read_vended
from tandem.storage.store import ObjectInfo, Store, side_by_side

# A folder of a store as a store of its own.
#
# Paths are relative to the folder. The store below keeps its guarantees, its credentials and, in
# tests, its injected faults.


@dataclass(frozen=True)
class Subfolder:
    """`tandem.storage.store.Store` describes each call. `folder` is relative, without a slash at
    its end."""

    store: Store
    folder: str

    @property
    def location(self) -> str:
        return f"{self.store.location}/{self.folder}"

    def _path(self, path: str) -> str:
        return f"{self.folder}/{check_relative(path)}"

    def _own(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, path=info.path.removeprefix(f"{self.folder}/"))

    def get(self, path: str) -> bytes:
        return self.store.get(self._path(path))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.store.get_range(self._path(path), start, length)

    def head(self, path: str) -> ObjectInfo:
        return self._own(self.store.head(self._path(path)))

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        below = self._path(check_folder(prefix)) if prefix else self.folder
        after = self._path(start_after) if start_after else ""
        return map(self._own, self.store.list(below, start_after=after))

    def put(self, path: str, data: bytes) -> None:
        self.store.put(self._path(path), data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.store.put_if_absent(self._path(path), data)

    def delete(self, paths: Iterable[str]) -> None:
        self.store.delete(map(self._path, paths))

    def open_input(self, path: str) -> BinaryIO:
        return self.store.open_input(self._path(path))

    def open_output(self, path: str) -> BinaryIO:
        return self.store.open_output(self._path(path))

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        below = self._path(check_folder(prefix))
        return self.store.delete_prefix(below, keep=[self._path(p) for p in keep])


def open_store(
    location: str,
    options: Mapping[str, str] | None = None,
    *,
    allowed_prefixes: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    ceiling_s: float | None = None,
) -> Store:
    """The store of the table at `location`. Nothing is read or written yet.

    Args:
        location: `file:///…`, `s3://bucket/…`, `gs://bucket/…`, `abfss://container@account…/…`
            or a plain absolute path.
        options: settings that are not secret: `endpoint`, `region`, `allow_http`, `timeout`, …
        allowed_prefixes: locations below which the log may name absolute paths, read-only.
        environ: credentials in place of the process's own environment, and of the file that
            `CREDENTIALS_VARIABLE` names there. They are not pickled: a Spark worker takes them
            from its own environment.
        ceiling_s: how long a request may take as a whole, in seconds; None for as long as
            `timeout` and the retries take. Not pickled either.

    The result is thread-safe and picklable. Do not fork after using a remote one: its client
    runs threads.

    Raises:
        InvalidSpec: a location or an option is invalid, or holds a secret.
        StorageError: the file of credentials has none that are good.
    """

    def opened(given: Mapping[str, str] | None) -> Store:
        return RootedStore(location, options or {}, tuple(allowed_prefixes), given, ceiling_s)

    file = os.environ.get(CREDENTIALS_VARIABLE)
    if environ is not None or not file or canonical_location(location).startswith("file:"):
        return opened(environ)
    return VendedStore(lambda: read_vended(file), opened)


class RootedStore:
    """A `Store` for relative paths, and for absolute ones that lie below allowed prefixes."""

    def __init__(
        self,
        location: str,
        options: Mapping[str, str],
        allowed_prefixes: tuple[str, ...],
        environ: Mapping[str, str] | None,
        ceiling_s: float | None = None,
    ) -> None:
        self._location = canonical_location(location)
        self._options = dict(options)
        self._allowed = tuple(
            canonical_prefix(prefix, field="allowedPrefixes") for prefix in allowed_prefixes
        )
        self._environ = environ
        self._ceiling_s = ceiling_s
        self._lock = threading.Lock()
        self._stores: dict[str, Store] = {}
        self._store(self._location)  # raises the error of invalid options early

    def __reduce__(self) -> tuple[object, ...]:
        opened = partial(open_store, allowed_prefixes=self._allowed)
        return (opened, (self._location, self._options))

    def __repr__(self) -> str:
        return f"<store {self._location}>"

    @property
    def location(self) -> str:
        return self._location

    @property
    def near(self) -> bool:
        """Whether a request takes less time than to begin a thread for it."""
        return self._location.startswith("file:")

    @property
    def options(self) -> Mapping[str, str]:
        """Settings of the store, none of which is secret."""
        return self._options

    @property
    def allowed_prefixes(self) -> tuple[str, ...]:
        return self._allowed

    def _store(self, root: str) -> Store:
        with self._lock:
            store = self._stores.get(root)
            if store is None:
                scheme = split_location(root)[0]
                own = split_location(self._location)[0]
                # Options apply to the table's own kind of store; a prefix elsewhere has none.
                options, ceiling_s = self._options if scheme == own else {}, self._ceiling_s
                chosen = settings(scheme, options, self._environ, ceiling_s=ceiling_s)
                if scheme == "file":
                    store = LocalStore(root)
                else:
                    # Its client takes a while to import.
                    from tandem.storage.remote import RemoteStore

                    store = RemoteStore(root, chosen, ceiling_s=ceiling_s)
                self._stores[root] = store
            return store

    def _find(self, path: str) -> tuple[Store, str]:
        resolved = resolve(path, self._location, self._allowed)
        return self._store(resolved.root), resolved.key

    def _own(self, path: str) -> tuple[Store, str]:
        # Writes go to the table only, even where reads of other locations are allowed.
        resolved = resolve(path, self._location)
        return self._store(resolved.root), resolved.key

    def get(self, path: str) -> bytes:
        store, key = self._find(path)
        return store.get(key)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        store, key = self._find(path)
        return store.get_range(key, start, length)

    def head(self, path: str) -> ObjectInfo:
        store, key = self._find(path)
        found = store.head(key)
        return ObjectInfo(path, found.size, found.modified_ms)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._store(self._location).list(prefix, start_after=start_after)

    def put(self, path: str, data: bytes) -> None:
        store, key = self._own(path)
        store.put(key, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        store, key = self._own(path)
        store.put_if_absent(key, data)

    def delete(self, paths: Iterable[str]) -> None:
        self._store(self._location).delete(self._own(path)[1] for path in paths)

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        store, key = self._own(prefix.removesuffix("/"))
        return store.delete_prefix(key, keep=keep)

    def open_input(self, path: str) -> BinaryIO:
        store, key = self._find(path)
        return store.open_input(key)

    def open_output(self, path: str) -> BinaryIO:
        store, key = self._own(path)
        return store.open_output(key)


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
