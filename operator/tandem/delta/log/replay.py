"""Replay of the log as a small pure fold (protocol, "Action Reconciliation"). No I/O.

The newest reference wins for each logical file, that is each (logged path, deletion vector id).
A remove stays in `files` as a tombstone: it hides what a checkpoint below still lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tandem.delta.actions import (
    Action,
    AddFile,
    Commit,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)

FileKey = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Replay:
    """The state after a sequence of actions.

    `files` holds the newest reference to every logical file of the sequence, and `domains` the
    newest action of every domain. Both include removed ones, which hide entries of an older
    checkpoint; readers drop those.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: Mapping[str, Txn] = field(default_factory=dict)
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)
    files: Mapping[FileKey, AddFile | RemoveFile] = field(default_factory=dict)

    @property
    def live(self) -> dict[FileKey, AddFile]:
        return {k: a for k, a in self.files.items() if isinstance(a, AddFile)}

    @property
    def live_domains(self) -> dict[str, DomainMetadata]:
        return {k: d for k, d in self.domains.items() if not d.removed}


EMPTY = Replay()


def fold(start: Replay, commits: Iterable[Commit]) -> Replay:
    """`start` followed by the commits, oldest first."""
    return fold_actions(start, (action for commit in commits for action in commit.actions))


def fold_actions(start: Replay, actions: Iterable[Action]) -> Replay:
    """`start` followed by the actions, oldest first."""
    protocol, metadata = start.protocol, start.metadata
    txns, domains, files = dict(start.txns), dict(start.domains), dict(start.files)
    for action in actions:
        match action:
            case AddFile() | RemoveFile():
                # Re-inserted, so that the order of keys is the order of the newest references.
                files.pop(action.key, None)
                files[action.key] = action
            case Txn():
                txns[action.app_id] = action
            case DomainMetadata():
                domains[action.domain] = action
            case Metadata():
                metadata = action
            case Protocol():
                protocol = action
            case _:
                pass  # commitInfo: provenance, no part of the state
    return Replay(protocol, metadata, txns, domains, files)
