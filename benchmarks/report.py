"""docs/benchmarks.md from what the runs wrote: no figure in it was typed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Report, Table

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
ORDER = ("goodput", "compaction", "replay", "snapshot", "locks", "resources")

HEAD = """# Benchmarks

<!-- Written by `make bench` from benchmarks/results/*.json. Change benchmarks/, not this page. -->

`make bench` measures and writes this page anew; `.venv/bin/python benchmarks/run.py NAME --size
small` is a quick look at one of them, and writes nothing. Each benchmark runs all engines side by
side in one run, on the same files, each engine in a process of its own, and checks every result
before its time counts. Ratios mean something elsewhere; absolute figures belong to the machine
below them. Figures are medians, with least and greatest in brackets.
"""


def tables_text(report: Report) -> str:
    """The report for a terminal, or inside the page: both are Markdown."""
    parts = [f"## {report.title}", report.setting]
    for table in report.tables:
        if table.title:
            parts.append(f"**{table.title}**")
        parts.append(_table(table))
    parts.append("Checked in this run: " + " ".join(report.checks))
    return "\n\n".join(parts)


def _table(table: Table) -> str:
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def save(report: Report, machine: dict[str, Any]) -> Path:
    """Keep what a run found, for the page and for whoever wants to compare."""
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{report.name}.json"
    content = {
        "name": report.name,
        "title": report.title,
        "setting": report.setting,
        "tables": [{"title": t.title, "columns": t.columns, "rows": t.rows} for t in report.tables],
        "checks": report.checks,
        "machine": machine,
        "raw": report.raw,
    }
    target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return target


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """The page from all results that there are."""
    parts = [HEAD.rstrip()]
    for name in ORDER:
        path = results / f"{name}.json"
        if not path.is_file():
            continue
        found = json.loads(path.read_text())
        report = Report(
            name,
            found["title"],
            found["setting"],
            tuple(
                Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"])))
                for t in found["tables"]
            ),
            tuple(found["checks"]),
        )
        parts += [tables_text(report), _machine(found["machine"])]
    page.write_text("\n\n".join(parts) + "\n")


def _machine(machine: dict[str, Any]) -> str:
    versions = dict(machine["versions"])
    told = [
        f"{versions.pop('cores')} cores ({versions.pop('processor')})",
        f"{versions.pop('memory')} of memory",
        versions.pop("system"),
        *(f"{name} {version}" for name, version in versions.items()),
    ]
    text = f"*{machine['day']}: " + ", ".join(told) + "."
    before = machine["load_before"]
    if before > 0.5:
        text += (
            f" The machine was shared: {before:.1f} other processes were runnable, on average, in "
            "the minute before."
        )
    return text + "*"
