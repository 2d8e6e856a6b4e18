"""The result of an operation that was committed in batches, from the results of these. Pure.

Reads nothing: which batches there were is known to the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from tandem.operations.report.sentences import MOST_SENTENCES
from tandem.spec.status import OperationResult, Reconciled
from tandem.text import counted, listed

_SUMS = ("files_added", "files_removed", "files_marked", "bytes_added", "bytes_removed")
_RECONCILED_SUMS = (
    "commits_seen",
    "deletes_remapped",
    "rows_masked",
    "bins_dropped",
    "bins_contended",
    "inputs_gone",
    "edit_rounds",
    "bytes_copied",
    "bytes_encoded",
    "rounds",
    "files_masked",
)


def total(batches: Sequence[OperationResult]) -> OperationResult:
    """The result of several batches, in the order of their commits: the version is that of the
    last one, and the sentences end with those of all."""
    last = batches[-1]
    found = [each.reconciled for each in batches if each.reconciled is not None]
    segments = chain.from_iterable(each.segments or () for each in batches)
    return last.model_copy(
        update={
            **{name: _sum([getattr(each, name) for each in batches]) for name in _SUMS},
            "segments": tuple(dict.fromkeys(segments)) or None,
            "reconciled": _reconciled(found) if found else None,
            "summary": _sentences(batches),
        }
    )


def _reconciled(found: Sequence[Reconciled]) -> Reconciled:
    by_segment: dict[str, int] = {}
    for each in found:
        for name, rows in (each.by_segment or {}).items():
            by_segment[name] = by_segment.get(name, 0) + rows
    sums = {name: _sum([getattr(each, name) for each in found]) for name in _RECONCILED_SUMS}
    return found[-1].model_copy(update={**sums, "by_segment": by_segment or None})


def _sentences(batches: Sequence[OperationResult]) -> tuple[str, ...]:
    versions = listed([str(each.version) for each in batches])
    seen = sum(each.reconciled.commits_seen for each in batches if each.reconciled is not None)
    met = f"{counted(seen, 'commit')} by others meanwhile" if seen else "no other commit meanwhile"
    # The first of each counts other commits since the version that it has read.
    own = tuple(text for each in batches for text in (each.summary or ())[1:])
    return (*(met, *own)[: MOST_SENTENCES - 1], f"in {len(batches)} batches (versions {versions})")


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
