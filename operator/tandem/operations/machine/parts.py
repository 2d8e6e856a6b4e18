"""The place of a batch in the work of its operation, and what the status shows of it. Pure.

Decides nothing: the machine knows no batches (docs/decisions/0177).
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.spec.status import Progress


@dataclass(frozen=True, slots=True)
class PartOfWork:
    """The place of a batch in the work of its operation: its number, from 1, and how many there
    are; the input of the batches before it, and of all of them."""

    number: int
    of: int
    files_before: int
    bytes_before: int
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"batch {self.number} of {self.of}"

    def in_whole(self, progress: Progress) -> Progress:
        """The progress of the batch as that of its operation."""
        files = min(self.files, self.files_before + progress.files_done)
        done = min(self.bytes, self.bytes_before + progress.bytes_done)
        left = progress.bytes_total - progress.bytes_done
        eta = progress.eta_seconds
        if eta is not None:
            eta = eta * (self.bytes - done) // left if left > 0 else None
        return Progress(
            percent=100 * done // self.bytes if self.bytes else 0,
            files_done=files,
            files_total=self.files,
            bytes_done=done,
            bytes_total=self.bytes,
            eta_seconds=eta,
            summary=f"{files}/{self.files} files, {self}",
        )


def committed_in_words(batches: int) -> str:
    """What an operation has committed whose last committed batch has this number; 0: none."""
    if not batches:
        return "nothing was committed"
    return "batch 1 is committed" if batches == 1 else f"batches up to {batches} are committed"


def with_batches(message: str, batches: int) -> str:
    """A message about an end without a commit, with what was committed before."""
    return f"{message}; {committed_in_words(batches)}" if batches else message
