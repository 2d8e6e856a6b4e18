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
    "TableUpdate": ("update", "delete", "merge"),
    "TableIngest": ("ingest",),
    "LogCompaction": ("log compaction",),
}
assert CASES.keys() == OPERATIONS.keys(), "a kind without a case, or a case without a kind"

PLAIN: Final = ("compaction", "update", "delete", "ingest")
"""One case of each way through the engine. The others take the same steps as one of them."""
OTHERS: Final = tuple(case for cases in CASES.values() for case in cases if case not in PLAIN)
REWRITES: Final = tuple(
    case for kind, cases in CASES.items() for case in cases if OPERATIONS[kind].mode is Mode.REWRITE
)
"""Those that change no row."""
