"""The source of an operation that appends rows: checks it, and pins a Delta version."""

from __future__ import annotations

from tandem.delta.log.delta_log import DeltaLog
from tandem.jobs.formats import JobSpec, SourceJob
from tandem.operations.attempt import paths, records
from tandem.operations.model import Work
from tandem.spark.sources.options import checked, storage_options
from tandem.spec.update import Source, SourceFormat
from tandem.storage import allowed_locations, open_store


def check_source(work: Work, source: Source, *, resource: str, field: str) -> None:
    """Check the options and the location of a source, which `field` of the resource describes.

    Raises: InvalidSpec, LocationNotAllowed.
    """
    checked(source.format.value, source.options, field)
    allowed_locations.require(
        source.location,
        work.table.allowed_prefixes,
        resource=resource,
        field=f"{field}.location",
    )


def version_of_source(work: Work, source: Source) -> int | None:
    """The version of a Delta source: all attempts read that of the first one. None for files."""
    if source.format is not SourceFormat.DELTA or source.version is not None:
        return source.version
    path = paths.job(work.identity.operation_id, 1)
    first = records.load(work.table.store, path, JobSpec)
    if first is not None and isinstance(first.job, SourceJob):
        return first.job.source_version
    options = storage_options(source.location, work.table.location, work.table.storage_options)
    return DeltaLog(open_store(source.location, options)).latest_version()
