"""Which tables an IndexServer serves, and why others that it might serve are not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tandem.errors import InvalidSpec, Reason, TandemError
from tandem.index.server.config import MAX_TABLES, TableConfig
from tandem.kube.client.kinds import Body, is_deleting, status_of
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.kube.tables.status import LASTING
from tandem.spec.index.server import IndexServer, TableSelection
from tandem.spec.loading.loader import parse
from tandem.spec.table import LakeTable

Problem = tuple[Reason, str] | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A LakeTable of the namespace. `problem`: why the operator cannot use it; None if it can, or
    if it has not looked yet."""

    body: Body
    adopted: bool
    problem: Problem = None


@dataclass(frozen=True, slots=True)
class Choice:
    """The tables by name, and reasons by name."""

    served: Mapping[str, TableConfig]
    refused: Mapping[str, str]

    @property
    def secrets(self) -> frozenset[str]:
        """The Secrets with credentials of the tables that are served."""
        return frozenset(t.secret for t in self.served.values() if t.secret is not None)

    def without_secrets(self, missing: frozenset[str]) -> Choice:
        """Without the tables whose Secret does not exist."""
        kept = {n: t for n, t in self.served.items() if t.secret not in missing}
        gone = {
            name: f"there is no Secret {table.secret} in the namespace"
            for name, table in self.served.items()
            if table.secret in missing
        }
        return Choice(kept, {**self.refused, **gone})


def select(server: IndexServer, candidates: Iterable[Candidate], policy: LocationPolicy) -> Choice:
    """What a server serves of the LakeTables of its namespace."""
    served: dict[str, TableConfig] = {}
    refused: dict[str, str] = {}
    there = set[str]()
    for candidate in sorted(candidates, key=lambda each: str(each.body["metadata"]["name"])):
        name = str(candidate.body["metadata"]["name"])
        if is_deleting(candidate.body) or not is_chosen(server.spec.tables, candidate.body):
            continue
        there.add(name)
        try:
            served[name] = _config(server, candidate, policy)
        except TandemError as error:
            refused[name] = str(error) if error.field else error.message
    for name in sorted(set(server.spec.tables.names) - there):
        refused[name] = "there is no LakeTable of this name in the namespace"
    for name in list(served)[MAX_TABLES:]:
        del served[name]
        refused[name] = f"a server serves at most {MAX_TABLES:,} tables"
    return Choice(served, refused)


def is_chosen(selection: TableSelection, body: Body) -> bool:
    """Whether a LakeTable is one that the spec asks for."""
    if selection.names:
        return body["metadata"]["name"] in selection.names
    if selection.selector is None:
        return True
    labels = body["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in selection.selector.match_labels.items())


def _config(server: IndexServer, candidate: Candidate, policy: LocationPolicy) -> TableConfig:
    """Raises: TandemError, whose message says why it is not served."""
    if candidate.problem is not None and candidate.problem[0] in LASTING:
        raise InvalidSpec(candidate.problem[1])
    if not candidate.adopted:
        raise InvalidSpec("it is not adopted yet")
    table = parse({key: value for key, value in candidate.body.items() if key != "status"})
    assert isinstance(table, LakeTable)
    if table.spec.merge_on_read is not None or status_of(candidate.body).get("log") is not None:
        raise InvalidSpec("the index does not see the log of a merge-on-read table")
    wanted = table.spec.index.server if table.spec.index is not None else None
    if wanted not in (None, server.name):
        raise InvalidSpec(f"its spec.index.server is {wanted}")
    storage = table.spec.storage
    account = storage.service_account_name
    if storage.secret_ref is None and account not in (None, server.spec.service_account_name):
        raise InvalidSpec(
            f"its storage wants the identity of service account {account}, and the server runs as "
            f"{server.spec.service_account_name}"
        )
    return TableConfig(
        location=table.spec.location,
        options=dict(storage.options),
        secret=storage.secret_ref.name if storage.secret_ref is not None else None,
        allowed=policy.check(table) or storage.clone_sources,
        kept_ms=table.spec.retention.files if table.spec.retention is not None else None,
    )
