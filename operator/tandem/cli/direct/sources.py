"""The source of a merge or an ingest, from arguments. Reads the names of local files only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tandem.cli.commands.tables import as_location
from tandem.errors import InvalidSpec
from tandem.spec.update import SourceFormat

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
    options: Mapping[str, str],
    version: int | None,
) -> dict[str, Any]:
    """`spec.source` of a resource. The format is that of the file's name, unless it is given.

    Raises: InvalidSpec for a location that is none, or a format that the name does not tell.
    """
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
    return {
        "format": found.value,
        "location": url,
        **({"options": dict(options)} if options else {}),
        **({"version": version} if version is not None else {}),
    }


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
