"""The entry point of the `tandem` script: what has to happen before anything is imported, and
nothing else.

Most of the time of a small command is spent on importing modules, which makes half a million
objects and no garbage. Python would look for garbage among them hundreds of times, and look at each
of them once more when it exits.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from types import FrameType

_THRESHOLDS = (50_000, 5, 2)
"""Python looks for garbage after so many objects, in place of 700; among those that it has seen
before after 5 times as many, and among all after 10 times as many: operators run for long."""


class _WithoutPandas:
    """As if pandas were not installed: pyarrow imports it with the first array that it makes, which
    takes longer than a small compaction, and nothing here uses it."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("not imported by the command line", name=fullname)


def main() -> None:
    """Run the command that was typed."""
    interrupts: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    # Not where a shell started the command in the background, which ignores it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        _main()
    except (KeyboardInterrupt, ImportError):
        # An import that is interrupted may try another one, and raise what that one says.
        if not interrupts:
            raise
        sys.stderr.write("Interrupted.\n")
        sys.exit(128 + signal.SIGINT)


def _is_text(word: str) -> bool:
    """Whether a word of the command line could be decoded; Python keeps other bytes as halves of
    characters, which no URL and no statement may have."""
    return not any("\ud800" <= char <= "\udfff" for char in word)


def _main() -> None:
    sys.meta_path.insert(0, _WithoutPandas())
    # pydantic would look for plugins in every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()
    # The memory is given back as a whole: there is no use in looking for garbage in it first.
    atexit.register(gc.freeze)
    from tandem.cli.app import app, keep_typed_command
    from tandem.cli.output import prepare_streams

    prepare_streams()
    for word in sys.argv[1:]:
        if not _is_text(word):
            shown = word.encode(errors="backslashreplace").decode()
            sys.stderr.write(
                f"Error: {shown}: not text in this locale's encoding\n"
                "    remedy:   Set LC_ALL=C.UTF-8, or rename what is not UTF-8\n"
            )
            sys.exit(2)
    keep_typed_command(sys.argv[1:])
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    app()


if __name__ == "__main__":
    main()
