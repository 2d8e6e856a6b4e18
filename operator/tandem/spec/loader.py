"""From files to checked resources: what `-f` does.

Reads files, folders and standard input, but no tables: whether a statement fits a table's schema
is found out later. Must not import YAML unless there is a file: that takes a while.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tandem.errors import InvalidSpec, ReferenceNotFound, closest_name
from tandem.spec.common import API_VERSION, Operation
from tandem.spec.problems import Document, InvalidSpecs, problems_of, shown
from tandem.spec.resources import KINDS, AnyKind, AnyResource, IndexServer

_SUFFIXES = (".yaml", ".yml", ".json")
_MAX_FILE_BYTES = 8 * 2**20


def load(paths: Sequence[str | Path], *, references: bool = True) -> list[AnyResource]:
    """What can be run of the resources in files: all but IndexServers, which are only checked.
    Arguments and errors as of `load_all`."""
    return _runnable(load_all(paths, references=references))


def load_all(paths: Sequence[str | Path], *, references: bool = True) -> list[AnyKind]:
    """The resources in files, folders (not recursive; `.yaml`, `.yml`, `.json`) and `-`
    (standard input), in the order in which they are written.

    Args:
        references: whether what they refer to must be there too; not where a cluster has it.

    Raises:
        InvalidSpec: a file cannot be read or something in it is wrong; all problems at once.
        ReferenceNotFound: a `tableRef` or `dependsOn` names nothing that was loaded.
    """
    found = [document for path in paths for document in _read(path)]
    resources = parse_documents(found)
    if not resources:
        raise InvalidSpec(
            "no resources found",
            resource=", ".join(map(str, paths)),
            found="nothing",
            expected=f"YAML with apiVersion: {API_VERSION}",
            remedy="Name the files or folders that hold your resources",
        )
    if references:
        check_references(resources)
    return resources


def load_text(text: str, source: str = "<text>") -> list[AnyResource]:
    """As `load`, from one text."""
    from tandem.spec.yaml_source import documents

    resources = parse_documents(documents(text, source))
    check_references(resources)
    return _runnable(resources)


def _runnable(resources: Sequence[AnyKind]) -> list[AnyResource]:
    return [resource for resource in resources if not isinstance(resource, IndexServer)]


def parse(data: Any, *, source: str = "") -> AnyKind:
    """One resource from plain data (a manifest as the API server gives it)."""
    document = Document(source)
    document.data = data
    return _resource(document)


def parse_documents(found: Iterable[Document]) -> list[AnyKind]:
    """Check every document, and that no resource is there twice; references are not looked at."""
    resources: list[AnyKind] = []
    problems: list[InvalidSpec] = []
    places: dict[tuple[str, str, str], str] = {}
    for document in found:
        for item in _items(document):
            try:
                resource = _resource(item)
            except InvalidSpecs as error:
                problems.extend(error.problems)
                continue
            except InvalidSpec as error:
                problems.append(error)
                continue
            place = item.lines.get((), item.source)
            if resource.key in places:
                problems.append(
                    InvalidSpec(
                        f"two resources have this name in namespace {resource.namespace!r} "
                        f"(at {places[resource.key]} and {place})",
                        resource=resource.id,
                        field="metadata.name",
                        found=resource.name,
                        expected="a name of its own",
                        remedy="Rename or remove one of them",
                    )
                )
                continue
            places[resource.key] = place
            resources.append(resource)
    InvalidSpecs.raise_if(problems)
    return resources


def check_references(resources: Sequence[AnyKind]) -> None:
    """Every `tableRef` and `dependsOn` leads somewhere, and `dependsOn` never in a cycle.

    Raises:
        ReferenceNotFound, InvalidSpec
    """
    by_key = {resource.key: resource for resource in resources}
    waits: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    for resource in resources:
        if not isinstance(resource, Operation):
            continue
        table = ("LakeTable", resource.namespace, resource.spec.table_ref.name)
        if table not in by_key:
            _not_found(resource, "spec.tableRef.name", table, list(by_key))
        for index, dependency in enumerate(resource.spec.depends_on):
            key = (dependency.kind, resource.namespace, dependency.name)
            if key not in by_key:
                _not_found(resource, f"spec.dependsOn[{index}]", key, list(by_key))
            waits.setdefault(resource.key, []).append(key)
    cycle = _cycle(waits)
    if cycle:
        raise cycle_error([by_key[key].id for key in cycle])


def cycle_error(ids: Sequence[str]) -> InvalidSpec:
    """The refusal of operations of which each waits for the next, and the last for the first."""
    return InvalidSpec(
        "operations wait for each other in a cycle",
        resource=ids[0],
        field="spec.dependsOn",
        found=" → ".join([*ids, ids[0]]),
        expected="no cycle",
        remedy="Remove one of these",
    )


def _not_found(
    resource: AnyKind,
    field: str,
    wanted: tuple[str, str, str],
    known: list[tuple[str, str, str]],
) -> None:
    kind, namespace, name = wanted
    names = [other for k, space, other in known if k == kind and space == namespace]
    guess = closest_name(name, names)
    raise ReferenceNotFound(
        f"no {kind} of this name in namespace {namespace!r} was given",
        resource=resource.id,
        field=field,
        found=name,
        expected=f"one of {', '.join(names)}" if names else f"a {kind} among the files",
        remedy=f"Did you mean {guess}?" if guess else f"Give the file with the {kind} too (-f)",
    )


def _cycle(
    waits: dict[tuple[str, str, str], list[tuple[str, str, str]]],
) -> list[tuple[str, str, str]]:
    done: set[tuple[str, str, str]] = set()
    for start in waits:
        trail: list[tuple[str, str, str]] = []
        pending = [(start, iter(waits.get(start, ())))]
        trail.append(start)
        while pending:
            key, rest = pending[-1]
            following = next(rest, None)
            if following is None:
                done.add(key)
                pending.pop()
                trail.pop()
            elif following in trail:
                return trail[trail.index(following) :]
            elif following not in done:
                trail.append(following)
                pending.append((following, iter(waits.get(following, ()))))
    return []


def _read(path: str | Path) -> Iterator[Document]:
    from tandem.spec.yaml_source import documents

    if str(path) == "-":
        yield from documents(sys.stdin.read(), "<stdin>")
        return
    file = Path(path)
    try:
        # Unlike `Path.is_dir`, no error where a folder above may not be entered: opening tells.
        children = _children(file) if os.path.isdir(file) else None
        text = "" if children is not None else _text(file)
    except UnicodeDecodeError as error:
        raise InvalidSpec(
            "not UTF-8 text",
            resource=str(path),
            found=f"byte {error.object[error.start]:#04x} at {error.start}",
            expected="text in UTF-8",
            remedy="Is this the file that you meant? Save it as UTF-8",
        ) from error
    except OSError as error:
        raise InvalidSpec(
            "cannot be read",
            resource=str(path),
            found=error.strerror or str(error),
            expected="a YAML file, a folder of them, or - for standard input",
            remedy="Correct the path, or give this user the permission to read it",
        ) from error
    if children is None:
        yield from documents(text, str(path))
        return
    for child in children:
        yield from _read(child)


def _children(folder: Path) -> list[Path]:
    """The YAML files of a folder, sorted. Raises: InvalidSpec, OSError."""
    children = sorted(
        child for child in folder.iterdir() if child.suffix in _SUFFIXES and child.is_file()
    )
    if not children:
        raise InvalidSpec(
            "no YAML files in this folder",
            resource=str(folder),
            found="none",
            expected=" ".join(_SUFFIXES),
            remedy="Name the folder that holds your resources",
        )
    return children


def _text(file: Path) -> str:
    """What a file says. Raises: InvalidSpec, OSError, UnicodeDecodeError."""
    if (size := file.stat().st_size) > _MAX_FILE_BYTES:
        raise InvalidSpec(
            "the file is too large",
            resource=str(file),
            found=f"{size} bytes",
            expected=f"at most {_MAX_FILE_BYTES} bytes",
            remedy="Is this the file that you meant?",
        )
    return file.read_text(encoding="utf-8")


def _items(document: Document) -> Iterator[Document]:
    """A `v1 List` (what `kubectl get -o yaml` prints) holds several."""
    data = document.data
    if (
        isinstance(data, dict)
        and data.get("kind") == "List"
        and isinstance(data.get("items"), list)
    ):
        for index, item in enumerate(data["items"]):
            inner = Document(document.source)
            inner.data = item
            inner.lines = {
                path[2:]: line
                for path, line in document.lines.items()
                if path[:2] == ("items", index)
            }
            yield inner
        return
    yield document


def _resource(document: Document) -> AnyKind:
    data = document.data
    place = document.lines.get((), document.source)
    if not isinstance(data, dict):
        raise InvalidSpec(
            "not a resource",
            resource=place,
            found=shown(data),
            expected="a mapping",
            remedy="Each document is a resource: apiVersion, kind, metadata, spec",
        )
    kind = data.get("kind")
    metadata = data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    resource = f"{kind or '?'}/{name}" if name else place
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        guess = closest_name(str(kind), list(KINDS)) if kind else ""
        raise InvalidSpec(
            f"unknown kind (at {place})" if kind else f"required, but missing (at {place})",
            resource=resource,
            field="kind",
            found=shown(kind) if kind else "",
            expected=f"one of {', '.join(KINDS)}",
            remedy=f"Did you mean {guess}?" if guess else "Correct the kind",
        )
    # What the API server adds; a file may hold it too, and it is no part of the manifest.
    manifest = {key: value for key, value in data.items() if key != "status"}
    try:
        return model.model_validate(manifest)
    except ValidationError as error:
        problems = problems_of(error, model=model, resource=resource, lines=document.lines)
        InvalidSpecs.raise_if(problems)
        raise AssertionError("pydantic raised without a problem") from error
