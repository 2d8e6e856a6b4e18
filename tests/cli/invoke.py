"""Types of the command line's fixtures."""

from __future__ import annotations

from collections.abc import Callable

from typer.testing import Result

Tandem = Callable[..., Result]
