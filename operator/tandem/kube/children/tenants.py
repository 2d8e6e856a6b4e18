"""Whose child it is, and what it may do with which credentials. Pure.

A tenant is a namespace with an account and a version of a Secret. Its child has the Secret's
credentials in place of the operator's own, where there are some.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandem.jobs.formats import Job
from tandem.storage.options import OptionKind, known, of_the_process, variables
from tandem.storage.paths import split_location

_SCHEMES: Final = ("s3", "gs", "abfss")
_CREDENTIALS: Final = frozenset({OptionKind.SECRET, OptionKind.KEY_FILE})


@dataclass(frozen=True, slots=True)
class Tenant:
    """`secret` is a Secret's name with its version, "" for none; `environ` is what it holds."""

    namespace: str
    account: str = ""
    secret: str = ""
    environ: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def has_credentials(self) -> bool:
        """Whether its Secret holds credentials of a store: then it has none of ours."""
        return any(
            self.environ.get(name) and known(scheme)[key] in _CREDENTIALS
            for scheme in _SCHEMES
            for name, key in variables(scheme).items()
        )


def environment(tenant: Tenant, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a tenant's child. `own`: that of the operator's process.

    Nothing of ours that is meant for another purpose, such as the password of etcd, and of the
    Secret only what names an option of a store: no file, and no server that would be shown the
    operator's token.
    """
    found = {name: value for name, value in own.items() if not name.startswith("TANDEM_ETCD")}
    if tenant.has_credentials:
        identities = of_the_process()
        for scheme in _SCHEMES:
            for name, key in variables(scheme).items():
                if name in identities or known(scheme)[key] in _CREDENTIALS:
                    found.pop(name, None)
    for scheme in _SCHEMES:
        for name in variables(scheme):
            if name in tenant.environ and name not in of_the_process():
                found[name] = tenant.environ[name]
    return found


def may_read(job: Job, tenant: Tenant, *, bounded: bool, trusted: bool) -> bool:
    """Whether a child may read the sources of a job, which a Spark driver reads as its own
    service account: with the tenant's credentials, or within bounds that an administrator has set;
    and no file of the operator's pod, unless these bounds include it.

    Args:
        bounded: locations are bounded by `--allowed-location`, which the job was checked against.
        trusted: the operator runs outside of a pod, as the user who started it.
    """
    if trusted:
        return True
    return all(
        bounded if split_location(source)[0] == "file" else tenant.has_credentials
        for source in job.sources
    )
