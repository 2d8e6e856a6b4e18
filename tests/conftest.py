"""Fixtures that every layer's tests share. Keep it small: a layer's own live beside its tests."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest
import typer.main
import typer.testing

# Before any of it is imported: a failed assertion in a helper shows its values, too.
pytest.register_assert_rewrite(
    "support",
    "badinput",
    "catalogs",
    "chart",
    "cli",
    "crds",
    "e2e",
    "gitops",
    "kube",
    "locks",
    "operations",
    "planning",
    "pruning",
    "security",
    "statements",
    "tables",
)

from support.order import ByFile, arrange, require_named  # noqa: E402
from support.some import every_case, few, left_to_matrix  # noqa: E402

# PySpark forks to start its JVM. With gRPC's support for forks, the child starts threads of gRPC
# before it becomes the JVM, and sometimes dies of them: 1 of 150 beside a busy client of etcd.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# How long an example takes depends on the machine; the suite's time limit ends what hangs. Tests
# that say no number of examples have 100 in `make matrix`, which runs all that Hypothesis knows.
hypothesis.settings.register_profile("tandem", deadline=None, max_examples=few(20, 100))
hypothesis.settings.load_profile("tandem")

# `CliRunner` makes all commands of an application again for each call: 80 ms of the 100 of a small
# command. Nothing is added to an application after its import.
typer.testing.__dict__["_get_command"] = functools.cache(typer.main.get_command)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from support.cluster.api_server import Cluster
    from support.lake.s3 import S3Server
    from support.lake.unity import UnityServer
    from tandem.storage import Store


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to `make matrix` what is marked so, and arrange the others."""
    require_named(items)  # also of those that are left: else `make matrix` would find it
    if not every_case():
        left = left_to_matrix(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    arrange(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    return ByFile(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The process's one Spark session (UTC, ANSI), with Delta's jars on the class path."""
    from delta_session import start_session

    session = start_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def delta_spark(spark: SparkSession) -> SparkSession:
    """A session of the same JVM for Spark + Delta as a reader or writer. Jobs of Tandem run on
    `spark`, which compiles expressions as drivers do."""
    from delta_session import interpreting

    return interpreting(spark)


@pytest.fixture(scope="session")
def oracle_spark(spark: SparkSession) -> SparkSession:
    """Spark as the judge of what an expression means. Each of thousands would be compiled, for some
    rows: only `make matrix` does so, as drivers do."""
    from delta_session import interpreting

    return spark if every_case() else interpreting(spark)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server on a temporary folder; built first where it is missing."""
    from support.lake.s3 import start_server

    with start_server() as server:
        yield server


@pytest.fixture
def s3_store(s3_server: S3Server) -> Store:
    """An empty table root on that server."""
    return s3_server.open()


@pytest.fixture(scope="session")
def unity_server() -> Iterator[UnityServer]:
    """A server of Unity Catalog's API; built first where it is missing."""
    from support.lake.unity import start_server

    with start_server() as server:
        yield server


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A real API server, controller manager and etcd; all tests of the run share them."""
    from support.cluster.api_server import shared_cluster

    return shared_cluster(tmp_path_factory.getbasetemp())
