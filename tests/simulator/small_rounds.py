"""Small rounds of the simulation: sometimes the engine evaluates, sometimes the job must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.evaluate import Evaluator
from simulator.jobs import SimulatedJobs
from tandem.jobs.formats import InputFile, StatementJob
from tandem.operations.model import Work
from tandem.operations.rounds import SmallRoundResult
from tandem.reconcile.matches import Sources


@dataclass
class SimulatedRounds:
    """`SmallRounds` by the code that plays the job. `share` of them are too large by chance."""

    jobs: SimulatedJobs
    share: float = 0.3
    time_bytes: int = 0
    """The engine cannot read the data files of the simulation."""

    def can_evaluate(self, work: Work) -> bool:
        _, spec = work.frozen
        job = spec.job
        return not (
            isinstance(job, StatementJob) and Evaluator(job.where, job.set, self.jobs.rng).is_random
        )

    def rows(self, work: Work, inputs: Sequence[InputFile]) -> SmallRoundResult | None:
        if self.jobs.rng.random() < self.share:
            return None
        return self.jobs.small_rows(work.frozen[1], inputs)

    def inserts(self, work: Work, matched: Sources) -> SmallRoundResult | None:
        if self.jobs.rng.random() < self.share:
            return None
        keys = {int(first) - 1 for first, _ in matched}
        return self.jobs.small_inserts(work.frozen[1], keys)
