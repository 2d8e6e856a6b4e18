"""Refuses commits of a log that Tandem has not made. Pure.

The writer feature of a log keeps other engines from writing it. One that ignores the feature could
remove blocks, or move the mark: each later view would lack rows, and nothing would say so. So each
commit that is read is checked, at no request more. What lies below a checkpoint is not read, but a
checkpoint of Tandem follows such a check.
"""

from __future__ import annotations

from tandem.delta.actions import Commit, Txn
from tandem.errors import CorruptLog
from tandem.mergelog.state.model import BASE, MARK

_ENGINE = "tandem/"
"""Each commit of Tandem names its engine so, with the version (`tandem.delta.log.commit`)."""


def require_own(commit: Commit, location: str) -> None:
    """Check that Tandem made a commit of the log at `location`, as far as the commit shows.

    Raises: CorruptLog.
    """
    found = _foreign(commit)
    if found:
        raise CorruptLog(
            "another writer has changed the log of blocks",
            resource=location,
            field=f"version {commit.version}",
            found=found,
            expected="commits of Tandem only",
            remedy="Tandem has appended nothing since. Remove this commit and those after it, and "
            "checkpoints of their versions, from `_tandem/log/_delta_log`",
        )


def _foreign(commit: Commit) -> str:
    """What shows that Tandem did not make the commit; "" if nothing does."""
    info = commit.info
    if info is None or not info.engine.startswith(_ENGINE):
        engine = info.engine if info is not None else ""
        operation = info.operation if info is not None else ""
        return f"{operation or 'an unknown operation'} by {engine or 'an unknown engine'}"
    if any(remove.data_change for remove in commit.removes):
        return f"{info.operation}, which removes records"
    txns = {action.app_id for action in commit.actions if isinstance(action, Txn)}
    if MARK in txns and BASE not in txns:
        return f"{info.operation}, which moves the mark without a version of the base table"
    return ""
