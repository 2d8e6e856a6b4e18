"""Bugs in automatic planning: which chunks are due, what is dropped, what is kept of a table."""

from __future__ import annotations

from mutants.model import Check, Mutant

_PLANS = (Check.AUTOMATIC,)
_RETENTION = "planning/auto/retention.py"
_CHUNKS = "planning/auto/chunks.py"

AUTOMATIC = (
    Mutant(
        "retention-takes-a-straddling-file",
        "without deletion vectors chunks with straddling files wait",
        _RETENTION,
        "drop = due - waiting",
        "drop = due",
        _PLANS,
    ),
    Mutant(
        "retention-splits-linked-chunks",
        "chunks that a file links wait together",
        _RETENTION,
        "IntervalSet(hulls[piece] for path in mixed for piece in found[path])",
        "IntervalSet(piece for path in mixed for piece in found[path])",
        _PLANS,
    ),
    Mutant(
        "retention-takes-a-part-of-a-chunk",
        "only whole chunks are dropped",
        _RETENTION,
        "chunk_of(moment, granularity).start_ms",
        "chunk_of(moment, granularity).end_ms",
        _PLANS,
    ),
    Mutant(
        "chunks-stuck-one-holds-up-all",
        "one stuck chunk holds up no other",
        _CHUNKS,
        "    return (*after_failure(last, failures",
        "    last = max(children, default=None, key=lambda child: child.last_ms)\n"
        "    failures = last.retries + 1 if last is not None and last.failed else 0\n"
        "    return (*after_failure(last, failures",
        _PLANS,
        "Druid#16693: a long task kept others waiting for 40 hours",
    ),
    Mutant(
        "chunks-two-schedulers-make-two",
        "children are named by what later loads do not change; A5",
        "planning/auto/table_facts.py",
        "names[int(np.min(taken.segments))]",
        "names[int(np.max(taken.segments))]",
        _PLANS,
    ),
    Mutant(
        "index-forgets-held-segments",
        "decisions are those of the list of all segments",
        "planning/auto/indexed_table.py",
        "for name in out ^ self._out:",
        "for name in out - self._out:",
        _PLANS,
    ),
)
