"""A folder on a local (or mounted POSIX) file system as a store.

Uses POSIX calls directly instead of obstore's local store, which lacks four things: this store
syncs the files that a commit refers to, recognizes a full disk by its error number, never follows
a link out of the root, and can remove the temporary files of killed writers. Both create objects
with the same hard link, so they exclude each other.

A process that replaces a folder by a link *between* our check and our call can still redirect us;
such a process can write the table's folder anyway.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator
from typing import BinaryIO, cast

import pyarrow as pa

from tandem.errors import (
    AccessDenied,
    AlreadyExists,
    LocationNotAllowed,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
    StorageFull,
    StoreUnsuitable,
)
from tandem.storage.paths import check_folder, check_relative, split_location
from tandem.storage.store import ObjectInfo, PublishingWriter

# Objects being written: `<name>#<digits>`, the names that the object_store library uses. Listings
# of both hide them; Spark's vacuum removes old ones in data folders.
_STAGING = re.compile(r"#\d+\Z")
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_LEADS_NOWHERE = _ABSENT | {errno.ELOOP}
"""Of an entry that was removed since its folder was read, or of a link to nothing, or to itself."""
_NO_COPY = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF})
"""Files between which the kernel does not copy, such as of two file systems."""
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class LocalStore:
    """Relative paths only; `tandem.storage.store.Store` describes the guarantees of each call."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._root = split_location(location)[2] or "/"
        self._base = self._root.rstrip("/")

    @property
    def location(self) -> str:
        return self._location

    def get(self, path: str) -> bytes:
        try:
            full = self._locate(path)
            _check_regular(full)
            fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC)  # a Python file takes twice the calls
            try:
                return _read(fd, os.fstat(fd).st_size)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._translate(error, path) from error

    def get_range(self, path: str, start: int, length: int) -> bytes:
        try:
            full = self._locate(path)
            _check_regular(full)
            with open(full, "rb") as file:
                # A length beyond the file (from a corrupt descriptor) must not be allocated.
                left = os.fstat(file.fileno()).st_size - start
                return os.pread(file.fileno(), max(0, min(length, left)), start)
        except OSError as error:
            raise self._translate(error, path) from error

    def head(self, path: str) -> ObjectInfo:
        try:
            found = os.stat(self._locate(path))
        except OSError as error:
            raise self._translate(error, path) from error
        if not stat.S_ISREG(found.st_mode):
            raise self._translate(IsADirectoryError(errno.EISDIR, "not a file"), path)
        return ObjectInfo(path, found.st_size, found.st_mtime_ns // 1_000_000)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Links to folders are not followed, links to files only inside the root."""
        base = check_folder(prefix, resource=self._location)
        if not base:
            return self._walk(self._root, "", start_after)
        return self._walk(self._locate(base), base + "/", start_after)

    def _walk(self, folder: str, base: str, start_after: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(folder) as found:
                # Sort by whole path: "a.b" comes before "a/b", so a folder is compared with
                # its slash.
                entries = sorted(
                    (entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""), entry)
                    for entry in found
                    if _may_follow(base + entry.name, start_after)
                )
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._translate(error, base) from error
        for name, entry in entries:
            path = base + name
            if name.endswith("/"):
                if not start_after > path or start_after.startswith(path):
                    yield from self._walk(entry.path, path, start_after)
                continue
            if path <= start_after or _STAGING.search(name):
                continue
            if entry.is_symlink() and not self._inside(entry.path):
                continue
            try:
                meta = entry.stat()
            except OSError as error:
                if error.errno in _LEADS_NOWHERE:
                    continue
                raise self._translate(error, path) from error
            if stat.S_ISREG(meta.st_mode):
                yield ObjectInfo(path, meta.st_size, meta.st_mtime_ns // 1_000_000)

    def put(self, path: str, data: bytes) -> None:
        with LocalWriter(self, path) as writer:
            writer.write(data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        with LocalWriter(self, path, exclusive=True) as writer:
            writer.write(data)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                os.unlink(self._locate(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._translate(error, path) from error

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        folder = self._locate(prefix.removesuffix("/"))
        kept = {os.path.join(self._root, path) for path in keep}
        removed = 0
        try:
            if not os.path.isdir(folder):
                return _unlink_staged(folder)
            # Bottom up; links are removed, never followed.
            for parent, _, files in os.walk(folder, topdown=False):
                paths = [os.path.join(parent, name) for name in files]
                paths += [entry.path for entry in os.scandir(parent) if entry.is_symlink()]
                removed += sum(_unlink_if_present(path) for path in paths if path not in kept)
                try:
                    os.rmdir(parent)
                except OSError as error:
                    # It holds a kept object, or one that was created meanwhile.
                    if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST):
                        raise
        except OSError as error:
            raise self._translate(error, prefix) from error
        return removed

    def open_input(self, path: str) -> BinaryIO:
        # Unlike a Python file, it reads without the interpreter's lock.
        full = self._locate(path)
        try:
            _check_regular(full)
            return cast(BinaryIO, pa.OSFile(full, "rb"))
        except OSError as error:
            if os.path.isdir(full):  # pyarrow's error for a folder has no error number
                error.errno = errno.EISDIR
            raise self._translate(error, path) from error

    def open_output(self, path: str) -> BinaryIO:
        return cast(BinaryIO, LocalWriter(self, path))

    def _locate(self, path: str) -> str:
        """The path on disk, after checking that it stays below the root."""
        relative = check_relative(path, resource=self._location)
        full = f"{self._base}/{relative}"
        if self._has_links(relative) and not self._inside(full):
            raise LocationNotAllowed(
                "a link leads out of the table's root",
                resource=self._location,
                field="path",
                found=f"{path} -> {os.path.realpath(full)}",
                expected=f"a file below {os.path.realpath(self._root)}",
                remedy="Adopt the table at the place where its files really are",
            )
        return full

    def _has_links(self, relative: str) -> bool:
        """Whether there is a link on the path from the root. Without one the path cannot leave the
        root, and this check is cheaper than resolving both."""
        full = self._base
        for part in relative.split("/"):
            full = f"{full}/{part}"
            try:
                mode = os.lstat(full).st_mode
            except OSError:
                return False  # absent or not accessible: no link that could be followed
            if stat.S_ISLNK(mode):
                return True
        return False

    def _inside(self, full: str) -> bool:
        root = os.path.realpath(self._root)
        return os.path.realpath(full).startswith(root.rstrip("/") + "/")

    def _translate(self, error: OSError, path: str, *, writing: bool = False) -> StorageError:
        what = {"resource": f"{self._location}/{path}", "found": error.strerror or str(error)}
        if error.errno in _FULL:
            return StorageFull(
                "there is no room left to write",
                **what,
                expected="free space on the volume",
                remedy="Free some space or enlarge the volume, then run again",
            )
        if error.errno in _DENIED:
            return AccessDenied(
                "permission denied",
                **what,
                expected="permission to write" if writing else "permission to read",
                remedy="Give this user the permission",
            )
        if error.errno in _ABSENT and not writing:
            return ObjectNotFound("no such object", **what)
        return StorageError("the file system failed", **what)


def _read(fd: int, size: int) -> bytes:
    """`size` bytes of an open file, or all if it has fewer."""
    data = os.read(fd, size)
    while len(data) < size and (more := os.read(fd, size - len(data))):
        data += more
    return data


def _check_regular(full: str) -> None:
    """Opening a pipe or a device in place of a file would block forever."""
    if not stat.S_ISREG(os.stat(full).st_mode):
        raise IsADirectoryError(errno.EISDIR, "not a regular file")


def _may_follow(path: str, start_after: str) -> bool:
    """Whether a file or folder at `path` may contain objects of a listing: long logs are listed
    from their end again and again, and a closer look takes time."""
    return f"{path}/" > start_after or start_after.startswith(path)


def _unlink_staged(target: str) -> int:
    """Remove the temporary files that killed writers of this file left, but not the file."""
    parent, name = os.path.split(target)
    if not os.path.isdir(parent):
        return 0
    with os.scandir(parent) as found:
        staged = [
            entry.path
            for entry in found
            if entry.name.startswith(f"{name}#") and _STAGING.search(entry.name)
        ]
    return sum(_unlink_if_present(path) for path in staged)


def _unlink_if_present(path: str) -> int:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return 1


class LocalWriter(PublishingWriter):
    """Writes a temporary file beside the target, syncs, then renames or (exclusive) links it."""

    def __init__(self, store: LocalStore, path: str, *, exclusive: bool = False) -> None:
        self._store = store
        self._path = path
        self._exclusive = exclusive
        self._target = store._locate(path)
        folder = os.path.dirname(self._target)
        # Leaves space for the suffix within the usual limit of 255 bytes per name.
        name = os.path.basename(self._target).encode()[:230].decode(errors="ignore")
        self._staging = os.path.join(folder, f"{name}#{secrets.randbelow(10**18)}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                self._fd = os.open(self._staging, flags, 0o666)
            except (FileNotFoundError, NotADirectoryError):
                self._make_folder(folder)
                self._fd = os.open(self._staging, flags, 0o666)
        except OSError as error:
            raise store._translate(error, path, writing=True) from error
        super().__init__()

    @staticmethod
    def _make_folder(folder: str) -> None:
        missing = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for made in reversed(missing):
            try:
                os.mkdir(made)
            except FileExistsError:
                if not os.path.isdir(made):
                    raise
            _sync_folder(os.path.dirname(made))

    def _append(self, data: memoryview) -> None:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise self._store._translate(error, self._path, writing=True) from error

    def append_file_range(self, source: BinaryIO, start: int, size: int) -> bool:
        """Let the kernel copy `size` bytes of a local file; False, with nothing copied, where it
        cannot. Raises: StorageError, OSError if the source has fewer bytes."""
        if not isinstance(source, pa.OSFile):
            return False
        if self._done:
            raise ValueError("write to a closed or aborted writer")
        left = size
        try:
            while left:
                count = os.copy_file_range(source.fileno(), self._fd, left, start)
                if not count:
                    raise EOFError
                start, left = start + count, left - count
        except EOFError:
            self.abort()
            raise OSError(f"the source ends {left} bytes early") from None
        except OSError as error:
            if left == size and error.errno in _NO_COPY:
                return False
            self.abort()
            raise self._store._translate(error, self._path, writing=True) from error
        self._position += size
        return True

    def _publish(self) -> None:
        try:
            os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1
            if self._exclusive:
                self._link()
            else:
                os.rename(self._staging, self._target)
        except OSError as error:
            raise self._store._translate(error, self._path, writing=True) from error
        try:
            _sync_folder(os.path.dirname(self._target))
        except OSError as error:
            raise OutcomeUnknown(
                "the object is visible, but may not survive a power failure",
                resource=f"{self._store.location}/{self._path}",
                found=error.strerror or str(error),
                remedy="Check the volume",
            ) from error

    def _link(self) -> None:
        try:
            os.link(self._staging, self._target)
        except FileExistsError as error:
            raise AlreadyExists(
                "there is an object of this name", resource=f"{self._store.location}/{self._path}"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise StoreUnsuitable(
                "this file system has no hard links, so no file can be created exclusively "
                "with its whole content",
                resource=self._store.location,
                found=error.strerror or str(error),
                expected="a POSIX file system (ext4, xfs, btrfs, NFS)",
                remedy="Move the table",
            ) from error
        _unlink_if_present(self._staging)

    def _discard(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        _unlink_if_present(self._staging)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot sync a folder; they are synchronous anyway.
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(fd)
