"""The cost of a lock compared with its bare requests to etcd, and the latency and fairness of its
transfer between clients.

One lock is: a lease is granted, one transaction decides and writes, the lease is revoked. The
bare peer sends the same three requests with values of the same size, through the same generated
stubs, without a decision.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    Report,
    Samples,
    Table,
    WrongResult,
    await_child,
    in_child,
    progress,
    start_child,
)
from tandem.intervals import IntervalSet, TimeInterval
from tandem.locks.rules import Granted, LockRequest, Mode, named, segment

SECONDS = {"toy": 0.1, "small": 0.5, "full": 1.2}
ROUNDS = {"toy": 1, "small": 2, "full": 6}
CONTENTION_S = {"toy": 0.3, "small": 2.0, "full": 10.0}
READY_S = {"toy": 6.0, "small": 8.0, "full": 10.0}

CLIENTS = 32
PROCESSES = 4
TABLES = (1, 32)
SEGMENTS = (64, 1000)
INTERVALS = {64: 8, 1000: 64}
"""How many intervals a plan of so many segments has beside the names."""
_DAY_MS = 86_400_000
_START_MS = 1_356_998_400_000  # 2013


def asked(client: int, number: int, tables: int, segments: int) -> LockRequest:
    """A plan of neighbouring segments, which no other client has in its plan; every other day."""
    days = (_START_MS + 2 * _DAY_MS * (client + n) for n in range(INTERVALS.get(segments, 1)))
    return LockRequest(
        table=f"s3://lake/warehouse/sales/table-{client % tables}",
        operation=f"{client:08x}{number:08x}",
        mode=Mode.REWRITE,
        resources=named(
            (str(client * segments + n) for n in range(segments)),
            IntervalSet(TimeInterval(day, day + _DAY_MS) for day in days),
        ),
        owner=f"{client:016x}-{number:08x}",
        display="TableCompaction/nightly",
    )


# Locks, as the operator takes them ----------------------------------------------------------


def with_tandem(endpoint: str, tables: int, segments: int, seconds: float) -> tuple[int, float]:
    """(locks taken and released, requests sent to etcd for each)."""
    from tandem.locks.etcd.client import EtcdConnection
    from tandem.locks.etcd.store import EtcdLocks, EtcdSettings

    sent = [0]
    call = EtcdConnection.call

    def counted(self: EtcdConnection, method: str, request: Any) -> Coroutine[Any, Any, Any]:
        sent[0] += 1
        return call(self, method, request)

    EtcdConnection.call = counted  # type: ignore[method-assign]
    locks = EtcdLocks(EtcdSettings((endpoint,), f"/bench/{secrets.token_hex(4)}"))
    done = [0] * CLIENTS
    ends: list[float] = []
    barrier = threading.Barrier(CLIENTS, lambda: ends.append(time.monotonic() + seconds))

    def work(client: int) -> None:
        # The cost of choosing the segments does not count.
        chosen = asked(client, 0, tables, segments)
        locks.entries(chosen.table)
        barrier.wait()
        while time.monotonic() < ends[0]:
            plan = replace(chosen, operation=f"{client:08x}{done[client]:08x}")
            if not isinstance(locks.acquire(plan), Granted):
                raise WrongResult("a lock without competitors was not granted")
            locks.release(plan.table, plan.operation, plan.owner)
            done[client] += 1

    _in_threads(work)
    locks.close()
    EtcdConnection.call = call  # type: ignore[method-assign]
    if min(done) == 0:
        raise WrongResult("a client got nothing")
    return sum(done), sent[0] / sum(done)


def _in_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# The same requests, bare --------------------------------------------------------------------


def bare(endpoint: str, tables: int, segments: int, seconds: float) -> tuple[int, float]:
    """(times that all three requests were sent, requests of each time)."""
    return asyncio.run(_bare(endpoint, tables, segments, seconds)), 3.0


async def _bare(endpoint: str, tables: int, segments: int, seconds: float) -> int:
    import grpc.aio
    from aetcd import rpc

    from tandem.locks import codec
    from tandem.locks.rules import EntryState, LockEntry

    prefix = f"/bench/{secrets.token_hex(4)}"
    done = 0
    async with grpc.aio.insecure_channel(endpoint) as channel:
        kv, lease = rpc.KVStub(channel), rpc.LeaseStub(channel)
        await lease.LeaseLeases(rpc.LeaseLeasesRequest())
        ends = time.monotonic() + seconds

        async def work(client: int) -> None:
            nonlocal done
            request = asked(client, 0, tables, segments)
            keys = codec.LockKeys(f"{prefix}/{client}").table(request.table)
            value = codec.encode(LockEntry(request, EntryState.HELD, 0))
            head, key = codec.head(request.table), keys.of(request.operation)
            while time.monotonic() < ends:
                granted = await lease.LeaseGrant(rpc.LeaseGrantRequest(TTL=60), timeout=5)
                compare = [
                    rpc.Compare(
                        result=rpc.Compare.EQUAL,
                        target=rpc.Compare.MOD,
                        key=nowhere,
                        mod_revision=0,
                    )
                    for nowhere in (b"/nowhere", key)
                ]
                puts = [
                    rpc.PutRequest(key=keys.head, value=head),
                    rpc.PutRequest(key=key, value=value, lease=granted.ID),
                ]
                written = await kv.Txn(
                    rpc.TxnRequest(
                        compare=compare, success=[rpc.RequestOp(request_put=put) for put in puts]
                    ),
                    timeout=5,
                )
                if not written.succeeded:
                    raise WrongResult("a bare transaction failed")
                await lease.LeaseRevoke(rpc.LeaseRevokeRequest(ID=granted.ID), timeout=5)
                done += 1

        await asyncio.gather(*(work(client) for client in range(CLIENTS)))
    return done


ENGINES = {"tandem": with_tandem, "bare": bare}


def measure(
    engine: str, endpoint: str, pid: int, tables: int, segments: int, seconds: float
) -> dict[str, float]:
    """In a separate process, with one extra round that does not count, for warming up. `pid`
    is etcd's."""
    ENGINES[engine](endpoint, tables, segments, seconds / 5)
    before = time.process_time() + _cpu_seconds(pid)
    count, sent = ENGINES[engine](endpoint, tables, segments, seconds)
    used = time.process_time() + _cpu_seconds(pid) - before
    return {"per_s": count / seconds, "sent": sent, "cpu_us": used / count * 1e6}


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of another process; 0 if unknown."""
    path = Path(f"/proc/{pid}/stat")
    if not path.is_file():
        return 0.0
    fields = path.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# One segment that all clients want ------------------------------------------------------------


def contend(
    endpoint: str, prefix: str, process: int, begin: float, seconds: float
) -> list[tuple[int, float, float]]:
    """(client, granted at, released at) of a quarter of the clients, by the system's clock."""
    from tandem.locks.etcd.store import EtcdLocks, EtcdSettings

    locks = EtcdLocks(EtcdSettings((endpoint,), prefix))
    found: list[tuple[int, float, float]] = []

    def work(client: int) -> None:
        number = 0
        while time.monotonic() < begin + seconds:
            plan = asked(client, number, 1, 1)
            wanted = replace(plan, resources=segment("0"))
            while not isinstance(locks.acquire(wanted), Granted):
                locks.wait(wanted.table, wanted.operation, 10)
            granted = time.monotonic()
            released = time.monotonic()
            locks.release(wanted.table, wanted.operation, wanted.owner)
            found.append((client, granted, released))
            number += 1

    locks.entries(asked(0, 0, 1, 1).table)
    late = time.monotonic() - begin
    if late > 0:
        raise WrongResult(f"a process was not ready in time: {late:.1f} s late")
    time.sleep(-late)
    each = CLIENTS // PROCESSES
    clients = range(process * each, (process + 1) * each)
    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    locks.close()
    return found


