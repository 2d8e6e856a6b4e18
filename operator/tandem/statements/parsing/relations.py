"""What an expression may name: the columns of the table, or in a merge of two relations.

Must not parse, or know where in a text a name is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandem.statements.types import Schema


@dataclass(frozen=True)
class Relation:
    """`about` is the name for messages: "the table". `schema` None: its columns are not known yet,
    and any name may be one, of any type."""

    name: str
    about: str
    schema: Schema | None


@dataclass(frozen=True)
class Relations:
    """The relations that an expression may name, and those that it may not, with the reason."""

    named: tuple[Relation, ...]
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def get(self, name: str) -> Relation | None:
        return next((r for r in self.named if r.name == name.lower()), None)
