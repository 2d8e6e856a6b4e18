"""A row map planted below `_tandem` that claims more rows than memory holds."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

from support.jobs.quick_lake import just_before, make
from support.lake.lake import loads
from support.lake.rows import k_is, plus
from tandem.operations.machine.events import Point


def _claim_billions(path: Path) -> None:
    data = path.read_bytes()
    size = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[24 : 24 + size])
    for file in (header["inputs"][0], header["outputs"][0]):
        file[1] = 1 << 40
    text = json.dumps(header).encode()
    changed = data[:12] + struct.pack("<I", len(text)) + data[16:24] + text + data[24 + size : -32]
    path.write_bytes(changed + hashlib.sha256(changed).digest())


def test_statement_does_without_a_map_that_claims_billions_of_rows(tmp_path: Path) -> None:
    lake = make(tmp_path, 4)

    def compact_and_plant() -> None:
        lake.do(lake.compaction())
        (planted,) = (lake.path / "_tandem/rowmaps").glob("*.rowmap")
        _claim_billions(planted)

    update = lake.update("k = 1", v="v + 15")
    lake.do(update, interceptor=just_before(Point.RECONCILE, compact_and_plant))
    lake.assert_rows(plus(loads(range(4)), k_is(1), 15))
