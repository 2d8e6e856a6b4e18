"""The data of one operation: its identity, its table, and what it has read so far.

`Work` is the performer's state between effects. It can be lost at any time: everything in it can
be read again from the table or from the attempt's files.

An edit that an attempt has made (docs/decisions/0191) is kept until the attempt ends, since a later
decision may want it again: it may be published only where a decision wants just these rows (R-4).
An edit that no decision wants any more is a lost round of its file; lost puts cost nothing and do
not count.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from pyroaring import BitMap64

from tandem.delta.actions import Action, AddFile, Commit, DeletionVector, Metadata, Txn
from tandem.delta.actions import Protocol as TableProtocol
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.protocol import (
    OperationKind,
    enable_deletion_vectors,
    writes_deletion_vectors,
)
from tandem.errors import Reason
from tandem.jobs.formats import AnyJob, IdentityValues, JobSpec, RoundRequest
from tandem.jobs.port import read_side_file
from tandem.jobs.results import JobResult, OutputFile, SideFileRef
from tandem.locks.rules import NOTHING, LockResources
from tandem.operations import attempt_files
from tandem.operations.attempt_files import PlanRecord
from tandem.operations.machine.events import Verdict
from tandem.operations.machine.state import PartOfWork
from tandem.operations.rounds import NoSmallRounds, SmallRounds
from tandem.reconcile.outcomes import Attempts
from tandem.reconcile.published import CommittedRewrite
from tandem.spark.jobs.edits import EditMaker, ReplacedRows, WantedEdit
from tandem.spark.runtime.control import output_file
from tandem.spec.common import Operation
from tandem.spec.status import OperationResult, Plan, Reconciled, RowsAffected, RowsReplaced
from tandem.spec.table import LakeTable, VectorUse
from tandem.storage.store import Store
from tandem.timeline.names import SegmentNumbers

if TYPE_CHECKING:
    from tandem.catalogs.lookup import CatalogEntry
    from tandem.operations.small_rounds import SourceCopy


@dataclass(slots=True)
class _Made:
    wanted: WantedEdit
    file: OutputFile


@dataclass(slots=True)
class Edits:
    """The edits of one attempt. Not thread-safe.

    Attributes:
        rounds: those in which edits were made; `files`, `bytes_copied`, `bytes_encoded` and
            `seconds` are theirs, change files included, but for `files`.
    """

    maker: EditMaker
    rounds: int = 0
    files: int = 0
    bytes_copied: int = 0
    bytes_encoded: int = 0
    seconds: float = 0.0
    _of: dict[tuple[str, tuple[int, int] | None], list[_Made]] = field(default_factory=dict)

    def find(self, wanted: WantedEdit) -> OutputFile | None:
        """The edit, if it has been made."""
        for each in self._of.get((wanted.source.logged_path, wanted.part), ()):
            if each.wanted.equals(wanted):
                return each.file
        return None

    def lost(self, wanted: WantedEdit) -> int:
        """How many edits of the file, or of this part of it, no decision wants any more, if this
        one is wanted now."""
        made = self._of.get((wanted.source.logged_path, wanted.part), ())
        return sum(1 for each in made if not each.wanted.equals(wanted))

    def missing(self, wanted: Iterable[WantedEdit]) -> list[WantedEdit]:
        """Those that have not been made."""
        return [each for each in wanted if self.find(each) is None]

    def make(self, wanted: Sequence[WantedEdit]) -> None:
        """Make these edits here. Raises: DataFileMissing, CountMismatch, StorageError."""
        begun = time.monotonic()
        files = self.maker.make(wanted)
        self.add(
            wanted,
            [output_file(each.file) for each in files],
            copied=sum(each.bytes_copied for each in files),
            encoded=sum(each.bytes_encoded for each in files),
            seconds=time.monotonic() - begun,
        )

    def add(
        self,
        wanted: Sequence[WantedEdit],
        files: Sequence[OutputFile],
        *,
        copied: int,
        encoded: int,
        seconds: float,
    ) -> None:
        """Record a round of edits; each file is that of the edit at its place."""
        for each, found in zip(wanted, files, strict=True):
            key = (each.source.logged_path, each.part)
            self._of.setdefault(key, []).append(_Made(each, found))
        self.bytes_copied += copied
        self.bytes_encoded += encoded
        self.rounds += 1
        self.files += sum(1 for each in wanted if each.change is None)
        self.seconds += seconds


_WORD = re.compile("[A-Z][a-z]+")


class SourceAccess(Enum):
    """Whether the engine may read the sources of operations: not in a cluster, where only jobs may.
    In a plan, a source that is not there yet may still come."""

    NONE = auto()
    MAY_COME = auto()
    FULL = auto()


@dataclass(frozen=True)
class Table:
    """An opened table. `storage_options` contain no secrets; `display` is the name for messages
    (`LakeTable/flights`). `allowed_prefixes`: below what an administrator lets tables and sources
    lie, () for anywhere. `base` is the base table of a log of blocks. `ceiling_s`: how long a
    request of its store and of a source may take, in seconds; None for any time. `entry`: what its
    catalog says of it; None for a table that is named by its location."""

    store: Store
    log: DeltaLog
    display: str
    spec: LakeTable | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    allowed_prefixes: tuple[str, ...] = ()
    base: Table | None = None
    source_access: SourceAccess = SourceAccess.NONE
    ceiling_s: float | None = None
    entry: CatalogEntry | None = None

    @property
    def location(self) -> str:
        return self.store.location

    @property
    def vectors_only(self) -> bool:
        """Whether rows may be hidden by deletion vectors alone, never by edits of live files."""
        return self.spec is not None and self.spec.spec.vectors is VectorUse.ONLY

    @property
    def readable_prefixes(self) -> tuple[str, ...]:
        """Below what the log may name files of others; those that an administrator allows have the
        sources of a shallow clone among them."""
        own = () if self.spec is None else self.spec.spec.storage.clone_sources
        return self.allowed_prefixes or own

    def will_write_vectors(self, snapshot: Snapshot) -> bool:
        """Whether the table has deletion vectors, or will have them: if the LakeTable enables them,
        a plan may precede the commit that does."""
        enables = self.spec is not None and self.spec.spec.enable_deletion_vectors
        return enables or writes_deletion_vectors(snapshot.protocol, snapshot.metadata)

    def rules(self, snapshot: Snapshot) -> tuple[TableProtocol, Metadata]:
        """The protocol and metadata that an operation has to follow: those of the version, or those
        that it will have once the LakeTable has enabled deletion vectors. What a table uses counts
        from then on, even if its old protocol did not list it."""
        own = snapshot.protocol, snapshot.metadata
        of_log = self.base is not None
        if of_log or writes_deletion_vectors(*own) or not self.will_write_vectors(snapshot):
            return own
        return enable_deletion_vectors(*own)


@dataclass(frozen=True)
class Identity:
    """The identity of an operation. `display` is the name for messages:
    `TableCompaction/nightly`."""

    operation_id: str
    kind: str
    namespace: str
    name: str
    spec_hash: str
    spec: Mapping[str, object]
    run: int = 1

    @property
    def display(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def asked(self) -> str:
        """What messages call the operation: `segment rewrite`."""
        if self.kind == "TableUpdate":
            words = ("update", "merge", "upsert", "delete")
            return next((word for word in words if word in self.spec), "delete")
        if self.kind == "TableReplace" and "source" not in self.spec:
            return "drop"
        if self.spec.get("type") == "LogMerge":
            return "log merge"
        return " ".join(_WORD.findall(self.kind)).lower().removeprefix("table ")


@dataclass(frozen=True, slots=True)
class Planned:
    """The result of `Kind.plan`. With `nothing_to_do` there is no job; it is `superseded` if an
    earlier attempt had found something to do. `bloom_filters` are those that the job's files get
    beyond those of the table, by column. `prerequisite` is an operation on the same table that
    has to end before the plan can be made: this one is a preview. `fixes_cutoff`: the version at
    which the locks are granted first counts as the start of all attempts. `shown` is the plan for
    the status, if this one is a part of it. `before_first` stores what the prerequisite rests on;
    it is called before that begins. `source_bytes` is what the job reads beside the files of the
    plan, None if that is unknown; only for the sizes of the job, so it is not stored."""

    summary: Plan
    job: AnyJob | None
    locks: LockResources
    nothing_to_do: str = ""
    superseded: bool = False
    record: Mapping[str, object] = field(default_factory=dict)  # further fields of PlanRecord
    bloom_filters: Mapping[str, float] = field(default_factory=dict)
    prerequisite: Operation | None = None
    fixes_cutoff: bool = False
    shown: Plan | None = None
    before_first: Callable[[], None] | None = None
    source_bytes: int | None = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of `Kind.decide`. `evaluate` is the request of the next round; `payload` is
    specific to the kind, for `Kind.change`."""

    verdict: Verdict
    why: str = ""
    reason: Reason = Reason.CONFLICT
    evaluate: RoundRequest | None = None
    payload: object = None


