"""What the index of a large table answers in: one process, and over Flight with TLS.

The table is a log without data files: what is asked is answered by the log alone. Beside it DuckDB
over the same statistics as columns, and Spark with Delta, which counts by the log, too.
"""

from __future__ import annotations

import datetime as dt
import gc
import json
import shutil
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    WrongResult,
    in_child,
    progress,
    timed,
)

FILES = {"toy": 2_000, "small": 100_000, "full": 1_000_000}
SPARK_FILES = {"toy": 20, "small": 2_000, "full": 100_000}
TIMES = {"toy": 3, "small": 50, "full": 200}
COMMITS = {"toy": 3, "small": 20, "full": 100}
ASKERS, PER_COMMIT, ROWS = 8, 20, 1_000
THREE = "three comparisons, one clustered"
CROWD = f"{ASKERS} askers: {THREE}"
SAME = f"{ASKERS} askers: the same question again and again"
"""Other questions have other constants each time: what was chosen for equal ones is held."""
COLUMNS = {"a": "long", "b": "long", "d": "date"}
_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": type_, "nullable": True, "metadata": {}}
            for name, type_ in COLUMNS.items()
        ],
    }
)


def columns_of(files: int) -> dict[str, Any]:
    """The statistics as numbers: `a` in the order of files, `b` in none, `d` a day of twelve."""
    first = np.arange(files, dtype=np.int64) * ROWS
    other = np.random.default_rng(1).integers(0, 1_000_000, files)
    day = np.arange(files) * 12 // max(files, 1)
    return {"a": first, "b": other, "d": day}


def conditions(files: int) -> dict[str, tuple[str, str]]:
    """What is asked for → the condition for Tandem and for DuckDB."""
    low = files // 2 * ROWS
    high = low + 100 * ROWS
    clustered = f"a >= {low} AND a < {high}", f"a_high >= {low} AND a_low < {high}"
    mixed = (
        "b > 500 AND b < 600 AND d = DATE '2020-05-01'",
        "b_high > 500 AND b_low < 600 AND d_low <= 4 AND d_high >= 4",
    )
    plain = "b > 500 AND b < 600", "b_high > 500 AND b_low < 600"
    either = "b > 999000 OR b < 100", "b_high > 999000 OR b_low < 100"
    return {
        "two comparisons, clustered": clustered,
        THREE: mixed,
        "two comparisons, not clustered": plain,
        "two, either of them": either,
    }


def _stats(found: dict[str, Any], at: int) -> str:
    a, b, d = int(found["a"][at]), int(found["b"][at]), dt.date(2020, 1 + int(found["d"][at]), 1)
    return (
        f'{{"numRecords":{ROWS},"minValues":{{"a":{a},"b":{b},"d":"{d}"}},"maxValues":{{"a":'
        f'{a + ROWS - 1},"b":{b + 20},"d":"{d}"}},"nullCount":{{"a":0,"b":0,"d":0}}}}'
    )


def snapshot_of(files: int) -> Any:
    """A version of so many files."""
    from tandem.delta.actions import Metadata, Protocol
    from tandem.delta.log import files as files_
    from tandem.delta.log.snapshot import Snapshot

    found = columns_of(files)
    name = "part-{:09d}-c1b2c3d4-e5f6-7890-abcd-ef0123456789-c000.snappy.parquet"
    given = {
        "path": pa.array([name.format(at) for at in range(files)]),
        "partition_values": pa.array([[]] * files, files_.STRINGS),
        "size": pa.array(np.full(files, 10_000_000)),
        "modified_ms": pa.array(np.full(files, 1)),
        "data_change": pa.array(np.ones(files, bool)),
        "stats": pa.array([_stats(found, at) for at in range(files)]),
    }
    table = pa.table(
        [given.get(field.name, pa.nulls(files, field.type)) for field in files_.SCHEMA],
        schema=files_.SCHEMA,
    )
    metadata, protocol = Metadata("index", _SCHEMA, (), {}), Protocol(1, 2)
    return Snapshot("memory:///index", 0, 0, metadata, protocol, {}, {}, table)


def write_table(root: Path, files: int) -> None:
    """The log of such a table as another writer leaves it: a commit, and its checkpoint."""
    from tandem.delta.log import codec
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.log.maintenance import write_checkpoint
    from tandem.delta.log.snapshot import commit_info
    from tandem.storage import open_store

    snapshot = snapshot_of(files)
    log = DeltaLog(open_store(root.as_uri()))
    info = commit_info("WRITE", {}, now_ms=1, previous=None, blind_append=True)
    actions = [info, snapshot.protocol, snapshot.metadata, *snapshot.adds()]
    path = root / "_delta_log" / f"{0:020d}.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(codec.encode_commit(actions))
    write_checkpoint(log, log.snapshot(), now_ms=2)


