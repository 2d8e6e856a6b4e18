"""Writes docs/benchmarks.md and benchmarks/measurements.md from the results of the runs; no figure
is entered manually.

The page in `docs` has the comparisons with other engines; all aims and the measurements of Tandem
alone are beside the benchmarks.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Figure, Report, Table

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
MEASUREMENTS = ROOT / "benchmarks" / "measurements.md"
DETAILS, PEERS = "../benchmarks/measurements.md", "../docs/benchmarks.md"
"""The second page as the first one links to it, and the first one as the second does."""
ORDER = (
    "goodput",
    "crowd",
    "busy",
    "converge",
    "longevity",
    "compaction",
    "small_files",
    "rewrites",
    "mergelog",
    "hudi",
    "replay",
    "critical",
    "distance",
    "partcopy",
    "row_tracking",
    "tracked_changes",
    "catalog_commit",
    "bigsort",
    "replace",
    "snapshot",
    "planning",
    "timeline",
    "index",
    "index_lookups",
    "locks",
    "exclusive",
    "resources",
    "hanging",
    "crowded",
)
COMPARED = frozenset(
    {
        "goodput",
        "compaction",
        "small_files",
        "rewrites",
        "hudi",
        "replace",
        "snapshot",
        "index",
        "index_lookups",
    }
)
"""Those that measure other engines, too."""

HEAD = """# Benchmarks

<!-- Written by `make bench` from benchmarks/results/*.json. Change benchmarks/, not this page. -->

`make bench` runs all benchmarks and writes this page and the
[aims and measurements of Tandem alone](../benchmarks/measurements.md).
`.venv/bin/python benchmarks/run.py NAME --size small` runs one of them quickly and only prints.
Each benchmark runs all engines in one run, on the same files, each engine in a separate process,
and checks every result. Ratios hold on other machines, absolute figures do not. Figures are
medians, with minimum and maximum in brackets.
"""

MORE = """# Aims, and measurements of Tandem alone

<!-- Written by `make bench` from benchmarks/results/*.json. Change benchmarks/, not this page. -->

[Benchmarks](../docs/benchmarks.md) has the machine, and the comparisons with other engines.
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


def write_page(
    results: Path = RESULTS, page: Path = PAGE, measurements: Path = MEASUREMENTS
) -> None:
    """Write both pages from all stored results: the comparisons and which aims are missed, and all
    figures with aims and the rest."""
    stored = {name: results / f"{name}.json" for name in ORDER}
    found = {n: json.loads(path.read_text()) for n, path in stored.items() if path.is_file()}
    shared = _shared([each["machine"]["versions"] for each in found.values()])
    aims: list[tuple[str, ...]] = []
    sums: list[tuple[str, ...]] = []
    compared: list[str] = []
    others: list[str] = []
    for name, each in found.items():
        figures = [Figure(**figure) for figure in each.get("figures", ())]
        here, there = ("", PEERS) if name in COMPARED else (DETAILS, "")
        link = f"{{}}#{_anchor(each['title'])}"
        for figure in figures:
            row = (f"[{figure.what}]({link.format(there)})", figure.found, figure.aim)
            aims.append((*row, "yes" if figure.met else "**no**"))
        if figures:
            missed = [
                f"{what}: {f.found}, aim {f.aim}"
                for what, f in zip(_whole(figures), figures, strict=True)
                if not f.met
            ]
            reached = f"{len(figures) - len(missed)} of {len(figures)}"
            row = (f"[{each['title']}]({link.format(here)})", reached, "<br>".join(missed))
            sums.append(row)
        parts = compared if name in COMPARED else others
        parts += [tables_text(_report(name, each)), _machine(each["machine"], shared)]
    head = [HEAD.rstrip(), _sentence("All runs", shared)]
    more = [MORE.rstrip()]
    if aims:
        head.append(_table(Table("", ("benchmark", "aims reached", "missed"), tuple(sums))))
        columns = ("figure", "measured", "aim", "reached")
        more.append(_table(Table("", columns, tuple(aims))))
    page.write_text("\n\n".join([*head, *compared]) + "\n")
    measurements.write_text("\n\n".join([*more, *others]) + "\n")


def _whole(figures: list[Figure]) -> list[str]:
    """What each figure is, with the words of the row above in place of `…`."""
    found: list[str] = []
    above = ""
    for figure in figures:
        if figure.what.startswith("… "):
            found.append(f"{above}, {figure.what.removeprefix('… ')}")
        else:
            above = figure.what
            found.append(above)
    return found


def _report(name: str, found: dict[str, Any]) -> Report:
    tables = (
        Table(t["title"], tuple(t["columns"]), tuple(map(tuple, t["rows"])))
        for t in found["tables"]
    )
    return Report(name, found["title"], found["setting"], tuple(tables), tuple(found["checks"]))


def _anchor(title: str) -> str:
    """GitHub's anchor of a heading."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _shared(versions: list[dict[str, str]]) -> dict[str, str]:
    """What is the same in all runs, so that it is said once."""
    first = versions[0] if versions else {}
    return {
        name: value for name, value in first.items() if all(v.get(name) == value for v in versions)
    }


def _sentence(what: str, facts: dict[str, str]) -> str:
    names = {"cores": "{} cores", "processor": "{}", "memory": "{} of memory", "system": "{}"}
    texts = (names.get(name, f"{name} {{}}").format(value) for name, value in facts.items())
    return f"{what}: {', '.join(texts)}."


def _machine(machine: dict[str, Any], shared: dict[str, str]) -> str:
    own = {name: value for name, value in machine["versions"].items() if name not in shared}
    text = "*" + (_sentence(machine["day"], own) if own else f"{machine['day']}.")
    if "others_before" in machine:
        others, when = machine["others_before"], "right before"
    else:
        others, when = machine["load_before"], "in the minute before"
    if others > 0.5:
        text += f" The machine was shared: {others:.1f} other processes were runnable {when}."
    return text + "*"
