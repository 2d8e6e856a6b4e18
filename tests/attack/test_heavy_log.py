"""Objects of a log that say more of themselves than a reader should believe."""

from __future__ import annotations

import pyarrow as pa

from support.lake import delta_log as dl
from support.lake.memory_store import Call
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.stats import MOST_BYTES, num_records, num_records_of
from tandem.errors import TooLarge
from tandem.operations.machine.events import Effect, EffectFailed, Point, failure_of

MIB = 2**20


def test_a_hint_of_megabytes_is_read_in_part_and_not_believed() -> None:
    store = dl.memory_log([dl.add("f1")])
    store.put("_delta_log/_last_checkpoint", b'{"version":1,"x":"' + b"x" * 2 * MIB + b'"}')
    whole: list[str] = []

    def note(call: Call) -> None:
        if call.name == "get" and call.path.endswith("_last_checkpoint"):
            whole.append(call.path)

    store.fault = note
    assert DeltaLog(store).snapshot().version == 1
    assert whole == []


def test_statistics_of_megabytes_count_as_absent() -> None:
    long = '{"numRecords":5,"x":"' + "x" * MOST_BYTES + '"}'
    short = '{"numRecords":7}'
    found = num_records(pa.chunked_array([[long, short, None] * 10]))
    assert found.to_pylist() == [None, 7, None] * 10
    assert num_records_of(long) is None


def test_an_operation_waits_for_a_table_that_is_too_large() -> None:
    effect = Effect(Point.READ_TABLE, 0)
    event = failure_of(effect, TooLarge("no", found="much"))
    assert isinstance(event, EffectFailed)
    assert event.retryable
    assert event.patient
