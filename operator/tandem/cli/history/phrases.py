"""Short texts about an entry of a history, the same on the terminal and on the page. Pure."""

from __future__ import annotations

from tandem.cli.history.model import CommitEffect, ConcurrentCommit, HistoryEntry
from tandem.spec.update import TableIngest

_EFFECTS = {
    CommitEffect.REPLAYED: "{rows} deleted by {version} replayed{onto}",
    CommitEffect.MASKED: "{rows} masked because of {version}",
    CommitEffect.FOLLOWED: "{rows} followed into{onto} of {version}",
    CommitEffect.EVALUATED: "{rows} evaluated because of {version}",
    CommitEffect.LOST: "{rows} deleted or rewritten by {version}",
    CommitEffect.AGAIN: "executed again after {version}",
}


def author_name(entry: HistoryEntry) -> str:
    """The resource of an operation of ours, or else the engine."""
    return entry.by or entry.engine or "unknown"


def operation(entry: HistoryEntry) -> str:
    """Delta's name of the operation; of an ingest also that it is one."""
    if entry.by.startswith(f"{TableIngest.kind_name}/"):
        return f"{entry.operation} (ingest)"
    return entry.operation


def files(entry: HistoryEntry) -> str:
    """`+1 −20 ~3`: added, removed, and with other deletion vectors."""
    counts = ((entry.files_added, "+"), (entry.files_removed, "−"), (entry.files_marked, "~"))
    return " ".join(f"{sign}{count:,}" for count, sign in counts if count)


def rows(entry: HistoryEntry) -> str:
    """`+3,000 −12`: rows added and deleted; for a rewrite, how many it rewrote."""
    added, gone = entry.rows_added, entry.rows_removed
    if entry.kind == "rewrite":
        return f"{added:,} rewritten" if added else ""
    removed = (gone or 0) + max(0, entry.rows_deleted)
    restored = max(0, -entry.rows_deleted)
    parts = [f"+{added:,}"] if added else ["+?"] if added is None else []
    parts += [f"−{removed:,}"] if removed else ["−?"] if gone is None else []
    parts += [f"{restored:,} restored"] if restored else []
    return " ".join(parts)


def notes(entry: HistoryEntry) -> list[str]:
    """What it met; of a replace also what it replaced, and what it left: `replaced 2013-03`; of a
    compaction in batches which one it is: `batch 2 of 5`"""
    own = list(entry.summary[1:] if entry.result.replaced is not None else ())
    if entry.batch is not None:
        own.append("batch {} of {}".format(*entry.batch))
    return [*own, *map(conflict_phrase, entry.meetings)]


def conflict_phrase(met: ConcurrentCommit) -> str:
    """`2,113 deleted by 43 replayed onto 0.1`"""
    onto = ""
    if met.onto:
        onto = f" {met.onto}" if met.effect is CommitEffect.FOLLOWED else f" onto {met.onto}"
    count = f"{met.rows:,} row" + ("" if met.rows == 1 else "s")
    return _EFFECTS[met.effect].format(rows=count, version=met.version, onto=onto)
