"""Job pools, without a cluster: the patches of operator and driver, in any order, lose no job."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tandem.errors import InvalidSpec
from tandem.jobs.pool import (
    LEFT_S,
    OVERDUE_S,
    Action,
    Begin,
    Close,
    End,
    Ledger,
    PoolConfig,
    PooledEnd,
    PooledJob,
    PoolRecord,
    PoolRules,
    Refuse,
    ReportStopped,
    Withdraw,
    arguments,
    ask_to_stop,
    choose,
    close,
    digest_of,
    forget,
    is_left_over,
    is_pooled,
    new_record,
    post,
    read_config,
    record_of,
    refuse,
    report_begun,
    report_end,
)
from tandem.jobs.runner import JobPhase, JobRequest
from tandem.spec.table import Pooling, TableJobs

Json = dict[str, Any]
DONE = PooledEnd(code=0)


def config(**changes: Any) -> PoolConfig:
    return PoolConfig(**{"namespace": "lake", "name": "pool", "slots": 2, **changes})


def job(number: int = 0) -> PooledJob:
    return PooledJob(app="rewrite", location="s3://lake/t", spec="job.json", posted_ms=number)


class ConfigMap:
    """As the API server keeps it."""

    def __init__(self) -> None:
        self.body = new_record("lake", "pool", "digest")
        self.body["metadata"] |= {"uid": "u", "resourceVersion": "1"}

    def patch(self, patch: Sequence[Json]) -> bool:
        """Apply a JSON patch; False if a test of it fails."""
        data = dict(self.body["data"])
        for step in patch:
            _, part, key = step["path"].split("/", 2)
            if step["op"] == "test":
                found = self.body["metadata"].get(key) if part == "metadata" else data.get(key)
                if found != step["value"]:
                    return False
            else:
                data[key] = step["value"]
        self._put(data)
        return True

    def merge(self, patch: Mapping[str, Any]) -> None:
        data = {**self.body["data"], **patch["data"]}
        self._put({key: value for key, value in data.items() if value is not None})

    def record(self) -> PoolRecord:
        return record_of(self.body)

    def _put(self, data: Json) -> None:
        version = str(int(self.body["metadata"]["resourceVersion"]) + 1)
        metadata = {**self.body["metadata"], "resourceVersion": version}
        self.body = {**self.body, "metadata": metadata, "data": data}


def begins(actions: Sequence[Action]) -> list[tuple[str, int]]:
    return [(action.name, action.slot) for action in actions if isinstance(action, Begin)]


def test_a_configuration_survives_its_arguments() -> None:
    made = config(storage_options={"region": "$(SECRET)é"}, allowed=("s3://lake/",))
    pieces = arguments(made)
    assert "$" not in "".join(pieces)
    assert read_config(pieces) == made
    with pytest.raises(InvalidSpec, match="slots"):
        read_config(['{"namespace":"a","name":"b","slots":0}'])


def test_small_first_attempts_are_pooled_if_pools_are_on() -> None:
    def request(size: int, attempt: int) -> JobRequest:
        return JobRequest("j", "rewrite", "", "", input_bytes=size, attempt=attempt)

    on, off = PoolRules(slots=4), PoolRules()
    limit = on.below_bytes
    assert is_pooled(request(limit - 1, 1), on)
    assert not is_pooled(request(limit, 1), on)
    assert not is_pooled(request(0, 2), on)
    assert not is_pooled(request(0, 1), off)


def test_a_table_chooses_no_pool() -> None:
    rules = PoolRules(slots=4, below_bytes=1_000)
    assert rules.of_table(None) == rules.of_table(TableJobs()) == rules
    never = rules.of_table(TableJobs(pool=Pooling.NEVER))
    assert not is_pooled(JobRequest("j", "rewrite", "", "", attempt=1), never)


def test_the_open_and_live_pool_with_the_fewest_jobs_is_chosen() -> None:
    def pool(name: str, count: int, ended: int = 0, *, is_open: bool = True) -> PoolRecord:
        jobs = {f"j{number}": job() for number in range(count)}
        ends = {f"j{number}": DONE for number in range(ended)}
        return PoolRecord(name, "u", "1", is_open=is_open, jobs=jobs, ended=ends)

    pools = [pool("a", 3), pool("b", 4, 2), pool("c", 0, is_open=False), pool("d", 0)]
    found = choose(pools, {"a", "b", "c"}, 5)
    assert found is not None
    assert found.name == "b"
    # One whose list is full takes no more: its driver must have room to report.
    found = choose(pools, {"a", "b", "c"}, 4)
    assert found is not None
    assert found.name == "a"
    assert choose(pools, {"a", "b", "c"}, 3) is None
    assert choose(pools, {"c"}, 5) is None
    assert choose([], {"c"}, 5) is None


def test_what_differs_has_another_pool() -> None:
    assert digest_of("a", "b") == digest_of("a", "b") != digest_of("ab", "")


def test_a_pool_is_left_over_without_an_application_or_if_that_never_ends() -> None:
    assert is_left_over(LEFT_S + 1, JobPhase.UNKNOWN)
    assert not is_left_over(LEFT_S - 1, JobPhase.UNKNOWN)
    for phase in (JobPhase.STARTING, JobPhase.RUNNING):
        assert not is_left_over(LEFT_S + 1, phase)
        assert is_left_over(OVERDUE_S + 1, phase)
    for phase in (JobPhase.ENDED, JobPhase.FAILED):  # its driver's log is still there
        assert not is_left_over(OVERDUE_S + 1, phase)
    limits = config()
    assert limits.oldest_s + limits.drain_s < OVERDUE_S


def test_jobs_begin_in_their_order_as_slots_become_free() -> None:
    ledger, there = Ledger(config(), 0), ConfigMap()
    for number, name in enumerate("cab"):
        assert there.patch(post(name, job(number)))
    ledger.see(there.record())
    assert begins(ledger.step(1)) == [("c", 0), ("a", 1)]
    assert ledger.step(2) == []
    ledger.ended("c", 3, taints=False)
    assert begins(ledger.step(3)) == [("b", 0)]
    # An older version of the record, in which it has not ended.
    assert ledger.running == {"a", "b"}


def test_a_job_that_was_posted_by_a_clock_ahead_does_not_wait_behind_all_others() -> None:
    ledger, there = Ledger(config(slots=1), 0), ConfigMap()
    assert there.patch(post("a", job(1)))
    ledger.see(there.record())
    assert begins(ledger.step(1)) == [("a", 0)]
    assert there.patch(post("ahead", job(10**12)))
    ledger.see(there.record())
    ledger.step(2)
    assert there.patch(post("later", job(2)))
    ledger.ended("a", 3, taints=False)
    ledger.see(there.record())
    assert begins(ledger.step(3)) == [("ahead", 0)]


def test_a_pool_without_jobs_closes_only_if_it_has_seen_all() -> None:
    ledger, there = Ledger(config(idle_s=10), 0), ConfigMap()
    ledger.see(there.record())
    assert ledger.step(9) == []
    (closing,) = ledger.step(10)
    assert closing == Close("1")
    assert there.patch(post("late", job()))
    assert not there.patch(close("1"))
    ledger.see(there.record())
    assert begins(ledger.step(11)) == [("late", 0)]
    ledger.ended("late", 12, taints=False)
    assert there.patch(report_end("late", job(), DONE))
    ledger.see(there.record())
    assert ledger.step(21) == []
    (closing,) = ledger.step(22)
    assert isinstance(closing, Close)
    assert there.patch(close(closing.version))
    ledger.see(there.record())
    assert ledger.step(22) == [End(drained=True)]
    assert not there.patch(post("too-late", job()))


@pytest.mark.parametrize("why", ["jobs", "age", "taint"])
def test_a_pool_is_renewed(why: str) -> None:
    limits = {"most_jobs": 1 if why == "jobs" else 9, "oldest_s": 5.0 if why == "age" else 99.0}
    ledger, there = Ledger(config(**limits), 0), ConfigMap()
    assert there.patch(post("a", job()))
    ledger.see(there.record())
    ledger.step(1)
    if why == "taint":
        ledger.ended("a", 2, taints=True)
    assert Close() in ledger.step(6)
    there.patch(close(""))
    ledger.see(there.record())
    if why != "taint":
        assert ledger.step(7) == []
        ledger.ended("a", 8, taints=False)
    assert ledger.step(9) == [End(drained=True)]


def test_jobs_of_a_closed_pool_have_a_limit() -> None:
    ledger, there = Ledger(config(drain_s=10), 0), ConfigMap()
    assert there.patch(post("a", job()))
    there.patch(close(""))
    ledger.see(there.record())
    assert begins(ledger.step(1)) == [("a", 0)]
    assert ledger.step(10) == []
    assert ledger.step(11) == [End(drained=False)]


def test_jobs_that_are_stopped_or_removed_are_withdrawn_once() -> None:
    ledger, there = Ledger(config(), 0), ConfigMap()
    for number, name in enumerate("abc"):
        there.patch(post(name, job(number)))
    ledger.see(there.record())
    ledger.step(1)
    for name in "ac":
        there.patch(ask_to_stop(name))
    there.merge(forget("b"))
    ledger.see(there.record())
    assert ledger.step(2) == [Withdraw("a"), Withdraw("b"), ReportStopped("c", job(2))]
    assert ledger.step(3) == []
    assert not there.patch(report_end("b", job(1), DONE))
    assert not there.patch(report_begun("b", job(1)))
    assert there.patch(report_end("a", job(0), DONE))
    # A name that comes back does not begin a second time.
    ledger.ended("a", 4, taints=False)
    there.merge(forget("a"))
    there.patch(post("a", job(0)))
    ledger.see(there.record())
    assert begins(ledger.step(5)) == []


def test_a_deleted_config_map_ends_the_driver() -> None:
    ledger, there = Ledger(config(), 0), ConfigMap()
    there.patch(post("a", job()))
    ledger.see(there.record())
    ledger.step(1)
    ledger.see(None)
    assert ledger.step(2) == [Withdraw("a")]
    ledger.ended("a", 3, taints=False)
    assert ledger.step(3) == [End(drained=True)]


def test_a_job_that_does_not_end_keeps_no_driver_without_a_config_map() -> None:
    ledger, there = Ledger(config(drain_s=10), 0), ConfigMap()
    there.patch(post("a", job()))
    ledger.see(there.record())
    ledger.step(1)
    ledger.see(None)
    assert ledger.step(2) == [Withdraw("a")]
    assert ledger.step(11) == []
    assert ledger.step(12) == [End(drained=False)]


@pytest.mark.parametrize("why", ["idle", "age"])
def test_a_pool_that_cannot_be_closed_ends_all_the_same(why: str) -> None:
    limits = {"idle_s": 5.0 if why == "idle" else 99.0, "oldest_s": 5.0 if why == "age" else 99.0}
    ledger, there = Ledger(config(drain_s=10, **limits), 0), ConfigMap()
    ledger.see(there.record())
    closing = [Close("1" if why == "idle" else "")]
    assert ledger.step(5) == closing
    assert ledger.step(14) == closing
    assert ledger.step(15) == [End(drained=True)]


def test_a_job_that_comes_while_a_pool_is_closed_begins_the_wait_again() -> None:
    ledger, there = Ledger(config(drain_s=10, idle_s=5), 0), ConfigMap()
    ledger.see(there.record())
    assert ledger.step(5) == [Close("1")]
    there.patch(post("late", job()))
    ledger.see(there.record())
    assert begins(ledger.step(6)) == [("late", 0)]
    ledger.ended("late", 20, taints=False)
    there.patch(report_end("late", job(), DONE))
    ledger.see(there.record())
    assert ledger.step(24) == []
    assert ledger.step(25) == [Close(there.record().version)]
    assert ledger.step(34) == [Close(there.record().version)]


@pytest.mark.parametrize("text", ["", "{}", '{"formatVersion":2}', "null", "[1]"])
def test_a_job_that_cannot_be_read_is_refused_once(text: str) -> None:
    ledger, there = Ledger(config(), 0), ConfigMap()
    there.patch([{"op": "add", "path": "/data/job.x", "value": text}])
    ledger.see(there.record())
    assert ledger.step(1) == [Refuse("x")]
    assert ledger.step(2) == []
    there.patch(refuse("x", PooledEnd(code=1, message="?")))
    assert there.record().ended["x"].code == 1


class World:
    """A pool, its driver and an operator; each event happens at a random time, and the driver sees
    versions of the record late, but in their order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.there = ConfigMap()
        self.config = config(slots=self.random.randint(1, 3), most_jobs=6, idle_s=5, drain_s=50)
        self.now = 0.0
        self.ledger = Ledger(self.config, 0)
        self.versions = [self.there.record()]
        self.seen = 0
        self.begun: list[str] = []
        self.posted: dict[str, PooledJob] = {}
        self.refused: set[str] = set()
        self.forgotten: set[str] = set()
        self.pending: list[list[Json]] = []
        self.over: End | None = None

    def changed(self) -> None:
        self.versions.append(self.there.record())

    def drive(self) -> None:
        self.seen = self.random.randint(self.seen, len(self.versions) - 1)
        self.ledger.see(self.versions[self.seen])
        for action in self.ledger.step(self.now):
            match action:
                case Begin(name, given, slot):
                    assert 0 <= slot < self.config.slots
                    assert name not in self.begun
                    self.begun.append(name)
                    self.pending.append(report_begun(name, given))
                case ReportStopped(name, given):
                    self.pending.append(report_end(name, given, PooledEnd(code=1)))
                case Close(version):
                    self.pending.append(close(version))
                case End():
                    self.over = action
                    return
                case _:
                    pass
        assert len(self.ledger.running) <= self.config.slots

    def finish(self) -> None:
        running = sorted(self.ledger.running)
        if running:
            name = self.random.choice(running)
            self.ledger.ended(name, self.now, taints=self.random.random() < 0.05)
            self.pending.append(report_end(name, self.posted[name], DONE))

    def deliver(self) -> None:
        """One patch of the driver arrives, in any order."""
        if self.pending:
            self.there.patch(self.pending.pop(self.random.randrange(len(self.pending))))
            self.changed()

    def post(self) -> None:
        name, given = f"j{len(self.posted)}", job(len(self.posted))
        self.posted[name] = given
        if not self.there.patch(post(name, given)):
            self.refused.add(name)
            assert not self.there.record().is_open
        self.changed()

    def stop(self) -> None:
        jobs = sorted(self.there.record().jobs)
        if jobs:
            name = self.random.choice(jobs)
            self.there.patch(ask_to_stop(name))
            if self.random.random() < 0.5:
                self.there.merge(forget(name))
                self.forgotten.add(name)
            self.changed()

    def run(self) -> None:
        for _ in range(120):
            self.now += self.random.random()
            chosen = self.random.choices(
                (self.drive, self.finish, self.deliver, self.post, self.stop), (5, 2, 4, 1, 0.4)
            )
            chosen[0]()
            if self.over:
                return
        while self.over is None:
            self.now += 1
            assert self.now < 1_000
            self.drive()
            if self.over is None:
                self.finish()
                self.deliver()


@pytest.mark.parametrize("part", range(4))
def test_no_job_is_lost_or_begun_twice_whatever_the_order(part: int) -> None:
    drained = 0
    for seed in range(part * 100, part * 100 + 100):
        world = World(seed)
        world.run()
        assert world.over is not None
        while world.pending:
            world.deliver()
        record = world.there.record()
        assert not record.is_open
        left = world.posted.keys() - world.refused - world.forgotten - record.ended.keys()
        assert left == record.unfinished
        if world.over.drained:
            drained += 1
            assert left == set()
    assert drained > 50
