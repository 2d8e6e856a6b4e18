"""The fold against the slow obvious model, and checkpoints against plain replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.lake import delta_log as dl
from support.lake.memory_store import MemoryStore
from support.some import few
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.maintenance import write_checkpoint

PATHS = ("a.parquet", "p%20x/b.parquet", "c.parquet", "d.parquet")
VECTORS = (None, "v1", "v2")

_file = st.tuples(st.sampled_from(PATHS), st.sampled_from(VECTORS))
_action = st.one_of(
    st.builds(lambda f, n: dl.add(*f, size=n), _file, st.integers(1, 9)),
    st.builds(lambda f: dl.remove(*f), _file),
    st.builds(
        lambda a, v: {"txn": {"appId": a, "version": v}},
        st.sampled_from(("x", "y")),
        st.integers(0, 5),
    ),
    st.builds(lambda n: dl.metadata({"n": str(n)}), st.integers(0, 3)),
    st.just({"somethingNew": {"of": "the future"}}),
)
_commits = st.lists(st.lists(_action, min_size=1, max_size=5), max_size=8)


def _with_first(commits: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [[dl.info(), dl.protocol(), dl.metadata()], *([dl.info(), *c] for c in commits)]


def _sizes(snapshot: Any) -> dict[Any, int]:
    return {a.key: a.size for a in snapshot.adds()}


@settings(max_examples=few(19, 150), deadline=None)
@given(_commits)
def test_replay_equals_the_slow_model_at_every_version(commits: list[list[Any]]) -> None:
    history = _with_first(commits)
    store = MemoryStore()
    dl.write_log(store, history)
    log = DeltaLog(store, parallel_reads=1)
    for version in range(len(history)):
        seen = history[: version + 1]
        snapshot = log.snapshot(version)
        assert _sizes(snapshot) == {k: b["size"] for k, b in dl.live_files(seen).items()}
        flat = [a for c in seen for a in c]
        assert {k: t.version for k, t in snapshot.txns.items()} == {
            a["txn"]["appId"]: a["txn"]["version"] for a in flat if "txn" in a
        }
        latest = [a for a in flat if "metaData" in a][-1]
        assert dict(snapshot.configuration) == latest["metaData"]["configuration"]


@settings(max_examples=few(13, 100), deadline=None)
@given(_commits, st.data())
def test_a_checkpoint_and_the_rest_equals_json_alone(
    commits: list[list[Any]], data: st.DataObject
) -> None:
    history = _with_first(commits)
    store = MemoryStore()
    dl.write_log(store, history)
    log = DeltaLog(store, parallel_reads=1)
    alone = log.snapshot()
    at = data.draw(st.integers(0, len(history) - 1))
    write_checkpoint(log, log.snapshot(at), now_ms=0)
    keep = data.draw(st.sampled_from(("all", "after")))
    if keep == "after":
        store.delete(dl.commit_name(v) for v in range(at))
    over = log.snapshot()
    assert over.checkpoint_version == at
    assert _sizes(over) == _sizes(alone)
    assert (over.txns, over.metadata, over.protocol) == (
        alone.txns,
        alone.metadata,
        alone.protocol,
    )


@settings(max_examples=few(13, 60), deadline=None)
@given(_commits, st.data())
def test_update_step_by_step_equals_loading(commits: list[list[Any]], data: st.DataObject) -> None:
    history = _with_first(commits)
    store = MemoryStore()
    dl.write_log(store, history[:1])
    log = DeltaLog(store, parallel_reads=1)
    snapshot = log.snapshot()
    written = 1
    while written < len(history):
        step = data.draw(st.integers(1, 3))
        dl.write_log(store, history[written : written + step], first=written)
        written = min(written + step, len(history))
        snapshot = log.update(snapshot)
        fresh = log.snapshot()
        assert snapshot.version == fresh.version == written - 1
        assert _sizes(snapshot) == _sizes(fresh)
        assert snapshot.timestamp_ms == fresh.timestamp_ms


@settings(max_examples=few(13, 60), deadline=None)
@given(_commits, st.data())
def test_tombstones_survive_two_checkpoints(commits: list[list[Any]], data: st.DataObject) -> None:
    """A checkpoint over a checkpoint hides exactly what a checkpoint over JSON alone hides."""
    history = _with_first(commits)
    both, once = MemoryStore(), MemoryStore()
    for store in (both, once):
        dl.write_log(store, history)
    first = data.draw(st.integers(0, len(history) - 1))
    log = DeltaLog(both, parallel_reads=1)
    write_checkpoint(log, log.snapshot(first), now_ms=0)
    both.delete(dl.commit_name(v) for v in range(first))
    for store in (both, once):
        log = DeltaLog(store, parallel_reads=1)
        write_checkpoint(log, log.snapshot(), now_ms=0)
    name = f"_delta_log/{len(history) - 1:020d}.checkpoint.parquet"
    assert _rows(both, name) == _rows(once, name)


def _rows(store: MemoryStore, path: str) -> list[str]:
    import pyarrow.parquet as pq

    with store.open_input(path) as source:
        return sorted(repr(row) for row in pq.read_table(source).to_pylist())
