"""From the files of a run to bins: what is rewritten together, and whether that is worth it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.planning.model import Bin
from tandem.timeline.chunks import Interval, components
from tandem.timeline.segments import SegmentFile

Partition = tuple[tuple[str, str | None], ...]

FULL_SHARE = 0.75
"""A file of at least this share of the target size is full: packing it again gains nothing.
The remaining quarter allows for compression that is better in one big file than estimated."""

OVERRUN = 1.25
"""How far a bin may exceed the target size, where the alternative is a bin that is not full."""

MOST_SORTED_ROWS = 2**32 - 1
"""Of a bin that is sorted: its row map counts them with four bytes (`rowmap.permutation`)."""

DELETED_SHARE = 0.05
"""More deleted rows than this make a file worth rewriting by itself (Delta Lake draws the same
line for its own OPTIMIZE)."""


def pack(files: Iterable[SegmentFile], target_file_size: int) -> tuple[Bin, ...]:
    """Bins of about `target_file_size` estimated live bytes.

    Files of different partitions never meet, nor do files of different time chunks unless a
    file that spans them is among the files. Within a group the given order (segment order) is
    kept; where a file spans chunks, its group is ordered by time first. A file larger than the
    target gets a bin of its own.

    A bin that is not full yet may run over the target by a quarter: else files of a little
    over half the target would stay alone for ever. So may the last but one, to take in a
    remainder. Whoever writes a bin must not cut such an
    overrun off into a small file: a bin is written as `Bin.expected_files` files.
    """
    bins: list[Bin] = []
    for partition, members in _groups(files):
        for chosen in _chosen(members, target_file_size):
            size = sum(file.live_bytes for file in chosen)
            bins.append(_bin(chosen, partition, size, target_file_size))
    return tuple(bins)


def together(files: Iterable[SegmentFile], target_file_size: int) -> tuple[Bin, ...]:
    """One bin of all files of a partition and chunk, however large: what is to be sorted is
    sorted as one, and then cut into files."""
    bins: list[Bin] = []
    for partition, members in _groups(files):
        for chosen in _countable(members):
            size = sum(file.live_bytes for file in chosen)
            bins.append(_bin(chosen, partition, size, target_file_size))
    return tuple(bins)


def _countable(members: Sequence[SegmentFile]) -> list[list[SegmentFile]]:
    """All of them, unless they have more rows than one row map can say the order of."""
    groups: list[list[SegmentFile]] = [[]]
    rows = 0
    for file in members:
        rows += file.rows or 0
        if rows > MOST_SORTED_ROWS and groups[-1]:
            groups.append([])
            rows = file.rows or 0
        groups[-1].append(file)
    return groups


def is_in_order(each: Bin, label: str) -> bool:
    """Whether a bin's rows lie as a layout wants them: written so together, by one operation,
    and hardly any of them deleted since."""
    if any(file.layout != label or file.deleted_share > DELETED_SHARE for file in each.files):
        return False
    return len({file.segment for file in each.files}) == 1


def _chosen(members: Sequence[SegmentFile], target: int) -> list[list[SegmentFile]]:
    """The files of one group, cut into consecutive bins."""
    bins: list[list[SegmentFile]] = [[]]
    sizes = [0]
    for file in members:
        if bins[-1] and not _fits(sizes[-1], file.live_bytes, target):
            bins.append([])
            sizes.append(0)
        bins[-1].append(file)
        sizes[-1] += file.live_bytes
    if len(bins) > 1 and sizes[-1] < FULL_SHARE * target and sum(sizes[-2:]) <= OVERRUN * target:
        # A remainder would be one more task, and a small file to compact again.
        bins[-2:] = [bins[-2] + bins[-1]]
    return bins


def _fits(size: int, more: int, target: int) -> bool:
    if size < FULL_SHARE * target:
        return size + more <= OVERRUN * target
    return size + more <= target


def is_useful(each: Bin) -> bool:
    """Whether rewriting a bin leaves fewer files, or gets rid of many deleted rows."""
    return len(each.files) > each.expected_files or any(
        file.deleted_share > DELETED_SHARE for file in each.files
    )


def is_full(file: SegmentFile, target_file_size: int) -> bool:
    """Whether a file is as it should be: big enough and with few deleted rows."""
    return file.live_bytes >= FULL_SHARE * target_file_size and file.deleted_share <= DELETED_SHARE


def partition_of(file: SegmentFile) -> Partition:
    return tuple(sorted(file.partition_values.items()))


def _groups(files: Iterable[SegmentFile]) -> list[tuple[Partition, list[SegmentFile]]]:
    by_partition: dict[Partition, list[SegmentFile]] = {}
    for file in files:
        by_partition.setdefault(partition_of(file), []).append(file)
    groups: list[tuple[Partition, list[SegmentFile]]] = []
    for partition, members in by_partition.items():
        groups += [(partition, group) for group in by_chunk(members).values()]
    return groups


def by_chunk(files: Sequence[SegmentFile]) -> dict[Interval | None, list[SegmentFile]]:
    """Files by time chunk, or by the hull of chunks that a file among them links; in order of
    time, those of unknown time last (key None: all of them where no time column is set)."""
    hulls = components(file.interval for file in files if file.interval is not None)
    groups: dict[Interval | None, list[SegmentFile]] = {
        hull: [] for hull in sorted(set(hulls.values()))
    }
    for file in files:
        hull = hulls[file.interval] if file.interval is not None else None
        groups.setdefault(hull, []).append(file)
    for group in groups.values():
        if any(file.spans and file.interval is not None for file in group):
            # A stable sort: files of one interval stay in segment order.
            group.sort(key=lambda file: file.interval.start_ms if file.interval else 0)
    return groups


def _bin(files: Sequence[SegmentFile], partition: Partition, live_bytes: int, target: int) -> Bin:
    # A bin whose rows are all deleted leaves no file at all.
    gone = all(file.deleted and file.rows and file.deleted >= file.rows for file in files)
    expected = 0 if gone else max(1, round(live_bytes / target))
    return Bin(tuple(files), partition, live_bytes, expected)
