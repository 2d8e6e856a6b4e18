"""`kubectl_complete-tandem`: what kubectl's own completion asks, by that name on PATH.

It is called with the words after `kubectl tandem`, the last of them unfinished, and prints what
this may become, a line each, and in the end what the shell does with it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys

from typer.completion import completion_init  # type: ignore[attr-defined]

from tandem.cli.kubectl.main import app

_PROGRAM = "kubectl-tandem"
_AS_THEY_ARE = ":4"
"""kubectl's word for: do not offer files. Where files are wanted, shells offer them anyway."""


def candidates(words: list[str]) -> list[str]:
    """What the last of the words may become."""
    completion_init()
    before = os.environ.copy()
    os.environ["COMP_WORDS"] = shlex.join([_PROGRAM, *words])
    os.environ["COMP_CWORD"] = str(max(len(words), 1))
    os.environ["_KUBECTL_TANDEM_COMPLETE"] = "complete_bash"
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            app(prog_name=_PROGRAM)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return [line for line in said.getvalue().splitlines() if line]


def main() -> None:
    for word in [*candidates(sys.argv[1:]), _AS_THEY_ARE]:
        sys.stdout.write(f"{word}\n")
