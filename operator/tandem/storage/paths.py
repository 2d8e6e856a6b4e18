"""Paths: which ones may be read or written below a table's root, and their canonical names.

Paths come from logs that any writer may have written, so each is checked before it is passed to a
store: a relative path cannot leave the root, an absolute one must lie under the root or under an
allowed prefix. Pure text, no I/O; links on a local disk are checked by `tandem.storage.local`,
which can see them.

A path has two forms. A log has a URI (RFC 2396): `aa%3Abb` is a name below the root, `aa:bb` a URL
with a scheme. A store takes what `object_path` makes of it: a decoded path below the root, in which
a colon is a character like any other, or an absolute one, which begins with `/` or `scheme://`.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, unquote

from tandem.errors import InvalidSpec, LocationNotAllowed
from tandem.remedies import CLONE_SOURCE

LOG_FOLDER: Final = "_tandem/log"
"""The log of blocks of a merge-on-read table, below the table's root."""
SCHEMES = ("file", "s3", "gs", "abfss")
# Other spellings of the same stores, which occur in logs and in configuration files.
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.\-]*):")
_URL = re.compile(rf"{_SCHEME.pattern}//")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BUCKET = re.compile(r"^\$?[A-Za-z0-9][A-Za-z0-9._\-]*\Z")
_CONTAINER_AT_ACCOUNT = re.compile(r"^[A-Za-z0-9$][A-Za-z0-9\-]*@[A-Za-z0-9.\-]+\Z")


CLONE_REMEDY: Final = f"If the table is a shallow clone, {CLONE_SOURCE.in_resource}"

_F = TypeVar("_F", bound=Callable[..., Any])
_KEPT: Final = 1024
_LONGEST_KEPT: Final = 1024
"""Characters: a log may have any number of paths of any length, which would be kept for ever."""


def _remembered(of: _F) -> _F:
    """`of`, a function of a text, whose last results are kept: an operation checks the same few
    paths again and again."""
    kept = functools.lru_cache(maxsize=_KEPT)(of)

    @functools.wraps(of)
    def remembering(text: str, **options: Any) -> Any:
        return kept(text, **options) if len(text) <= _LONGEST_KEPT else of(text, **options)

    return cast(_F, remembering)


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """A resolved path: `root` is a canonical location (the table's own, or an allowed prefix)
    and `key` the checked path relative to it."""

    root: str
    key: str


def check_relative(path: str, *, resource: str = "") -> str:
    """Return `path` if it is a canonical relative path.

    Canonical: `/`-separated, not empty, no empty, `.` or `..` segment (nor one that turns into
    `.` or `..` when percent-decoded again), no backslash, no control character, no URL.

    Raises:
        LocationNotAllowed: otherwise.
    """
    problem = _problem(path)
    if problem:
        raise LocationNotAllowed(
            f"a path inside the table {problem}",
            resource=resource,
            field="path",
            found=repr(path[:200]),
            expected="a relative path that stays below the table's root",
            remedy="Nothing was read or written; find out who wrote this path into the log",
        )
    return path


def check_folder(prefix: str, *, resource: str = "") -> str:
    """A folder's path without its trailing slash, checked; "" for the root."""
    return check_relative(prefix.removesuffix("/"), resource=resource) if prefix else ""


@_remembered
def _problem(path: str) -> str | None:
    if not path:
        return "is empty"
    if path.startswith("/"):
        return "is absolute"
    if "\\" in path:
        return "contains a backslash"
    if _CONTROL.search(path):
        return "contains a control character"
    if _URL.match(path):
        return "looks like a URL with a scheme"
    if not path.isprintable() and not _encodable(path):
        return "is not valid Unicode"
    for segment in path.split("/"):
        if not segment:
            return "has an empty segment"
        if segment in (".", "..") or ("%" in segment and _steps_out(segment)):
            return "leaves its folder"
    return None


def _steps_out(segment: str) -> bool:
    """Nothing here decodes a path again, but a store or a proxy might; so an encoded "..", once or
    several times over, counts too. An encoded slash does not: it occurs in partition values that
    contain a slash."""
    while True:
        if any(part in (".", "..") for part in re.split(r"[/\\]", segment)):
            return True
        decoded = unquote(segment)
        if decoded == segment:
            return False
        segment = decoded