def contention(endpoint: str, size: str) -> dict[str, Any]:
    """Raises: WrongResult, if two held the segment together."""
    begin, seconds = time.monotonic() + READY_S[size], CONTENTION_S[size]
    prefix = f"/bench/{secrets.token_hex(4)}"
    held: list[tuple[int, float, float]] = []
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
        answers = [Path(folder) / f"{process}.json" for process in range(PROCESSES)]
        children = [
            start_child(
                contend,
                answer,
                endpoint=endpoint,
                prefix=prefix,
                process=process,
                begin=begin,
                seconds=seconds,
            )
            for process, answer in enumerate(answers)
        ]
        for child, answer in zip(children, answers, strict=True):
            held += [tuple(one) for one in await_child(child, answer, 120)]
    held.sort(key=lambda one: one[1])
    overs = []
    for (_, _, released), (_, granted, _) in itertools.pairwise(held):
        if granted < released:
            raise WrongResult("two clients held one segment together")
        overs.append((granted - released) * 1000)
    counts = [0] * CLIENTS
    for client, granted, _ in held:
        counts[client] += granted < begin + seconds
    return {
        "per_s": sum(counts) / seconds,
        "median_ms": statistics.median(overs),
        "p95_ms": statistics.quantiles(overs, n=20)[-1],
        "most": max(counts),
        "least": min(counts),
    }


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult."""
    del work
    from support.cluster.etcd import start_etcd

    settings = list(itertools.product(TABLES, SEGMENTS))
    found: dict[str, list[dict[str, float]]] = {
        f"{engine} {tables} {segments}": [] for engine in ENGINES for tables, segments in settings
    }
    with start_etcd() as etcd:
        (endpoint,) = etcd.endpoints
        for turn in range(ROUNDS[size]):
            progress(f"locks: round {turn + 1} of {ROUNDS[size]}")
            for tables, segments in settings:
                for engine in sorted(ENGINES, reverse=turn % 2 == 0):
                    found[f"{engine} {tables} {segments}"].append(
                        in_child(
                            measure,
                            engine=engine,
                            endpoint=endpoint,
                            pid=etcd.members[0].pid,
                            tables=tables,
                            segments=segments,
                            seconds=SECONDS[size],
                        )
                    )
        progress("locks: one segment")
        shared = contention(endpoint, size)
    rows = []
    for tables, segments in settings:
        turns = [found[f"{engine} {tables} {segments}"] for engine in ("tandem", "bare")]
        ours, theirs = (Samples.of(turn["per_s"] for turn in each) for each in turns)
        shares = Samples.of(
            one / other for one, other in zip(ours.values, theirs.values, strict=True)
        )
        sent = Samples.of(turn["sent"] for turn in turns[0])
        cpu = [Samples.of(turn["cpu_us"] for turn in each) for each in turns]
        rows.append(
            (
                str(tables),
                f"{segments:,}, {INTERVALS[segments]}",
                ours.text(0),
                theirs.text(0),
                shares.text(),
                sent.text(1),
                f"{cpu[0].median:,.0f} / {cpu[1].median:,.0f}",
                f"{cpu[1].median / cpu[0].median:.2f}",
            )
        )
    return Report(
        name="locks",
        title="Locks in etcd",
        setting=(
            f"One etcd on the same machine, which does not sync to the disk: with syncs, both "
            f"sides wait for them, and their ratio is closer to 1. {CLIENTS} clients in one "
            "process take and release locks on segments without competitors, which name the "
            "segments and the intervals in which they lie. A lock is a lease "
            "granted, one transaction (two compares, two puts), and the lease revoked. The bare "
            "peer sends only these three requests, with values of the same size, from one event "
            f"loop and through the same stubs. {ROUNDS[size]} rounds of {SECONDS[size]} s, "
            "alternating; a share is that of one round. Concurrent requests of one table share a "
            "transaction. The total CPU of client and etcd stays comparable on a machine with "
            "other load."
        ),
        tables=(
            Table(
                "",
                (
                    "tables",
                    "segments, intervals each",
                    "locks/s",
                    "bare/s",
                    "share of bare (aim: 0.7)",
                    "requests to etcd per lock (bare: 3)",
                    "µs of CPU per lock, client and etcd: tandem / bare",
                    "share of bare by CPU",
                ),
                tuple(rows),
            ),
            Table(
                f"{CLIENTS} clients in {PROCESSES} processes want one segment, "
                f"{CONTENTION_S[size]:.0f} s",
                (
                    "transfers/s",
                    "median ms (aim: 20)",
                    "95 % within ms",
                    "times held, most / least of a client (aim: 2.0)",
                ),
                (
                    (
                        f"{shared['per_s']:.0f}",
                        f"{shared['median_ms']:.1f}",
                        f"{shared['p95_ms']:.1f}",
                        f"{shared['most']} / {shared['least']} = "
                        f"{shared['most'] / max(shared['least'], 1):.2f}",
                    ),
                ),
            ),
        ),
        checks=(
            "Every lock was granted; no two clients held the segment together, by the clock of "
            "the machine.",
        ),
        raw={"rounds": found, "one segment": shared},
    )
