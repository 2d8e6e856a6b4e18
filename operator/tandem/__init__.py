"""Tandem: table services on Delta Lake tables while everyone writes.

The layers, which `make check` enforces, are listed in `docs/architecture.md`.
This package must never be importable through its parent folder `operator/`,
which would shadow the standard library's module of that name.
"""

__version__ = "0.1.0"
