"""One cluster for the whole run: the S3 server and both operators are installed once.

Not collected by `make test`: files here are named e2e_*.py. `make e2e` runs them in order.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite(
    *(f"support.e2e_{name}" for name in ("flights", "install", "kube", "lake", "steps", "target"))
)

from e2e import install as install  # noqa: E402
from e2e.figures import Figures  # noqa: E402
from e2e.flights import Flights, load  # noqa: E402
from e2e.lake import Lake  # noqa: E402
from e2e.target import CACHE, Target, target  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _cleaned_after_sigterm() -> None:
    """As after Ctrl-C: whatever runs is ended."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def cluster(figures: Figures) -> Iterator[Target]:
    """Where it all happens, with namespaces, and with the Spark operator."""
    with target(CACHE / "e2e") as found:
        figures.begin(found)
        if found.node is None:
            install.clean(found)
        install.namespaces(found)
        install.spark_operator(found)
        yield found
        figures.resident(found)
        if found.node is None:
            install.clean(found)


@pytest.fixture(scope="session")
def lake(cluster: Target) -> Lake:
    """An S3 server in the cluster. Tandem is not installed yet."""
    keys = install.Keys()
    install.s3_server(cluster, keys)
    return Lake(cluster, keys)


@pytest.fixture(scope="session")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Flights:
    return load(tmp_path_factory.mktemp("flights"))


@pytest.fixture(scope="session")
def figures() -> Iterator[Figures]:
    """What was measured; printed and kept at the end."""
    found = Figures()
    yield found
    found.show()
