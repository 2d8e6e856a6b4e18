"""What of a compaction's inputs is copied, by what the log says of them; the job asks the footers.
No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tandem.delta.datafiles.rowgroups.fitness import (
    DELETED_SHARE,
    Unfit,
    counted_reasons,
    is_small,
)
from tandem.text import counted
from tandem.timeline.segment_files import SegmentFile


def described(
    files: Sequence[SegmentFile],
    *,
    keeps_deleted: bool,
    group_rows: int | None = None,
    rows: Mapping[str, int] | None = None,
) -> str | None:
    """Which row groups are copied, and why others are not; None if none are.

    Args:
        keeps_deleted: the table writes deletion vectors, so that deleted rows can be copied.
        group_rows: `minRowGroupRows`; None for the default.
        rows: of files by logged path, where they are known beside the log. A file whose rows
            neither knows counts as one of none.
    """
    known = rows or {}
    reasons = [
        _not_copied(
            file,
            file.rows if file.rows is not None else known.get(file.path, 0),
            keeps_deleted=keeps_deleted,
            group_rows=group_rows,
        )
        for file in files
    ]
    copied = [file.size for file, why in zip(files, reasons, strict=True) if why is None]
    if not copied:
        return None
    size = f"{sum(copied) / (1 << 20):,.0f} MiB"
    what = f"the row groups of {counted(len(copied), 'file')} ({size}), where they fit"
    others = counted_reasons(Counter(why for why in reasons if why is not None))
    return f"{what}; encodes {', '.join(others)}" if others else what


def _not_copied(
    file: SegmentFile, rows: int, *, keeps_deleted: bool, group_rows: int | None
) -> Unfit | None:
    if is_small(rows, file.size, group_rows):
        return Unfit.SMALL
    most = DELETED_SHARE * rows if keeps_deleted else 0
    return Unfit.DELETED if file.deleted > most else None
