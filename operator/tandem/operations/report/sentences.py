"""What an operation met and did, as short sentences: `result.summary`. Pure.

One place for the wording, so that a status, the history of a table and an error say the same
thing in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandem.reconcile.text import counted, listed, quoted
from tandem.spec.status import Reconciled, ReconciledCommit

MOST_SEGMENTS = 3
"""Segments that a sentence names; more are counted."""
MOST_SENTENCES = 12


def sentences(
    since: int, found: Reconciled, onto: Mapping[str, int], *, statement: bool
) -> tuple[str, ...]:
    """What came of reconciling, the commits met first.

    Args:
        since: the version that the operation read.
        onto: segment → rows deleted in it by replay.
        statement: an update, delete or merge; else a rewrite.
    """
    told = [_commits(since, found)]
    if found.deletes_remapped:
        told.append(_replay(found, onto, statement=statement))
    told += [sentence for met in found.met or () for sentence in of_met(met)]
    untold = found.rows_masked - sum(met.rows_masked or 0 for met in found.met or ())
    if untold > 0:
        told.append(f"{counted(untold, 'row')} masked whose inputs are gone")
    if found.bins_dropped:
        bins = counted(found.bins_dropped, "bin")
        told.append(f"{bins} left out: inputs had changed, and there are no deletion vectors")
    if found.rows_lost and not any(met.rows_lost for met in found.met or ()):
        told.append(f"{counted(found.rows_lost, 'matched row')} lost to others")
    if len(told) > MOST_SENTENCES:
        told = [*told[: MOST_SENTENCES - 1], f"and {len(told) - MOST_SENTENCES + 1} more"]
    return tuple(told)


def _commits(since: int, found: Reconciled) -> str:
    if not found.commits_seen:
        return f"no other commit since version {since}"
    rounds = f", met in {found.rounds} rounds" if found.rounds > 1 else ""
    return f"{counted(found.commits_seen, 'commit')} since version {since}{rounds}"


def _replay(found: Reconciled, onto: Mapping[str, int], *, statement: bool) -> str:
    how = [counted(found.files_masked, "file")] if found.files_masked else []
    if found.milliseconds is not None:
        how.append(f"{found.milliseconds:,} ms" if found.milliseconds else "less than 1 ms")
    aside = f" ({', '.join(how)})" if how else ""
    where = segments_in_words(onto) if onto else "other files"
    if statement:
        # Others had rewritten the files of these rows.
        return f"{counted(found.deletes_remapped, 'row')} followed into {where}{aside}"
    return f"{counted(found.deletes_remapped, 'delete')} replayed onto {where}{aside}"


def segments_in_words(onto: Mapping[str, int]) -> str:
    """`0.1`, `0.1 (2,000) and 4.1 (113)`, `12 segments`"""
    if len(onto) > MOST_SEGMENTS:
        return f"{len(onto)} segments"
    if len(onto) == 1:
        return next(iter(onto))
    return listed([f"{name} ({rows:,})" for name, rows in onto.items()])


def of_met(met: ReconciledCommit) -> list[str]:
    """What one commit of somebody else meant."""
    who = f"version {met.version} by {author(met)}"
    told = []
    masked = f" → {counted(met.rows_masked, 'row')} masked" if met.rows_masked else ""
    if met.inputs_gone:
        told.append(f"{counted(met.inputs_gone, 'input')} gone to {who}{masked}")
        masked = ""
    if met.inputs_restored:
        told.append(f"deleted rows of {counted(met.inputs_restored, 'input')} brought back by "
                    f"{who}{masked}")  # fmt: skip
    if met.executed_again:
        told.append(f"the whole statement executed again after {who}")
    if met.rows_evaluated:
        told.append(f"{counted(met.rows_evaluated, 'row')} evaluated as of {who}")
    if met.rows_lost:
        rows = counted(met.rows_lost, "matched row")
        told.append(f"{rows} deleted or changed first, as of {who}")
    return told


def author(met: ReconciledCommit) -> str:
    """`TableUpdate/late`; for others the engine, and what it did: `delta-rs:…` (OPTIMIZE)"""
    if met.by:
        return met.by
    engine = quoted(met.engine) if met.engine else "an unknown engine"
    return f"{engine} ({met.operation})" if met.operation else engine


def gone_to(mets: Sequence[ReconciledCommit]) -> str:
    """`4 inputs gone to version 44 by …`, for those of whom nothing is left; "" for none."""
    bare = [met.model_copy(update={"rows_masked": None}) for met in mets]
    return "; ".join(sentence for met in bare for sentence in of_met(met))
