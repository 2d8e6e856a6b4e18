"""Jobs in processes of their own, which speak with the engine through files of the attempt.

The truth about success is the result file, never the state that the runner reports: that only says
when to stop waiting. `tandem.jobs.formats` says which files there are, and who writes them.
"""

from __future__ import annotations

from tandem.errors import AlreadyExists, ManifestInvalid
from tandem.jobs.formats import Job, JobSpec, RoundRequest
from tandem.jobs.port import JobKey, JobPlace, RoundState, read_side_file
from tandem.jobs.results import JobFailure, JobProgress, JobResult, SideFileRef
from tandem.jobs.runner import LOST, JobPhase, JobRequest, JobRunner
from tandem.operations.attempt import paths, records
from tandem.storage.store import Store, exists


class FileJobs:
    """The jobs that `runner` starts. `job.json` is there before the start: it is a part of the
    attempt's plan."""

    def __init__(self, runner: JobRunner) -> None:
        self._runner = runner

    def place_for(self, operation_id: str, job: Job, input_bytes: int) -> JobPlace:  # noqa: ARG002
        return JobPlace.ELSEWHERE

    def place_of(self, key: JobKey) -> JobPlace:  # noqa: ARG002
        return JobPlace.ELSEWHERE

    def start(self, key: JobKey, request: JobRequest, spec: JobSpec) -> None:  # noqa: ARG002
        self._runner.start(request)

    def knows(self, key: JobKey) -> bool:
        return self._runner.status(key.name).phase is not JobPhase.UNKNOWN

    def poll(self, key: JobKey, round_: int) -> RoundState:
        # Asked before looking for the result, so that one written in between is not missed.
        status = self._runner.status(key.name)
        if exists(key.store, _of_round(key, round_, "result.json")):
            return RoundState(status, has_result=True)
        failure = _failure(key, round_)
        if failure is not None or status.phase in LOST:
            return RoundState(status, failure=failure)
        return RoundState(status, progress=_progress(key))

    def result(self, key: JobKey, round_: int) -> JobResult | None:
        path = _of_round(key, round_, "result.json")
        expected = {"operation_id": key.operation_id, "attempt": key.attempt, "round": round_}
        return records.load(key.store, path, JobResult, **expected)

    def read(self, store: Store, ref: SideFileRef) -> bytes:
        return read_side_file(store, ref)

    def ask(self, key: JobKey, request: RoundRequest) -> RoundRequest:
        path = _of_round(key, request.round, "request.json")
        try:
            key.store.put_if_absent(path, records.encode(request))
        except AlreadyExists:
            # A duplicate of this process, or our first try, made a request before, which stands.
            there = records.load(key.store, path, RoundRequest, round=request.round)
            if there is None:
                raise
            return there
        return request

    def finish(self, key: JobKey) -> None:
        key.store.put(paths.done(key.operation_id, key.attempt), b"{}")

    def stop(self, key: JobKey) -> None:
        self._runner.stop(key.name)


def _of_round(key: JobKey, round_: int, name: str) -> str:
    return paths.round_file(key.operation_id, key.attempt, round_, name)


def _failure(key: JobKey, round_: int) -> JobFailure | None:
    # One driver serves all rounds: it may have reported its failure in the round it began with.
    expected = {"operation_id": key.operation_id, "attempt": key.attempt}
    for reported_in in sorted({round_, 0}, reverse=True):
        path = _of_round(key, reported_in, "failure.json")
        found = records.load(key.store, path, JobFailure, **expected)
        if found is not None:
            return found
    return None


def _progress(key: JobKey) -> JobProgress | None:
    path = paths.progress(key.operation_id, key.attempt)
    try:
        return records.load(key.store, path, JobProgress)
    except ManifestInvalid:
        return None  # only for display, and overwritten while we read
