"""The hash of a spec, which is part of an operation's identity.

Two files that mean the same have the same hash: defaults are filled in, sizes and durations
are numbers, order of keys is irrelevant. What only says how, when or for how long to run is
left out, so that changing it does not make the operation another one.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tandem.spec.resources import Operation

MUTABLE_FIELDS: Final = frozenset(
    {
        "suspend",
        "priority",
        "backoffLimit",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        # How it runs and after what: an update whose Spark memory was raised must not happen
        # a second time because of that.
        "sparkTemplate",
        "dependsOn",
        "lockGranularity",
        "exclusive",
        "maxBytesPerCommit",
        "minRowGroupRows",
    }
)
"""Fields of an operation's spec that may change during its life."""


def canonical_spec(resource: Operation) -> dict[str, Any]:
    """The spec with defaults filled in and mutable fields left out; plain JSON types."""
    spec = resource.spec.canonical()
    return {key: value for key, value in spec.items() if key not in MUTABLE_FIELDS}


def spec_hash(resource: Operation) -> str:
    """SHA-256 in hex of the canonical spec, with kind and API version."""
    canonical = json.dumps(
        {
            "apiVersion": resource.api_version,
            "kind": resource.kind_name,
            "spec": canonical_spec(resource),
        },
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    )
    return hashlib.sha256(canonical.encode()).hexdigest()