def _encodable(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def is_absolute(path: str) -> bool:
    """Whether a path for a store is absolute: a URL, or a path from `/`."""
    return path.startswith("/") or _URL.match(path) is not None


def object_path(logged: str) -> str:
    """The path, for a store, of an object that a log names: `add.path`, for example.

    Whether it is absolute is decided before it is decoded. Another writer's spelling of the same
    object has the same path, if both are relative to the table, or both are not.
    """
    logged = path_identity(logged)
    if scheme := _SCHEME.match(logged):
        return f"{scheme[1]}://{unquote(logged[scheme.end() :].removeprefix('//'))}"
    path = unquote(logged.removeprefix("./"))
    # What only decoding makes absolute is no path below the root: then it is refused.
    return f"./{path}" if is_absolute(path) else path


def path_identity(logged: str) -> str:
    """The spelling of a logged path that distinguishes the files of a log.

    It is Spark's, which `remove`s and checkpoints of Spark have (`DeltaLog.getCanonicalPathUdf`):
    without empty, `.` and `..` segments, as far as they are not encoded, and a local path as a URL.
    So `./a` and `a` are one file, but `%61` is another one, as in every reader.
    """
    absolute = logged[:1] == "/" or logged[:5].lower() == "file:"
    if not (absolute or "./" in logged or "//" in logged):
        return logged  # as almost all
    scheme = _SCHEME.match(logged)
    root, path = "", logged
    if scheme:
        root, path = f"{scheme[1]}://", logged[scheme.end() :]
        if path.startswith("//"):
            authority, _, path = path[2:].partition("/")
            root += authority
        elif not path.startswith("/"):
            return logged
        root += "/"
        if root.lower().startswith("file:"):
            root = root.lower()
    elif path.startswith("/"):
        root = "file:///"
    *folders, name = path.split("/")
    kept: list[str] = []
    for folder in folders:
        if folder == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif folder not in ("", "."):
            kept.append(folder)
    found = "/".join([*kept, name])
    return f"{root}{found}" if root or ":" not in found.partition("/")[0] else f"./{found}"


@_remembered
def canonical_location(location: str, *, encoded: bool = True, field: str = "location") -> str:
    """The canonical form of a location: `scheme://authority/path`, percent-encoded, no trailing
    slash. Plain absolute paths become `file://` URLs; they, and URLs with `encoded=False`
    (paths that a log reader decoded already), are taken literally.

    Raises:
        InvalidSpec: unknown scheme, a relative path, credentials, a query or `..` in it.
    """
    scheme, authority, path = split_location(location, encoded=encoded, field=field)
    tail = quote(path.rstrip("/"), safe="/=:+,;@!$&'()*~")
    return f"{scheme}://{authority}{tail}"


@_remembered
def split_location(
    location: str, *, encoded: bool = True, field: str = "location"
) -> tuple[str, str, str]:
    """`(scheme, authority, decoded path)` of a location; see `canonical_location`."""

    def bad(message: str, remedy: str) -> InvalidSpec:
        return InvalidSpec(
            message,
            field=field,
            found=without_userinfo(location)[:200],
            expected="file:///…, s3://bucket/…, gs://bucket/…, "
            "abfss://container@account.dfs.core.windows.net/… or an absolute path",
            remedy=remedy,
        )

    if location.startswith("/"):
        scheme, authority, path = "file", "", location
    else:
        match = _SCHEME.match(location)
        if match is None:
            raise bad("a location must be absolute", "Write the whole path or URL")
        scheme = match.group(1).lower()
        scheme = _ALIASES.get(scheme, scheme)
        if scheme not in SCHEMES:
            raise bad(f"no store is known for the scheme {scheme!r}", "Use one of those named")
        rest = location[match.end() :]
        if rest.startswith("//"):
            authority, slash, path = rest[2:].partition("/")
            path = slash + path
        elif scheme == "file" and rest.startswith("/"):
            authority, path = "", rest
        else:
            raise bad("a location must be absolute", "Write the whole path or URL")
        if encoded:
            if "?" in rest or "#" in rest:
                raise bad(
                    "a location must not have a query or a fragment",
                    "Put options into spec.storage.options, and secrets into the environment",
                )
            path = unquote(path)
    if scheme == "file":
        if authority not in ("", "localhost"):
            raise bad("a file URL names this machine only", "Write file:///path")
        authority = ""
    elif "@" in authority and not (scheme == "abfss" and _CONTAINER_AT_ACCOUNT.match(authority)):
        raise bad(
            "a location must not carry credentials",
            "Remove them from the URL and put them into the environment or a Secret",
        )
    elif not authority:
        raise bad("a location must name a bucket", "Write scheme://bucket/path")
    elif "@" not in authority and not _BUCKET.match(authority):
        # Clients insert it into a host name.
        raise bad("this is not the name of a bucket", "Correct it: letters, digits, . _ - alone")
    if "\\" in path or _CONTROL.search(path) or not _encodable(path):
        raise bad("a location must not contain a backslash or a control character", "Correct it")
    if any(_steps_out(part) for part in path.split("/")):
        raise bad("a location must not contain . or .. segments", "Write the path they stand for")
    # Several slashes at the start count as one: two spellings of a table are one table.
    return scheme, authority, posixpath.normpath(f"/{path.strip('/')}") if path.strip("/") else ""


def canonical_prefix(prefix: str, *, field: str = "prefix") -> str:
    """The canonical form of a location as a prefix; `s3://` alone, without a bucket, stands for
    all locations of that scheme.

    Raises: InvalidSpec.
    """
    match = _SCHEME.match(prefix)
    if match is not None and not prefix[match.end() :].strip("/"):
        scheme = _ALIASES.get(match.group(1).lower(), match.group(1).lower())
        if scheme in SCHEMES:
            return f"{scheme}://"
    return canonical_location(prefix, field=field)


def is_below(location: str, prefix: str) -> bool:
    """Whether a location is the prefix or lies below it, by whole segments; both canonical."""
    if prefix.endswith("://"):
        return location.startswith(prefix)
    return location == prefix or location.startswith(f"{prefix}/")


def without_userinfo(location: str) -> str:
    """For messages: the part before an `@` may be a secret."""
    return re.sub(r"//[^/]*@", "//…@", location.split("?")[0])


def relative_to(location: str, root: str) -> str | None:
    """The decoded path of `location` below `root` (both canonical), None if it lies elsewhere,
    "" if it is the root itself."""
    if location == root:
        return ""
    if is_below(location, root):
        return unquote(location[len(root) :].removeprefix("/"))
    return None


def resolve(path: str, root: str, allowed_prefixes: Sequence[str] = ()) -> ResolvedPath:
    """Resolve a path, as `object_path` makes it.

    Args:
        path: relative to `root`, or absolute (a URL, or from `/` on a local root).
        root: the table's canonical location.
        allowed_prefixes: canonical prefixes below which absolute paths may also lie.

    Raises:
        LocationNotAllowed: it leaves the root, or does not lie below an allowed prefix.
    """
    if not is_absolute(path):
        return ResolvedPath(root, check_relative(path, resource=root))
    try:
        location = canonical_location(path, encoded=False, field="path")
    except InvalidSpec as error:
        raise _not_allowed(path, root, allowed_prefixes) from error
    for prefix in (root, *allowed_prefixes):
        if prefix.endswith("://") and is_below(location, prefix):
            scheme, authority, _ = split_location(location)
            prefix = f"{scheme}://{authority}"
        key = relative_to(location, prefix)
        if key:
            return ResolvedPath(prefix, check_relative(key, resource=prefix))
    raise _not_allowed(path, root, allowed_prefixes)


def _not_allowed(path: str, root: str, allowed_prefixes: Sequence[str]) -> LocationNotAllowed:
    scheme = _SCHEME.match(path)
    known = scheme is None or _ALIASES.get(scheme[1].lower(), scheme[1].lower()) in SCHEMES
    return LocationNotAllowed(
        "the log names an absolute path outside the table",
        resource=root,
        field="path",
        found=without_userinfo(path)[:200],
        expected="a path below " + " or ".join((root, *allowed_prefixes)),
        remedy=CLONE_REMEDY
        if known
        else "No store is known for this URL; a colon in the name of a file is %3A in a log",
    )
