"""What deltalake does wrong beside any compaction, ours or not (W3).

Foreign writers beside our operations are the W matrix: all of it in `tests/matrix`
(`make matrix`), a sample in `test_w_matrix_sample.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deltalake import DeltaTable, write_deltalake

from support import rows as model
from support.rows import Rows, join, rows
from support.tables import Lakes, loads

FOUR = loads(range(4))
ONE = rows([77])

ITS_OWN_DEFECTS: dict[str, tuple[Callable[[DeltaTable], object], Rows]] = {
    # what it does while somebody compacts, and the rows after (right would be to be refused)
    "compact": (lambda table: table.optimize.compact(), join(FOUR, FOUR)),
    "z-order": (lambda table: table.optimize.z_order(["id"]), join(FOUR, FOUR)),
    "delete all": (lambda table: table.delete(), FOUR),
    "overwrite": (
        lambda table: write_deltalake(table, model.table(ONE), mode="overwrite"),
        join(FOUR, ONE),
    ),
}


@pytest.mark.parametrize("name", ITS_OWN_DEFECTS)
def test_W3_deltalake_1_6_does_not_see_that_a_compaction_took_its_files(
    lakes: Lakes, name: str
) -> None:
    """A defect of deltalake, without any commit of ours: it commits although another compaction
    (its own here) has replaced the files that it removes, since its conflict check passes by
    removals with dataChange false (delta-rs pull request 3982). Rows are doubled, or survive
    their deletion. So these four may not run beside anybody's compaction. When a case fails,
    deltalake has been mended: then its cells in the W matrix fail, too, and become usual ones.
    """
    act, shown = ITS_OWN_DEFECTS[name]
    lake = lakes.foreign(4)
    stale = lake.foreign()
    lake.foreign().optimize.compact()
    act(stale)
    assert lake.by_deltalake() == shown
