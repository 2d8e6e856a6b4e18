"""A runner for tests of what needs no Spark: each call of it is an error of the test."""

from __future__ import annotations

from tandem.jobs.runner import JobRequest, JobStatus


class NoSpark:
    def start(self, request: JobRequest) -> None:
        raise AssertionError(f"{request.app} would run on Spark")

    def status(self, name: str) -> JobStatus:
        raise AssertionError(f"the status of {name} is read from Spark")

    def stop(self, name: str) -> None:
        raise AssertionError(f"{name} is stopped on Spark")
