"""Arguments of a command as the resources that `tandem run -f` takes. Pure, but for the names of
files of a source.

Everything is checked by the models of the resources. What they refuse is reported by the names of
the options, which are all that the user has typed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from tandem.errors import InvalidSpec
from tandem.spec import API_VERSION, LakeTable, Operation
from tandem.spec.catalog import catalog_of_url
from tandem.spec.loader import parse
from tandem.spec.problems import InvalidSpecs
from tandem.spec.resources import AnyKind
from tandem.spec.update import SourceFormat
from tandem.storage.paths import without_userinfo

if TYPE_CHECKING:
    from tandem.cli.commands.target import Target

_ASSIGNMENT = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^=`]+?))\s*=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Typed:
    """A part of a spec, and the option or argument that it comes from: what messages say in place
    of its path. None: it was not typed, and the spec lacks it. `keyed`: each key is typed after the
    option, as in `--source-option header=true`."""

    option: str
    value: Any
    keyed: bool = False


class DirectOperation:
    """One operation as a command asks for it.

    Args:
        spec: without `tableRef`; parts of it may be `Typed`.
        table: fields of the LakeTable's spec.
    """

    def __init__(
        self, kind: str, spec: Mapping[str, Any], table: Mapping[str, Any] | None = None
    ) -> None:
        self.kind = kind
        self.table = table or {}
        self.options: dict[str, str] = {}
        """The options by path of a field: the longest prefix of a path counts."""
        self.spec: dict[str, Any] = self._untyped(spec, "")

    def _untyped(self, part: Any, path: str) -> Any:
        if isinstance(part, Typed):
            self.options[path] = part.option
            if part.keyed:
                self.options[f"{path}."] = f"{part.option} "
            return self._untyped(part.value, path)
        if isinstance(part, list):
            return [self._untyped(each, f"{path}[{at}]") for at, each in enumerate(part)]
        if not isinstance(part, Mapping):
            return part
        inner = {
            name: self._untyped(each, f"{path}.{name}" if path else name)
            for name, each in part.items()
        }
        return {name: each for name, each in inner.items() if each is not None}


def resources_of(
    word: str, asked: DirectOperation, target: Target, now: datetime, token: str
) -> tuple[LakeTable, Operation]:
    """The table and the operation. The command's `word`, `now` and `token` make the operation's
    name: each run of a command is an operation of its own.

    Raises: InvalidSpec.
    """
    lake = table_of(target, word, asked.table)
    name = f"{word}-{now:%Y%m%d-%H%M%S}-{token}"
    operation = _parsed(
        asked.kind,
        {**_namespace(lake), "name": name},
        {"tableRef": {"name": lake.name}, **asked.spec},
        word,
        {f"spec.{field}": option for field, option in asked.options.items()},
    )
    assert isinstance(operation, Operation)
    return lake, operation


def table_of(target: Target, word: str, more: Mapping[str, Any]) -> LakeTable:
    """The LakeTable of a command's argument, with some more fields of its spec.

    Raises: InvalidSpec for options of the store that are secret.
    """
    options = {
        "spec.storage.options": "--option",
        "spec.storage.cloneSources": "--clone-source",
        "spec.location": "LOCATION",
        "spec.catalog": "LOCATION",
    }
    metadata, spec = target.fields()
    found = _parsed(LakeTable.kind_name, metadata, {**spec, **more}, word, options)
    assert isinstance(found, LakeTable)
    return found


def _namespace(lake: LakeTable) -> dict[str, str]:
    given = lake.manifest()["metadata"]
    return {"namespace": given["namespace"]} if "namespace" in given else {}


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """`--set COLUMN=EXPR`, repeated, as column → expression. A name in backquotes, as in SQL, may
    contain any character, and keeps them: without them a dot may stand before a field of a struct.

    Raises: InvalidSpec.
    """
    found: dict[str, str] = {}
    columns: set[str] = set()
    for text in texts:
        match = _ASSIGNMENT.fullmatch(text)
        if match is None or not match[3].strip():
            raise InvalidSpec(
                "not an assignment",
                resource="--set",
                found=text,
                expected="COLUMN=EXPR",
                remedy="Put it in quotes for the shell: --set 'delay=delay + 15'",
            )
        name, column = match[2], match[2]
        if match[1] is not None:
            name, column = f"`{match[1]}`", match[1].replace("``", "`")
        if column.lower() in columns:
            raise InvalidSpec(
                "the column is set twice",
                resource="--set",
                found=name,
                expected="each column once",
                remedy="Remove one of the two",
            )
        columns.add(column.lower())
        found[name] = match[3].strip()
    return found


def merge_spec(
    on: str,
    *,
    update_all: bool,
    insert_all: bool,
    set_: Sequence[str],
    delete_when: str | None,
) -> dict[str, Any]:
    """`spec.merge` without its source. The delete comes first: its rows are not updated.

    Raises: InvalidSpec.
    """
    if update_all and set_:
        raise InvalidSpec(
            "rows that match are updated in one way",
            resource="tandem merge",
            found="--update-all and --set",
            expected="one of them",
            remedy="Remove one of the two",
        )
    matched = []
    if delete_when is not None:
        when = Typed("--delete-when", delete_when)
        matched.append(Typed("--delete-when", {"where": when, "delete": {}}))
    if update_all:
        matched.append(Typed("--update-all", {"updateAll": {}}))
    if set_:
        matched.append(Typed("--set", {"update": {"set": Typed("--set", assignments(set_))}}))
    if not matched and not insert_all:
        raise InvalidSpec(
            "does nothing to any row",
            resource="tandem merge",
            found="no option that says what happens",
            expected="--update-all, --insert-all, --set or --delete-when",
            remedy="Add --update-all --insert-all to write each row of the source",
        )
    return {
        "on": Typed("--on", on),
        "whenMatched": Typed("--update-all, --set or --delete-when", matched or None),
        "whenNotMatched": Typed("--insert-all", [{"insertAll": {}}] if insert_all else None),
    }


def _parsed(
    kind: str,
    metadata: Mapping[str, Any],
    spec: Mapping[str, Any],
    word: str,
    options: Mapping[str, str],
) -> AnyKind:
    try:
        return parse({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
    except InvalidSpec as error:
        problems = error.problems if isinstance(error, InvalidSpecs) else (error,)
        InvalidSpecs.raise_if([_by_options(each, word, options) for each in problems])
        raise AssertionError("an error without a problem") from error


def _by_options(problem: InvalidSpec, word: str, options: Mapping[str, str]) -> InvalidSpec:
    """The problem, said of the option that its field comes from."""
    fields = [name for name in options if _leads_to(name, problem.field)]
    option = options[max(fields, key=len)] if fields else ""
    remedy = problem.remedy
    if not remedy or "docs/resources.md" in remedy:
        remedy = f"`tandem {word} --help` describes the options"
    return InvalidSpec(
        problem.message,
        resource=option or f"tandem {word}",
        field="" if option else problem.field,
        found=problem.found,
        expected=problem.expected,
        remedy=remedy,
    )


def _leads_to(prefix: str, path: str) -> bool:
    return path == prefix or path.startswith((f"{prefix}.", f"{prefix}["))


# The source of a merge or an ingest, from arguments. Reads the names of local files only.


_BY_ENDING: Mapping[str, SourceFormat] = {
    ".csv": SourceFormat.CSV,
    ".tsv": SourceFormat.CSV,
    ".json": SourceFormat.JSON,
    ".jsonl": SourceFormat.JSON,
    ".ndjson": SourceFormat.JSON,
    ".parquet": SourceFormat.PARQUET,
}
_MOST_FILES = 1_000
"""Files of a source whose names are looked at."""
_COMPRESSED = frozenset({".gz", ".bz2", ".zst", ".snappy", ".lz4"})


def source(
    location: str,
    format_: SourceFormat | None,
    options: Sequence[str],
    version: int | None,
) -> Typed:
    """`spec.source` of a resource. The format is that of the file's name, unless it is given.
    `options` as typed, `KEY=VALUE`.

    Raises: InvalidSpec for a location that is none, or a format that the name does not tell.
    """
    from tandem.cli.commands.target import as_location, key_and_value

    if catalog_of_url(location) is not None:
        raise InvalidSpec(
            "a source cannot be named by its catalog",
            resource="--from",
            found=without_userinfo(location),
            expected="the location of a table or of files",
            remedy="Give the location, unless the catalog manages the table: such a table cannot "
            "be a source",
        )
    pairs = dict(key_and_value(text, "--source-option") for text in options)
    plain = "://" not in location and "/" not in location
    # A file of the working directory has no slash, which a table must have.
    url = as_location(f"./{location}" if plain else location)
    found = format_ or _format_of(url)
    if found is None:
        raise InvalidSpec(
            "the name of the source does not tell its format",
            resource="--from",
            found=location,
            expected="a Delta table, or files that end in .parquet, .csv or .json",
            remedy=f"Add `--format` with one of {', '.join(SourceFormat)}",
        )
    return Typed(
        "--from",
        {
            "format": Typed("--format", found.value),
            "location": Typed("--from", url),
            "options": Typed("--source-option", pairs or None, keyed=True),
            "version": Typed("--source-version", version),
        },
    )


def _format_of(url: str) -> SourceFormat | None:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.scheme != "file" or not path.is_dir():
        return _by_name(path)
    if (path / "_delta_log").is_dir():
        return SourceFormat.DELTA
    formats = {_by_name(name) for name in islice(_files(path), _MOST_FILES)}
    return formats.pop() if len(formats) == 1 else None


def _files(path: Path) -> Iterator[Path]:
    """The files of a folder, and of folders in it, such as `year=2024`."""
    for folder, below, names in os.walk(path):
        below[:] = sorted(filter(_is_read, below))
        yield from (Path(folder, name) for name in sorted(filter(_is_read, names)))


def _is_read(name: str) -> bool:
    """Whether a job reads files of this name, or in a folder of this name: as Spark."""
    return name[0] != "." and (name[0] != "_" or "=" in name)


def _by_name(path: Path) -> SourceFormat | None:
    ending = path.suffix.lower()
    if ending in _COMPRESSED:
        ending = path.with_suffix("").suffix.lower()
    return _BY_ENDING.get(ending)
