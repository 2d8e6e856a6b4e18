"""What of a compaction's inputs is copied, by what the log says of them; the job asks the footers.
No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tandem.delta.datafiles.rowgroups.fitness import (
    DELETED_SHARE,
    Unfit,
    counted_reasons,
    is_small,
)
from tandem.text import counted
from tandem.timeline.segment_files import SegmentFile


def described(files: Sequence[SegmentFile], *, keeps_deleted: bool) -> str | None:
    """Which row groups are copied, and why others are not; None if none are.

    Args:
        keeps_deleted: the table writes deletion vectors, so that deleted rows can be copied.
    """
    reasons = [_not_copied(file, keeps_deleted=keeps_deleted) for file in files]
    copied = [file.size for file, why in zip(files, reasons, strict=True) if why is None]
    if not copied:
        return None
    size = f"{sum(copied) / (1 << 20):,.0f} MiB"
    what = f"the row groups of {counted(len(copied), 'file')} ({size}), where they fit"
    others = counted_reasons(Counter(why for why in reasons if why is not None))
    return f"{what}; encodes {', '.join(others)}" if others else what


def _not_copied(file: SegmentFile, *, keeps_deleted: bool) -> Unfit | None:
    rows = file.rows or 0
    if is_small(rows, file.size):
        return Unfit.SMALL
    most = DELETED_SHARE * rows if keeps_deleted else 0
    return Unfit.DELETED if file.deleted > most else None
