"""What of charts/tandem is generated: the table of values in its README.md, from the comments of
values.yaml, and the copies of crds/ that its templates read.

Used by `generate_docs.py`; tests compare the files with what this would write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "tandem"
_BEGIN = "<!-- Values: written by `make docs` from the comments of values.yaml. -->\n"
_END = "<!-- End of values. -->\n"
_KEY = re.compile(r"( *)([A-Za-z]\w*):(.*)")


@dataclass(frozen=True)
class Value:
    """A key of values.yaml that has a comment. A section's children have comments of their own."""

    path: tuple[str, ...]
    meaning: str
    section: bool
    default: Any

    @property
    def name(self) -> str:
        return ".".join(self.path)


def documented(text: str) -> Iterator[Value]:
    """All keys that have a comment, in their order.

    Raises: ValueError for a key that has none, unless it is a part of a value that has one, or
    has children with comments.
    """
    values = yaml.safe_load(text)
    found: list[tuple[tuple[str, ...], str]] = []
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
            continue
        key = _KEY.fullmatch(line)
        if key is not None:
            path = [*path[: len(key[1]) // 2], key[2]]
            found.append((tuple(path), " ".join(comment)))
        comment = []
    meanings = {path: meaning for path, meaning in found if meaning}
    inner = {path[:depth] for path in meanings for depth in range(1, len(path))}
    for path_, meaning in found:
        if not meaning and path_ not in inner:
            if not any(path_[:depth] in meanings for depth in range(1, len(path_))):
                raise ValueError(f"values.yaml: {'.'.join(path_)} has no comment")
            if any(path_[:-1] == other[:-1] for other in meanings):
                raise ValueError(f"values.yaml: {'.'.join(path_)} has no comment")
            continue
        default = values
        for name in path_:
            default = default[name]
        yield Value(path_, meaning, path_ in inner, default)


def readme() -> str:
    """The chart's README.md with a fresh table."""
    rows = ["| value | default | meaning |", "|---|---|---|"]
    for value in documented((CHART / "values.yaml").read_text()):
        meaning = value.meaning.replace("|", "\\|")
        if value.section:
            if meaning:
                rows.append(f"| **{value.name}** | | {meaning} |")
            continue
        rows.append(f"| `{value.name}` | `{json.dumps(value.default)}` | {meaning} |")
    before, _, rest = (CHART / "README.md").read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return before + _BEGIN + "\n" + "\n".join(rows) + "\n\n" + _END + after


def crd_copy(name: str) -> Path:
    """Where the chart keeps its copy of a file of crds/: Helm reads nothing outside a chart."""
    return CHART / "files" / "crds" / name


def write() -> None:
    (CHART / "README.md").write_text(readme())
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        crd_copy(file.name).write_text(file.read_text())
