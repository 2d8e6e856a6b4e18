"""The table that a command is about: as a location, as its name in a catalog, or as the name of a
LakeTable in files."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from pydantic import TypeAdapter, ValidationError

from tandem.errors import InvalidSpec, ReferenceNotFound
from tandem.spec import API_VERSION, LakeTable, load, parse
from tandem.spec.catalog import Catalog, catalog_of_url
from tandem.spec.fields import Location
from tandem.storage.paths import without_userinfo

if TYPE_CHECKING:
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.log.snapshot import Snapshot
    from tandem.index.library import IndexReader
    from tandem.operations.model import Table
    from tandem.storage.store import Store
    from tandem.timeline.chunks import TimeColumn


@dataclass(frozen=True)
class Target:
    """A table as given on the command line: by its location, by its name in a catalog, or by the
    name of a LakeTable in the given files. `location` is then as typed (`unity://…`).
    `clone_sources`: of a shallow clone, those of the LakeTable among them."""

    location: str
    table: LakeTable | None
    options: dict[str, str]
    clone_sources: tuple[str, ...] = ()
    catalog: Catalog | None = None

    def open(self) -> Store:
        """Its store. Raises: as `open_table`."""
        if self.catalog is not None:
            return self.opened.store
        from tandem.storage import open_store

        return open_store(self.location, self.options, allowed_prefixes=self.clone_sources)

    def log(self) -> DeltaLog:
        """Its log. Raises: as `open_table`."""
        if self.catalog is not None:
            return self.opened.log
        from tandem.delta.log.delta_log import DeltaLog

        return DeltaLog(self.open())

    @functools.cached_property
    def opened(self) -> Table:
        """The table as its catalog names it. Raises: as `open_table`."""
        from tandem.operations.adopt import open_table

        metadata, spec = self.fields()
        kind = LakeTable.kind_name
        table = parse({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
        assert isinstance(table, LakeTable)
        return open_table(table)

    def fields(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Metadata and spec of its LakeTable, as people type them."""
        if self.table is not None:
            manifest = self.table.manifest()
            metadata, spec = manifest["metadata"], manifest["spec"]
        else:
            metadata, spec = {"name": _name_of(self.location)}, {"location": self.location}
            if self.catalog is not None:
                named = self.catalog.model_dump(mode="json", by_alias=True, exclude_unset=True)
                spec = {"catalog": named}
        storage = {"options": self.options, "cloneSources": list(self.clone_sources)}
        given = {name: value for name, value in storage.items() if value}
        if given:
            spec = {**spec, "storage": {**spec.get("storage", {}), **given}}
        return metadata, spec

    @property
    def has_server(self) -> bool:
        """Whether its LakeTable names an index server."""
        from tandem.index.server.client import server_of

        return self.table is not None and server_of(self.table) is not None

    def index(self, *, base: bool = False) -> IndexReader:
        """Its index: that of the server that its LakeTable names, if there is one. Raises: as
        `open_index`."""
        from tandem.index import TableIndex
        from tandem.index.server.client import index_of

        if self.table is None or not self.has_server:
            return TableIndex(self.log(), base=base)
        return index_of(self.table, self.options, base=base)

    def time_column(self, snapshot: Snapshot) -> TimeColumn | None:
        """The table's time column, as planning uses it."""
        from tandem.operations.kinds.time_column import time_column

        return time_column(self.table, snapshot)


def target(
    location_or_name: str,
    files: Sequence[str] = (),
    options: Sequence[str] = (),
    clone_sources: Sequence[str] = (),
) -> Target:
    """Find the table of an argument.

    Args:
        location_or_name: a URL, also that of a table in a catalog, a path, or with `files` the
            name of a LakeTable in them.
        files: resources (`-f`).
        options: `key=value` of the object store, in addition to those of the LakeTable.
        clone_sources: locations, in addition to those of the LakeTable.

    Raises:
        InvalidSpec, ReferenceNotFound
    """
    given = dict(key_and_value(text, "--option") for text in options)
    sources = tuple(as_location(text) for text in clone_sources)
    if files:
        tables = [resource for resource in load(files) if isinstance(resource, LakeTable)]
        for table in tables:
            if location_or_name in (table.name, f"LakeTable/{table.name}", table.address):
                storage = table.spec.storage
                every = tuple(dict.fromkeys((*storage.clone_sources, *sources)))
                options_ = {**storage.options, **given}
                return Target(table.address, table, options_, every, table.spec.catalog)
        if "://" not in location_or_name and "/" not in location_or_name:
            raise ReferenceNotFound(
                "no LakeTable of this name in the files",
                resource=location_or_name,
                expected="one of " + ", ".join(table.name for table in tables),
            )
    if (catalog := _catalog_of(location_or_name)) is not None:
        return Target(catalog.url, None, given, sources, catalog)
    return Target(as_location(location_or_name), None, given, sources)


