"""Who may ask an index server. Of a question only the name of its table is
looked at before that is decided, so that a caller without the right learns nothing by the answer,
and nothing by its time.

    Unchecked       loopback, or a network where every caller may read every table
    SharedToken     callers present one token
    ReviewedTokens  callers present a token of their service account
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Final, Generic, Protocol, TypeVar

from tandem.errors import AccessDenied, Unreachable
from tandem.index.server.limits import WAIT_S

AUDIENCE: Final = "tandem-index"
"""Of the tokens that callers present: one made for another service is refused."""
MIN_TOKEN: Final = 16
KEPT_S: Final = 60.0
"""For how long an answer about a token counts."""
_KEPT: Final = 10_000
_REVIEWS: Final = 16
"""Tokens and rights that the cluster is asked about at once."""
_SCHEME = "Bearer "
_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 253
"""Of a LakeTable."""

K = TypeVar("K")
V = TypeVar("V")


class CallerCheck(Protocol):
    """Both raise: AccessDenied, with the same words whatever is wrong; Unreachable if that cannot
    be found out."""

    def caller(self, authorization: str) -> str:
        """Who presents this header, as a name that no other caller can have."""
        ...

    def require(self, authorization: str, table: str) -> None:
        """That who presents this header may ask about a table, whether it exists or not; "" for all
        of them."""
        ...


class Unchecked:
    """All callers are one."""

    def caller(self, authorization: str) -> str:  # noqa: ARG002 - whatever is presented
        return "anyone"

    def require(self, authorization: str, table: str) -> None:
        """Anyone may ask."""


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

    def require(self, authorization: str, table: str) -> None:
        """The token is for all tables."""


@dataclass(frozen=True)
class TokenOwner:
    """Whose token it is; `about` as a cluster describes that user further (groups, uid, extra)."""

    user: str
    about: Mapping[str, Any] = field(default_factory=dict)


class Reviewer(Protocol):
    """Both raise: Unreachable."""

    def owner(self, token: str) -> TokenOwner | None:
        """None if the token is none of this audience."""
        ...

    def may_ask(self, owner: TokenOwner, table: str) -> bool:
        """Whether a caller has the right on a table; "" for all of the namespace."""
        ...


class ReviewedTokens:
    """Callers present tokens of service accounts. The cluster is asked whose they are, and whether
    that account has the right on all tables, else on the one it asks about. Answers are kept for
    `KEPT_S`. Thread-safe.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, reviewer: Reviewer, now: Callable[[], float] = time.monotonic) -> None:
        self._reviewer = reviewer
        self._free = threading.BoundedSemaphore(_REVIEWS)
        self._owners = _Kept[str, TokenOwner | None](now)
        self._rights = _Kept[tuple[str, str], bool](now)

    def caller(self, authorization: str) -> str:
        return self._owned(authorization)[1].user

    def require(self, authorization: str, table: str) -> None:
        key, owner = self._owned(authorization)

        def may_ask(name: str) -> bool:
            with_name = partial(self._reviewer.may_ask, owner, name)
            return self._rights.get((key, name), partial(self._ask, with_name))

        # What is no name of a LakeTable can be asked about by whom all tables are open to.
        named = bool(_NAME.fullmatch(table)) and len(table) <= _LONGEST_NAME
        if not (may_ask("") or (named and may_ask(table))):
            raise refused()

    def _owned(self, authorization: str) -> tuple[str, TokenOwner]:
        token = authorization.removeprefix(_SCHEME)
        if not token or token == authorization:
            raise refused()
        key = _digest(token)
        found = self._owners.get(key, partial(self._ask, partial(self._reviewer.owner, token)))
        if found is None or not found.user:
            raise refused()
        return key, found

    def _ask(self, question: Callable[[], V]) -> V:
        """Made-up tokens without number are not all passed on at once."""
        if not self._free.acquire(timeout=WAIT_S):
            raise Unreachable(
                "too many callers have to be reviewed",
                found=f"{_REVIEWS} reviews that take longer than {WAIT_S:g} s",
            )
        try:
            return question()
        finally:
            self._free.release()


class _Kept(Generic[K, V]):
    """Answers that count for `KEPT_S`, the newest of them. Thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K, ask: Callable[[], V]) -> V:
        now = self._now()
        with self._lock:
            kept = self._values.get(key)
        if kept is not None and now < kept[0]:
            return kept[1]
        found = ask()
        with self._lock:
            self._values[key] = (now + KEPT_S, found)
            self._values.move_to_end(key)
            while len(self._values) > _KEPT:
                self._values.popitem(last=False)
        return found


def refused() -> AccessDenied:
    """One error for every cause: no token, a wrong one, no right."""
    return AccessDenied("no valid token")


def _digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()
