"""Pins a merge's source: all rounds and attempts of an operation read the same state.

The first driver that reads the source records its version (Delta), or its files with their sizes
and times; later drivers check that they are unchanged. A merge whose source has changed fails with
SourceChanged: it never mixes two states.
"""

from __future__ import annotations

from pydantic import ValidationError

from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import check_rows
from tandem.errors import (
    AlreadyExists,
    ManifestInvalid,
    ObjectNotFound,
    OutcomeUnknown,
    SourceChanged,
    TandemError,
)
from tandem.jobs.formats import Format
from tandem.spark.runtime.control import Control, encode
from tandem.spark.runtime.listing import ListedSource
from tandem.spark.sources.options import source_job, storage_options
from tandem.spark.sources.readers import open_source
from tandem.storage import ObjectInfo, open_store


class SourceFile(Format):
    """A listed file; `modified_ms` in Unix milliseconds."""

    path: str
    size: int
    modified_ms: int


class SourcePin(Format):
    """`source.json` of an operation: `version` and `table_id` of a Delta table, or `files`."""

    operation_id: str
    location: str
    version: int | None = None
    table_id: str = ""
    files: tuple[SourceFile, ...] = ()


def pinned(control: Control) -> tuple[SourcePin, ListedSource | None]:
    """The pin, created if there is none, and the files that it pins (None for Delta).

    Raises: SourceChanged; ManifestInvalid; InvalidSpec, StorageError as for any source.
    """
    pin = _load(control)
    source = _look(control, pin)
    if pin is None:
        _put(control, source[0])
        pin = _load(control)
        assert pin is not None
    _compare(control, pin, source[0])
    return pin, source[1]


def check(control: Control, pin: SourcePin) -> None:
    """Check that the source is still in its pinned state. Raises: SourceChanged, StorageError."""
    _compare(control, pin, _look(control, pin)[0])


def unchanged(control: Control, source: ListedSource) -> None:
    """Check that the files are still those listed. Raises: SourceChanged, StorageError."""
    before = _of(control, source)
    _compare(control, before, _look(control, before)[0])


def path(control: Control) -> str:
    """The path of the pin: beside the attempts, since all of them share it."""
    return control.spec.control_prefix.rpartition("/attempts/")[0] + "/source.json"


def _look(control: Control, pin: SourcePin | None) -> tuple[SourcePin, ListedSource | None]:
    """The current state of the source; that of a Delta table at its pinned version."""
    job = source_job(control.spec)
    operation = control.spec.operation_id
    if job.source_format == "Delta":
        own = control.spec.table
        options = storage_options(job.source_location, own.location, own.storage_options)
        wanted = job.source_version if pin is None else pin.version
        snapshot = DeltaLog(open_store(job.source_location, options)).snapshot(wanted)
        check_rows(snapshot)
        return (
            SourcePin(
                operation_id=operation,
                location=job.source_location,
                version=snapshot.version,
                table_id=snapshot.metadata.id,
            ),
            None,
        )
    try:
        source = open_source(control)
    except TandemError as error:
        if pin is None:
            raise
        raise _changed(control, "nothing", f"{len(pin.files)} files") from error
    return _of(control, source), source


def _of(control: Control, source: ListedSource) -> SourcePin:
    return SourcePin(
        operation_id=control.spec.operation_id,
        location=source_job(control.spec).source_location,
        files=tuple(_file(meta) for meta in source.files),
    )


def _file(meta: ObjectInfo) -> SourceFile:
    return SourceFile(path=meta.path, size=meta.size, modified_ms=meta.modified_ms)


def _compare(control: Control, pin: SourcePin, now: SourcePin) -> None:
    if pin.location != now.location:
        raise _changed(control, now.location, pin.location)
    if (pin.version, pin.table_id) != (now.version, now.table_id):
        raise _changed(control, f"table {now.table_id}", f"table {pin.table_id}")
    before, after = ({f.path: f for f in p.files} for p in (pin, now))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise _changed(
                control, _described(name, after.get(name)), _described(name, before.get(name))
            )


def _described(name: str, file: SourceFile | None) -> str:
    if file is None:
        return f"no {name}"
    return f"{name} of {file.size} bytes, last written at {file.modified_ms} ms"


def _changed(control: Control, found: str, expected: str) -> SourceChanged:
    job = source_job(control.spec)
    return SourceChanged(
        "the source has changed since it was first read",
        resource=job.source_location,
        field=f"{job.source_field}.location",
        found=found,
        expected=expected,
        remedy="Run it again with a source that does not change, or name a Delta version",
    )


def _load(control: Control) -> SourcePin | None:
    try:
        data = control.store.get(path(control))
    except ObjectNotFound:
        return None
    try:
        found = SourcePin.model_validate_json(data)
    except ValidationError as error:
        raise ManifestInvalid(
            "the pin of the source cannot be read",
            resource=path(control),
            found=str(error.errors(include_url=False)[:1])[:300],
            expected="a whole SourcePin of format version 1",
        ) from error
    if found.operation_id != control.spec.operation_id:
        raise ManifestInvalid(
            "the pin of the source belongs to another operation",
            resource=path(control),
            found=found.operation_id,
            expected=control.spec.operation_id,
        )
    return found


def _put(control: Control, pin: SourcePin) -> None:
    """The first writer wins; a lost answer is resolved by loading the pin."""
    try:
        control.store.put_if_absent(path(control), encode(pin))
    except AlreadyExists:
        return
    except OutcomeUnknown:
        if _load(control) is None:
            control.store.put_if_absent(path(control), encode(pin))