_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_MOST_OF_A_NAME = 40


def _name_of(location: str) -> str:
    """A name for the LakeTable: the last part of its location, as far as names allow it."""
    parts = urlsplit(location)
    last = unquote(parts.path).rstrip("/").rpartition("/")[2] or parts.netloc
    name = _NOT_IN_NAMES.sub("-", last.lower()).strip("-")[:_MOST_OF_A_NAME].strip("-")
    return name or "table"


def _catalog_of(text: str) -> Catalog | None:
    """The catalog and the table that a URL such as `unity://host/main.sales.orders` names; None
    for a location. Raises: InvalidSpec."""
    named = catalog_of_url(text)
    if named is None:
        return None
    if not {"?", "#"}.isdisjoint(text):
        [kind] = named
        raise InvalidSpec(
            "the URL of a table in a catalog has no query and no fragment",
            resource=without_userinfo(text),
            expected=_CATALOGS[kind],
            remedy="Remove it, or percent-encode ? and # in a name",
        )
    try:
        return Catalog.model_validate(named)
    except ValidationError as error:
        details = error.errors()[0]
        context: dict[str, Any] = details.get("ctx", {})
        [kind] = named
        raise InvalidSpec(
            f"{details['loc'][-1]} {context.get('error', details['msg'])}",
            resource=without_userinfo(text),
            found=without_userinfo(str(details["input"])),
            expected=_CATALOGS[kind],
        ) from error


_CATALOGS: Final = {
    "unity": "unity://host[:port]/catalog.schema.table (unity+http:// without TLS)",
    "hive": "hive://host[:port]/database.table",
    "glue": "glue://region/database.table",
}


_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/[^/].*)", re.DOTALL)
"""`file:/data/t`, as Hadoop prints locations."""


def as_location(text: str) -> str:
    """A URL as it is, a local path as a `file` URL; a path may begin with `~/`, which shells do not
    replace in `--from=~/t`. Raises `InvalidSpec`."""
    if "://" not in text:
        if not text:
            raise InvalidSpec(
                "the location is empty",
                found="''",
                expected="file:///path, s3://bucket/path or a path",
                remedy="If it comes from a variable, set the variable",
            )
        if (hadoop := _ONE_SLASH.fullmatch(text)) and not Path(text).exists():
            raise InvalidSpec(
                "a URL needs two slashes after its scheme",
                resource=text,
                expected=f"{hadoop[1]}://{hadoop[2] if hadoop[1] == 'file' else hadoop[2][1:]}",
            )
        if "/" not in text and not Path(text).is_dir():
            raise InvalidSpec(
                "neither a location nor the path of a folder",
                resource=text,
                expected="file:///path, s3://bucket/path, a path, "
                "unity://HOST/CATALOG.SCHEMA.TABLE, or with -f a LakeTable's name",
            )
        text = "file://" + quote(str(_as_a_shell_would(_at_home(text))))
    try:
        checked: str = TypeAdapter(Location).validate_python(text)
    except ValidationError as error:
        context: dict[str, Any] = error.errors()[0].get("ctx", {})
        raise InvalidSpec(
            str(context.get("error", "not a location")),
            resource=without_userinfo(text),
            field="location",
        ) from error
    return checked


def _at_home(text: str) -> Path:
    """The path, with the home directory in place of a leading `~/`, if there is one."""
    home = os.environ.get("HOME")
    return Path(home, text[2:]) if home and text.startswith("~/") else Path(text)


def _as_a_shell_would(path: Path) -> Path:
    """The absolute path without `..`. Symbolic links before a `..` are resolved, as in a shell. A
    path without `..` stays as typed. (In resources, locations with `..` are refused, since their
    meaning would depend on the machine.)"""
    path = path.absolute()
    if ".." not in path.parts:
        return path
    after = len(path.parts) - path.parts[::-1].index("..")
    return Path(*path.parts[:after]).resolve().joinpath(*path.parts[after:])


def key_and_value(text: str, option: str) -> tuple[str, str]:
    """The parts of `KEY=VALUE`. Raises: InvalidSpec."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise InvalidSpec("not an option", resource=option, found=text, expected="KEY=VALUE")
    return key, value
