"""Writes docs/benchmarks.md from the results of the runs; no figure is entered manually."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Figure, Report, Table

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
ORDER = (
    "goodput",
    "crowd",
    "busy",
    "converge",
    "longevity",
    "compaction",
    "mergelog",
    "hudi",
    "replay",
    "critical",
    "replace",
    "snapshot",
    "planning",
    "timeline",
    "index",
    "locks",
    "exclusive",
    "resources",
    "hanging",
)

HEAD = """# Benchmarks

<!-- Written by `make bench` from benchmarks/results/*.json. Change benchmarks/, not this page. -->

`make bench` runs all benchmarks and writes this page. `.venv/bin/python benchmarks/run.py NAME
--size small` runs one of them quickly and only prints. Each benchmark runs all engines in one run,
on the same files, each engine in a separate process. It checks every result before its time counts.
Ratios hold on other machines; absolute figures hold for the machine below them. Figures are
medians, with minimum and maximum in brackets.
"""


def tables_text(report: Report) -> str:
    """The report as Markdown, for a terminal and for the page."""
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
    """Store the results of a run, for the page and for comparisons."""
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{report.name}.json"
    content = {
        "name": report.name,
        "title": report.title,
        "setting": report.setting,
        "tables": [{"title": t.title, "columns": t.columns, "rows": t.rows} for t in report.tables],
        "checks": report.checks,
        "figures": [asdict(figure) for figure in report.figures],
        "machine": machine,
        "raw": report.raw,
    }
    target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return target


def write_page(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Write the page from all stored results."""
    parts: list[str] = []
    aims: list[tuple[str, ...]] = []
    for name in ORDER:
        path = results / f"{name}.json"
        if not path.is_file():
            continue
        found = json.loads(path.read_text())
        for figure in (Figure(**each) for each in found.get("figures", ())):
            link = f"[{figure.what}](#{_anchor(found['title'])})"
            aims.append((link, figure.found, figure.aim, "yes" if figure.met else "**no**"))
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
    head = [HEAD.rstrip()]
    if aims:
        columns = ("figure", "measured", "aim", "reached")
        head.append(_table(Table("", columns, tuple(aims))))
    page.write_text("\n\n".join([*head, *parts]) + "\n")


def _anchor(title: str) -> str:
    """GitHub's anchor of a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _machine(machine: dict[str, Any]) -> str:
    versions = dict(machine["versions"])
    facts = [
        f"{versions.pop('cores')} cores ({versions.pop('processor')})",
        f"{versions.pop('memory')} of memory",
        versions.pop("system"),
        *(f"{name} {version}" for name, version in versions.items()),
    ]
    text = f"*{machine['day']}: " + ", ".join(facts) + "."
    if "others_before" in machine:
        others, when = machine["others_before"], "right before"
    else:
        others, when = machine["load_before"], "in the minute before"
    shared = "The machine was shared" if others > 0.5 else "The machine was otherwise idle"
    text += f" {shared}: {others:.1f} other processes were runnable, on average, {when}."
    return text + "*"