@dataclass(frozen=True, slots=True)
class OutputFileChange:
    """A file that becomes visible, with all its rows that are deleted then: written as a deletion
    vector, or, where the table has those off, by an edit. For a file that is live already, `add` is
    the live action, which the `remove` repeats, and `tags` are those that it gets; None: the same.

    Only edits give rows new values, `new`, in these `columns` (physical names; None: any). `cut_at`
    are the rows of an output at which it becomes several files."""

    add: AddFile
    rows: int
    dead: BitMap64 | None = None
    tags: Mapping[str, str] | None = None
    new: tuple[ReplacedRows, ...] = ()
    columns: frozenset[str] | None = None
    cut_at: tuple[int, ...] = ()


Vectors = Mapping[str, tuple[BitMap64, DeletionVector]]
"""Logged path → the deleted rows, and the deletion vector that was written for them."""


@dataclass(frozen=True, slots=True)
class CommitContent:
    """The content of a commit, before deletion vectors are written.

    `marked`: existing files that get a new deletion vector, each with all its deleted positions.
    `data_change` is that of all adds and removes of the commit. `operation` is Delta's standard
    name. `txns` are further ones that the commit records, and `further` other actions, which the
    result does not count. `row_map` is the row map to publish with the commit, "" for none;
    `rewrite` is what it was made from, for the map of a commit with edits. `is_carried_out`: edits
    have taken the places of hidden rows and new values. `instants` are the intervals of a log whose
    blocks the commit replaces, `1-3`. `blocks` counts the blocks that it appends to a log; None if
    that is not what it does. `replaced` is what a replace did. `locks` are those that the commit
    needs beyond the plan's: where its files lie is known only now. `most_lost_edits`: so many
    rounds of edits without progress end the operation as a conflict; None for a kind that sees to
    its end itself. `changes` are the change files that the commit names. `earlier` are the results
    of the batches that the operation has committed before.
    """

    operation: str
    parameters: Mapping[str, str]
    outputs: tuple[OutputFileChange, ...] = ()
    removes: tuple[AddFile, ...] = ()
    marked: tuple[OutputFileChange, ...] = ()
    data_change: bool = True
    blind_append: bool = False
    isolation: str = "WriteSerializable"
    segments: tuple[str, ...] = ()
    instants: tuple[str, ...] = ()
    numbers: SegmentNumbers | None = None
    rows: RowsAffected | None = None
    reconciled: Reconciled = field(default_factory=Reconciled)
    row_map: bytes = b""
    rewrite: CommittedRewrite | None = None
    is_carried_out: bool = False
    most_lost_edits: int | None = None
    changes: tuple[WantedEdit, ...] = ()
    txns: tuple[Txn, ...] = ()
    further: tuple[Action, ...] = ()
    blocks: int | None = None
    replaced: RowsReplaced | None = None
    locks: LockResources = NOTHING
    details: Mapping[str, object] = field(default_factory=dict)
    summary: tuple[str, ...] = ()
    earlier: tuple[OperationResult, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgressBaseline:
    """The progress of a round's job when it was first polled: its speed is measured from there,
    also by a process that has taken it over."""

    round: int
    total: int
    done: int
    since_ms: int


@dataclass(slots=True)
class Work:
    """The state of one operation between effects. `latest` is the version last read, `job` and
    `plan` are the attempt's frozen ones, `requests` and `results` those of the rounds so far,
    `sources` the copies of a merge's source by path. `adds` are those of the change set, with their
    deletion vectors, by logged path. `at_once`: the round follows a lost put without a pause.
    `exclusive`: the attempt locks its chunks exclusively. `new_commits`: those by which `latest`
    was read, for a kind that `keeps_commits`, until it takes them. `part`: what it does is one
    batch, perhaps the last, of several. `edit_attempts`: the rounds in which it made edits, by
    their bytes. `upgrade`: enables deletion vectors, to be called before a commit.
    `read_beside` reads what belongs to a result. `reserved` are the last values of identity columns
    that the attempt has reserved, `identity_needs` the numbers of values that one needed, `ahead`
    what was reserved of them for the next one."""

    identity: Identity
    table: Table
    new_small_rounds: Callable[[], SmallRounds] = NoSmallRounds
    now_ms: int = 0
    latest: Snapshot | None = None
    planned: Planned | None = None
    plan: PlanRecord | None = None
    job: JobSpec | None = None
    requests: dict[int, RoundRequest] = field(default_factory=dict)
    results: dict[int, JobResult] = field(default_factory=dict)
    sources: dict[str, SourceCopy] = field(default_factory=dict)
    decision: Decision | None = None
    change: CommitContent | None = None
    adds: Mapping[str, AddFile] = field(default_factory=dict)
    vectors: Vectors = field(default_factory=dict)
    row_map_written: bytes = b""
    token: str = ""
    rounds: int = 0
    progress_baseline: ProgressBaseline | None = None
    polls: int = 0
    at_once: bool = False
    exclusive: bool = False
    part: PartOfWork | None = None
    keeps_commits: bool = False
    new_commits: dict[int, Commit] = field(default_factory=dict)
    edit_attempts: Attempts = field(default_factory=Attempts)
    upgrade: Callable[[], None] | None = None
    read_beside: Callable[[Store, SideFileRef], bytes] = read_side_file
    reserved: dict[str, int] = field(default_factory=dict)
    identity_needs: dict[str, int] = field(default_factory=dict)
    ahead: Mapping[str, IdentityValues] = field(default_factory=dict)
    _edits: Edits | None = None
    _small_rounds: SmallRounds | None = None

    def read(self, ref: SideFileRef) -> bytes:
        """What belongs to a result or a request. Raises: ManifestInvalid, StorageError."""
        return self.read_beside(self.table.store, ref)

    @property
    def small_rounds(self) -> SmallRounds:
        """The evaluator of small rounds, made at its first use."""
        if self._small_rounds is None:
            self._small_rounds = self.new_small_rounds()
        return self._small_rounds

    @property
    def edits(self) -> Edits:
        """The edits of the attempt, kept from its first use on."""
        if self._edits is None:
            plan, job = self.frozen
            prefix = attempt_files.data(plan.operation_id, plan.attempt)
            self._edits = Edits(EditMaker(self.table.store, job.table, prefix))
        return self._edits

    @property
    def writes_vectors(self) -> bool:
        """Whether a commit on the version last read may add deletion vectors (R-2)."""
        return writes_deletion_vectors(self.snapshot.protocol, self.snapshot.metadata)

    @property
    def by_edits(self) -> bool:
        """Whether the commit carries its change set out by edits: where it may not add deletion
        vectors, and where the new rows of the job are parts of rows."""
        return not self.writes_vectors or self.frozen[1].set_only

    @property
    def vectors_only(self) -> bool:
        """Whether the commit may hide rows by deletion vectors alone, and the table is not about to
        get them."""
        return self.table.vectors_only and self.upgrade is None

    @property
    def rules(self) -> tuple[TableProtocol, Metadata]:
        """The protocol and metadata that a commit on the version last read has to follow: those
        that `upgrade` will make of it, if that is to come."""
        if self.upgrade is not None:
            return self.table.rules(self.snapshot)
        return self.snapshot.protocol, self.snapshot.metadata

    def forget_attempt(self) -> None:
        """Drop everything that belongs to the last attempt, since another one begins."""
        self._edits, self.edit_attempts = None, Attempts()
        self.planned = self.plan = self.job = self.decision = self.change = None
        self.requests, self.results, self.adds, self.vectors = {}, {}, {}, {}
        self.sources, self.reserved = {}, {}
        self.row_map_written = b""
        self.progress_baseline = None
        self.rounds = 0

    @property
    def snapshot(self) -> Snapshot:
        if self.latest is None:
            raise RuntimeError("the table has not been read yet")
        return self.latest

    @property
    def frozen(self) -> tuple[PlanRecord, JobSpec]:
        if self.plan is None or self.job is None:
            raise RuntimeError("the plan has not been persisted yet")
        return self.plan, self.job


class Kind(Protocol):
    """The part of an operation that differs by its kind."""

    @property
    def protocol_kind(self) -> OperationKind:
        """Which column of the protocol's feature table applies."""
        ...

    def plan(self, work: Work) -> Planned:
        """Plan against `work.snapshot`. Raises the error that rules the operation out."""
        ...

    def plan_of_adopted(self, work: Work) -> Planned:
        """The plan, with its locks, of an adopted attempt, from the frozen plan."""
        ...

    def load(self, work: Work, round_: int) -> None:
        """Read and verify the side files of a round's result (row map, matches).

        Raises: ManifestInvalid.
        """
        ...

    def decide(self, work: Work) -> Decision:
        """Reconcile the results so far with `work.snapshot`."""
        ...

    def change(self, work: Work) -> CommitContent:
        """The commit's content, from the latest decision."""
        ...
