"""How a LakeTable names its table in a catalog: Unity Catalog, a Hive Metastore, or AWS Glue."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote

from pydantic import AfterValidator, Field

from tandem.spec.fields import DnsName, Model, StrictStr, cel, exactly_one

# A part in backquotes, as in SQL, may contain dots and spaces; a backquote in it is doubled.
_PART: Final = r"(`([^`\x00-\x1f]|``)+`|[^.`\s\x00-\x1f/]+)"
_ANY_PART: Final = re.compile(_PART, re.ASCII)
_NUMBER: Final = "([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST: Final = rf"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:{_NUMBER})?"
_TWO: Final = rf"^{_PART}[.]{_PART}$"
_THREE: Final = rf"^{_PART}[.]{_PART}[.]{_PART}$"
_HTTP: Final = rf"^https?://{_HOST}(/[A-Za-z0-9._~/-]*)?$"
_THRIFT: Final = rf"^thrift://{_HOST}$"
_TWO_PARTS: Final = "must be database.table; put parts with dots or spaces into backquotes"
_THREE_PARTS: Final = "must be catalog.schema.table; put parts with dots or spaces into backquotes"
_NOT_HTTP: Final = "must be https://host[:port] or http://…, without user info and query"
_NOT_THRIFT: Final = "must be thrift://host[:port]"
_NOT_REGION: Final = "must be an AWS region such as eu-central-1"
_NOT_ACCOUNT: Final = "must be the 12 digits of an AWS account, in quotes"
_ENCODED: Final = re.compile(r"[%/?#\s]")
"""What is percent-encoded in the name of a table that stands in a URL."""
HIVE_PORT: Final = 9083
_PORT: Final = re.compile(r":\d+$")
_URL: Final = re.compile(r"(?s)(unity|unity\+http|hive|glue)://(.*)/([^/]*)")
_SCHEMES: Final = {"unity": "https", "unity+http": "http", "hive": "thrift"}
_SPELLED: Final = {uri: scheme for scheme, uri in _SCHEMES.items()}


def catalog_of_url(text: str) -> dict[str, Any] | None:
    """`spec.catalog`, not validated, of a table as the command line spells it
    (`unity://host/main.sales.orders`, `hive://host/db.table`, `glue://region/db.table`); None for
    a URL of another scheme. Percent-encoded characters of the name are decoded."""
    found = _URL.fullmatch(text)
    if found is None:
        return None
    scheme, place, name = found[1], found[2], unquote(found[3])
    if scheme == "glue":
        return {"glue": {"region": place, "name": name}}
    kind = scheme.partition("+")[0]
    return {kind: {"uri": f"{_SCHEMES[scheme]}://{place}", "name": name}}


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a name of a table, without their backquotes: `` main.`a.b`.t `` has `a.b`.

    Raises: ValueError for a text that is no name.
    """
    found, at = [], 0
    while match := _ANY_PART.match(name, at):
        part, at = match[0], match.end()
        found.append(part[1:-1].replace("``", "`") if part[0] == "`" else part)
        if at == len(name):
            return tuple(found)
        if name[at] != ".":
            break
        at += 1
    raise ValueError("must be parts with dots between them; put odd parts into backquotes")


@cel(f"self.matches(r'{_TWO}')", _TWO_PARTS)
def _two_parts(value: str) -> str:
    if not re.fullmatch(_TWO, value, re.ASCII):
        raise ValueError(_TWO_PARTS)
    return value


@cel(f"self.matches(r'{_THREE}')", _THREE_PARTS)
def _three_parts(value: str) -> str:
    if not re.fullmatch(_THREE, value, re.ASCII):
        raise ValueError(_THREE_PARTS)
    return value


@cel(f"self.matches(r'{_HTTP}')", _NOT_HTTP, hides_value=True)
def _http(value: str) -> str:
    if not re.fullmatch(_HTTP, value):
        raise ValueError(_NOT_HTTP)
    return value.rstrip("/")


@cel(f"self.matches(r'{_THRIFT}')", _NOT_THRIFT, hides_value=True)
def _thrift(value: str) -> str:
    if not re.fullmatch(_THRIFT, value):
        raise ValueError(_NOT_THRIFT)
    return value


