"""One random history: operations of ours, foreign commits, faults; all from a seed."""

from __future__ import annotations

from collections.abc import Callable

from simulator import foreign
from simulator.actor import Actor
from simulator.checker import LOG, Checker, Violation
from simulator.foreign_mix import COMMITS, HOUSEKEEPING, SWITCHES, Act
from simulator.foreign_table import clean_log
from simulator.invariants import check_locks, check_start
from simulator.merge_log import Appender
from simulator.mix import Mix
from simulator.world import Vectors, World
from tandem.errors import Reason, TandemError
from tandem.jobs.formats import JobSpec
from tandem.jobs.runner import JobRequest
from tandem.operations import attempt_files, garbage
from tandem.operations.attempt_files import PlanRecord
from tandem.operations.clean import CleaningOptions, clean
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.model import Table
from tandem.operations.session import commit_actions, recovery
from tandem.planning.cleaning import CleaningRules
from tandem.spec.status import Phase

MOST_STEPS = 20_000
"""Far more than any history needs: one that has not ended by then hangs."""

VECTORS = (
    Vectors.ON,
    Vectors.SWITCHED,
    Vectors.ON,
    Vectors.OFF,
    Vectors.ON,
    Vectors.SWITCHED,
    Vectors.OFF,
)
"""By seed."""

UNEXPECTED = frozenset(
    {
        Reason.COUNT_MISMATCH,
        Reason.CORRUPT_DELETION_VECTOR,
        Reason.CORRUPT_LOG,
        Reason.DATA_FILE_MISSING,
        Reason.INTERNAL_ERROR,
        Reason.TABLE_REPLACED,
    }
)


