"""Names of labels, annotations and finalizers (docs/labels-and-annotations.md).

They are persisted in clusters: add where it helps, rename none.
"""

from __future__ import annotations

import hashlib
from typing import Final

from tandem.spec.common import GROUP

PREFIX: Final = f"{GROUP}/"
MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "tandem")
"""Label, and its value, of every object that Tandem creates."""

FINALIZER: Final = f"{PREFIX}cleanup"
"""Earlier releases put it on operations; it is taken off."""
RETRY_ANNOTATION: Final = f"{PREFIX}retry"
"""Any new value requests one more run of an operation that failed."""
PLAN_LABEL: Final = f"{PREFIX}plan"
"""Marks an operation that `kubectl tandem plan` has created, to show its plan and delete it."""

TABLE_LABEL: Final = f"{PREFIX}table"
KIND_LABEL: Final = f"{PREFIX}kind"
INDEX_SERVER_LABEL: Final = f"{PREFIX}index-server"
"""On the pods of an IndexServer: its Service selects the driver's by it."""
OPERATION_LABEL: Final = f"{PREFIX}operation"
ATTEMPT_LABEL: Final = f"{PREFIX}attempt"

AUTOMATIC_LABEL: Final = f"{PREFIX}automatic"
"""`minor`, the digest of a schedule, `chunks-` and the digest of a chunk, `retention`,
`log-compaction` or `log-merge`."""
SCHEDULED_LABEL: Final = f"{PREFIX}scheduled"
"""The minute (since 1970) at which a compaction was due."""
RETRIES_LABEL: Final = f"{PREFIX}retries"
"""How many compactions of the same schedule failed in a row before this one."""

INPUT_BYTES_ANNOTATION: Final = f"{PREFIX}input-bytes"
ENDPOINT_ANNOTATION: Final = f"{PREFIX}endpoint"
"""Where an IndexServer answers if there is no Service: `tandem dev` writes it."""
LOG_ANNOTATION: Final = f"{PREFIX}log"
"""The location of the log if there is no pod: `tandem dev` writes it."""


def label_value(text: str) -> str:
    """A name as a label's value: names longer than 63 characters are truncated and hashed."""
    if len(text) <= 63:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{text[:54].rstrip('-_.')}-{digest}"