def in_process(root: str, files: int, times: int, commits: int) -> dict[str, Any]:
    """In a separate process: cold, warm, and DuckDB beside it, turn by turn."""
    import duckdb

    from tandem.delta.actions import AddFile, Commit, RemoveFile
    from tandem.index import answers, open_index
    from tandem.index.base import LEAST_FILES
    from tandem.index.library import condition
    from tandem.index.window import Lately

    index = open_index(root)
    texts = conditions(files)
    cold = first_answers(index, files)
    written, there = timed(index.table.write_base)
    if files >= LEAST_FILES and not there:
        raise WrongResult("no base was written")
    view = index.view()
    found = columns_of(files)
    numbers = pa.table(
        {
            "a_low": found["a"], "a_high": found["a"] + ROWS - 1,
            "b_low": found["b"], "b_high": found["b"] + 20,
            "d_low": found["d"], "d_high": found["d"],
        }
    )  # fmt: skip
    duck = duckdb.connect()
    duck.execute("SET threads = 2")
    duck.register("given", numbers)
    duck.execute("CREATE TABLE numbers AS SELECT * FROM given")
    seconds: dict[str, list[float]] = {}
    for name, (text, sql) in texts.items():
        where = condition(view.head, text)
        ways: dict[str, Callable[[], int]] = {
            f"tandem: {name}": lambda where=where: len(
                answers.splits(replace(view, lately=Lately()), where)
            ),
            f"duckdb: {name}": lambda sql=sql: int(
                duck.execute(f"SELECT count(*) FROM numbers WHERE {sql}").fetchall()[0][0]
            ),
        }
        if len({ask() for ask in ways.values()}) != 1:
            raise WrongResult(f"{name}: {[ask() for ask in ways.values()]}")
        for _ in range(times):
            for way, ask in ways.items():
                seconds.setdefault(way, []).append(timed(ask)[0])
    seconds["tandem: count(*)"] = [
        timed(lambda: answers.certain_count(view))[0] for _ in range(times)
    ]
    window = index.table._window
    assert window is not None
    paths = view.parts[0].files["path"]
    follow = []
    for number in range(commits + 1):
        first = number * PER_COMMIT
        adds = [AddFile(f"new-{first + n}", {}, 1, 1, True, _stats(found, n))
                for n in range(PER_COMMIT)]  # fmt: skip
        removes = [RemoveFile(paths[first + n].as_py(), 1, True) for n in range(PER_COMMIT)]
        commit = Commit(number + 1, number, (*adds, *removes))
        follow.append(timed(lambda commit=commit: window.follow([commit]))[0])
    return {
        "cold": cold,
        "written": written,
        "seconds": seconds,
        "bytes": index.nbytes / files,
        "follow": follow[1:],  # the first one makes the lookup of paths
    }


def first_answers(index: Any, files: int) -> dict[str, float]:
    """Seconds until each condition was answered once, and the most memory until then, in MiB."""
    from tandem.index import Query

    before = _mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the most memory is counted from now on
    seconds, _ = timed(
        lambda: [index.certain_count(Query(text)) for text, _ in conditions(files).values()]
    )
    return {"seconds": seconds, "mib": _mib("VmHWM") - before}


def from_base(root: str, files: int) -> dict[str, float]:
    """In a separate process: cold, by the base that another one wrote."""
    from tandem.index import open_index

    index = open_index(root)
    found = first_answers(index, files)
    if index.certain_count().rows != files * ROWS:
        raise WrongResult("the base says something else")
    return found


