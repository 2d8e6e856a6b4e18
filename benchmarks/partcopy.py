"""Row groups that stay in the store: a bin-pack of 40 files of 7 MB on the S3 test server, with
copies inside of the store and as a stream, in turns.

Seconds and CPU are those of the whole command, jobs included, without anything between the process
and the server. Bytes and requests are counted in one more run of each, by a proxy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.harness import Figure, Report, Samples, Table, WrongResult, in_child, progress

FILES = {"toy": 2, "small": 8, "full": 40}
ROWS = {"toy": 262_144, "small": 262_144, "full": 262_144}
TIMES = {"toy": 1, "small": 1, "full": 3}
WAYS = {"streamed": "through the process, as a stream", "copied": "inside of the store"}
AIM = 0.02


@contextmanager
def _way(name: str) -> Iterator[None]:
    """Streams if `name` says so."""
    from tandem.storage import s3

    copies = s3.Bucket.copies
    if name == "streamed":
        s3.Bucket.copies = False  # type: ignore[assignment]
    try:
        yield
    finally:
        s3.Bucket.copies = copies  # type: ignore[method-assign]


def measured(source: str, work: str, times: int) -> dict[str, Any]:
    """In a separate process: what each way took."""
    from support.lake.distant import at_a_distance
    from support.lake.s3 import start_server

    found: dict[str, Any] = {name: [] for name in WAYS}
    with start_server() as server, at_a_distance(server) as distance:
        os.environ |= server.environ
        for _ in range(times):
            for name in WAYS:
                with _way(name):
                    found[name].append(_once(server, Path(source), Path(work)))
        for name in WAYS:
            with _way(name):
                counted = _once(distance.server, Path(source), Path(work), distance)
                found[f"{name}, counted"] = counted
    return found


def _once(server: Any, source: Path, work: Path, distance: Any = None) -> dict[str, Any]:
    from support.jobs.quick_lake import QuickLake
    from tandem.storage import open_store

    location = server.fresh_location()
    store = open_store(location, server.options)
    for path in sorted(source.rglob("*")):
        if path.is_file():
            store.put(path.relative_to(source).as_posix(), path.read_bytes())
    lake = QuickLake(
        location,
        None,  # type: ignore[arg-type]
        Path(),
        store,
        options=server.options,
    )
    if distance is not None:
        distance.requests.clear()
    began, cpu = time.perf_counter(), time.process_time()
    status = lake.do(lake.compaction("Major"))
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    requests = [] if distance is None else list(distance.requests)
    outputs = []
    for number, add in enumerate(lake.log.snapshot().adds()):
        outputs.append(work / f"{number}.parquet")
        outputs[-1].write_bytes(store.get(add.path))
    truth = list(data.checksum(outputs))
    written = sum(path.stat().st_size for path in outputs)
    for path in outputs:
        path.unlink()
    assert status.result is not None
    return {
        "seconds": took,
        "cpu": cpu,
        "written": written,
        "truth": truth,
        "says": list(status.result.summary or ()),
        "requests": len(requests),
        "copies": sum(each.kind == "COPY" for each in requests),
        "got": sum(each.got for each in requests),
        "sent": sum(each.sent for each in requests),
        "read back": sum(each.got for each in _of_outputs(requests)),
    }


def _of_outputs(requests: list[Any]) -> list[Any]:
    """Those that read what the operation wrote: files that did not exist before."""
    written = {each.path for each in requests if each.kind in ("COPY", "POST")}
    return [each for each in requests if each.kind == "GET" and each.path in written]


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    source, out = work / "source", work / "out"
    out.mkdir()
    progress("the table")
    data.write_lineitem(source, files=FILES[size], rows=ROWS[size])
    inputs = data.data_files(source)
    total = sum(file.stat().st_size for file in inputs)
    truth = list(data.checksum(inputs))
    progress("compactions")
    found = in_child(measured, source=str(source), work=str(out), times=TIMES[size], timeout=3600)
    rows, shares = [], {}
    for name, title in WAYS.items():
        counted = found[f"{name}, counted"]
        for one in (*found[name], counted):
            if one["truth"] != truth:
                raise WrongResult(f"{title}: {one['truth']}, the input has {truth}")
        moved = counted["got"] + counted["sent"]
        shares[name] = moved / total
        rows.append(
            (
                title,
                Samples.of(one["seconds"] for one in found[name]).text(),
                Samples.of(one["cpu"] for one in found[name]).text(),
                f"{counted['got'] / 1e6:,.2f}",
                f"{counted['sent'] / 1e6:,.2f}",
                f"{shares[name]:.2%}",
                f"{counted['read back'] / 1e6:,.2f}",
                f"{counted['requests']:,}",
                f"{counted['copies']:,}",
            )
        )
    if not found["copied, counted"]["copies"]:
        raise WrongResult("nothing was copied inside of the store")
    columns = (
        *("row groups go", "seconds", "CPU seconds of the process", "MB read", "MB sent"),
        *("of the data", "MB read back", "requests", "copies of parts"),
    )
    return Report(
        name="partcopy",
        title="Row groups that stay in the store",
        setting=f"A bin-pack of {len(inputs)} files of {total / len(inputs) / 1e6:.1f} MB, zstd, "
        "16 columns, on the S3 test server on the same machine, plan, job and commit in one "
        f"process. Medians of {TIMES[size]} runs in turns; bytes and requests of one more run of "
        "each, counted by a proxy between process and server: *of the data* is all that was read "
        "and sent, log and records included; *read back* is what of it checks the outputs.",
        tables=(Table("The same compaction", columns, tuple(rows)),),
        checks=("DuckDB finds the rows of the inputs in the outputs of every run.",),
        raw={"input": {"files": len(inputs), "bytes": total}, **found},
        figures=(
            Figure(
                "Bytes through the process, of 40 files of 7 MB on the S3 test server",
                f"{shares['copied']:.2%}",
                f"at most {AIM:.0%}",
                shares["copied"] <= AIM,
            ),
        ),
    )
