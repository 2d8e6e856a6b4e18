"""Completions of names on the command line, read from the cluster while the user types. Never
fails: on an error there are no suggestions."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import typer

from tandem.cli.kubectl.arguments import Flags, kind_of, short_name

_PATIENCE = "2s"


def tables(typed: typer.Context, incomplete: str) -> list[str]:
    """LakeTables of the namespace."""
    return [name for name in _names(typed, "LakeTable") if name.startswith(incomplete)]


def operations(typed: typer.Context, incomplete: str) -> list[str]:
    """`tcomp/`, and then the names of existing operations."""
    from tandem.errors import InvalidSpec
    from tandem.spec.common import OPERATIONS

    word, slash, _ = incomplete.partition("/")
    if not slash:
        words = [word_ for kind in sorted(OPERATIONS) for word_ in (kind, short_name(kind))]
        return [f"{word_}/" for word_ in words if word_.startswith(word)]
    try:
        kind = kind_of(word)
    except InvalidSpec:
        return []
    found = [f"{word}/{name}" for name in _names(typed, kind)]
    return [name for name in found if name.startswith(incomplete)]


def _names(typed: typer.Context, kind: str) -> list[str]:
    from tandem.cli.kubectl import access
    from tandem.errors import TandemError
    from tandem.kube.client.resources import path

    async def work(user: access.Access) -> list[str]:
        found = await user.list(path(kind, user.namespace))
        return sorted(str(item["metadata"]["name"]) for item in found)

    try:
        return access.run(_flags(typed), work)
    except TandemError:
        return []


def _flags(typed: typer.Context) -> Flags:
    """The flags typed so far, before and after the command."""
    known = {field.name for field in fields(Flags)}
    levels: list[dict[str, Any]] = [typed.params]
    if typed.parent is not None:
        levels.append(typed.parent.params)
    flags = Flags()
    for level in levels:
        given = {k: v for k, v in level.items() if k in known and v is not None}
        if "as_groups" in given:
            given["as_groups"] = tuple(given["as_groups"])
        flags = flags.with_defaults(Flags(**given))
    return flags.with_defaults(Flags(request_timeout=_PATIENCE))
