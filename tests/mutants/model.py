"""A planted bug, and the checks that must notice it. Nothing here runs anything."""

from __future__ import annotations

from dataclasses import dataclass

PRODUCT = "operator/tandem/"
_PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class Check:
    """What looks for bugs: a command for Python, or arguments for pytest, run in the tree.

    `every_case`: it always runs with the cases that `make test` leaves to `make matrix`.
    """

    name: str
    title: str
    command: str = ""
    pytest: str = ""
    every_case: bool = False

    @property
    def arguments(self) -> list[str]:
        """Those of Python."""
        return [*_PYTEST, *self.pytest.split()] if self.pytest else self.command.split()

    def only(self, test: str) -> list[str]:
        """The arguments for one of its tests."""
        return [*_PYTEST, test]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One small patch: in `file`, below the product's package or in `examples/`, `old` becomes
    `new`.

    `old` occurs there exactly once. `breaks` names the invariant or the line of a rule table,
    `precedent` who shipped a bug of the kind, if it is known.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    checks: tuple[Check, ...]
    precedent: str = ""

    @property
    def path(self) -> str:
        return self.file if self.file.startswith("examples/") else PRODUCT + self.file

    def applied(self, text: str) -> str:
        """The file's text with the bug in it. Raises ValueError if it no longer fits."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: {self.path} has its text {found} times, expected once")
        return text.replace(self.old, self.new)
