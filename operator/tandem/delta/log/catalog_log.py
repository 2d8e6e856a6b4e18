"""The commits of a table that a catalog manages (protocol, "Catalog-managed tables").

The catalog says which commits there are; their files are in the table's folder. A commit is

    staged      put below `_delta_log/_staged_commits`, under a name of its own
    ratified    by the catalog, which accepts one a version: from here on it is a version
    published   copied to `<version>.json`, in order of versions
    reported    to the catalog, which then forgets the staged file's name

Who has a version is found by the file name that the catalog has for it, never by the status of an
answer: a lost answer, a refusal of what was accepted before, and a race look alike. If publishing
or reporting fails after a commit, the next writer makes up for it.

A staged file that lost is deleted by its writer, once the catalog has another one for its version;
those of dead writers by log clean-up (`maintenance`), as ratified ones that are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from uuid import UUID, uuid5

import structlog

from tandem.delta.log.commit_log import (
    CatalogState,
    CatalogTable,
    MaintenanceRight,
    NewCommit,
    Put,
    RatifiedCommit,
    has_token,
)
from tandem.delta.log.listing import STAGED, Listing, commit_path, read_log
from tandem.errors import (
    AlreadyExists,
    BacklogFull,
    CatalogForbids,
    CommitRefused,
    CorruptLog,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
    TableReplaced,
    TandemError,
    UnsupportedFeature,
)
from tandem.storage.store import ObjectInfo, Store

_log = structlog.get_logger(__name__)

_TRIES = 4
"""So often a commit is sent again that the catalog neither has nor has given away."""
_FEW = 4
"""So many published commits are looked for one by one: more are listed."""
_NAMES = UUID("5d6ad3b4-6b8c-4c1e-9a51-0b1f2f3b8a11")


def staged_name(version: int, token: str) -> str:
    """The name of a staged file (protocol, "Terminology: Commits"). The same for a token, so that
    a commit that is sent again is known by it."""
    return f"{version:020d}.{uuid5(_NAMES, token)}.json"


class CatalogLog:
    """The commits of a table in a catalog. Thread-safe, as its catalog is.

    Args:
        store: of the table's folder.
        table_id: the table's uuid when it was opened. A table that was made again under its name
            is another one.
    """

    managed = True

    def __init__(self, store: Store, catalog: CatalogTable, table_id: str) -> None:
        self._store = store
        self._catalog = catalog
        self._table_id = table_id

    # Reading

    def tail(self, start: int) -> Listing:
        state = self._load()
        if start > state.latest:
            return Listing(start, vouched=state.latest)
        # Listed after the catalog was read: what it does not have any more is published by then.
        return self._merged(state, read_log(self._store, start))

    def after(self, version: int, known: Mapping[int, bytes] = MappingProxyType({})) -> Listing:
        if known:
            # Ratified, whatever has come of publishing them: the catalog would say the same.
            commits = {
                each: ObjectInfo(commit_path(each), len(content), 0)
                for each, content in known.items()
            }
            return Listing(version + 1, commits, vouched=max(known))
        state = self._load()
        ratified = _by_version(state)
        missing = [v for v in range(version + 1, state.latest + 1) if v not in ratified]
        if len(missing) > _FEW:
            return self._merged(state, read_log(self._store, version + 1))
        published = {}
        for each in missing:
            with suppress(ObjectNotFound):  # log clean-up has removed it
                published[each] = self._store.head(commit_path(each))
        return self._merged(state, Listing(version + 1, published))

    def path(self, version: int) -> str | None:
        return self._path(self._load(), version)

    def has(self, version: int) -> bool:
        return version <= self._load().latest

    def can_follow(self, version: int) -> bool:  # noqa: ARG002
        return True  # the catalog ratifies what follows its latest version, and nothing else

    def is_ours(self, version: int, token: str) -> bool | None:
        return self._is_ours(self._load(), version, token)

    def _merged(self, state: CatalogState, found: Listing) -> Listing:
        """What counts of a listing: the catalog's file of a version rather than the published one,
        and nothing after its latest version."""
        commits = {v: meta for v, meta in found.commits.items() if v <= state.latest}
        for each in state.ratified:
            if found.start <= each.version <= state.latest:
                path = f"{STAGED}/{each.file_name}"
                commits[each.version] = ObjectInfo(path, each.size, each.modified_ms)
        usable = tuple(c for c in found.checkpoints if c.version <= state.latest)
        return Listing(found.start, commits, usable, vouched=state.latest)

    def _path(self, state: CatalogState, version: int) -> str | None:
        if version > state.latest:
            return None
        ratified = _by_version(state).get(version)
        return commit_path(version) if ratified is None else f"{STAGED}/{ratified.file_name}"

    def _is_ours(self, state: CatalogState, version: int, token: str) -> bool | None:
        if version > state.latest:
            return None
        ratified = _by_version(state).get(version)
        if ratified is not None:
            return ratified.file_name == staged_name(version, token)
        # It is published, and the catalog has forgotten the name.
        return bool(has_token(self._store, version, token))

    def _load(self) -> CatalogState:
        """Raises: TableReplaced, StorageError."""
        state = self._catalog.load()
        if state.table_id != self._table_id:
            raise TableReplaced(
                "the catalog has another table of this name",
                resource=self._store.location,
                field="table uuid",
                found=state.table_id,
                expected=self._table_id,
                remedy="Nothing was written to it: open it again",
            )
        return state

    # Writing

    def put(self, commit: NewCommit) -> Put:
        self._check_content(commit)
        state = self._load()
        self._check_permitted(state, commit.maintenance)
        ours = self._found(state, commit)
        if ours is None:
            staged = self._stage(commit)
            ours = self._ratify(commit, staged)
            if ours:
                self._publish_beside([*state.ratified, staged], {commit.version: commit.content})
            else:
                self._discard(staged)
        return Put.OURS if ours else Put.TAKEN

    def publish(self, upto: int) -> None:
        state = self._load()
        self._require_latest(state, upto)
        self._publish(each for each in state.ratified if each.version <= upto)

    def withdraw(self, version: int) -> None:
        raise CorruptLog(
            "a checkpoint lacks what a ratified commit says",
            resource=self._store.location,
            field=commit_path(version),
            found="no txn of the commit in the checkpoint",
            expected="every commit up to its version",
            remedy="Delete that checkpoint: the catalog has the commit, which stays",
        )

    def require(self, maintenance: MaintenanceRight | None) -> None:
        if maintenance is not None:
            self._check_permitted(self._load(), maintenance)

    def _check_content(self, commit: NewCommit) -> None:
        """Raises: UnsupportedFeature."""
        if commit.changes_table or commit.timestamp_ms is None:
            what = "metadata or protocol" if commit.changes_table else "no inCommitTimestamp"
            raise UnsupportedFeature(
                "this commit cannot be made through the catalog",
                resource=self._store.location,
                field="commit",
                found=what,
                expected="a commit with an in-commit timestamp that leaves the table's properties",
                remedy="Create the table, and change its properties, with an engine that tells the "
                "catalog of it, as Spark",
            )

    def _check_permitted(self, state: CatalogState, maintenance: MaintenanceRight | None) -> None:
        """Raises: CatalogForbids. A catalog that does not say permits nothing."""
        if maintenance is None or maintenance in (state.permissions or ()):
            return
        raise CatalogForbids(
            f"the catalog permits no {maintenance}",
            resource=self._store.location,
            found="no list of permitted maintenance"
            if state.permissions is None
            else ", ".join(sorted(state.permissions)) or "a list without an operation",
            expected=maintenance,
            remedy="A release of the catalog that has such lists is needed; rows can still be "
            "added, updated and deleted"
            if state.permissions is None
            else "The owner of the table grants it in the catalog; rows can still be added, "
            "updated and deleted",
        )

    def _found(self, state: CatalogState, commit: NewCommit) -> bool | None:
        """Whether the commit of its version is this one; None if the version is the next one.
        Raises: CorruptLog if it is none of both."""
        self._require_latest(state, commit.version - 1)
        return self._is_ours(state, commit.version, commit.token)

    def _require_latest(self, state: CatalogState, version: int) -> None:
        """Raises: CorruptLog if the catalog does not have a version that was read."""
        if state.latest < version:
            raise CorruptLog(
                "the catalog has lost versions",
                resource=self._store.location,
                field="latest version",
                found=state.latest,
                expected=f"{version}, which was read, or a later one",
                remedy="Nothing was written: restore the catalog",
            )

    def _stage(self, commit: NewCommit) -> RatifiedCommit:
        name = staged_name(commit.version, commit.token)
        path = f"{STAGED}/{name}"
        for last in (False, True):
            try:
                self._store.put_if_absent(path, commit.content)
            except AlreadyExists:
                break  # an earlier try of ours: the name stands for the content
            except OutcomeUnknown:
                if last:
                    raise
            else:
                break
        assert commit.timestamp_ms is not None
        size = len(commit.content)
        return RatifiedCommit(commit.version, name, size, commit.timestamp_ms, commit.timestamp_ms)

    def _ratify(self, commit: NewCommit, staged: RatifiedCommit) -> bool:
        """Whether the version is ours; False: another writer has it.

        Raises: OutcomeUnknown if a request that was not answered may still arrive; CommitRefused,
            BacklogFull if none can.
        """
        unknown: OutcomeUnknown | None = None
        refused: CommitRefused | BacklogFull | None = None
        for _ in range(_TRIES):
            try:
                self._catalog.add_commit(staged, table_id=self._table_id, domains=commit.domains)
            except OutcomeUnknown as error:
                unknown = error
            except CommitRefused as error:
                refused = error
            except BacklogFull as error:
                refused = error
                self._publish(self._load().ratified)
            else:
                return True
            ours = self._found(self._load(), commit)
            if ours is not None:
                return ours
        error_ = unknown or refused
        assert error_ is not None
        raise error_

    def _publish(
        self,
        ratified: Iterable[RatifiedCommit],
        known: Mapping[int, bytes] = MappingProxyType({}),
    ) -> None:
        """Publish these commits and report them. Raises: CorruptLog, StorageError."""
        version = -1
        for each in sorted(ratified, key=lambda found: found.version):
            version = each.version
            content = known.get(version)
            if content is None:
                content = self._staged_content(each)
            if content is not None:
                self._publish_one(version, content)
        if version >= 0:
            # Not before they are there: then the catalog has the only record of them.
            self._catalog.report_published(version, table_id=self._table_id)

    def _publish_one(self, version: int, content: bytes) -> None:
        """Raises: CorruptLog if there is another commit, StorageError."""
        path = commit_path(version)
        try:
            self._store.put_if_absent(path, content)
        except AlreadyExists:
            found = self._store.get(path)
            if found == content:
                return  # another writer published it
            if content.startswith(found):
                # Another writer is writing it, as DuckDB on a disk, or died of that. What it writes
                # from here on goes to the file that is replaced, and would be the same.
                self._store.put(path, content)
                return
            # Reported, it would take the place of the ratified one.
            raise CorruptLog(
                "a commit is in the log folder that the catalog has not ratified",
                resource=self._store.location,
                field=path,
                found="other content than that of the ratified commit",
                expected="none, or a copy of the ratified commit",
                remedy="Delete that file: the table is read without it, but none can be published",
            ) from None

    def _staged_content(self, ratified: RatifiedCommit) -> bytes | None:
        """None if it is published, and its staged file was deleted since. Raises: CorruptLog."""
        path = f"{STAGED}/{ratified.file_name}"
        try:
            return self._store.get(path)
        except ObjectNotFound:
            pass
        try:
            self._store.head(commit_path(ratified.version))
        except ObjectNotFound:
            raise CorruptLog(
                "the file of a ratified commit is gone",
                resource=self._store.location,
                field=path,
                found="no such object, and none that is published",
                expected=f"the commit of version {ratified.version}",
                remedy="Restore the file: the table cannot be read without it",
            ) from None
        return None

    def _publish_beside(
        self, ratified: Iterable[RatifiedCommit], known: Mapping[int, bytes]
    ) -> None:
        """Publish after a commit, which stands whatever comes of this."""
        try:
            self._publish(ratified, known)
        except TandemError as error:
            _log.info("commits are not published yet", table=self._store.location, error=str(error))

    def _discard(self, staged: RatifiedCommit) -> None:
        """Delete a staged file whose version another commit has: it can never be ratified."""
        try:
            self._store.delete([f"{STAGED}/{staged.file_name}"])
        except StorageError as error:
            _log.info("a staged commit is left", table=self._store.location, error=str(error))


def _by_version(state: CatalogState) -> dict[int, RatifiedCommit]:
    return {each.version: each for each in state.ratified}
