"""The cases by which tests try the kinds of operations. Every kind that is registered has some:
what reads a list from here forgets none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tandem.spec.common import OPERATIONS, Mode

CASES: Final[Mapping[str, Sequence[str]]] = {
    "TableCompaction": ("compaction", "sort", "z-order", "log merge"),
    "SegmentRewrite": ("segment rewrite",),
    "TableUpdate": ("update", "delete", "merge", "upsert", "delete keys"),
    "TableIngest": ("ingest", "ingest by key"),
    "LogCompaction": ("log compaction",),
    "TableReplace": ("replace", "drop"),
}
assert CASES.keys() == OPERATIONS.keys(), "a kind without a case, or a case without a kind"

PLAIN: Final = ("compaction", "update", "delete", "ingest")
"""One case of each way through the engine. The others take the same steps as one of them."""
JOBLESS: Final = ("drop",)
"""Those that start no job, and so take a shorter way."""
APPENDS: Final = ("upsert", "delete keys", "ingest by key")
"""Appends by key to a log, which change no row that they have read."""
OTHERS: Final = tuple(
    case for cases in CASES.values() for case in cases if case not in (*PLAIN, *JOBLESS, *APPENDS)
)
REWRITES: Final = tuple(
    case for kind, cases in CASES.items() for case in cases if OPERATIONS[kind].mode is Mode.REWRITE
)
"""Those that change no row, of the merged view if there is a log."""
ON_LOG: Final = ("log compaction", "log merge")
"""Those that need a table with a log, beside `APPENDS`."""
COMMIT_TO_LOG: Final = ("log compaction", *APPENDS)
"""Those whose commits are versions of the log."""
TAKE_ROUNDS: Final = tuple(case for case in OTHERS if case not in COMMIT_TO_LOG)
"""Those of `OTHERS` that go through all effects again after a lost put. A commit to a log is put
again at once, in the same effect."""
EDITORS: Final = tuple(
    case for case in (*PLAIN, *TAKE_ROUNDS) if case not in ("ingest", "replace", *COMMIT_TO_LOG)
)
"""Those that make edits of a table without deletion vectors where another writer came between."""
EDIT_ALONE: Final = ("log merge", *(case for case in EDITORS if case not in REWRITES))
"""Of those, the ones that do so in any case."""
