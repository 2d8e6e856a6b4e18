"""What a LogCompaction reports: its plan, its result, and who took its blocks away."""

from __future__ import annotations

from pathlib import Path

from deltalake import write_deltalake

from mergelog.lake import made, table
from mergelog.orders import STITCH, Orders, Rows, rows
from mergelog.test_beside import Before
from tandem.errors import StorageError
from tandem.mergelog.state.log_table import LOG_FOLDER, state_of
from tandem.operations.machine.effects import Point
from tandem.spec.status import Phase


def sizes(orders: Orders) -> list[int]:
    return [block.size for block in state_of(orders.log.snapshot()).live.values()]


def test_its_plan_and_its_result_say_which_blocks_go_in_and_come_out(orders: Orders) -> None:
    before, version = sizes(orders), orders.log.snapshot().version
    dry = orders.run({**STITCH, "dryRun": True}, name="dry")
    assert (orders.log.snapshot().version, dry.result) == (version, None)
    done = orders.run(STITCH)
    for plan in (dry.plan, done.plan):
        assert plan is not None
        assert (plan.inputs, plan.input_bytes, plan.output_files) == (4, sum(before), 1)
        assert (plan.instants, plan.segments) == (("1-4",), ())
    result = done.result
    assert result is not None
    assert (result.blocks_in, result.bytes_in) == (4, sum(before))
    assert (result.blocks_out, result.bytes_out) == (1, sum(sizes(orders)))
    assert (result.instants, result.segments, result.version) == (("1-4",), None, version + 1)
    assert result.summary == (f"no other commit since version {version}",)


def test_a_superseded_one_names_the_commit_that_took_its_blocks(orders: Orders) -> None:
    def overwrite() -> None:
        write_deltalake(orders.location, rows(range(1), "new", 1), mode="overwrite")
        orders.append(rows(range(2), "later", 2))

    version = orders.log.snapshot().version
    status = orders.run(STITCH, Before(Point.RECONCILE, overwrite))
    assert (status.phase, status.result) == (Phase.SUPERSEDED, None)
    message = status.conditions[0].message
    assert "no run still has all of its blocks: 4 inputs gone to" in message
    assert f"version {version + 1} by `tandem/" in message


def test_a_damaged_page_of_a_stitched_block_is_never_read_as_other_rows(orders: Orders) -> None:
    orders.run(STITCH)
    (path,) = state_of(orders.log.snapshot()).live
    block, expected = orders.folder / LOG_FOLDER / path, orders.view()
    good = block.read_bytes()
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    noticed = 0
    for at in range(4, footer, 5):
        block.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        found = view_or_error(orders)
        assert found == expected or block.name in str(found)
        noticed += isinstance(found, StorageError)
    assert noticed > (footer - 4) / 5 / 2


def view_or_error(orders: Orders) -> Rows | StorageError:
    try:
        return orders.view()
    except StorageError as error:
        return error


def test_I38_a_block_of_another_partition_between_the_stitched_ones_stays(tmp_path: Path) -> None:
    rows_of_base = table((1, "a", "x"), (2, "b", "y"))
    merged = made(tmp_path / "t", rows_of_base, keys=("k", "p"), partition_by=["p"])
    for row in ((3, "c", "x"), (4, "d", "y"), (5, "e", "x")):
        merged.append(table(row))
    expected = merged.rows()
    assert Orders(tmp_path / "t").run(STITCH).phase is Phase.SUCCEEDED
    assert merged.rows() == expected
    assert sorted((b.first, b.last) for b in merged.open().state.live.values()) == [(1, 3), (2, 2)]
