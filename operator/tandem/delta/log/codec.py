"""Converts between the JSON text of commits and actions (protocol, "Actions").

Unknown fields of known actions are kept in `extra`, so that actions that we rewrite keep the
fields of other writers. Unknown actions are dropped: by the protocol ("Protocol Evolution") they
are never needed to interpret the log. No I/O here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tandem.delta.actions import (
    BASE_ROW_ID,
    ROW_COMMIT_VERSION,
    Action,
    AddFile,
    ChangeFile,
    Commit,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from tandem.errors import CorruptLog
from tandem.json_types import Json
from tandem.storage.paths import path_identity

_ADD_FIELDS = frozenset(
    [
        "path",
        "partitionValues",
        "size",
        "modificationTime",
        "dataChange",
        "stats",
        "tags",
        "deletionVector",
    ]
)
_REMOVE_FIELDS = frozenset(
    [
        "path",
        "deletionTimestamp",
        "dataChange",
        "extendedFileMetadata",
        "partitionValues",
        "size",
        "deletionVector",
    ]
)
_METADATA_FIELDS = frozenset(
    [
        "id",
        "name",
        "description",
        "schemaString",
        "partitionColumns",
        "createdTime",
        "configuration",
    ]
)
_INFO = b'"commitInfo"'
_PARQUET: Json = {"provider": "parquet", "options": {}}


def decode_commit(
    version: int,
    data: bytes,
    *,
    path: str,
    modified_ms: int,
) -> Commit:
    """One commit file.

    Args:
        version: the version in the file's name.
        data: the whole object.
        path: its path, for messages.
        modified_ms: the object's modification time, used where there is no in-commit timestamp.
    Raises: CorruptLog if a line is not a JSON object or an action lacks a required field.
    """
    actions: list[Action] = []
    at, empty = 0, True
    for number, encoded in enumerate(_lines(data), start=1):
        try:
            line = encoded.decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"byte {at + error.start}"
            raise _corrupt(path, where, "bytes that are not UTF-8") from error
        at += len(encoded) + 1
        if not line.strip():
            continue
        empty = False
        body = decode_line(line, path=path, number=number)
        for kind, content in body.items():
            action = decode_action(kind, content, path=path, number=number)
            if action is not None:
                actions.append(action)
    if empty:
        # A commit has at least one action; an empty object is a write that was cut off.
        raise _corrupt(path, "", "an empty file")
    timestamp = modified_ms
    for action in actions:
        if isinstance(action, CommitInfo) and action.in_commit_timestamp is not None:
            timestamp = action.in_commit_timestamp
    return Commit(version, timestamp, tuple(actions))


def decode_info(data: bytes, *, path: str) -> CommitInfo | None:
    """The commitInfo of a commit file, of which the other actions are not looked at; None if the
    complete lines of `data` have none.

    Args:
        data: the whole object, or its beginning.
    Raises: CorruptLog if a line that may be a commitInfo is not a JSON object.
    """
    start = 0
    # Within a text its quotes would be escaped. A field of another action can have this name.
    while (at := data.find(_INFO, start)) >= 0:
        first = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        number = data.count(b"\n", 0, first) + 1
        try:
            line = data[first : len(data) if end < 0 else end].decode("utf-8")
        except UnicodeDecodeError as error:
            raise _corrupt(path, f"line {number}", "bytes that are not UTF-8") from error
        body = decode_line(line, path=path, number=number)
        action = decode_action("commitInfo", body.get("commitInfo"), path=path, number=number)
        if isinstance(action, CommitInfo):
            return action
        if end < 0:
            break
        start = end
    return None


def _lines(data: bytes) -> Iterator[bytes]:
    """The lines, without copying all of them at once."""
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield data[start:end]
        start = end + 1
    yield data[start:]


def decode_line(line: str, *, path: str, number: int) -> Json:
    try:
        body = json.loads(line)
        if "\\u" in line:
            # Half of a surrogate pair is valid JSON, but not text: it cannot be encoded again.
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _corrupt(path, f"line {number}", f"{_short(line)!r}: {error}") from error
    if not isinstance(body, dict):
        raise _corrupt(path, f"line {number}", _short(line))
    return body


def decode_action(kind: str, body: Any, *, path: str, number: int = 0) -> Action | None:
    """The action `{kind: body}`; None for a null one and for a kind that we do not know."""
    decoder = _DECODERS.get(kind)
    if decoder is None or body is None:
        return None
    where = f"line {number}.{kind}" if number else kind
    if not isinstance(body, dict):
        raise _corrupt(path, where, _short(json.dumps(body)), "a JSON object")
    try:
        action: Action = decoder(body)
    except _Misfit as error:
        raise _corrupt(path, f"{where}.{error.field}", error.found, error.expected) from error
    return action


def decode_deletion_vector(body: Json) -> DeletionVector:
    return DeletionVector(
        storage=_text(body, "storageType"),
        path_or_inline=_text(body, "pathOrInlineDv"),
        size=_whole(body, "sizeInBytes", 32),
        cardinality=_whole(body, "cardinality"),
        offset=_whole_or_none(body, "offset", 32),
    )


def _vector(body: Json) -> DeletionVector | None:
    found = body.get("deletionVector")
    if not found:
        return None
    if not isinstance(found, dict):
        raise _misfit("deletionVector", found, "a JSON object")
    try:
        return decode_deletion_vector(found)
    except _Misfit as error:
        error.field = f"deletionVector.{error.field}"
        raise


def _add(body: Json) -> AddFile:
    path, spelled = _path(body)
    return AddFile(
        logged_path=path,
        partition_values=_strings(body, "partitionValues"),
        size=_whole(body, "size"),
        modified_ms=_whole(body, "modificationTime"),
        data_change=bool(body.get("dataChange", True)),
        stats=None if body.get("stats") is None else _text(body, "stats"),
        tags={k: v for k, v in _strings(body, "tags").items() if v is not None},
        deletion_vector=_vector(body),
        extra=_typed(_rest(body, _ADD_FIELDS)) | spelled,
    )


def _remove(body: Json) -> RemoveFile:
    path, spelled = _path(body)
    values = body.get("partitionValues")
    return RemoveFile(
        logged_path=path,
        deletion_ms=_whole_or_none(body, "deletionTimestamp"),
        data_change=bool(body.get("dataChange", True)),
        deletion_vector=_vector(body),
        partition_values=None if values is None else _strings(body, "partitionValues"),
        size=_whole_or_none(body, "size"),
        extra=_typed(_rest(body, _REMOVE_FIELDS)) | spelled,
    )


def _change_file(body: Json) -> ChangeFile:
    """Nothing but its path is needed to know the table, and what cleaning may delete."""
    path, _ = _path(body)
    size = _whole_or_none(body, "size") or 0
    return ChangeFile(path, _strings(body, "partitionValues"), size)


def _path(body: Json) -> tuple[str, Json]:
    """A file's identity, and for `extra` the log's own spelling, if it is another one."""
    logged = _text(body, "path")
    path = path_identity(logged)
    return path, {} if path == logged else {"path": logged}


def _metadata(body: Json) -> Metadata:
    return Metadata(
        id=_text(body, "id"),
        schema_string=_text(body, "schemaString"),
        partition_columns=_list(body, "partitionColumns"),
        configuration={k: v for k, v in _strings(body, "configuration").items() if v is not None},
        name=body.get("name"),
        description=body.get("description"),
        created_ms=_whole_or_none(body, "createdTime"),
        extra=_rest(body, _METADATA_FIELDS),
    )


def _protocol(body: Json) -> Protocol:
    return Protocol(
        min_reader=_whole(body, "minReaderVersion", 32),
        min_writer=_whole(body, "minWriterVersion", 32),
        reader_features=frozenset(_list(body, "readerFeatures")),
        writer_features=frozenset(_list(body, "writerFeatures")),
    )


def _txn(body: Json) -> Txn:
    return Txn(_text(body, "appId"), _whole(body, "version"), _whole_or_none(body, "lastUpdated"))


def _domain(body: Json) -> DomainMetadata:
    return DomainMetadata(
        _text(body, "domain"), str(body.get("configuration", "")), bool(_required(body, "removed"))
    )


_DECODERS: Mapping[str, Any] = {
    "add": _add,
    "remove": _remove,
    "cdc": _change_file,
    "metaData": _metadata,
    "protocol": _protocol,
    "txn": _txn,
    "commitInfo": CommitInfo,
    "domainMetadata": _domain,
}


def encode_commit(actions: Iterable[Action]) -> bytes:
    """The bytes of a commit file: one action a line, in the order given."""
    lines = [
        json.dumps(encode_action(action), ensure_ascii=False, separators=(",", ":"))
        for action in actions
    ]
    return ("\n".join(lines) + "\n").encode("utf-8")


def encode_action(action: Action) -> Json:
    """The JSON object of one action, `{kind: body}`; fields without a value are left out."""
    match action:
        case AddFile():
            return {"add": _encode_add(action)}
        case RemoveFile():
            return {"remove": _encode_remove(action)}
        case ChangeFile():
            return {
                "cdc": {
                    "path": action.logged_path,
                    "partitionValues": dict(action.partition_values),
                    "size": action.size,
                    "dataChange": False,
                }
            }
        case Metadata():
            return {"metaData": _encode_metadata(action)}
        case Protocol():
            return {"protocol": _encode_protocol(action)}
        case Txn():
            if not -(2**63) <= action.version < 2**63:
                # No reader could decode the commit, and so no version after it.
                raise ValueError(f"txn {action.app_id}: version {action.version} is no 64-bit long")
            body: Json = {"appId": action.app_id, "version": action.version}
            if action.updated_ms is not None:
                body["lastUpdated"] = action.updated_ms
            return {"txn": body}
        case DomainMetadata():
            return {
                "domainMetadata": {
                    "domain": action.domain,
                    "configuration": action.configuration,
                    "removed": action.removed,
                }
            }
        case CommitInfo():
            return {"commitInfo": dict(action.body)}


def encode_deletion_vector(dv: DeletionVector) -> Json:
    body: Json = {"storageType": dv.storage, "pathOrInlineDv": dv.path_or_inline}
    if dv.offset is not None:
        body["offset"] = dv.offset
    return body | {"sizeInBytes": dv.size, "cardinality": dv.cardinality}


def _encode_add(add: AddFile) -> Json:
    body: Json = {
        "path": add.logged_path,
        "partitionValues": dict(add.partition_values),
        "size": add.size,
        "modificationTime": add.modified_ms,
        "dataChange": add.data_change,
    }
    if add.stats is not None:
        body["stats"] = add.stats
    if add.tags:
        body["tags"] = dict(add.tags)
    if add.deletion_vector is not None:
        body["deletionVector"] = encode_deletion_vector(add.deletion_vector)
    return body | dict(add.extra)


def _encode_remove(remove: RemoveFile) -> Json:
    body: Json = {"path": remove.logged_path, "dataChange": remove.data_change}
    if remove.deletion_ms is not None:
        body["deletionTimestamp"] = remove.deletion_ms
    body["extendedFileMetadata"] = remove.partition_values is not None and remove.size is not None
    if remove.partition_values is not None:
        body["partitionValues"] = dict(remove.partition_values)
    if remove.size is not None:
        body["size"] = remove.size
    if remove.deletion_vector is not None:
        body["deletionVector"] = encode_deletion_vector(remove.deletion_vector)
    return body | dict(remove.extra)


def _encode_metadata(metadata: Metadata) -> Json:
    body: Json = {"id": metadata.id}
    if metadata.name is not None:
        body["name"] = metadata.name
    if metadata.description is not None:
        body["description"] = metadata.description
    body["format"] = metadata.extra.get("format", _PARQUET)
    body["schemaString"] = metadata.schema_string
    body["partitionColumns"] = list(metadata.partition_columns)
    if metadata.created_ms is not None:
        body["createdTime"] = metadata.created_ms
    body["configuration"] = dict(metadata.configuration)
    return body | {k: v for k, v in metadata.extra.items() if k != "format"}


def _encode_protocol(protocol: Protocol) -> Json:
    body: Json = {
        "minReaderVersion": protocol.min_reader,
        "minWriterVersion": protocol.min_writer,
    }
    # The lists exist exactly at reader version 3 and writer version 7, even when empty.
    if protocol.min_reader >= 3:
        body["readerFeatures"] = sorted(protocol.reader_features)
    if protocol.min_writer >= 7:
        body["writerFeatures"] = sorted(protocol.writer_features)
    return body


class _Misfit(ValueError):
    """A field of an action that is missing, or not of the protocol's type."""

    def __init__(self, field: str, found: str, expected: str) -> None:
        super().__init__(field)
        self.field, self.found, self.expected = field, found, expected


