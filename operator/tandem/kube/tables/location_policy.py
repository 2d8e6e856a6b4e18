"""The locations and endpoints that an administrator allows each namespace. Pure.

A rule is `PREFIX`, for all namespaces, or `PATTERN=PREFIX`, where the pattern is a shell pattern
on the namespace's name. `{namespace}` in a prefix stands for that name. With no rule at all
everything is allowed; with some, a namespace that none of them names may have no table.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from tandem.errors import InvalidSpec, LocationNotAllowed
from tandem.spec.table import LakeTable
from tandem.storage.allowed_locations import (
    check_options,
    check_prefixes,
    check_secret,
    require,
    require_catalog,
    require_endpoints,
)
from tandem.storage.paths import canonical_location, split_location

NAMESPACE = "{namespace}"
_RULE = re.compile(r"(?:([a-z0-9*?\[\]!-]+)=)?(.*)", re.DOTALL)
_ENDPOINT = re.compile(r"[A-Za-z0-9.*?_-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?")


@dataclass(frozen=True, slots=True)
class LocationPolicy:
    """`locations`: rules as typed; `endpoints`: `host` or `host:port`, shell patterns.

    Raises: InvalidSpec for an invalid rule.
    """

    locations: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.prefixes("x")
        for endpoint in self.endpoints:
            if not _ENDPOINT.fullmatch(endpoint):
                raise InvalidSpec(
                    "is no host",
                    resource="tandem operator",
                    field="--allowed-endpoint",
                    found=endpoint,
                    expected="host or host:port, such as *.minio.svc:9000",
                )

    def prefixes(self, namespace: str) -> tuple[str, ...]:
        """Canonical prefixes below which a namespace's tables and sources may be."""
        found = []
        for rule in self.locations:
            parsed = _RULE.fullmatch(rule)
            assert parsed is not None
            pattern, prefix = parsed[1] or "*", parsed[2].replace(NAMESPACE, namespace)
            [canonical] = check_prefixes([prefix], field="--allowed-location")
            if fnmatch.fnmatchcase(namespace, pattern):
                found.append(canonical)
        return tuple(found)

    def check_catalog(self, resource: LakeTable, environ: dict[str, str] | None) -> None:
        """Check, before its catalog is asked, that it may be, and the Secret of the store. Raises:
        as `check`."""
        catalog, secret = resource.spec.catalog, resource.spec.storage.secret_ref
        assert catalog is not None
        if environ is not None and secret is not None:
            check_secret(environ, resource=resource.id, name=secret.name)
        self._prefixes_of(resource)
        if (self.locations or self.endpoints) and catalog.entry.address is not None:
            require_catalog(
                catalog.entry.address,
                self.endpoints,
                resource=resource.id,
                field=f"spec.catalog.{catalog.kind}",
            )

    def check(self, resource: LakeTable, location: str | None = None) -> tuple[str, ...]:
        """Check that a table's location, its sources if it is a shallow clone, and its endpoint are
        allowed for its namespace. Returns the namespace's prefixes, none for anywhere.

        Args:
            location: what its catalog names, if it has one.
        Raises: LocationNotAllowed, InvalidSpec.
        """
        prefixes = self._prefixes_of(resource)
        place = location or resource.location
        field = "spec.location" if resource.spec.catalog is None else "spec.catalog"
        require(place, prefixes, resource=resource.id, field=field)
        for number, source in enumerate(resource.spec.storage.clone_sources):
            field = f"spec.storage.cloneSources[{number}]"
            require(source, prefixes, resource=resource.id, field=field)
        scheme = split_location(canonical_location(place))[0]
        check_options(resource.spec.storage.options, scheme, resource=resource.id)
        self.check_endpoints(resource, None, location)
        return prefixes

    def _prefixes_of(self, resource: LakeTable) -> tuple[str, ...]:
        prefixes = self.prefixes(resource.namespace)
        if self.locations and not prefixes:
            raise LocationNotAllowed(
                "this operator allows no tables in this namespace",
                resource=resource.id,
                field="metadata.namespace",
                found=resource.namespace,
                remedy="Ask the operator's administrator for an --allowed-location "
                "(the chart's allowedLocations)",
            )
        return prefixes

    def check_endpoints(
        self, resource: LakeTable, environ: dict[str, str] | None, location: str | None = None
    ) -> None:
        """Check the endpoints in a Secret, and that it is one of credentials. Arguments and errors
        as of `check`."""
        storage = resource.spec.storage
        if environ is not None and storage.secret_ref is not None:
            check_secret(environ, resource=resource.id, name=storage.secret_ref.name)
        if self.locations or self.endpoints:
            require_endpoints(
                location or resource.location,
                storage.options,
                environ,
                self.endpoints,
                resource=resource.id,
            )
