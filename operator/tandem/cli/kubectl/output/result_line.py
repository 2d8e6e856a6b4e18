"""What an operation did, in a line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.cli.kubectl.output.overview import condition_message
from tandem.kube.client.resources import status_of
from tandem.text import counted, human_bytes


def result_line(operation: Mapping[str, Any]) -> str | None:
    """`20 files (1.0 MiB) → 1 (1.0 MiB), 4,971 rows updated, segments 0.1`; of a failure, why."""
    status = status_of(operation)
    result = status.get("result") or {}
    if not result:
        return condition_message(operation) or None
    parts = []
    removed, added = result.get("filesRemoved") or 0, result.get("filesAdded") or 0
    if removed or added:
        what = "files" if result.get("blocksIn") is None else "blocks"
        files = f"{removed} {what} ({human_bytes(result.get('bytesRemoved') or 0)})"
        parts.append(f"{files} → {added} ({human_bytes(result.get('bytesAdded') or 0)})")
    if marked := result.get("filesMarked"):
        parts.append(f"{counted(marked, 'file')} marked")
    rows = result.get("rowsAffected") or {}
    parts += [
        f"{rows[what]:,} rows {what}"
        for what in ("updated", "deleted", "inserted", "upserted")
        if rows.get(what)
    ]
    reconciled = result.get("reconciled") or {}
    met = result.get("summary")
    if isinstance(met, list):
        # The first only counts commits.
        parts += [str(sentence) for sentence in met[1:]]
    elif reconciled.get("deletesRemapped"):  # of an operator before there were sentences
        parts.append(f"{reconciled['deletesRemapped']:,} deletes replayed")
    for what in ("segments", "instants"):
        if names := result.get(what):
            parts.append(f"{what} " + ", ".join(str(name) for name in names[:6]))
    return ", ".join(parts) or condition_message(operation) or None
