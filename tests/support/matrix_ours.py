"""Our operations in the W matrix: one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from support.matrix_rows import Model, Test, deleted, same, updated
from support.tables import Lake
from tandem.spec.resources import Operation


@dataclass(frozen=True)
class Ours:
    """`touches`: which rows it writes to new files without changing them; None if it is no
    rewrite."""

    make: Callable[[Lake], Operation]
    model: Model = same
    touches: Test | None = lambda _: True


def _laid_out(lake: Lake, strategy: str, *columns: str) -> Operation:
    return lake.compaction("SemiMajor", layout={"strategy": strategy, "columns": [*columns]})


OURS: dict[str, Ours] = {
    "bin-pack": Ours(lambda lake: lake.compaction("SemiMajor")),
    "sort": Ours(lambda lake: _laid_out(lake, "Sort", "k")),
    "z-order": Ours(lambda lake: _laid_out(lake, "ZOrder", "k", "v")),
    "segment rewrite": Ours(
        lambda lake: lake.resource(
            "SegmentRewrite",
            {
                "segments": lake.names[:2],
                "rewrite": {"purgeDeleted": True, "recompress": {"codec": "gzip"}},
            },
        ),
        touches=lambda row: row["id"] < 20,
    ),
    "update": Ours(
        lambda lake: lake.update("k = 1", v="v * 2"),
        updated(lambda row: row["k"] == 1, v=lambda row: row["v"] * 2),
        touches=None,
    ),
    "delete": Ours(
        lambda lake: lake.delete("k = 3 OR id = 2"),
        deleted(lambda row: row["k"] == 3 or row["id"] == 2),
        touches=None,
    ),
}

NEXT: dict[str, Ours] = {
    "bin-pack": OURS["bin-pack"],
    "update": Ours(
        lambda lake: lake.update("k = 2 OR id = 100", v="v + 7"),
        updated(lambda row: row["k"] == 2 or row["id"] == 100, v=lambda row: row["v"] + 7),
        touches=None,
    ),
}
"""What must work after every cell."""
