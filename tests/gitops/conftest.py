"""What the tests with GitOps tools share."""

from __future__ import annotations

import pytest

from gitops.health_tools import HealthTools


@pytest.fixture(scope="session")
def health_tools() -> HealthTools:
    """Argo CD, Flux and kstatus; built first where they are missing."""
    return HealthTools.build()
