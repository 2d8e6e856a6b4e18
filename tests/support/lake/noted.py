"""A store that notes the requests that are made of it."""

from __future__ import annotations

import re
import threading
from typing import Any

from tandem.storage import Store


class Noted:
    """A store that notes the calls that are requests of an object store."""

    REQUESTS = ("get", "get_range", "head", "list", "put", "put_if_absent", "delete")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.made: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in self.REQUESTS:
            return found

        def noted(*arguments: Any, **named: Any) -> Any:
            path = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            with self._lock:
                self.made.append(f"{name} {_shortened(path)}")
            return found(*arguments, **named)

        return noted

    def taken(self) -> list[str]:
        made, self.made = self.made, []
        return made


def _shortened(path: str) -> str:
    path = re.sub(r"_delta_log/0*(\d+)\.json", r"version \1", path)
    path = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "UUID", path)
    return re.sub(r"[0-9a-f]{16}", "ID", path)
