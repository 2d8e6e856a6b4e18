"""The log of blocks of one table, as the operator knows it."""

from __future__ import annotations

from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import AccessDenied, ObjectNotFound, StorageError, TandemError
from tandem.mergelog.state.log_table import MergeLog
from tandem.mergelog.state.versions import LogFacts
from tandem.mergelog.usage import LogReader


class TableLog:
    """Read in two steps: `update`, then the base table, then `look`.

    Attributes:
        facts: as of the version of the base table read last; None if there is no log, or it cannot
            be read.
        problem: why it cannot be read; "" if it can.
    """

    def __init__(self, base: DeltaLog) -> None:
        self.log = MergeLog(base)
        self.facts: LogFacts | None = None
        self.problem = ""
        self._reader = LogReader(self.log)
        self._exists = False

    @property
    def exists(self) -> bool:
        """Whether there was one at the last look."""
        return self._exists

    def update(self, *, thoroughly: bool) -> None:
        """Read the newest version of the log, if there is one.

        Raises: StorageError, if it may pass by itself.
        """
        self.problem = ""
        try:
            self._exists = self._reader.update(thoroughly=thoroughly)
        except TandemError as error:
            if _passes(error):
                raise
            self._exists, self.facts, self.problem = True, None, str(error)

    def look(self, base: Snapshot) -> None:
        """Derive the facts as of the base table. Raises: as `update`."""
        if not self._exists or self.problem:
            self.facts = None
            return
        try:
            self.facts = self._reader.facts(base)
        except TandemError as error:
            if _passes(error):
                raise
            self.facts, self.problem = None, str(error)


def _passes(error: TandemError) -> bool:
    """What does not pass is a problem of the log alone: operations that need it say so, the others
    go on."""
    return isinstance(error, StorageError) and not isinstance(error, AccessDenied | ObjectNotFound)
