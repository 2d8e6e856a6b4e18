"""Who may ask an index server. Of a question only the name of its table is
looked at before that is decided, so that a caller without the right learns nothing by the answer,
and nothing by its time.

    Unchecked       loopback, or a network where every caller may read every table
    SharedToken     callers present one token
    ReviewedTokens  callers present a token of their service account
"""

from __future__ import annotations

import json
import os
import re
import secrets
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from tandem.errors import AccessDenied, Unreachable
from tandem.index.server.calls import WAIT_S

# Asks the cluster about a caller's token: whose it is, and whether it has the right. The only
# module here that calls an API server, with the two calls that it may make.


RIGHT: Final = {"group": "tandem.dev", "resource": "laketables", "subresource": "splits"}
"""What a caller must be allowed to `get`: all of the namespace, or by the name of a LakeTable."""
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S = 1.5
"""A client waits two seconds."""


class ClusterReviews:
    """The reviewer of one namespace.

    Args:
        server: the API server's URL.
        token: the file with our own token, which is read again each time: it rotates.
        authority: the file with the certificates that the API server's is checked by.
    """

    def __init__(self, namespace: str, server: str, token: Path, authority: Path) -> None:
        self._namespace, self._server, self._token = namespace, server.rstrip("/"), token
        # Never through a proxy: what is sent are tokens.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(authority))),
        )

    @classmethod
    def in_cluster(cls, namespace: str) -> ClusterReviews:
        """By the pod's own account. Raises: AccessDenied if there is none."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        token, authority = _ACCOUNT / "token", _ACCOUNT / "ca.crt"
        if not host or not token.is_file():
            raise AccessDenied(
                "there is no service account to review callers' tokens with",
                resource=str(_ACCOUNT),
                found="none" if host else "no KUBERNETES_SERVICE_HOST",
                expected="a pod with its account's token",
                remedy="Outside of a cluster use access.mode SharedToken",
            )
        address = f"[{host}]" if ":" in host else host
        return cls(namespace, f"https://{address}:{port}", token, authority)

    def owner(self, token: str) -> TokenOwner | None:
        """Raises: Unreachable."""
        found = self._ask(
            "/apis/authentication.k8s.io/v1/tokenreviews",
            "authentication.k8s.io/v1",
            "TokenReview",
            {"token": token, "audiences": [AUDIENCE]},
        )
        user = found.get("user") or {}
        # A server that does not know audiences has not checked them.
        if not found.get("authenticated") or AUDIENCE not in (found.get("audiences") or ()):
            return None
        about = {key: user[key] for key in ("groups", "uid", "extra") if user.get(key)}
        return TokenOwner(str(user.get("username", "")), about)

    def may_ask(self, owner: TokenOwner, table: str) -> bool:
        """Raises: Unreachable."""
        wanted = {**RIGHT, "namespace": self._namespace, "verb": "get"}
        if table:
            # By the name, rules with `resourceNames` count, too.
            wanted["name"] = table
        found = self._ask(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            "authorization.k8s.io/v1",
            "SubjectAccessReview",
            {"user": owner.user, "resourceAttributes": wanted, **owner.about},
        )
        return found.get("allowed") is True

    def _ask(self, path: str, version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        try:
            request = urllib.request.Request(
                self._server + path,
                data=json.dumps(body).encode(),
                headers={
                    "Authorization": f"Bearer {self._token.read_text().strip()}",
                    "Content-Type": "application/json",
                },
            )
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                status = json.load(answer).get("status")
        except (OSError, ValueError) as error:
            code = error.code if isinstance(error, urllib.error.HTTPError) else type(error).__name__
            raise Unreachable(
                "the cluster does not say who the caller is", resource=kind, found=code
            ) from error
        return status if isinstance(status, dict) else {}


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
