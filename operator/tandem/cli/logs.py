"""Structured logging of the command line: to standard error, as text or as JSON lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


def configure(*, json: bool, verbose: bool) -> None:
    """Configure structlog, once a module that logs imports it: most commands log nothing, and it
    takes as long to import as they take to run. Only warnings are shown unless `verbose`: progress
    bars and the final table show what users need."""

    def apply() -> None:
        _configure(json=json, verbose=verbose)

    if "structlog" in sys.modules:
        apply()
    else:
        sys.meta_path.insert(0, _OnImport("structlog", apply))


class _OnImport:
    """Finds one module, and calls a function after its import."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(
        self, fullname: str, _path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, None, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


def _configure(*, json: bool, verbose: bool) -> None:
    import structlog

    level = logging.INFO if json or verbose else logging.WARNING
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Look up standard error for each line: tests replace it, and the old one may be closed.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
