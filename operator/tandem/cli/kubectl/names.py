"""The forms in which users name a resource: `TableCompaction/nightly`, `tcomp/nightly`,
`tablecompactions.tandem.dev/nightly`. Pure."""

from __future__ import annotations

from tandem.errors import InvalidSpec
from tandem.kube.client.resources import TABLE_KIND
from tandem.spec.common import GROUP, OPERATIONS, plural
from tandem.spec.resources import KINDS


def short(kind: str) -> str:
    """`TableCompaction` → `tcomp`."""
    return KINDS[kind].short_name


def kind_of(text: str) -> str:
    """The kind in any of its forms. Raises: InvalidSpec."""
    word = text.lower().removesuffix(f".{GROUP}")
    for kind in KINDS:
        if word in (kind.lower(), plural(kind), short(kind)):
            return kind
    raise InvalidSpec(
        "not a kind of Tandem",
        resource=text,
        expected=", ".join(f"{kind} ({short(kind)})" for kind in KINDS),
    )


def resource(text: str, *, tables: bool = True) -> tuple[str, str]:
    """Kind and name of `KIND/NAME`. Raises: InvalidSpec."""
    kind, slash, name = text.partition("/")
    if not (kind and slash and name) or "/" in name:
        raise InvalidSpec(
            "not a resource", resource=text, expected="KIND/NAME, as in tcomp/nightly"
        )
    found = kind_of(kind)
    if found not in OPERATIONS and not (tables and found == TABLE_KIND):
        raise InvalidSpec(
            f"{found} is not an operation", resource=text, expected=" or ".join(OPERATIONS)
        )
    return found, name


def table(text: str | None) -> str | None:
    """The name of a LakeTable, which may be typed with its kind. Raises: InvalidSpec."""
    if text is None or "/" not in text:
        return text
    kind, name = resource(text)
    if kind != TABLE_KIND:
        raise InvalidSpec("no table", resource=text, expected="the name of a LakeTable")
    return name