def _mib(field: str) -> float:
    """Memory of this process, by Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def over_flight(root: str, files: int, times: int) -> dict[str, Any]:
    """In a separate process: a server with TLS, one asker, and then eight at once."""
    from tandem.index import Query, open_index
    from tandem.index.server.calls import AnswerFiles
    from tandem.index.server.client import RemoteIndex
    from tandem.index.server.service import IndexService
    from tandem.index.server.transport import Connection, FlightServer, Tls
    from tandem.storage import open_store

    certificate, key = _certificate()
    service = IndexService({"lake": lambda: open_index(root)}, AnswerFiles(None))
    token = "0123456789abcdef"
    served = FlightServer(service, "localhost", 0, token=token, tls=Tls(certificate, key))
    store = open_store(root)

    def asker() -> RemoteIndex:
        connection = Connection(
            f"grpc+tls://localhost:{served.port}", token=token, tls=Tls(certificate), timeout_s=120
        )
        return RemoteIndex(connection, "lake", store)

    def held(text: str = "") -> Query:
        return Query(text, max_staleness_s=3_600)

    two = next(iter(conditions(files)))
    same = conditions(files)[THREE][0]
    found: dict[str, list[float]] = {}
    with served:
        one = asker()
        if one.count(held()) != files * ROWS:
            raise WrongResult(f"{one.count(held())} rows")
        one.certain_count(held(same))
        gc.freeze()  # as the programs do that serve
        asked = {
            "count(*)": [held()] * times,
            "count(*), the log listed before": [Query()] * times,
            two: [held(text) for text in other_ranges(files, times)],
            THREE: [held(text) for text in other_constants(ASKERS, times)],
        }
        for name, queries in asked.items():
            found[name] = [timed(lambda q=each: one.certain_count(q))[0] for each in queries]
        for name, texts in (
            (CROWD, [other_constants(n, times) for n in range(ASKERS)]),
            (SAME, [[same] * times] * ASKERS),
        ):
            found[name] = _together(asker, [[held(text) for text in each] for each in texts])
    return {"seconds": found}


def _together(asker: Callable[[], Any], queries: Sequence[Sequence[Any]]) -> list[float]:
    """The seconds of each question; so many askers ask theirs one by one, and all at once."""
    seconds: list[float] = []

    def ask(mine: Sequence[Any]) -> None:
        index = asker()
        index.certain_count(mine[0])
        seconds.extend(timed(lambda q=each: index.certain_count(q))[0] for each in mine)

    threads = [threading.Thread(target=ask, args=(mine,)) for mine in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds


def other_ranges(files: int, times: int) -> list[str]:
    """Two comparisons, clustered."""
    low = files // 2 * ROWS
    return [f"a >= {low + at} AND a < {low + at + 100 * ROWS}" for at in range(times)]


def other_constants(asker: int, times: int) -> list[str]:
    """Three comparisons, one clustered, that are in no other question."""
    first = 1_000 + 10_000 * asker
    return [
        f"b > {first + at} AND b < {first + at + 100} AND d = DATE '2020-05-01'"
        for at in range(times)
    ]


def with_spark(root: str, rows: int, times: int) -> dict[str, Any]:
    """In a separate process: `count(*)` by Spark with Delta, on a session that is warm."""
    from benchmarks.warm import start_delta

    spark = start_delta()
    spark.range(1_000_000).count()

    def count() -> int:
        return int(spark.read.format("delta").load(root).count())

    first, found = timed(count)
    if found != rows:
        raise WrongResult(f"Spark counts {found} rows")
    seconds = [timed(count)[0] for _ in range(times)]
    spark.stop()
    return {"first": first, "seconds": seconds}


def _certificate() -> tuple[bytes, bytes]:
    """A certificate for localhost, of its own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(pem), private


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult if two engines choose other numbers of files, or count other rows."""
    files, spark_files = FILES[size], SPARK_FILES[size]
    root, smaller = work / "lake", work / "smaller"
    progress("write the log")
    write_table(root, files)
    write_table(smaller, spark_files)
    progress("in one process, beside DuckDB")
    local = in_child(in_process, root=str(root), files=files, times=TIMES[size],
                     commits=COMMITS[size])  # fmt: skip
    progress("from a base")
    based = in_child(from_base, root=str(root), files=files)
    progress("over Flight")
    remote = in_child(over_flight, root=str(root), files=files, times=TIMES[size])
    beside = in_child(over_flight, root=str(smaller), files=spark_files, times=TIMES[size])
    progress("Spark with Delta")
    spark = in_child(
        with_spark, root=str(smaller), rows=spark_files * ROWS, times=3 if size == "full" else 1
    )
    shutil.rmtree(root)
    shutil.rmtree(smaller)
    return _report(size, files, spark_files, local, based, remote, beside, spark)


def _report(
    size: str, files: int, spark_files: int, local: Any, based: Any, remote: Any, beside: Any,
    spark: Any,
) -> Report:  # fmt: skip
    mine = {name: Samples.of(values).map(_ms) for name, values in local["seconds"].items()}
    there = {name: Samples.of(values).map(_ms) for name, values in remote["seconds"].items()}
    p99, again = (
        1_000 * statistics.quantiles(remote["seconds"][name], n=100)[98] for name in (CROWD, SAME)
    )
    by_spark = Samples.of(spark["seconds"])
    by_us = Samples.of(beside["seconds"]["count(*)"])
    times_faster = by_spark.median / by_us.median
    three = there[THREE]
    followed = Samples.of(local["follow"]).map(_ms)
    return Report(
        name="index",
        title=f"The index of a table of {files:,} files",
        setting=(
            f"A log of {files:,} files without data, with statistics of three columns, in a "
            f"checkpoint; {TIMES[size]} questions of a kind, warm, in turns with DuckDB over the "
            "same statistics as a table of its own. Over Flight on loopback, with TLS and a token, "
            "by threads of the server's own process; other constants in each question. "
            f"Spark with Delta counts a table of {spark_files:,} files."
        ),
        tables=(
            Table(
                "The files that a condition needs, in one process, milliseconds",
                ("condition", "Tandem", "DuckDB", "DuckDB ÷ Tandem"),
                tuple(
                    (
                        name,
                        mine[f"tandem: {name}"].text(),
                        mine[f"duckdb: {name}"].text(),
                        f"{mine[f'duckdb: {name}'].median / mine[f'tandem: {name}'].median:.1f}",
                    )
                    for name in conditions(files)
                ),
            ),
            Table(
                "The first answers of a process",
                ("from", "seconds", "MiB that the process grows by until then"),
                (
                    _start("another writer's checkpoint", local["cold"]),
                    _start("a base", based),
                ),
            ),
            Table(
                "Over Flight, milliseconds",
                ("question", "Tandem"),
                tuple((name, each.text()) for name, each in there.items()),
            ),
            Table(
                f"count(*) of {spark_files:,} files, milliseconds",
                ("engine", "first", "warm"),
                (
                    ("Tandem, over Flight", "–", by_us.map(_ms).text()),
                    (
                        "Spark with Delta",
                        f"{_ms(spark['first']):,.0f}",
                        by_spark.map(_ms).text(0),
                    ),
                ),
            ),
        ),
        checks=(
            "Tandem and DuckDB need the same number of files for each condition.",
            "Spark and Tandem count the same rows.",
        ),
        figures=(
            Figure(
                f"{files:,} files: count(*) over Flight",
                f"{there['count(*)'].text()} ms",
                "≤ 1 ms",
                there["count(*)"].median <= 1,
            ),
            Figure(
                f"count(*) of {spark_files:,} files, Spark with Delta ÷ Tandem over Flight",
                f"{times_faster:,.0f}",
                "≥ 1,000",
                times_faster >= 1_000,
            ),
            Figure(
                f"{files:,} files: three comparisons over Flight",
                f"{three.text()} ms",
                "≤ 5 ms",
                three.median <= 5,
            ),
            Figure(f"… {ASKERS} askers, p99", f"{p99:.1f} ms", "≤ 20 ms", p99 <= 20),
            Figure(
                f"… {ASKERS} askers of the same question, p99",
                f"{again:.1f} ms",
                "≤ 20 ms",
                again <= 20,
            ),
            Figure(
                f"{files:,} files: first answers, from another writer's checkpoint",
                f"{local['cold']['seconds']:.1f} s",
                "≤ 8 s",
                local["cold"]["seconds"] <= 8,
            ),
            Figure(
                f"{files:,} files: first answers, from a base",
                f"{based['seconds']:.1f} s",
                "≤ 2 s",
                based["seconds"] <= 2,
            ),
            Figure(
                f"{files:,} files: a commit of {PER_COMMIT} adds and {PER_COMMIT} removes",
                f"{followed.text()} ms",
                "≤ 1 ms",
                followed.median <= 1,
            ),
            Figure(
                "Bytes a file, with statistics of three columns",
                f"{local['bytes']:.0f}",
                "≤ 300",
                local["bytes"] <= 300,
            ),
        ),
        raw={
            "in_process": local,
            "base": based,
            "flight": remote,
            "beside_spark": beside,
            "spark": spark,
        },
    )


def _start(name: str, found: Any) -> tuple[str, ...]:
    return name, f"{found['seconds']:.2f}", f"{found['mib']:,.0f}"


def _ms(seconds: float) -> float:
    return seconds * 1_000
