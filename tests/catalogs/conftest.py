"""The command line as a function."""

from cli.conftest import tandem

__all__ = ["tandem"]
