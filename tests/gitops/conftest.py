"""What the tests with GitOps tools share."""

from __future__ import annotations

import pytest

from gitops.judges import Judges


@pytest.fixture(scope="session")
def judges() -> Judges:
    """Argo CD, Flux and kstatus; built first where they are missing."""
    return Judges.build()
