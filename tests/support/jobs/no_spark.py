"""Spark for tests of what needs none: each call of it is an error of the test."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tandem.jobs.runner import JobRequest


class NoSpark:
    def require(self) -> None:
        raise AssertionError("Spark would be started")

    def job(self, request: JobRequest) -> AbstractContextManager[Any]:
        raise AssertionError(f"{request.app} would run on Spark")

    def cancel(self, name: str) -> None:
        raise AssertionError(f"{name} is cancelled on Spark")

    def log(self) -> str:
        return ""
