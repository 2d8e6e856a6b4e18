"""The commits since a version, as the rule for statements needs them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tandem.reconcile.model import ChangeKind, CommitSummary
from tandem.reconcile.rules import MUST_FOLLOW
from tandem.spec.update import Isolation


def newest_of(commits: Sequence[CommitSummary], isolation: Isolation) -> CommitSummary | None:
    """L: the newest commit that the statement must come after."""
    for commit in reversed(commits):
        if commit.kind in MUST_FOLLOW[isolation]:
            return commit
    return None


def changed_by(commits: Iterable[CommitSummary]) -> frozenset[str]:
    """The files that any of them added, removed or gave another deletion vector."""
    return frozenset().union(*(commit.files for commit in commits))


def latest_of(version: int, commits: Sequence[CommitSummary]) -> int:
    """The latest version: that of the last commit. The conflict window begins at S, `version`,
    and has no gap (I-23). Raises: ValueError if it has one."""
    for commit in commits:
        if commit.version <= version or (
            commit.version != version + 1 and commit.kind is not ChangeKind.GAP
        ):
            raise ValueError(f"version {commit.version} does not follow version {version}")
        version = commit.version
    return version
