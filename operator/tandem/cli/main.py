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
import sys

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
    sys.meta_path.insert(0, _WithoutPandas())
    # pydantic would look for plugins in every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()
    # The memory is given back as a whole: there is no use in looking for garbage in it first.
    atexit.register(gc.freeze)
    from tandem.cli.app import app, keep_typed_command

    keep_typed_command(sys.argv[1:])
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()
    app()


if __name__ == "__main__":
    main()
