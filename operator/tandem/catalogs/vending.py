"""The store of a table with the credentials that its catalog vends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tandem.catalogs.unity import UnityTable
from tandem.storage import Store, open_store
from tandem.storage.renewable import VendedStore


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_vended_store(
    table: UnityTable,
    location: str,
    options: Mapping[str, str],
    *,
    allowed_prefixes: Sequence[str] = (),
    ceiling_s: float | None = None,
    now_ms: Callable[[], int] = _now_ms,
) -> Store:
    """The store of a table whose credentials nothing else gives: no Secret, no variable. Those of
    the process are for other tables. A local folder needs none.

    Args:
        location: the table's, canonical.
        options: as the other arguments, of `open_store`.
    Raises: as `UnityTable.credentials`, `open_store`.
    """

    def opened(environ: Mapping[str, str]) -> Store:
        return open_store(
            location,
            options,
            allowed_prefixes=allowed_prefixes,
            environ=environ,
            ceiling_s=ceiling_s,
        )

    if location.startswith("file:"):
        return opened({})
    return VendedStore(lambda: table.credentials(location), opened, now_ms)
