"""`tandem plan` checks that the sources of merges and ingests exist.

The engine leaves that to the job, since an operator may have no permission to read a source, or no
access to its disk. The jobs of `tandem run` run on this machine, in this environment, so the check
is valid for them. A source may also be created between the plan and the run, so a missing one is a
warning, not an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.cli.report import file_count
from tandem.errors import (
    BucketNotFound,
    DataFileMissing,
    InvalidSpec,
    ObjectNotFound,
    Reason,
    TableNotFound,
    TandemError,
    UnsupportedFeature,
    VersionNotFound,
)
from tandem.spec import LakeTable
from tandem.spec.resources import ResourceOutcome
from tandem.spec.status import Phase
from tandem.text import human_bytes

_ABSENT = (
    BucketNotFound,
    InvalidSpec,
    ObjectNotFound,
    DataFileMissing,
    TableNotFound,
    VersionNotFound,
)


@dataclass(frozen=True)
class SourceCheck:
    """A summary of a source as it is now, and a warning if there is a problem, which begins with
    the field of the resource."""

    summary: str
    warning: str = ""


def check_sources(outcomes: Sequence[ResourceOutcome]) -> dict[str, SourceCheck]:
    """The sources of all resources that have one and can be planned, by id."""
    tables = {
        (outcome.resource.namespace, outcome.resource.name): outcome.resource
        for outcome in outcomes
        if isinstance(outcome.resource, LakeTable)
    }
    found = {}
    for outcome in outcomes:
        resource = outcome.resource
        if isinstance(resource, LakeTable) or not _to_come(outcome):
            continue
        field, source = resource.source_in(resource.manifest()["spec"])
        table = tables.get((resource.namespace, resource.spec.table_ref.name))
        if source and table is not None:
            found[resource.id] = _look(field, source, table)
    return found


def _to_come(outcome: ResourceOutcome) -> bool:
    """Whether the operation would run now: it has no recorded result, and planning succeeded."""
    status = outcome.status
    reasons = {condition.reason for condition in status.conditions}
    return status.phase is Phase.PENDING or Reason.DRY_RUN in reasons


def _look(field: str, source: Mapping[str, Any], table: LakeTable) -> SourceCheck:
    from tandem.spark.sources.options import storage_options

    location = source["location"]
    try:
        options = storage_options(location, table.spec.location, table.spec.storage.options)
        if source["format"] == "Delta":
            return SourceCheck(_version(location, options, source.get("version")))
        return SourceCheck(_files(location, options, f"{field}.location"))
    except _ABSENT as error:
        return SourceCheck(
            "not there now",
            f"{field}.location: nothing to read at {location}: {error.message}. It would fail if "
            "it ran now; correct the location, or put the source there",
        )
    except UnsupportedFeature as error:
        return SourceCheck("cannot be read", f"{field}.location: {location}: {error.message}")
    except TandemError as error:
        why = f"{field}.location: {location} could not be checked: {error.message}"
        return SourceCheck("could not be checked", why)


def _version(location: str, options: Mapping[str, str], wanted: int | None) -> str:
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.scan import check_rows
    from tandem.storage import open_store

    snapshot = DeltaLog(open_store(location, options)).snapshot(wanted)
    check_rows(snapshot)
    return f"now {snapshot.version}" if wanted is None else file_count(snapshot.num_files)


def _files(location: str, options: Mapping[str, str], field: str) -> str:
    from tandem.spark.runtime.listing import list_source

    files = list_source(location, options, field=field).files
    size = human_bytes(sum(file.size for file in files))
    return f"{file_count(len(files))}, {size}"
