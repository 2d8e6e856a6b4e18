"""What the tests of the custom resource definitions share."""

from __future__ import annotations

import pytest

from crds.dry_run import Sender
from support.cluster.api_server import Cluster


@pytest.fixture(scope="session")
def space(cluster: Cluster) -> str:
    return cluster.namespace("crds")


@pytest.fixture(scope="session")
def sender(cluster: Cluster, space: str) -> Sender:
    return Sender(cluster, space)
