"""A process declared dead resumes, also after its files were cleaned: every kind of operation at
some of its steps; at all of them, after all that others can do, in `make matrix`."""

from __future__ import annotations

import pytest

from simulator.two_drivers import steps_of
from simulator.zombies import KINDS, Takeover, job_resumes, job_steps, operator_resumes
from support.some import in_turn


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_Z14_an_operator_resumes_after_it_was_taken_for_dead(kind: str) -> None:
    for begun in in_turn(range(steps_of(kind)), KINDS.index(kind), every=9):
        for takeover in in_turn(tuple(Takeover), begun // 9, every=len(Takeover)):
            operator_resumes(kind, begun, takeover)


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_Z6_a_job_resumes_after_its_attempt_was_abandoned(kind: str) -> None:
    for begun in in_turn(range(job_steps(kind)), KINDS.index(kind), every=5):
        for cleaned in in_turn((True, False), begun):
            job_resumes(kind, begun, cleaned=cleaned)
