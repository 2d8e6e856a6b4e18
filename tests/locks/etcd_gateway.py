"""etcd through its HTTP gateway, for tests that read what was left there."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any


class Gateway:
    """One member, without TLS and without a user."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://{self._endpoint}/v3/{path}", data=json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def keys(self, prefix: str) -> list[str]:
        start = prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        found = self.post("kv/range", key=_text(start), range_end=_text(end), keys_only=True)
        return [base64.b64decode(kv["key"]).decode() for kv in found.get("kvs", ())]

    def put(self, key: str, value: str) -> None:
        self.post("kv/put", key=_text(key.encode()), value=_text(value.encode()))

    def delete(self, key: str) -> None:
        self.post("kv/deleterange", key=_text(key.encode()))

    def leases(self) -> set[str]:
        return {lease["ID"] for lease in self.post("lease/leases").get("leases", ())}

    def compact(self) -> None:
        """Forget all revisions but the last."""
        revision = self.post("kv/range", key=_text(b"\0"))["header"]["revision"]
        self.post("kv/compaction", revision=revision, physical=True)

    def is_leader(self) -> bool:
        status = self.post("maintenance/status")
        return bool(status["leader"] == status["header"]["member_id"])

    def ask_for_passwords(self, user: str, password: str) -> None:
        """From now on only `user`, and root, may do anything."""
        self.post("auth/user/add", name="root", password=password)
        self.post("auth/user/grant", user="root", role="root")
        self.post("auth/role/add", name="locks")
        everything = {"permType": "READWRITE", "key": _text(b"/"), "range_end": _text(b"0")}
        self.post("auth/role/grant", name="locks", perm=everything)
        self.post("auth/user/add", name=user, password=password)
        self.post("auth/user/grant", user=user, role="locks")
        self.post("auth/enable")


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
