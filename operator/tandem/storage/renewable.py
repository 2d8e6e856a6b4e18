"""Stores whose credentials are renewed while they are in use: an operation must not end because it
outlives them. Each call goes to the store of that moment.
"""

from __future__ import annotations

import json
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from tandem.errors import StorageError, TandemError
from tandem.storage.store import ObjectInfo, Store

VARIABLES: Final = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_STORAGE_SAS_TOKEN",
        "GOOGLE_BEARER_TOKEN",
    }
)
"""The names that vended credentials have."""
CREDENTIALS_VARIABLE: Final = "TANDEM_CREDENTIALS"
"""Names a file with vended credentials: the stores of a process that has it use these, and read
the file again at half of their life."""
CREDENTIALS_FILE: Final = "credentials.json"
_AGAIN_MS: Final = 30_000
"""Until a renewal that failed is tried again."""


class _Passing:
    """A `Store` that passes each call on."""

    @property
    @abstractmethod
    def inner(self) -> Store: ...

    @property
    def location(self) -> str:
        return self.inner.location

    @property
    def near(self) -> bool:
        """As of `RootedStore`."""
        return bool(getattr(self.inner, "near", False))

    def get(self, path: str) -> bytes:
        return self.inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.inner.get_range(path, start, length)

    def head(self, path: str) -> ObjectInfo:
        return self.inner.head(path)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self.inner.list(prefix, start_after=start_after)

    def put(self, path: str, data: bytes) -> None:
        self.inner.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self.inner.put_if_absent(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        self.inner.delete(paths)

    def open_input(self, path: str) -> BinaryIO:
        return self.inner.open_input(path)

    def open_output(self, path: str) -> BinaryIO:
        return self.inner.open_output(path)

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        return self.inner.delete_prefix(prefix, keep=keep)


class RenewableStore(_Passing):
    """A `Store`; `renew` may replace what it passes calls to at any time, by another store of the
    same location."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    @property
    def inner(self) -> Store:
        return self._inner

    def renew(self, inner: Store) -> None:
        self._inner = inner


@dataclass(frozen=True, slots=True)
class Vended:
    """Credentials that a catalog gives for a table.

    Attributes:
        environ: variables as of a Secret.
        expires_ms: until when they are good, in Unix milliseconds; None for ever.
    """

    environ: Mapping[str, str] = field(repr=False)
    expires_ms: int | None

    def encode(self) -> bytes:
        """As a file."""
        return json.dumps(asdict(self)).encode()


def read_vended(path: str) -> Vended:
    """The credentials of a file. Raises: StorageError if it has none."""
    try:
        return Vended(**json.loads(Path(path).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        found = type(error).__name__  # its text may have the credentials
        raise StorageError(
            "the file of credentials cannot be read", resource=path, found=found
        ) from None


def unix_ms() -> int:
    """The time, in Unix milliseconds."""
    return time.time_ns() // 1_000_000


class VendedStore(_Passing):
    """A `Store` with credentials that are vended, and renewed at half of their life by the first
    call after that. While a renewal fails, the last ones are used for as long as they are good.
    Thread-safe.

    Args:
        vend: gets credentials. Raises: TandemError.
        opened: the store of the location with credentials.
        now_ms: the time, in Unix milliseconds.
    Raises: as `vend` and `opened`; StorageError if what is vended is over.
    """

    def __init__(
        self,
        vend: Callable[[], Vended],
        opened: Callable[[Mapping[str, str]], Store],
        now_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self._vend, self._opened, self._now_ms = vend, opened, now_ms
        self._lock = threading.Lock()
        self._due_ms: int | None = None
        self._renew()

    def __reduce__(self) -> str | tuple[Any, ...]:
        # As the store within, without credentials.
        return self._store.__reduce__()

    @property
    def inner(self) -> Store:
        now_ms = self._now_ms()
        # Others go on with the last ones while one call renews them, unless these have expired.
        if self._is_due(now_ms) and self._lock.acquire(blocking=self._is_expired(now_ms)):
            try:
                if self._is_due(now_ms):  # no other call has renewed them meanwhile
                    self._renew_or_wait(now_ms)
            finally:
                self._lock.release()
        return self._store

    def vended(self) -> Vended:
        """The credentials of now. Raises: as `vend`."""
        _ = self.inner
        return self._last

    def _renew_or_wait(self, now_ms: int) -> None:
        try:
            self._renew()
        except TandemError:
            if self._is_expired(now_ms):
                raise
            self._due_ms = now_ms + _AGAIN_MS

    def _renew(self) -> None:
        vended = self._vend()
        now_ms, expires_ms = self._now_ms(), vended.expires_ms
        left_ms = None if expires_ms is None else expires_ms - now_ms
        if left_ms is not None and left_ms <= 0:
            ago = f"{-left_ms // 1000} s ago, by the clock of this machine"
            raise StorageError("the credentials of the store are over", found=ago)
        # In this order: a call that sees the new time sees the new store, too.
        self._store, self._last = self._opened(vended.environ), vended
        self._due_ms = None if left_ms is None else now_ms + left_ms // 2

    def _is_due(self, now_ms: int) -> bool:
        return self._due_ms is not None and now_ms >= self._due_ms

    def _is_expired(self, now_ms: int) -> bool:
        expires_ms = self._last.expires_ms
        return expires_ms is not None and now_ms >= expires_ms


def vended_for(store: Store) -> Vended | None:
    """The vended credentials of a store as of now, for the processes of a job; None if its
    credentials come from elsewhere. Raises: as `VendedStore`."""
    while isinstance(store, RenewableStore):
        store = store.inner
    return store.vended() if isinstance(store, VendedStore) else None
