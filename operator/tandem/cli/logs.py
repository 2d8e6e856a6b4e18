"""Structured logging of the command line: to standard error, as text or as JSON lines."""

from __future__ import annotations

import logging
import sys


def configure(*, json: bool, verbose: bool) -> None:
    """Set structlog up. Only warnings are shown unless asked for more: progress bars and the
    final table tell people what they want to know."""
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
        # What standard error is then: where it is replaced for a while, the old one may be closed.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
