"""What all statuses have in common: phase and conditions."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class StatusModel(BaseModel):
    """Base of all status models. Open to fields of later versions: status is read back from
    files that a newer Tandem may have written."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        defer_build=True,
    )

    def manifest(self) -> dict[str, Any]:
        """As printed: camelCase, JSON types, without what is absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Phase(StrEnum):
    PENDING = "Pending"
    PLANNED = "Planned"
    LOCKED = "Locked"
    RUNNING = "Running"
    RECONCILING = "Reconciling"
    SUCCEEDED = "Succeeded"
    SUPERSEDED = "Superseded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


ENDED = frozenset({Phase.SUCCEEDED, Phase.SUPERSEDED, Phase.FAILED})
"""Phases that an operation never leaves by itself."""

PLANNED_ONLY = "planned; nothing was written"
"""The message of a dry run that would have something to do."""


class ConditionType(StrEnum):
    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    SUCCEEDED = "Succeeded"


ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(StatusModel):
    type: ConditionType
    """What it is about."""
    status: ConditionStatus
    """Whether the condition applies."""
    reason: str
    """A value of `tandem.errors.Reason`; see `docs/reasons.md`."""
    message: str = ""
    """A human-readable explanation."""
    last_transition_time: str
    """RFC 3339, UTC."""
    observed_generation: int = 1
    """The generation of the spec that the condition is based on."""
