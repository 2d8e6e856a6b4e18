"""How an operation reconciled with other commits, as short sentences: `result.summary`. Pure.

The wording is in one place, so that a status, the history of a table and an error describe the
same thing in the same words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tandem.spec.replace import Replaced
from tandem.spec.status import Reconciled, ReconciledCommit, RowsReplaced
from tandem.text import clean, counted, human_bytes, listed, quoted

MOST_SEGMENTS = 3
"""Segments that a sentence names; more are counted."""
MOST_INTERVALS = 3
"""Intervals, partitions or segments of a replace that a sentence names; more are counted."""
MOST_SENTENCES = 12


def sentences(
    since: int, found: Reconciled, onto: Mapping[str, int], *, statement: bool
) -> tuple[str, ...]:
    """The outcome of reconciling; the number of commits comes first.

    Args:
        since: the version that the operation read.
        onto: segment → rows deleted in it by replay.
        statement: an update, delete or merge; else a rewrite.
    """
    lines = [_commits(since, found)]
    if found.deletes_remapped:
        lines.append(_replay(found, onto, statement=statement))
    lines += [sentence for met in found.met or () for sentence in of_met(met)]
    unattributed = found.rows_masked - sum(met.rows_masked or 0 for met in found.met or ())
    if unattributed > 0:
        lines.append(f"{counted(unattributed, 'row')} masked because their inputs are gone")
    if found.runs_dropped:
        runs = counted(found.runs_dropped, "run")
        lines.append(f"{runs} of blocks left out: a block was gone")
    if found.rows_lost and not any(met.rows_lost for met in found.met or ()):
        lines.append(f"{counted(found.rows_lost, 'matched row')} deleted or rewritten by others")
    if len(lines) > MOST_SENTENCES:
        lines = [*lines[: MOST_SENTENCES - 1], f"and {len(lines) - MOST_SENTENCES + 1} more"]
    return tuple(lines)


def of_replace(wanted: Replaced, did: RowsReplaced, *, drop: bool) -> tuple[str, ...]:
    """`replaced 2013-03 as of version 41`, and as `left_by_replace`."""
    partitions = ["/".join(f"{n}={v}" for n, v in each.items()) for each in wanted.partitions or ()]
    parts = [
        named
        for named in (
            _named(wanted.intervals or (), "interval"),
            _named(partitions, "partition"),
            _named([f"segment {name}" for name in wanted.segments or ()], "segment"),
        )
        if named
    ]
    since = "" if did.start_version is None else f" as of version {did.start_version}"
    return (
        f"{'dropped' if drop else 'replaced'} {' in '.join(parts)}{since}",
        *left_by_replace(did),
    )


def left_by_replace(did: RowsReplaced) -> list[str]:
    """`312 late rows kept`, `7 rows of the source left out`, `1 chunk left empty`"""
    found = (
        (did.late, "late row", "kept"),
        (did.outside, "row", "of the source left out"),
        (did.empty_chunks, "chunk", "left empty"),
    )
    return [f"{counted(count, what)} {how}" for count, what, how in found if count]


def _named(texts: Sequence[str], what: str) -> str:
    if len(texts) > MOST_INTERVALS:
        return counted(len(texts), what)
    return listed([clean(text) for text in texts]) if texts else ""


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
    """What one commit of another writer meant for the operation."""
    who = f"version {met.version} by {author(met)}"
    lines = []
    masked = f" → {counted(met.rows_masked, 'row')} masked" if met.rows_masked else ""
    if met.inputs_gone:
        lines.append(f"{counted(met.inputs_gone, 'input')} gone to {who}{masked}")
        masked = ""
    if met.inputs_restored:
        lines.append(f"deleted rows of {counted(met.inputs_restored, 'input')} restored by "
                     f"{who}{masked}")  # fmt: skip
    if met.executed_again:
        lines.append(f"the whole statement executed again after {who}")
    if met.rows_evaluated:
        lines.append(f"{counted(met.rows_evaluated, 'row')} evaluated as of {who}")
    if met.rows_lost:
        rows = counted(met.rows_lost, "matched row")
        lines.append(f"{rows} deleted or rewritten first, as of {who}")
    return lines


def author(met: ReconciledCommit) -> str:
    """`TableUpdate/late`; for other engines the engine and its operation: `delta-rs:…`
    (OPTIMIZE)."""
    if met.by:
        return met.by
    engine = quoted(met.engine) if met.engine else "an unknown engine"
    return f"{engine} ({met.operation})" if met.operation else engine


def gone_to(mets: Sequence[ReconciledCommit]) -> str:
    """`4 inputs gone to version 44 by …`, for inputs of which nothing is left; "" for none."""
    bare = [met.model_copy(update={"rows_masked": None}) for met in mets]
    return "; ".join(sentence for met in bare for sentence in of_met(met))


def of_row_edits(
    files: int,
    size: int,
    columns: Sequence[str] | None = None,
    share: float | None = None,
    *,
    of: str = "a match",
) -> str:
    """What an operation on some rows costs on a table without deletion vectors.

    Args:
        files: those that may have such a row, of `size` bytes.
        columns: the names of those of which alone the values change; None if rows may be deleted.
        share: of the bytes that these columns have; None if that is not known.
        of: such a row.
    """
    bytes_ = human_bytes(size)
    if columns is None:
        how = f"row groups without one are copied, others are encoded, up to {bytes_}"
    else:
        are = "is" if len(columns) == 1 else "are"
        how = f"row groups without one are copied, of others, only {listed(columns)} {are} encoded"
        if share is not None:
            encoded = human_bytes(round(share * size))
            kept = human_bytes(round((1 - share) * size))
            how += f": about {encoded} at most, and {kept} copied"
    return (
        f"rewrites up to {counted(files, 'file')} ({bytes_}), those with {of}: their {how}. "
        f"{_WITH_VECTORS}no file is rewritten; {_READERS}"
    )


def of_edits(files: int, rounds: int, copied: int, encoded: int) -> str:
    """`2 files edited in 1 round: 12.1 MiB copied, 1.3 MiB encoded`"""
    how = f"{human_bytes(copied)} copied, {human_bytes(encoded)} encoded"
    return f"{counted(files, 'file')} edited in {counted(rounds, 'round')}: {how}"


def of_rewrite_edits(*, sorts: bool, output_bytes: int | None) -> str:
    """What a rewrite costs on a table without deletion vectors, beside other writers."""
    if not sorts:
        return (
            "an input that another writer changes meanwhile costs a row group of the output. "
            f"{_WITH_VECTORS}it costs nothing; {_READERS}"
        )
    size = "" if output_bytes is None else f" (about {human_bytes(output_bytes)})"
    return (
        f"an input that another writer changes meanwhile costs a whole output{size}, and a bin "
        f"that changes faster is left as it was. {_WITH_VECTORS}it costs nothing; {_READERS}"
    )


_WITH_VECTORS: Final = (
    "With deletion vectors (enableDeletionVectors: true, or --enable-deletion-vectors), "
)
_READERS: Final = "readers must then support them (docs/compatibility.md)"
