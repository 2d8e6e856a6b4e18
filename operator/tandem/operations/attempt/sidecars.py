"""Files that belong to a job's result: read as a whole, and verified against the result."""

from __future__ import annotations

import hashlib

from tandem.errors import ManifestInvalid, ObjectNotFound
from tandem.jobs.results import SidecarRef
from tandem.storage.store import Store


def read_sidecar(store: Store, ref: SidecarRef) -> bytes:
    """A file that belongs to a result, verified. Raises: ManifestInvalid, StorageError."""
    try:
        data = store.get(ref.path)
    except ObjectNotFound as error:
        raise ManifestInvalid(
            "a file of the result no longer exists",
            resource=ref.path,
            found="no such object",
            expected=f"{ref.size} bytes",
            remedy="Check that no other process removes files below _tandem",
        ) from error
    digest = hashlib.sha256(data).hexdigest()
    if len(data) != ref.size or digest != ref.sha256:
        raise ManifestInvalid(
            "a file of the result is not what the job wrote",
            resource=ref.path,
            found=f"{len(data)} bytes, SHA-256 {digest}",
            expected=f"{ref.size} bytes, SHA-256 {ref.sha256}",
        )
    return data
