"""Every command on every foreign table: an answer or an error that names the table, no traceback.

A command ends with 0, 1 or 2; a scan gives the rows, or refuses for the reason that
`support.foreign.tables` names.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from badinput.bad_input import document
from support.foreign.tables import ODD_PLACES, TABLES, write
from support.jobs.quick_jobs import QuickJobs
from support.some import every_case
from tandem.cli.app import app
from tandem.errors import Reason

REF = {"tableRef": {"name": "lake"}}


def command(*words: str) -> Result:
    """A command in this process; fails with its traceback where it ends in one."""
    result = CliRunner().invoke(app, list(words))
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        pytest.fail(f"{words}:\n" + "".join(traceback.format_exception(error)))
    assert result.exit_code in (0, 1, 2), words
    assert "Traceback" not in result.stderr
    return result


def looks(location: str) -> Iterator[tuple[str, ...]]:
    """Every command that only looks."""
    yield "scan", location
    yield "scan", location, "-o", "arrow"
    yield "scan", location, "--version", "0", "--limit", "1", "-o", "json"
    yield "scan", location, "--columns", "id", "-o", "json"
    yield "table", "show", location
    yield "table", "segments", location, "--all"
    yield "history", location
    yield "history", location, "--html", "-"
    yield "locks", location
    yield "clean", location, "--dry-run"
    yield "index", "count", location
    yield "index", "show", location
    yield "index", "verify", location
    yield "index", "bounds", location, "--columns", "id"


def operations(location: str) -> list[dict[str, Any]]:
    """A resource of every kind, on column `id`."""
    source = {"format": "Delta", "location": location}
    merge = {"source": source, "on": "t.id = s.id", "whenMatched": [{"delete": {}}]}
    of: dict[str, tuple[str, dict[str, Any]]] = {
        "tidy": ("TableCompaction", {"type": "Major"}),
        "sort": ("TableCompaction",
                 {"type": "Major", "layout": {"strategy": "Sort", "columns": ["id"]}}),
        "z": ("TableCompaction",
              {"type": "Major", "layout": {"strategy": "ZOrder", "columns": ["id"]}}),
        "chosen": ("TableCompaction", {"type": "Custom", "custom": {"where": "id > 0"}}),
        "purge": ("SegmentRewrite", {"segments": ["0"], "rewrite": {"purgeDeleted": True}}),
        "more": ("TableUpdate", {"update": {"where": "id = 1", "set": {"id": "id + 1"}}}),
        "less": ("TableUpdate", {"delete": {"where": "id = 1"}}),
        "merge": ("TableUpdate", {"merge": merge}),
        "load": ("TableIngest", {"source": source}),
    }  # fmt: skip
    return [document(kind, name, **REF, **spec) for name, (kind, spec) in of.items()]


def resources(folder: Path, location: str, found: Sequence[dict[str, Any]]) -> str:
    file = folder / "resources.yaml"
    lake = document("LakeTable", "lake", location=location, enableDeletionVectors=True)
    file.write_text(yaml.safe_dump_all([lake, *found]))
    return str(file)


def names_it(result: Result, root: Path) -> bool:
    """An error of people's: the table's location, as it was typed or as a URL."""
    text = "".join(result.stderr.split())
    return any("".join(each.split()) in text for each in (str(root), root.as_uri()))


SAMPLE = (
    "plain",
    "wide",
    "odd partition",
    "mapped by id",
    "deletion vector",
    "absurd properties",
    "type variant",
    "no data file",
)
"""Tables for all commands and operations; `make matrix` takes every one."""
REST = [pytest.param(name, marks=pytest.mark.matrix) for name in TABLES if name not in SAMPLE]


@pytest.mark.part(9)
@pytest.mark.parametrize("name", TABLES)
def test_no_command_ends_in_a_traceback(name: str, tmp_path: Path) -> None:
    """Of the commands that only look, beside `scan` and `plan`, only the sample has all."""
    most = None if name in SAMPLE or every_case() else 1
    foreign = TABLES[name]
    root = tmp_path / "lake"
    foreign.make(root)
    for words in islice(looks(str(root)), most):
        result = command(*words)
        assert result.exit_code == 0 or names_it(result, root), (words, result.stderr)

    scanned = command("scan", str(root), "-o", "json")
    if foreign.reason is None:
        assert scanned.exit_code == 0, scanned.stderr
        rows = [json.loads(line) for line in scanned.stdout.splitlines()]
        assert foreign.rows is None or len(rows) == foreign.rows
    else:
        # A path that leads out may be that of a shallow clone: then an option is missing.
        assert scanned.exit_code == (2 if foreign.reason is Reason.LOCATION_NOT_ALLOWED else 1)
        assert f"Error ({foreign.reason})" in scanned.stderr
        assert scanned.stdout == ""
    if foreign.reason is Reason.UNSUPPORTED_FEATURE:
        # Before Spark is started.
        filtered = command("scan", str(root), "--where", "id > 0")
        assert f"Error ({foreign.reason})" in filtered.stderr

    planned = command("plan", "-f", resources(tmp_path, root.as_uri(), operations(root.as_uri())))
    assert "LakeTable/lake" in planned.stdout + planned.stderr


@pytest.mark.part(2)
@pytest.mark.parametrize("name", [*SAMPLE, *REST])
def test_no_operation_ends_in_a_traceback(name: str, tmp_path: Path, jobs: QuickJobs) -> None:
    root = tmp_path / "lake"
    TABLES[name].make(root)
    before = command("scan", str(root), "-o", "json").stdout
    wanted = ("tidy", "less")
    chosen = [d for d in operations(root.as_uri()) if d["metadata"]["name"] in wanted]
    for each in chosen:
        each["spec"]["backoffLimit"] = 0
    chosen[1]["spec"]["delete"]["where"] = "1 = 2"
    result = command("run", "-f", resources(tmp_path, root.as_uri(), chosen), "-q")
    assert "Traceback" not in result.stdout
    assert "LakeTable/lake" in result.stdout + result.stderr
    after = command("scan", str(root), "-o", "json").stdout
    assert sorted(after.splitlines()) == sorted(before.splitlines())


@pytest.mark.parametrize("place", ODD_PLACES)
def test_a_table_may_lie_anywhere(place: str, tmp_path: Path, jobs: QuickJobs) -> None:
    root = tmp_path / place
    write(root)
    for words in looks(str(root)):
        result = command(*words)
        assert result.exit_code == 0 or names_it(result, root), (words, result.stderr)
    command("run", "-q", "-f", resources(tmp_path, root.as_uri(), operations(root.as_uri())[:1]))