class History:
    """`run` plays it and raises `Violation` with the trace where something is wrong."""

    def __init__(
        self,
        seed: int,
        *,
        faults: float = 0.03,
        foreign_commits: int | None = None,
        operations: int | None = None,
        vectors: Vectors | None = None,
        merge_on_read: bool = False,
        managed: bool = False,
    ) -> None:
        if vectors is None:
            vectors = VECTORS[seed % len(VECTORS)]
        partitioned = seed % 5 == 3 and not merge_on_read
        logged = merge_on_read or (not partitioned and seed % 12 == 10)
        logged = logged and not managed
        self.world = World(seed, vectors, partitioned, merge_on_read=logged, managed=managed)
        self.checker = Checker(self.world, began=self._began)
        self.rng = self.world.rng
        self.world.holds_jobs = not logged and seed % 4 == 1
        self.world.edits.by_job = vectors is not Vectors.ON and self.rng.random() < 0.2
        self.table = Table(self.world.store, self.world.log, "LakeTable/simulated")
        self.actors: list[Actor] = []
        # Most are small enough for every serial order; some are long.
        long = seed % 12 == 11
        self.foreign_left = self.rng.randrange((foreign_commits or (20 if long else 6)) + 1)
        self.appends_left = self.rng.randrange(3, 9) if logged else 0
        self.appenders: list[Appender] = []
        self.faults = faults if seed % 3 else 0.0
        if not self.faults:
            self.world.jobs.on_start = self._starts
        self.mix = Mix(self.world, self.checker)
        self.to_come = self.rng.randrange(2, (operations or (14 if long else 5)) + 1)

    def _began(self, operation_id: str) -> int:
        """The newest instant that was acknowledged when an operation began."""
        return next(a.log_version for a in self.actors if a.operation_id == operation_id)

    def run(self) -> None:
        try:
            self._prepare()
            self._shuffle()
            self._finish()
            self._run_again()
        except Violation as violation:
            raise Violation(f"{violation}\n\n{self.story()}") from None
        except TandemError as error:
            raise Violation(f"unexpected {error!r}\n\n{self.story()}") from error

    def story(self) -> str:
        """The history for people."""
        return f"seed {self.world.seed}:\n" + "\n".join(self.world.trace)

    # What happens

    def _prepare(self) -> None:
        for _ in range(self.rng.randrange(2, 7)):
            self._foreign(foreign.append)
        for _ in range(min(self.appends_left, 2)):
            self._append()
            self.appenders[-1].run()
        self.checker.catch_up()
        for _ in range(self.rng.randrange(1, self.to_come + 1)):
            self._another()

    def _another(self) -> None:
        """One more operation of ours."""
        self.to_come -= 1
        resource = self.mix.next(len(self.actors))
        self.actors.append(Actor(self.world, self.table, resource, self.faults))
        if resource.kind_name == "SegmentRewrite":
            self.actors[-1].start()  # while the segments that it names are there

    def _shuffle(self) -> None:
        for _ in range(MOST_STEPS):
            choices = self._choices()
            if not choices:
                return
            weights = [weight for weight, _ in choices]
            self.rng.choices([act for _, act in choices], weights)[0]()
            self.checker.catch_up()
            for location in self.locations:
                check_locks(self.world.locks.entries(location))
            self.checker.invariants.checked.update(("I-26", "I-27"))
        raise Violation(f"it hangs: {[a.name for a in self.actors if a.ended is None]}")

    @property
    def locations(self) -> tuple[str, ...]:
        """Where locks are: those of the table, and of its log."""
        log = self.world.merge_log
        base = self.table.location
        return (base,) if log is None else (base, log.log.store.location)

    def _append(self) -> None:
        """Another writer begins to append to the log."""
        assert self.world.merge_log is not None
        self.appends_left -= 1
        self.appenders.append(Appender.random(self.world.merge_log))

    def _choices(self) -> list[tuple[float, Callable[[], None]]]:
        """What can happen next, with weights."""
        found: list[tuple[float, Callable[[], None]]] = []
        for actor in self.actors:
            if actor.process is not None:
                found.append((10, actor.advance))
                if self.faults and actor.struck < 3:
                    found.append((0.1, lambda a=actor: self._stall(a)))  # type: ignore[misc]
            elif actor.ended is None:
                found.append((2, actor.start))
            found += [
                (3, lambda a=actor, z=zombie: a.advance_zombie(z))  # type: ignore[misc]
                for zombie in actor.zombies
            ]
        if self.to_come:
            found.append((1, self._another))
        self.appenders = [appender for appender in self.appenders if not appender.done]
        found += [(3, appender.advance) for appender in self.appenders]
        if self.appends_left:
            found.append((3, self._append))
        if not found:
            return []
        working = {p.pid for a in self.actors for p in (a.process, *a.zombies) if p is not None}
        for location in self.locations:
            for entry in self.world.locks.entries(location):
                if int(entry.request.owner.split("-")[0]) not in working:
                    held = location, entry.request.operation
                    found.append((1, lambda h=held: self._expire(*h)))  # type: ignore[misc]
        for driver in self.world.jobs.running():
            go_on = lambda d=driver: self.world.jobs.advance(d)  # noqa: E731
            found.append((driver.speed, go_on))
            if self.faults:
                found.append((0.05, lambda d=driver: self._job_dies(d)))  # type: ignore[misc]
                if not self.world.holds_jobs:
                    found.append((0.1, lambda d=driver: self._duplicate_job(d)))  # type: ignore[misc]
        catalog = self.world.catalog
        if catalog is not None and catalog.late:
            found.append((1, catalog.arrive))
        if self.faults:
            found.append((0.3, self._clean))
        if self.foreign_left:
            found.append((3, self._any_foreign))
            if self.faults:
                found += [
                    (weight, lambda act=act: act(self.world))  # type: ignore[misc]
                    for weight, act in HOUSEKEEPING
                    # Records that are unmerged need the table's commits since.
                    if not (self.world.merge_on_read and act is clean_log)
                ]
        return found

    def _any_foreign(self) -> None:
        self.foreign_left -= 1
        switched = self.world.vectors is Vectors.SWITCHED
        acts = (*COMMITS, *(SWITCHES if switched else ()))
        weights = [weight for weight, _ in acts]
        self._foreign(self.rng.choices([act for _, act in acts], weights)[0])

    def _foreign(self, act: Act) -> None:
        committed = act(self.world)
        if committed is not None:
            version, intent = committed
            self.checker.intents[version] = intent
            self.world.say(f"  foreign {act.__name__} commits version {version}")

    def _starts(self, job: JobRequest) -> None:
        stores = [a.target.store for a in self.actors if a.operation_id == job.operation_id]
        store = stores[0] if stores else self.world.store  # of the merge before a statement
        plan = PlanRecord.model_validate_json(
            store.get(attempt_files.plan(job.operation_id, job.attempt))
        )
        entries = self.world.locks.entries(job.location)
        check_start(entries, job.operation_id, plan.summary.segments)
        self.checker.invariants.checked["I-28"] += 1

    def _clean(self) -> None:
        """`tandem clean` with the shortest retention that makes it remove something."""
        ports = self.world.ports()
        rules = self.rng.choice(
            (CleaningRules(500, 500, 500, 500), CleaningRules(None, 500, 500, 5_000))
        )
        dependencies = CleaningDependencies(
            ports.clock, ports.processes, ports.nonces, ports.local_claims
        )
        before = set(self.world.store.paths())
        cleaned = clean(
            self.table, rules, dependencies, CleaningOptions(limit=self.rng.choice((None, 3)))
        )
        self._check_cleaned(before - set(self.world.store.paths()))
        self.world.say(
            f"  our cleaning takes {len(cleaned.garbage)} files, abandons {cleaned.abandoned}"
        )

    def _check_cleaned(self, gone: set[str]) -> None:
        """Z5, Z14, Z20: neither what a version shows, nor what an attempt that may yet commit
        has read or written."""
        snapshot = self.world.log.snapshot()
        shown = {path for add in snapshot.adds() for path in self.world.needed(add)}
        if gone & shown:
            raise Violation(f"Z5: files of the latest version were cleaned: {gone & shown}")
        store = self.world.store
        for actor in [a for a in self.actors if a.operation_id and not a.on_log]:
            stops = commit_actions.txn_markers(snapshot, actor.operation_id)
            for attempt in range(1, recovery.highest_claim(store, actor.operation_id) + 1):
                path = attempt_files.job(actor.operation_id, attempt)
                if stops.forbid(attempt) or path not in store.paths():
                    continue
                job = JobSpec.model_validate_json(store.get(path))
                inputs = {file.logged_path for file in getattr(job.job, "inputs", ())}
                own = {p for p in gone if p.startswith(f"{actor.operation_id}-{attempt}/")}
                if (gone & inputs) | own:
                    raise Violation(f"Z5: {(gone & inputs) | own} of {job.operation_id}-{attempt}")

    def _stall(self, actor: Actor) -> None:
        actor.struck += 1
        actor.stall()

    def _expire(self, location: str, operation_id: str) -> None:
        self.world.say(f"    the lease of {operation_id} expires")
        self.world.locks.expire(location, operation_id)

    def _job_dies(self, driver: object) -> None:
        self.world.say(f"    job {driver.name} dies")  # type: ignore[attr-defined]
        self.world.jobs.die(driver)  # type: ignore[arg-type]

    def _duplicate_job(self, driver: object) -> None:
        name = driver.name  # type: ignore[attr-defined]
        if len(self.world.jobs.drivers[name]) == 1:
            self.world.say(f"    job {name} is started twice")
            self.world.jobs.duplicate(name)

    # What there must be at the end

    def _finish(self) -> None:
        """Ends agree with the log, nothing is locked, and what is left is unreachable."""
        snapshot = self.world.log.snapshot()
        for actor in self.actors:
            assert actor.ended is not None
            committed = actor.operation_id in self.checker.succeeded
            reported = (
                actor.ended.phase is Phase.SUCCEEDED and actor.ended.reason is Reason.COMMITTED
            )
            if committed != reported:
                raise Violation(f"{actor.name} says {actor.ended}, the log says {committed}")
            if actor.ended.reason in UNEXPECTED:
                raise Violation(f"{actor.name} ended with {actor.ended}")
            version = self.checker.succeeded.get(actor.operation_id)
            result = actor.ended.result
            if result is not None and result.version not in (None, version):
                raise Violation(f"{actor.name} reports {result.version}, committed {version}")
        for entry in [e for at in self.locations for e in self.world.locks.entries(at)]:
            # The lease of a process that died frees its locks; others must have let go.
            if int(entry.request.owner.split("-")[0]) in self.world.departed:
                raise Violation(f"a lock is left: {entry}")
        self._check_garbage(snapshot.version)
        self.checker.check_every_order()
        if self.world.merge_log is not None:
            self.world.merge_log.check_every_version()

    def _run_again(self) -> None:
        """The same resources once more: the first results are reported, nothing changes."""
        for actor in self.actors:
            before, version = actor.ended, actor.target.log.latest_version()
            assert before is not None
            session = actor.open_again()
            while session.advance():
                pass
            after = session.ending
            assert after is not None
            if before.result is not None and before.result.version is None:
                continue  # the log was cleaned before it could look; another may have recorded it
            if (after.phase, after.result) != (before.phase, before.result):
                raise Violation(f"{actor.name} ended with {before}, run again with {after}")
            if actor.target.log.latest_version() != version:
                raise Violation(f"{actor.name} changed the table when it was run again")

    def _check_garbage(self, version: int) -> None:
        for actor in self.actors:
            store, log = actor.target.store, actor.target.log
            snapshot = log.snapshot() if actor.on_log else log.snapshot(version)
            operation_id = actor.operation_id
            stops = commit_actions.txn_markers(snapshot, operation_id)
            # What a twin or zombie wrote after the cleaning is what `tandem clean` is for.
            over = stops.closed or stops.succeeded
            highest = recovery.highest_claim(store, operation_id) if over else 0
            highest = max(stops.abandoned, stops.succeeded, highest)
            garbage.clean_dead(store, operation_id, stops.dead(highest))
            done = self.checker.commits.get(operation_id) if stops.succeeded else None
            if done is not None:
                garbage.clean_unused(store, operation_id, stops.succeeded, done)
            root = LOG if actor.on_log else ""
            left = [p for p in self.world.store.paths() if p.startswith(f"{root}{operation_id}-")]
            left = [p for p in left if p not in self.checker.named]
            assert actor.ended is not None
            if left:
                raise Violation(f"I-5: {actor.name} left {left}")
        missing = [p for p in self.checker.files if p not in self.world.store.paths()]
        if missing:
            raise Violation(f"I-5: files of the latest version are gone: {missing}")
        self.checker.invariants.checked["I-5"] += 1
