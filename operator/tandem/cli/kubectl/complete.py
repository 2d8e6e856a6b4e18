"""`kubectl_complete-tandem`: the completion that kubectl calls, by that name on PATH.

It is called with the words after `kubectl tandem`, the last of them incomplete, and prints its
completions, one per line, and finally a directive for the shell.
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
"""The directive (of Cobra) not to offer files. Shells offer files anyway where they are wanted."""


def candidates(words: list[str]) -> list[str]:
    """The completions of the last word."""
    completion_init()
    before = os.environ.copy()
    os.environ["COMP_WORDS"] = shlex.join([_PROGRAM, *words])
    os.environ["COMP_CWORD"] = str(max(len(words), 1))
    os.environ["_KUBECTL_TANDEM_COMPLETE"] = "complete_bash"
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
            app(prog_name=_PROGRAM)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return [line for line in output.getvalue().splitlines() if line]


def main() -> None:
    for word in [*candidates(sys.argv[1:]), _AS_THEY_ARE]:
        sys.stdout.write(f"{word}\n")