def _misfit(field: str, value: object, expected: str) -> _Misfit:
    return _Misfit(field, _short(json.dumps(value, default=str)), expected)


def _required(body: Json, field: str) -> Any:
    if field not in body:
        raise _Misfit(field, "no such field", "a field that the protocol requires")
    return body[field]


def _text(body: Json, field: str) -> str:
    value = _required(body, field)
    if not isinstance(value, str):
        raise _misfit(field, value, "a string")
    return value


def _whole(body: Json, field: str, bits: int = 64) -> int:
    """A number in the range of the protocol's `long` or `int`: no reader accepts a larger one."""
    value = _required(body, field)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise _misfit(field, value, "a whole number") from error
    if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
        raise _misfit(field, value, f"a whole number of at most {bits} bits")
    return number


def _whole_or_none(body: Json, field: str, bits: int = 64) -> int | None:
    return None if body.get(field) is None else _whole(body, field, bits)


def _strings(body: Json, field: str) -> dict[str, str | None]:
    found = body.get(field) or {}
    if not isinstance(found, dict) or not all(
        value is None or isinstance(value, str) for value in found.values()
    ):
        raise _misfit(field, found, "a JSON object of strings")
    return dict(found)


def _list(body: Json, field: str) -> tuple[str, ...]:
    found = body.get(field) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(item, str) for item in found):
        raise _misfit(field, found, "a list of strings")
    return tuple(found)


def _typed(extra: Json) -> Json:
    """Fields that we do not interpret, but that a checkpoint has as columns."""
    for field in (BASE_ROW_ID, ROW_COMMIT_VERSION):
        if field in extra:
            extra[field] = _whole(extra, field)
    if "clusteringProvider" in extra:
        _text(extra, "clusteringProvider")
    return extra


def _rest(body: Json, known: frozenset[str]) -> Json:
    return {k: v for k, v in body.items() if k not in known and v is not None}


def _short(text: str, limit: int = 120) -> str:
    return text if len(text) <= limit else text[:limit] + "…"


def _corrupt(
    path: str, field: str, found: str, expected: str = "one JSON object a line"
) -> CorruptLog:
    return CorruptLog(
        "the commit cannot be read",
        resource=path,
        field=field,
        found=found,
        expected=expected,
        remedy="Restore the file from a backup, or restore the table to an earlier state with "
        "the engine that wrote it; Tandem changes nothing here",
    )