# The region goes into a host name.
@cel("self.matches('^[a-z0-9-]+$')", _NOT_REGION)
def _region(value: str) -> str:
    if not re.fullmatch("[a-z0-9-]+", value):
        raise ValueError(_NOT_REGION)
    return value


@cel("self.matches('^[0-9]{12}$')", _NOT_ACCOUNT)
def _account(value: str) -> str:
    if not re.fullmatch("[0-9]{12}", value):
        raise ValueError(_NOT_ACCOUNT)
    return value


TwoPartName = Annotated[StrictStr, Field(max_length=600), AfterValidator(_two_parts)]
ThreePartName = Annotated[StrictStr, Field(max_length=900), AfterValidator(_three_parts)]
HttpUri = Annotated[StrictStr, Field(max_length=512), AfterValidator(_http)]
ThriftUri = Annotated[StrictStr, Field(max_length=512), AfterValidator(_thrift)]


class TokenRef(Model):
    name: DnsName
    """A Secret of the namespace. Without a cluster the variable `TANDEM_UNITY_TOKEN` takes its
    place."""
    key: Annotated[StrictStr, Field(min_length=1, max_length=253)] = "token"
    """Its key that holds the token."""


class UnityName(Model):
    uri: HttpUri
    """Where Unity Catalog is: `https://host[:port]`. Plain `http://` sends the token unencrypted.
    In a cluster the host must be one of the administrator's `allowedEndpoints`, if there are
    rules."""
    name: ThreePartName
    """The table: `catalog.schema.table`. Parts with dots or spaces are put into backquotes."""
    token_secret_ref: TokenRef | None = None
    """The token of the catalog. Only the engine uses it; jobs do not get it."""

    @property
    def address(self) -> str:
        """Where requests go: the URL of a host."""
        return self.uri


class HiveName(Model):
    uri: ThriftUri
    """Where the Hive Metastore is: `thrift://host[:port]`, by default port 9083. In a cluster the
    host must be one of the administrator's `allowedEndpoints`, if there are rules."""
    name: TwoPartName
    """The table: `database.table`. Parts with dots or spaces are put into backquotes."""

    @property
    def address(self) -> str:
        """As of `UnityName`, always with a port."""
        return self.uri if _PORT.search(self.uri) else f"{self.uri}:{HIVE_PORT}"


class GlueName(Model):
    region: Annotated[StrictStr, Field(max_length=64), AfterValidator(_region)]
    """The region of the Glue Data Catalog."""
    name: TwoPartName
    """The table: `database.table`. Parts with dots or spaces are put into backquotes."""
    catalog_id: Annotated[StrictStr, Field(max_length=12), AfterValidator(_account)] | None = None
    """The AWS account whose catalog it is, if not that of the credentials."""
    endpoint: HttpUri | None = None
    """Instead of AWS's own. In a cluster the host must be one of the administrator's
    `allowedEndpoints`, if there are rules."""

    @property
    def address(self) -> str | None:
        """As of `UnityName`; None for AWS's own."""
        return self.endpoint


class Catalog(Model):
    """Where a table is registered; exactly one of the three."""

    unity: UnityName | None = None
    """A table of Unity Catalog. Commits of a managed one are made through the catalog."""
    hive: HiveName | None = None
    """A table of a Hive Metastore, which is only asked where the table is."""
    glue: GlueName | None = None
    """A table of AWS Glue, which is only asked where the table is. The credentials are those of
    `storage`, or of the process."""

    _one = exactly_one("unity", "hive", "glue")

    @property
    def entry(self) -> UnityName | HiveName | GlueName:
        """The one that is given."""
        found = self.unity or self.hive or self.glue
        assert found is not None
        return found

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        [kind] = self.model_fields_set
        return kind

    @property
    def url(self) -> str:
        """As the command line spells the table: `unity://host/main.sales.orders`."""
        entry = self.entry
        name = _ENCODED.sub(lambda found: quote(found[0], safe=""), entry.name)
        if isinstance(entry, GlueName):
            return f"glue://{entry.region}/{name}"
        scheme, _, place = entry.uri.partition("://")
        return f"{_SPELLED[scheme]}://{place}/{name}"
