"""What an account may do, by trying it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cluster_access import Access, ApiRefused

_MERGE = "application/merge-patch+json"


def allowed(account: Access, tries: Iterable[tuple[str, str, Any]]) -> list[tuple[str, str, int]]:
    """Which of these requests (method, path, body) are not forbidden, each with its status."""
    found = []
    for method, path, body in tries:
        kind = _MERGE if method == "PATCH" else "application/json"
        try:
            account.request(method, path, body, content_type=kind)
        except ApiRefused as refused:
            if refused.status != 403:
                found.append((method, path, refused.status))
        else:
            found.append((method, path, 200))
    return found
