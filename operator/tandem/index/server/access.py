"""Who may ask an index server, and how much at once. Decides before a question is looked at, so
that a caller without the right learns nothing by the answer, and nothing by its time.

    Unchecked       loopback, or a network where every caller may read every table
    SharedToken     callers present one token
    ReviewedTokens  callers present a token of their service account
    CallerLimits    calls in flight
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

from tandem.errors import AccessDenied, Unreachable

AUDIENCE: Final = "tandem-index"
"""Of the tokens that callers present: one made for another service is refused."""
MIN_TOKEN: Final = 16
KEPT_S: Final = 60.0
"""For how long an answer about a token counts."""
_KEPT: Final = 10_000
MAX_CALLS: Final = 64
"""Of one caller at once."""
_SCHEME = "Bearer "


class CallerCheck(Protocol):
    def caller(self, authorization: str) -> str:
        """Who presents this header, as a name that no other caller can have.

        Raises: AccessDenied, with the same words whatever is wrong; Unreachable if that cannot be
            found out.
        """
        ...


class Unchecked:
    """All callers are one."""

    def caller(self, authorization: str) -> str:  # noqa: ARG002 - whatever is presented
        return "anyone"


class SharedToken:
    """Callers present one token, and are one caller.

    Raises: AccessDenied if the token is too short to be one.
    """

    def __init__(self, token: str) -> None:
        if len(token) < MIN_TOKEN:
            raise AccessDenied(
                "the shared token is too short",
                resource="the key `token` of the token's Secret",
                found=f"{len(token)} characters",
                expected=f"at least {MIN_TOKEN}",
                remedy="`openssl rand -hex 32` makes one",
            )
        self._wanted = _digest(_SCHEME + token)

    def caller(self, authorization: str) -> str:
        # As digests, since texts that are not ASCII cannot be compared in constant time.
        digest = _digest(authorization)
        if not secrets.compare_digest(digest, self._wanted):
            raise refused()
        return digest


@dataclass(frozen=True)
class Reviewed:
    """What a cluster says of a token: `user`, "" if it is none of this audience, and whether that
    user has the right."""

    user: str
    allowed: bool


class Reviewer(Protocol):
    def review(self, token: str) -> Reviewed:
        """Raises: Unreachable."""
        ...


class ReviewedTokens:
    """Callers present tokens of service accounts, which the cluster reviews; its answer is kept for
    `KEPT_S`. Thread-safe.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, reviewer: Reviewer, now: Callable[[], float] = time.monotonic) -> None:
        self._reviewer, self._now = reviewer, now
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Reviewed]] = OrderedDict()

    def caller(self, authorization: str) -> str:
        token = authorization.removeprefix(_SCHEME)
        if not token or token == authorization:
            raise refused()
        found = self._reviewed(token)
        if not (found.user and found.allowed):
            raise refused()
        return found.user

    def _reviewed(self, token: str) -> Reviewed:
        key, now = _digest(token), self._now()
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and now < kept[0]:
                return kept[1]
        found = self._reviewer.review(token)
        with self._lock:
            self._kept[key] = (now + KEPT_S, found)
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


class CallerLimits:
    """How many calls one caller has in flight. Thread-safe."""

    def __init__(self, calls: int = MAX_CALLS) -> None:
        self._most = calls
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()

    @contextmanager
    def call(self, caller: str) -> Iterator[None]:
        """For the length of a call. Raises: Unreachable if the caller has too many: it goes on
        without the server."""
        with self._lock:
            if self._calls[caller] >= self._most:
                raise Unreachable(
                    "this caller asks too much at once",
                    found=f"{self._most} calls that are not answered yet",
                    expected=f"at most {self._most} at once",
                )
            self._calls[caller] += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls[caller] -= 1
                if not self._calls[caller]:
                    del self._calls[caller]


def refused() -> AccessDenied:
    """One error for every cause: no token, a wrong one, no right."""
    return AccessDenied("no valid token")


def _digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()
