"""Structured logging of the command line: to standard error, as text or as JSON lines."""

from __future__ import annotations

import logging
import sys


def configure(*, json: bool, verbose: bool) -> None:
    """Configure structlog. Only warnings are shown unless `verbose`: progress bars and the final
    table show what users need."""
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
