"""Fixtures that every layer's tests share. Keep it small: a layer's own live beside its tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

# Before any of it is imported: a failed assertion in a helper shows its values, too.
pytest.register_assert_rewrite("support")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from support.cluster import Cluster
    from support.s3 import S3Server
    from tandem.storage import Store


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The process's one Spark session (UTC, ANSI), with Delta's jars on the class path."""
    from support.spark import start_session

    session = start_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def delta_spark(spark: SparkSession) -> SparkSession:
    """The same session, asked for by tests that use it as a Delta reader or writer."""
    return spark


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server on a temporary folder; built first where it is missing."""
    from support.s3 import start_server

    with start_server() as server:
        yield server


@pytest.fixture
def s3_store(s3_server: S3Server) -> Store:
    """An empty table root on that server."""
    return s3_server.open()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A real API server, controller manager and etcd; all tests of the run share them."""
    from support.cluster import shared_cluster

    return shared_cluster(tmp_path_factory.getbasetemp())
