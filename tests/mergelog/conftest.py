"""A merge-on-read table of eight rows whose log has three blocks, for tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from mergelog.orders import Orders, make
from tandem.operations.kinds.log_compaction import LogCompactionKind
from tandem.operations.registry import PERFORMED_BY
from tandem.spec.common import Operation
from tandem.spec.log_compaction import LogCompaction


@pytest.fixture(scope="session", params=["", "at"], ids=["by instant", "by ordering column"])
def orders_template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return make(tmp_path_factory.mktemp("template") / "orders", request.param)


@pytest.fixture
def stitching(monkeypatch: pytest.MonkeyPatch) -> None:
    """`LogCompaction` is registered by tests only."""
    model: type[Operation] = LogCompaction
    monkeypatch.setitem(PERFORMED_BY, model, LogCompactionKind)


@pytest.fixture
def orders(orders_template: Path, tmp_path: Path, stitching: None) -> Orders:
    """A copy of its own."""
    return Orders.copy(orders_template, tmp_path / "orders")
