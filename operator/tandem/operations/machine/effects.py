"""The machine's outputs: named points, and one small value that carries their arguments.

Every effect is idempotent: performing it twice, or performing it and losing the answer, has the
same result as performing it once. Tests intercept effects by `Point`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Point(StrEnum):
    """The named points, roughly in the order in which an operation reaches them."""

    READ_TABLE = "ReadTable"  # the latest version, and the stops that it shows
    CHECK_EARLIER_OUTCOME = "CheckEarlierOutcome"  # what earlier runs left under _tandem
    FIND_COMMIT = "FindCommit"  # the commit of a success that the log shows
    PLAN = "Plan"
    CLAIM_ATTEMPT = "ClaimAttempt"  # attempt.json, put if absent
    ADOPT_ATTEMPT = "AdoptAttempt"  # load the plan and results that an earlier run left
    ACQUIRE_LOCKS = "AcquireLocks"
    AWAIT_LOCKS = "AwaitLocks"
    PERSIST_PLAN = "PersistPlan"  # plan.json and job.json: from here the inputs are pinned
    START_JOB = "StartJob"
    POLL_JOB = "PollJob"
    READ_RESULT = "ReadResult"  # of one round, verified
    RECONCILE = "Reconcile"  # decide against the version last read
    REQUEST_ROUND = "RequestRound"
    WRITE_SIDECARS = "WriteSidecars"  # deletion vectors and the row map
    ENTER_COMMIT = "EnterCommit"  # are our locks still ours?
    PUT_COMMIT = "PutCommit"  # after a look whether our files are still there
    LOOK_UP_COMMIT = "LookUpCommit"  # whose commit is it that we could not be sure of?
    RECORD_RESULT = "RecordResult"  # result.json
    FINISH_JOB = "FinishJob"  # done.json: the job's driver may end
    STOP_JOB = "StopJob"
    END_ATTEMPT = "EndAttempt"  # ended.json: no session continues it, another attempt follows
    ABANDON_ATTEMPT = "AbandonAttempt"  # commit that it and the attempts before it are dead
    CLEAN_ATTEMPT = "CleanAttempt"  # delete what attempts wrote that can never commit
    CLEAN_UNUSED = "CleanUnused"  # delete all that the operation wrote and its commit does not use
    RELEASE_LOCKS = "ReleaseLocks"
    MAINTAIN = "Maintain"  # checkpoint and log clean-up, as the table's properties ask


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect to perform. `delay_ms` is how long to wait before; `version` is the version to
    put or look up. Fields that a point does not use keep their defaults."""

    point: Point
    attempt: int = 0
    round: int = 0
    version: int = -1
    delay_ms: int = 0

    def __str__(self) -> str:
        parts = [
            f"{name}={value}"
            for name, value, default in (
                ("attempt", self.attempt, 0),
                ("round", self.round, 0),
                ("version", self.version, -1),
            )
            if value != default
        ]
        return f"{self.point}({', '.join(parts)})" if parts else str(self.point)
