"""A process declared dead resumes, also after its files were cleaned: a part of
`matrix_crash_points.py`, for every kind of operation at some
of its steps."""

from __future__ import annotations

import pytest

from simulator.two_drivers import steps_of
from simulator.zombies import KINDS, Takeover, job_resumes, job_steps, operator_resumes


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_Z14_an_operator_resumes_after_its_files_were_cleaned(kind: str) -> None:
    takeovers = tuple(Takeover)
    for begun in range(KINDS.index(kind) % 9, steps_of(kind), 9):
        operator_resumes(kind, begun, takeovers[begun // 9 % len(takeovers)])


@pytest.mark.part(3)
@pytest.mark.parametrize("kind", KINDS)
def test_Z1_Z6_a_job_resumes_whose_attempt_was_abandoned(kind: str) -> None:
    for begun in range(KINDS.index(kind) % 5, job_steps(kind), 5):
        job_resumes(kind, begun, cleaned=begun % 2 == 0)
