"""Which rounds of a statement count towards `conflict.maxAttempts`.

Other writers commit while a round evaluates earlier changes, so the next round has rows to
evaluate, too. Waiting does not help: a statement continues at once, as long as it makes progress.
Progress is measured by the number of rows left.

| a round that has … rows to evaluate | then |
|---|---|
| fewer than any before it | progress: the count begins again |
| no fewer than the one before it | no progress: it counts |
| fewer than the one before it, but not than all of them | neither |
| all of them: it is executed from the beginning | it counts, and is never taken back |

"Fewer than the one before it" alone would go on for ever beside a writer that rewrites one file
and two files by turns; "fewer than any" alone would give up after so many rounds that a writer
of one file a second made unequal. As it is, every sequence of rounds ends: there are only so many
numbers of rows below the first, and between two of them `maxAttempts` rounds that count, each
followed by ever smaller ones. Beside a writer that rewrites as many rows in every round there is no
progress: each round may be the last one, and `maxAttempts` limits them.

A *small* round is evaluated by the engine itself, in milliseconds, without a job. Whether another
commit comes first is then a matter of chance, so many are tried: `SMALL_ROUNDS` of them count as
one round without progress, which later progress does not take back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SMALL_ROUNDS = 100
"""As many small rounds as count once."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """`counted` are those without progress so far, `lasting` of them those that progress does
    not take back; `rows` had the last round to evaluate and `fewest` the smallest one, None
    before the first one since the whole statement was executed. `small` counts small rounds."""

    counted: int = 0
    lasting: int = 0
    rows: int | None = None
    fewest: int | None = None
    small: int = 0

    def after_round(self, rows: int) -> Attempts:
        """With one more round, of so many rows."""
        if self.rows is None or self.fewest is None or rows < self.fewest:
            return Attempts(self.lasting, self.lasting, rows, rows, self.small)
        stalled = rows >= self.rows
        return Attempts(self.counted + stalled, self.lasting, rows, self.fewest, self.small)

    def after_small_round(self) -> Attempts:
        """With one more round that needed no job."""
        small = self.small + 1
        counts = small % SMALL_ROUNDS == 0
        return replace(
            self, counted=self.counted + counts, lasting=self.lasting + counts, small=small
        )

    def after_whole(self) -> Attempts:
        """With one more execution from the beginning: nothing that came before it compares."""
        return Attempts(self.counted + 1, self.counted + 1, small=self.small)
