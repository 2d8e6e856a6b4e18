"""Which tenant's child a table has, and what it may do with which credentials. Pure.

A tenant is a namespace with an account and a version of a Secret. Its child has the Secret's
credentials in place of the operator's own, where there are some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from zlib import crc32

from tandem.jobs.runner import SMALL_BYTES
from tandem.kube.client.resources import Body, spec_of
from tandem.storage.options import OptionKind, known, of_the_process, variables
from tandem.storage.paths import split_location

if TYPE_CHECKING:
    from tandem.jobs.formats import Job

STORES: Final = 8
"""So many children the tables of one Secret have at most, by their stores."""
_SCHEMES: Final = ("s3", "gs", "abfss")
_CREDENTIALS: Final = frozenset({OptionKind.SECRET, OptionKind.KEY_FILE})
_IDENTITIES: Final[Mapping[str, tuple[frozenset[str], ...]]] = {
    "s3": (frozenset({"access_key_id", "secret_access_key"}),),
    "gs": (frozenset({"service_account_key"}), frozenset({"bearer_token"})),
    "abfss": (
        frozenset({"account_key"}),
        frozenset({"sas_key"}),
        frozenset({"token"}),
        frozenset({"client_id", "client_secret", "tenant_id"}),
    ),
}
"""The options that together are an identity. With less, a client looks further: for a role, for a
profile, and at last for the identity of the pod or of the machine that it runs on."""


@dataclass(frozen=True, slots=True)
class TenantKey:
    """Whose child it is: a namespace, an account, and the name of a Secret; "" for none. `store`:
    tables of one store or catalog have the same number, so that one that hangs holds up no other.
    `alone`: the uid of a table that has a child to itself. `token`: the name of the Secret with the
    token of a catalog."""

    namespace: str
    account: str = ""
    secret: str = ""
    store: int = 0
    alone: str = ""
    token: str = ""


def tenant_of(table: Body | None, namespace: str) -> TenantKey:
    """The tenant of a LakeTable; without one, that of its namespace. Pure."""
    spec = {} if table is None else spec_of(table)
    storage = spec.get("storage") or {}
    secret = (storage.get("secretRef") or {}).get("name") or ""
    scheme, _, rest = str(spec.get("location", "")).partition("://")
    options = sorted((storage.get("options") or {}).items())
    where = "" if scheme == "file" or not rest else repr((scheme, rest.split("/")[0], options))
    token = ""
    for kind, entry in (spec.get("catalog") or {}).items():
        where = repr((kind, entry.get("uri") or entry.get("region"), entry.get("endpoint")))
        token = (entry.get("tokenSecretRef") or {}).get("name") or ""
    return TenantKey(
        namespace,
        str(storage.get("serviceAccountName") or ""),
        str(secret),
        crc32(where.encode()) % STORES,
        token=str(token),
    )


@dataclass(frozen=True, slots=True)
class Tenant:
    """`secret` is a Secret's name with its version, "" for none; `environ` is what it holds."""

    namespace: str
    account: str = ""
    secret: str = ""
    environ: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def has_credentials(self, scheme: str) -> bool:
        """Whether its Secret holds an identity for a kind of store: then it has none of ours
        there. A key that encrypts, or one of another cloud, is none."""
        given = {key for name, key in variables(scheme).items() if self.environ.get(name)}
        return any(identity <= given for identity in _IDENTITIES.get(scheme, ()))


def environment(tenant: Tenant, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a tenant's child. `own`: that of the operator's process.

    Nothing of ours that is meant for another purpose, such as the password of etcd, and of the
    Secret only what names an option of a store, and no file. Our own identity is there for a kind
    of store for which the Secret has none: its tables are read and written with it.
    """
    found = {name: value for name, value in own.items() if not name.startswith("TANDEM_ETCD")}
    identities = of_the_process()
    for scheme in _SCHEMES:
        named = variables(scheme)
        theirs = {
            name: tenant.environ[name]
            for name in named
            if tenant.environ.get(name) and name not in identities
        }
        # An option has several names, and ours must not precede theirs.
        given = {named[name] for name in theirs}
        replaced = tenant.has_credentials(scheme)
        for name, key in named.items():
            of_ours = name in identities or known(scheme)[key] in _CREDENTIALS
            if key in given or (replaced and of_ours):
                found.pop(name, None)
        found |= theirs
    return found


@dataclass(frozen=True, slots=True)
class SmallJobRules:
    """Which jobs a child does itself: those that read at most `most_bytes`. `bounded`, `trusted`:
    as of `may_read`. `heap`: bytes of the heap of a JVM beside the child, for those that need
    Spark; 0 for no JVM."""

    most_bytes: int = SMALL_BYTES
    bounded: bool = False
    trusted: bool = False
    heap: int = 0


def may_read(job: Job, tenant: Tenant, *, bounded: bool, trusted: bool) -> bool:
    """Whether a child may read the sources of a job, which a Spark driver reads as its own
    service account: with the tenant's credentials for that kind of store; and files only within
    bounds that an administrator has set, so none of the operator's pod unless they include it.

    Args:
        bounded: locations are bounded by `--allowed-location`, which the job was checked against.
        trusted: the operator runs outside of a pod, as the user who started it.
    """
    if trusted:
        return True
    schemes = {split_location(source)[0] for source in job.sources}
    return all(
        bounded if scheme == "file" else tenant.has_credentials(scheme) for scheme in schemes
    )
